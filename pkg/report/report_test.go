package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"accel/pkg/lab"
	"accel/pkg/text"
)

func document(t testing.TB, run *lab.Run) []byte {
	t.Helper()
	data, err := json.Marshal(Document(run))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestRoundTrip holds that a run read back is judged and shown the same.
func TestRoundTrip(t *testing.T) {
	for name, make := range runs {
		if name == "hostile" || name == "empty" {
			continue
		}
		run := make()
		back, err := Load(bytes.NewReader(document(t, run)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var a, b bytes.Buffer
		if err := errors.Join(HTML(&a, run), Text(&a, run, 80), HTML(&b, back), Text(&b, back, 80)); err != nil {
			t.Fatal(err)
		}
		if a.String() != b.String() {
			t.Errorf("%s: the report differs after reading back", name)
		}
		if diff := cmp.Diff(string(document(t, run)), string(document(t, back))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestDocumentHoldsNoStrangeNumbers: JSON has none.
func TestDocumentHoldsNoStrangeNumbers(t *testing.T) {
	run := small()
	for i := range run.Transfers {
		tr := &run.Transfers[i]
		share := math.NaN()
		switch i % 4 {
		case 0:
			tr.Goodput, tr.LoadedRTT, tr.Share = math.Inf(1), math.NaN(), &share
			if len(tr.Samples) > 0 {
				tr.Samples[0].DeliveryRate, tr.Samples[1].RTT = math.NaN(), math.Inf(-1)
			}
		case 1:
			tr.Seconds = math.NaN()
		}
	}
	before := len(run.Transfers[0].Samples)
	if s := string(document(t, run)); strings.Contains(s, "NaN") {
		t.Error("NaN in the document")
	}
	if !math.IsNaN(run.Transfers[1].Seconds) || len(run.Transfers[0].Samples) != before {
		t.Error("the run itself was changed")
	}
	got := htmlOf(t, run)
	if m := noNumber.FindString(got); m != "" {
		t.Errorf("%q in the page", m)
	}
}

func TestLoadRefuses(t *testing.T) {
	good := string(document(t, tooFew()))
	change := func(old, to string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the document has no %s", old)
		}
		return strings.Replace(good, old, to, 1)
	}
	long := strings.Repeat("x", maxString+1)
	tests := []struct {
		name, input string
		want        error
		says        string
	}{
		{"empty", "", ErrDamaged, "empty"},
		{"white space", " \n\t", ErrDamaged, "empty"},
		{"no JSON", "PK\x03\x04", ErrDamaged, "no JSON at byte 1"},
		{"cut off", good[:len(good)/2], ErrDamaged, "ends too early"},
		{"more after it", good + "{}", ErrDamaged, "no JSON"},
		{"a list", "[]", ErrDamaged, "array"},
		{"null", "null", ErrDamaged, "no schema"},
		{"another document", `{"schema":"accel.status/1"}`, ErrDamaged, "accel.status/1"},
		{"newer", change(lab.Schema, "accel.compare/2"), ErrNewer, "accel.compare/2"},
		{"no version", change(lab.Schema, "accel.compare/x"), ErrDamaged, "accel.compare/x"},
		{"a text for a number", change(`"rounds":3`, `"rounds":"3"`), ErrDamaged, "rounds"},
		{"rounds below zero", change(`"rounds":3`, `"rounds":-3`), ErrDamaged, "-3"},
		{"too many rounds", change(`"rounds":3`, `"rounds":1000000`), ErrTooLarge, "1000000"},
		{"no such path", change(`{"path":0,"arm":0`, `{"path":7,"arm":0`), ErrDamaged, "transfer 0"},
		{"no such arm", change(`{"path":0,"arm":0`, `{"path":0,"arm":-1`), ErrDamaged, "transfer 0"},
		{"time below zero", change(`"seconds":`, `"seconds":-`), ErrDamaged, "transfer 0"},
		{"absurd number", change(`"loss_percent":1`, `"loss_percent":1e300`), ErrDamaged, "1e+300"},
		{"number beyond all", change(`"loss_percent":1`, `"loss_percent":1e999`), ErrDamaged, "loss_percent"},
		{"long text", change(`"kernel":"`, `"kernel":"`+long), ErrTooLarge, "4"},
		{"many arms", change(`"arms":[`, `"arms":[`+strings.Repeat(`{"name":"x"},`, maxArms)), ErrTooLarge, "arms"},
		{"deep", strings.Repeat("[", 100_000), ErrDamaged, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(strings.NewReader(tt.input))
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v; want %v that says %q", err, tt.want, tt.says)
			}
			if err != nil && len(err.Error()) > 400 {
				t.Errorf("the error is %d bytes long", len(err.Error()))
			}
		})
	}
	if _, err := Load(io.LimitReader(spaces{}, maxBytes+100)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a huge file: %v", err)
	}
	broken := errors.New("broken disk")
	if _, err := Load(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

// spaces is a file without an end.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// shown holds that a run that Load let through can be judged, shown and saved,
// without a strange number or a way out of the page.
func shown(t interface{ Fatalf(string, ...any) }, run *lab.Run) {
	var b bytes.Buffer
	if err := Text(&b, run, 80); err != nil {
		t.Fatalf("%v", err)
	}
	for _, l := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		if n := text.Width(l); n > 80 {
			t.Fatalf("%d columns: %q", n, l)
		}
	}
	p := newPage(run, Judge(run))
	for _, figures := range [][]figure{p.First, p.Transfers, p.Times} {
		for _, g := range figures {
			for _, i := range append(g.Wide.Items, g.Narrow.Items...) {
				if m := noNumber.FindString(i.D + " " + i.X + " " + i.Y); m != "" {
					t.Fatalf("%s: %q in a picture", g.Title, m)
				}
			}
		}
	}
	if err := HTML(io.Discard, run); err != nil {
		t.Fatalf("%v", err)
	}
	if _, err := json.Marshal(Document(run)); err != nil {
		t.Fatalf("%v", err)
	}
}

// FuzzLoad begins with small documents: the fuzzer shortens whatever it finds of
// interest, and would do nothing else with large ones.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"schema":"accel.compare/1"}`))
	f.Add([]byte(`{"schema":"accel.compare/1","plan":{"arms":[{},{}],"paths":[{}],"sizes":[9],"flows":1,"limit_seconds":6},"transfers":[{"arm":1,"size":9,"seconds":1,"samples":[{"at":1,"rtt":2},{"at":2}]}]}`))
	f.Add([]byte(`{"schema":"accel.compare/1","plan":{"arms":[{"name":"a"},{}],"paths":[{"rate_mbit":1e15},{}],"sweep":"rate","sizes":[9]},"transfers":[{"size":9,"finished":true,"seconds":1e-300,"goodput":1e15},{"arm":1,"size":9,"finished":true,"seconds":1e15,"goodput":5e-324}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		run, err := Load(bytes.NewReader(data))
		if err == nil {
			shown(t, run)
			return
		}
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) && !errors.Is(err, ErrTooLarge) {
			t.Fatalf("an error without a kind: %v", err)
		}
	})
}

// TestAnyRun goes deeper than a fuzzer gets by changing bytes: whole runs of
// absurd numbers that Load still lets through.
func TestAnyRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.SampledFrom([]float64{0, 5e-324, 1e-300, 1e-9, 0.001, 0.5, 0.99, 1, 1.0000001, 2, 3, 59.9, 60, 61, 1e6, 1e9, maxNumber})
		name := rapid.SampledFrom([]string{"", "a", "cubic", "a name that is longer than any column", "算法", "<b>", "e\u0301\u202e\x1b[1m"})
		run := &lab.Run{Schema: lab.Schema}
		p := &run.Plan
		p.Sweep = rapid.SampledFrom([]string{"", "loss", "rtt", "rate", "queue", "jitter", "client-buffer", "color"}).Draw(t, "sweep")
		for range rapid.IntRange(0, 4).Draw(t, "arms") {
			p.Arms = append(p.Arms, lab.Arm{Name: name.Draw(t, "arm"), Algorithm: name.Draw(t, "algorithm")})
		}
		for range rapid.IntRange(0, 4).Draw(t, "paths") {
			p.Paths = append(p.Paths, lab.Path{
				Name: name.Draw(t, "path"), RateMbit: number.Draw(t, "rate"), RTT: time.Duration(number.Draw(t, "rtt")), Jitter: time.Duration(number.Draw(t, "jitter")),
				LossPercent: number.Draw(t, "loss"), LossBurst: number.Draw(t, "burst"), QueueBDP: number.Draw(t, "bdp"), QueuePackets: int(number.Draw(t, "packets")), Loopback: rapid.Bool().Draw(t, "lo"),
			})
		}
		for range rapid.IntRange(0, 2).Draw(t, "sizes") {
			p.Sizes = append(p.Sizes, int64(number.Draw(t, "size")))
		}
		p.Flows = rapid.IntRange(0, 2).Draw(t, "flows")
		p.Rounds = rapid.IntRange(0, maxRounds).Draw(t, "rounds")
		p.Limit = rapid.SampledFrom([]time.Duration{0, 1, time.Minute, 1000 * time.Hour}).Draw(t, "limit")
		if len(p.Arms) > 0 && len(p.Paths) > 0 && len(p.Sizes) > 0 {
			for range rapid.IntRange(0, 30).Draw(t, "transfers") {
				tr := lab.Transfer{
					Path: rapid.IntRange(0, len(p.Paths)-1).Draw(t, "path"), Arm: rapid.IntRange(0, len(p.Arms)-1).Draw(t, "arm"), Size: rapid.SampledFrom(p.Sizes).Draw(t, "size"),
					Round: rapid.IntRange(0, 9).Draw(t, "round"), Flow: rapid.IntRange(0, 1).Draw(t, "flow"), Finished: rapid.Bool().Draw(t, "finished"), Bytes: int64(number.Draw(t, "bytes")),
					Seconds: number.Draw(t, "seconds"), Goodput: number.Draw(t, "goodput"), RetransShare: number.Draw(t, "share"), MinRTT: number.Draw(t, "min"), LoadedRTT: number.Draw(t, "loaded"),
					Algorithm: name.Draw(t, "algorithm"), Error: rapid.SampledFrom([]string{"", "", "", "reset"}).Draw(t, "error"),
				}
				for range rapid.IntRange(0, 3).Draw(t, "samples") {
					tr.Samples = append(tr.Samples, lab.Sample{At: number.Draw(t, "at"), Cwnd: rapid.IntRange(0, 1<<31).Draw(t, "cwnd"), RTT: number.Draw(t, "rtt"), DeliveryRate: number.Draw(t, "delivery")})
				}
				run.Transfers = append(run.Transfers, tr)
			}
		}
		data, err := json.Marshal(Document(run))
		if err != nil {
			t.Fatal(err)
		}
		back, err := Load(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		shown(t, back)
	})
}
