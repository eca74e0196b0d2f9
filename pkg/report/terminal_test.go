package report

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/text"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s differs (-want +got); go test ./pkg/report -update writes it anew:\n%s", file, diff)
	}
}

func TestTextGolden(t *testing.T) {
	for name, make := range runs {
		var b bytes.Buffer
		if err := Text(&b, make(), 80); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".txt", b.Bytes())
	}
}

// TestTextFits holds that no line is wider than the terminal, in either
// language, with names of wide characters too, and that nothing in a run moves
// the cursor.
func TestTextFits(t *testing.T) {
	defer text.SetLanguage("")
	for _, language := range []string{"", "zh"} {
		text.SetLanguage(language)
		for name, make := range runs {
			for _, width := range []int{0, 40, 41, 57, 72, 80, 81, 120, 300} {
				run := make()
				if width%2 == 1 {
					for i := range run.Plan.Arms {
						run.Plan.Arms[i].Name = "算法" + run.Plan.Arms[i].Name + "的一种很长的名字"
					}
				}
				var b bytes.Buffer
				if err := Text(&b, run, width); err != nil {
					t.Fatal(err)
				}
				for _, l := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
					if w := text.Width(l); w > max(width, narrowest) {
						t.Errorf("%s, %q, %d columns: %d wide: %q", name, language, width, w, l)
					}
					if text.Safe(l) != l {
						t.Errorf("%s: unsafe: %q", name, l)
					}
					if noNumber.MatchString(l) {
						t.Errorf("%s: no number: %q", name, l)
					}
				}
			}
		}
	}
}

type fullDisk struct{ left int }

var errFull = errors.New("no space left")

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriterErrors(t *testing.T) {
	for _, left := range []int{0, 5000} {
		if err := HTML(&fullDisk{left}, small()); !errors.Is(err, errFull) {
			t.Errorf("HTML on a full disk: %v", err)
		}
	}
	if err := Text(&fullDisk{}, small(), 80); !errors.Is(err, errFull) {
		t.Errorf("Text on a full disk: %v", err)
	}
}
