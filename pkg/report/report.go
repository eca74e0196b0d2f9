// Package report judges a comparison that pkg/lab has measured and shows it: as
// text for a terminal, as one self-contained HTML page with plots, and as a JSON
// document that it can read again.
//
// It never says "faster" without a number and an interval, and it says "no
// difference seen" together with the smallest difference that the rounds could
// have seen. How it comes to a verdict is described at Judge.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"accel/pkg/lab"
	"accel/pkg/text"
)

// loadError is a sentinel whose text is in the reader's language.
type loadError int

// Errors of Load, for errors.Is.
const (
	// ErrDamaged: the input is no document of a comparison, or not a whole one,
	// or it contradicts itself.
	ErrDamaged loadError = iota
	// ErrNewer: the document has a layout that this version does not know.
	ErrNewer
	// ErrTooLarge: the document is larger than any comparison would be.
	ErrTooLarge
)

func (e loadError) Error() string {
	switch e {
	case ErrNewer:
		return text.T("this result was written by a newer accel")
	case ErrTooLarge:
		return text.T("this result is larger than accel reads")
	}
	return text.T("this is not a whole result of accel compare")
}

// Saved is the JSON document of a comparison: the run, and what was judged of
// it. Load reads the run back and judges anew.
type Saved struct {
	lab.Run
	Verdicts *Verdicts `json:"verdicts"`
}

// Document gives the JSON document of a run. Numbers that JSON cannot hold (a
// division by zero somewhere) are written as 0.
func Document(run *lab.Run) *Saved {
	clean := *run
	clean.TimerLate = finite(run.TimerLate)
	clean.Transfers = make([]lab.Transfer, len(run.Transfers))
	for i, t := range run.Transfers {
		for _, f := range numbers(&t) {
			*f = finite(*f)
		}
		if t.Share != nil {
			share := finite(*t.Share)
			t.Share = &share
		}
		t.Samples = append([]lab.Sample{}, t.Samples...)
		for j := range t.Samples {
			for _, f := range sampleNumbers(&t.Samples[j]) {
				*f = finite(*f)
			}
		}
		clean.Transfers[i] = t
	}
	return &Saved{Run: clean, Verdicts: Judge(&clean)}
}

func finite(f float64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}

func numbers(t *lab.Transfer) []*float64 {
	return []*float64{&t.Seconds, &t.Goodput, &t.RetransShare, &t.SRTT, &t.MinRTT, &t.LoadedRTT, &t.FirstByte, &t.To90}
}

func sampleNumbers(s *lab.Sample) []*float64 {
	return []*float64{&s.At, &s.RTT, &s.DeliveryRate, &s.PacingRate}
}

// What Load accepts. A comparison that runs for a week stays far below.
const (
	maxBytes     = 64 << 20
	maxArms      = 64
	maxPaths     = 256
	maxSizes     = 32
	maxRounds    = 1000
	maxFlows     = 1000
	maxTransfers = 100_000
	maxSamples   = 1_000_000
	maxString    = 4096
	maxNumber    = 1e15 // of anything measured; 1 Pbit/s
)

