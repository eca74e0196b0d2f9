package report

import "math"

// scale maps numbers to 0..1, linearly or by their logarithm.
type scale struct {
	low, high float64
	log       bool
}

// newScale makes a scale that holds low and high and ends at good places for
// ticks. A logarithmic one needs low above 0; with low = 0 it is linear.
func newScale(low, high float64, log bool) scale {
	if !(high > low) || math.IsInf(high, 0) || math.IsInf(low, 0) { // NaN included
		switch {
		case !(high > 0) || math.IsInf(high, 0):
			low, high = 0, 1
		case log:
			low, high = high/2, high*2
		default:
			low = 0
		}
	}
	if log && low > 0 {
		return scale{low, high, true}
	}
	step := niceStep((high - low) / 5)
	return scale{math.Floor(low/step) * step, math.Ceil(high/step-1e-9) * step, false}
}

// between makes a linear scale that ends exactly at low and high, unless they
// leave no room between them.
func between(low, high float64) scale {
	if !(high > low) || math.IsInf(high, 0) || math.IsInf(low, 0) {
		return newScale(low, high, false)
	}
	return scale{low, high, false}
}

// at gives the place of a number; outside of 0..1 for one outside of the scale.
func (s scale) at(f float64) float64 {
	if s.log {
		if f <= 0 {
			return 0
		}
		return (math.Log(f) - math.Log(s.low)) / (math.Log(s.high) - math.Log(s.low))
	}
	return (f - s.low) / (s.high - s.low)
}

// niceStep rounds a step up to 1, 2, 2.5 or 5 times a power of ten.
func niceStep(step float64) float64 {
	if !(step > 0) || math.IsInf(step, 0) {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(step)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if step <= m*p*(1+1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// ticks gives about n round numbers on the scale, in order.
func (s scale) ticks(n int) []float64 {
	if !s.log {
		step := niceStep((s.high - s.low) / float64(max(1, n)))
		var out []float64
		for i := math.Ceil(s.low/step - 1e-9); i*step <= s.high+step*1e-9 && len(out) < 50; i++ {
			out = append(out, i*step)
		}
		return out
	}
	// 1, 2 and 5 where the scale is short; powers of ten, and then only some of
	// them, where it is long.
	for _, kind := range [][]float64{{1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 2, 3, 5, 7}, {1, 2, 5}, {1, 3}, {1}} {
		if out := s.decades(kind, 1); len(out) <= n+2 && len(out) >= 2 {
			return out
		}
	}
	for every := 2; every < 40; every++ {
		if out := s.decades([]float64{1}, every); len(out) <= n+2 && len(out) > 0 {
			return out
		}
	}
	// Less than the step from one digit to the next.
	var out []float64
	for _, t := range newScale(s.low, s.high, false).ticks(n) {
		if t >= s.low && t <= s.high {
			out = append(out, t)
		}
	}
	return out
}

func (s scale) decades(digits []float64, every int) []float64 {
	var out []float64
	first := int(math.Floor(math.Log10(s.low)))
	last := int(math.Ceil(math.Log10(s.high)))
	for d := first; d <= last; d++ {
		if d%every != 0 {
			continue
		}
		for _, m := range digits {
			t := m * math.Pow(10, float64(d))
			if t >= s.low*(1-1e-9) && t <= s.high*(1+1e-9) {
				out = append(out, t)
			}
		}
	}
	return out
}
