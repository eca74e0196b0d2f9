package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"accel/pkg/lab"
	"accel/pkg/report"
)

// result is one comparison as it was kept.
type result struct {
	run *lab.Run
	*report.Verdicts
}

func load(dir, name string) (*result, error) {
	f, err := os.Open(filepath.Join(dir, name+".json"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	run, err := report.Load(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &result{run, report.Judge(run)}, nil
}

// arm gives the index of an arm, or -1.
func (r *result) arm(name string) int {
	return slices.IndexFunc(r.run.Plan.Arms, func(a lab.Arm) bool { return a.Name == name })
}

// times is how many times as fast boost is as an arm, with its interval.
type times struct {
	point, low, high float64 // point is the ratio of the medians
}

func (t times) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", t.point, t.low, t.high) }

// against compares boost, the first arm, with another one in a cell. The interval
// that the judge gives is of the inverse. An end that is not bounded is 0 or +Inf.
func (r *result) against(c *report.Cell, arm int) times {
	t := times{high: math.Inf(1)}
	if b, o := c.Arms[0].Seconds, c.Arms[arm].Seconds; b != nil && o != nil {
		t.point = o.Median / b.Median
	}
	for _, k := range c.Comparisons {
		if k.Arm != arm {
			continue
		}
		if k.Ratio.High != nil {
			t.low = 1 / *k.Ratio.High
		}
		if k.Ratio.Low != nil {
			t.high = 1 / *k.Ratio.Low
		}
	}
	return t
}

func size(bytes int64) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%d MB", bytes>>20)
	}
	return fmt.Sprintf("%d KB", bytes>>10)
}

// means collects ratios for geometric means.
type means map[string][]float64

func (m means) add(key string, v float64) { m[key] = append(m[key], v) }

func (m means) geometric(key string) string {
	if len(m[key]) == 0 {
		return "not measured"
	}
	sum := 0.0
	for _, v := range m[key] {
		sum += math.Log(v)
	}
	return fmt.Sprintf("%.2f (%d cells)", math.Exp(sum/float64(len(m[key]))), len(m[key]))
}

// candidateResults are the comparisons of candidates.
func candidateResults() []string {
	var names []string
	for _, c := range comparisons {
		if strings.HasPrefix(c.name, "candidates-") {
			names = append(names, c.name)
		}
	}
	return names
}

// summarize writes boost.md: what the results of boost say together. Results
// that are not there are said to be missing.
func summarize(dir string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# boost in figures\n\nMade of the results beside this page by `go run ./test/lab/bench -summary`; [docs/boost.md](../boost.md) says what they mean.\n"+
		"Each ratio is how many times as fast boost is (ratio of the median times), with the 95 %% interval of Hodges and Lehmann.\n")
	var missing []string
	get := func(name string) *result {
		r, err := load(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, name)
			return nil
		}
		if err != nil {
			missing = append(missing, err.Error())
			return nil
		}
		return r
	}

	for _, group := range []struct{ prefix, title string }{
		{"boost", "Debian 12"}, {"boost-trixie", "Debian 13"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| path | size | boost | bbr with fq | cubic | boost by bbr | boost by cubic | resent: boost, bbr |\n|---|---|---|---|---|---|---|---|\n", group.title)
		m := means{}
		below := 0
		kernel := ""
		for _, p := range boostPaths {
			var parts []*result
			for _, prefix := range []string{group.prefix, group.prefix + "-large"} {
				if group.prefix == "boost-trixie" && (!p.trixie || prefix != group.prefix) {
					continue
				}
				if r := get(prefix + "-" + p.name); r != nil {
					parts = append(parts, r)
				}
			}
			for _, r := range parts {
				kernel = r.run.Kernel
				bbr, cubic := r.arm("bbr"), r.arm("cubic")
				for i := range r.Cells {
					c := &r.Cells[i]
					toBBR, toCubic := r.against(c, bbr), r.against(c, cubic)
					fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s, %s |\n", p.name, size(c.Size),
						seconds(c, 0), seconds(c, bbr), seconds(c, cubic), toBBR, toCubic, share(c, 0), share(c, bbr))
					loss := "clean"
					if p.lossy {
						loss = "lossy"
					}
					m.add("bbr "+loss+" "+size(c.Size), toBBR.point)
					m.add("cubic "+loss+" "+size(c.Size), toCubic.point)
					if c.Size >= 640<<10 && toBBR.high < 0.97 {
						below++
					}
				}
			}
		}
		fmt.Fprintf(&b, "\nKernel %s. Geometric means over the paths:\n\n| boost by | paths | 64 KB | 640 KB | 8 MB | 25 MB |\n|---|---|---|---|---|---|\n", kernel)
		for _, of := range []string{"bbr clean", "bbr lossy", "cubic clean", "cubic lossy"} {
			name, paths, _ := strings.Cut(of, " ")
			fmt.Fprintf(&b, "| %s | %s", name, paths)
			for _, s := range []string{"64 KB", "640 KB", "8 MB", "25 MB"} {
				fmt.Fprintf(&b, " | %s", m.geometric(of+" "+s))
			}
			fmt.Fprintf(&b, " |\n")
		}
		fmt.Fprintf(&b, "\nCells from 640 KB up whose whole interval against bbr lies below 0.97: %d.\n", below)
	}

	fmt.Fprintf(&b, "\n## Candidates\n\nWhat was tried, each beside plain bbr (wmem: beside the initial window alone).\n\n| path | size | setting | median | by the first | resent |\n|---|---|---|---|---|---|\n")
	for _, name := range candidateResults() {
		r := get(name)
		if r == nil {
			continue
		}
		for i := range r.Cells {
			c := &r.Cells[i]
			for a := range c.Arms {
				ratio := "1"
				for _, k := range c.Comparisons {
					if k.Arm == a {
						ratio = fmt.Sprintf("%.2f (%s)", c.Arms[0].Seconds.Median/c.Arms[a].Seconds.Median, k.Outcome)
					}
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", strings.TrimPrefix(name, "candidates-"), size(c.Size), r.run.Plan.Arms[a].Name, seconds(c, a), ratio, share(c, a))
			}
		}
	}

	fmt.Fprintf(&b, "\n## Beside published tunings\n\nA loss is a cell in which an arm is faster than boost, after Holm's correction.\n\n| path | size | boost | fastest arm | faster than | losses to |\n|---|---|---|---|---|---|\n")
	cells, lost := 0, 0
	for _, p := range boostPaths {
		r := get("arms-" + p.name)
		if r == nil {
			continue
		}
		for i := range r.Cells {
			c := &r.Cells[i]
			best := 0
			for a := range c.Arms {
				if s := c.Arms[a].Seconds; s != nil && (c.Arms[best].Seconds == nil || s.Median < c.Arms[best].Seconds.Median) {
					best = a
				}
			}
			var to []string
			wins := 0
			for _, k := range c.Comparisons {
				switch {
				case k.Outcome != report.Differs:
				case k.Faster == 0:
					wins++
				default:
					to = append(to, r.run.Plan.Arms[k.Arm].Name)
				}
			}
			cells++
			if len(to) > 0 {
				lost++
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s %s | %d of %d | %s |\n", p.name, size(c.Size), seconds(c, 0), r.run.Plan.Arms[best].Name, seconds(c, best), wins, len(c.Comparisons), strings.Join(to, ", "))
		}
	}
	fmt.Fprintf(&b, "\nCells with a loss: %d of %d.\n", lost, cells)

	fmt.Fprintf(&b, "\n## What must not become worse\n\n| comparison | path | size | boost by bbr | RTT under load, ms: boost, bbr | resent: boost, bbr | left to a competing cubic: boost, bbr |\n|---|---|---|---|---|---|---|\n")
	for _, name := range []string{"worst-competing", "worst-setup-loss20", "worst-last-mile", "worst-last-mile-competing", "lan"} {
		r := get(name)
		if r == nil {
			continue
		}
		bbr := r.arm("bbr")
		for i := range r.Cells {
			c := &r.Cells[i]
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s, %s | %s, %s | %s, %s |\n", name, strings.TrimSpace(r.run.Plan.Paths[c.Path].Name), size(c.Size), r.against(c, bbr),
				number(c.Arms[0].LoadedRTT, "%.0f"), number(c.Arms[bbr].LoadedRTT, "%.0f"), share(c, 0), share(c, bbr),
				number(c.Arms[0].Share, "%.2f"), number(c.Arms[bbr].Share, "%.2f"))
		}
	}
	if len(missing) > 0 {
		fmt.Fprintf(&b, "\nNot measured: %s.\n", strings.Join(missing, ", "))
	}
	return os.WriteFile(filepath.Join(dir, "boost.md"), b.Bytes(), 0o644)
}

// seconds is the median time of an arm.
func seconds(c *report.Cell, arm int) string {
	e := c.Arms[arm].Seconds
	switch {
	case e == nil:
		return "–"
	case e.Above:
		return fmt.Sprintf("more than %.0f s", e.Median)
	}
	return fmt.Sprintf("%.3g s", e.Median)
}

// share is the median share of what an arm sent again.
func share(c *report.Cell, arm int) string {
	e := c.Arms[arm].RetransShare
	if e == nil {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", e.Median*100)
}

func number(e *report.Estimate, format string) string {
	if e == nil {
		return "–"
	}
	return fmt.Sprintf(format, e.Median)
}