// Load reads a document that was made of Document, whatever its file has been
// through: it returns an error that satisfies errors.Is with ErrDamaged, ErrNewer
// or ErrTooLarge, or that of the reader. A run that it returns is consistent:
// indexes are in range and numbers are finite, not negative and not absurd.
func Load(r io.Reader) (*lab.Run, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return nil, text.Errorf("reading the result: %w", err)
	}
	if len(data) > maxBytes {
		return nil, text.Errorf("%w: more than %d MiB", ErrTooLarge, maxBytes>>20)
	}
	var head struct {
		Schema *string `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, text.Errorf("%w: %s", ErrDamaged, jsonReason(data, err))
	}
	if head.Schema == nil {
		return nil, text.Errorf("%w: it names no schema", ErrDamaged)
	}
	if *head.Schema != lab.Schema {
		family, version, _ := strings.Cut(*head.Schema, "/")
		ours, _, _ := strings.Cut(lab.Schema, "/")
		if family == ours && newer(version) {
			return nil, text.Errorf("%w: its schema is %.40q, this one reads %q", ErrNewer, *head.Schema, lab.Schema)
		}
		return nil, text.Errorf("%w: its schema is %.40q, not %q", ErrDamaged, *head.Schema, lab.Schema)
	}
	run := new(lab.Run)
	if err := json.Unmarshal(data, run); err != nil {
		return nil, text.Errorf("%w: %s", ErrDamaged, jsonReason(data, err))
	}
	if err := check(run); err != nil {
		return nil, err
	}
	return run, nil
}

// newer says that a version of the schema is a whole number above 1.
func newer(version string) bool {
	if version == "" || len(version) > 9 || version == "0" || version == "1" {
		return false
	}
	return strings.Trim(version, "0123456789") == ""
}

// jsonReason puts the place of a mistake into words.
func jsonReason(data []byte, err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case len(strings.TrimSpace(string(data[:min(len(data), 1<<16)]))) == 0:
		return text.T("it is empty")
	case errors.As(err, &syntax) && syntax.Offset >= int64(len(data)):
		return text.T("it ends too early")
	case errors.As(err, &syntax):
		return text.T("no JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return text.T("%.80q is a JSON %.20s", kind.Field, kind.Value)
	}
	return fmt.Sprintf("%.200s", strings.ToValidUTF8(err.Error(), "?"))
}

func check(run *lab.Run) error {
	p := &run.Plan
	for _, n := range []struct {
		what      string
		have, max int
	}{
		{text.T("arms"), len(p.Arms), maxArms},
		{text.T("paths"), len(p.Paths), maxPaths},
		{text.T("sizes"), len(p.Sizes), maxSizes},
		{text.T("rounds"), p.Rounds, maxRounds},
		{text.T("flows"), p.Flows, maxFlows},
		{text.T("transfers"), len(run.Transfers), maxTransfers},
		{text.T("combinations of arm, path and size"), len(p.Arms) * len(p.Paths) * len(p.Sizes), 1 << 13},
	} {
		if n.have > n.max {
			return text.Errorf("%w: %d %s, at most %d", ErrTooLarge, n.have, n.what, n.max)
		}
		if n.have < 0 {
			return text.Errorf("%w: %d %s", ErrDamaged, n.have, n.what)
		}
	}
	texts := []string{run.Version, run.Command, p.Sweep, p.Against, run.Kernel, run.Distribution, run.Machine}
	for _, a := range p.Arms {
		texts = append(texts, a.Name, a.Algorithm, a.Qdisc, a.Source)
		if len(a.Settings) > 1000 || len(a.NotCompared) > 1000 {
			return text.Errorf("%w: the arm %.40q has more than 1000 settings", ErrTooLarge, a.Name)
		}
		for _, s := range a.Settings {
			texts = append(texts, string(s.Key), s.Value)
		}
		texts = append(texts, a.NotCompared...)
	}
	for _, q := range p.Paths {
		texts = append(texts, q.Name, q.Source)
		for _, f := range []float64{q.RateMbit, float64(q.RTT), float64(q.Jitter), q.LossPercent, q.LossBurst, q.ReorderPercent, q.QueueBDP, float64(q.QueuePackets), float64(q.ClientBuffer)} {
			if !(f >= 0 && f <= maxNumber) {
				return text.Errorf("%w: a path with the number %g", ErrDamaged, f)
			}
		}
	}
	for _, s := range p.Sizes {
		if s < 0 || s > maxNumber {
			return text.Errorf("%w: a size of %d bytes", ErrDamaged, s)
		}
	}
	if p.Limit < 0 || p.Limit > 1000*time.Hour {
		return text.Errorf("%w: a limit of %s", ErrDamaged, p.Limit)
	}
	if !(run.TimerLate >= 0 && run.TimerLate <= maxNumber) {
		return text.Errorf("%w: timers that are %g ms late", ErrDamaged, run.TimerLate)
	}
	samples := 0
	for i := range run.Transfers {
		t := &run.Transfers[i]
		texts = append(texts, t.Algorithm, t.Error)
		if t.Path < 0 || t.Path >= len(p.Paths) || t.Arm < 0 || t.Arm >= len(p.Arms) || t.Round < 0 || t.Round >= maxRounds || t.Flow < 0 || t.Flow >= maxFlows || t.Bytes < 0 {
			return text.Errorf("%w: transfer %d is of no path, arm, round or flow of the plan", ErrDamaged, i)
		}
		all := numbers(t)
		if t.Share != nil {
			all = append(all, t.Share)
		}
		for j := range t.Samples {
			all = append(all, sampleNumbers(&t.Samples[j])...)
			if t.Samples[j].Cwnd < 0 || t.Samples[j].Cwnd > 1<<31 {
				return text.Errorf("%w: transfer %d has a congestion window of %d", ErrDamaged, i, t.Samples[j].Cwnd)
			}
		}
		if samples += len(t.Samples); samples > maxSamples {
			return text.Errorf("%w: more than %d samples", ErrTooLarge, maxSamples)
		}
		for _, f := range all {
			if !(*f >= 0 && *f <= maxNumber) {
				return text.Errorf("%w: transfer %d has the number %g", ErrDamaged, i, *f)
			}
		}
	}
	for _, s := range texts {
		if len(s) > maxString {
			return text.Errorf("%w: a text of %d bytes", ErrTooLarge, len(s))
		}
		if !utf8.ValidString(s) {
			return text.Errorf("%w: a text that is no UTF-8", ErrDamaged)
		}
	}
	for _, when := range []time.Time{run.Started, run.Ended} {
		if y := when.Year(); y < 0 || y > 9999 {
			return text.Errorf("%w: the year %d", ErrDamaged, y)
		}
	}
	return nil
}
