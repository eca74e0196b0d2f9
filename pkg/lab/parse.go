package lab

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"accel/pkg/text"
)

// ErrNumber is matched by the errors of the Parse functions for options.
var ErrNumber = errors.New("not a number of the kind that is asked for")

// list parses the elements of a comma list, of which there is at least one and
// no two are equal.
func list[T comparable](s string, one func(string) (T, error)) ([]T, error) {
	var all []T
	for part := range strings.SplitSeq(s, ",") {
		v, err := one(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		for _, old := range all {
			if old == v {
				return nil, &invalid{ErrNumber, text.T("%q is there twice", strings.TrimSpace(part))}
			}
		}
		all = append(all, v)
	}
	return all, nil
}

// number reads a plain decimal number that is not negative.
func number(s string) (float64, bool) {
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil && !math.IsInf(f, 0)
}

// cutUnit splits "20Mbit" into 20 and the factor of its unit.
func cutUnit(s string, units map[string]float64) (float64, bool) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ%/")
	factor, ok := units[strings.ToLower(s[len(digits):])]
	f, isNumber := number(digits)
	return f * factor, ok && isNumber
}

// ParseRates reads rates, in Mbit/s where no unit is given: "100", "500k",
// "100M", "1Gbit"; a comma list. 0 is no limit. Errors: ErrNumber.
func ParseRates(s string) ([]float64, error) {
	units := map[string]float64{"": 1, "k": 1e-3, "kbit": 1e-3, "kbit/s": 1e-3, "m": 1, "mbit": 1, "mbit/s": 1, "g": 1e3, "gbit": 1e3, "gbit/s": 1e3}
	return list(s, func(one string) (float64, error) {
		if f, ok := cutUnit(one, units); ok {
			return f, nil
		}
		return 0, &invalid{ErrNumber, text.T("%q is no rate", one)}
	})
}

// ParseTimes reads times, in milliseconds where no unit is given: "100",
// "0.5ms", "1s"; a comma list. Errors: ErrNumber.
func ParseTimes(s string) ([]time.Duration, error) {
	units := map[string]float64{"": 1, "us": 1e-3, "ms": 1, "s": 1e3}
	return list(s, func(one string) (time.Duration, error) {
		if f, ok := cutUnit(one, units); ok && f < 1e9 {
			return duration(f), nil
		}
		return 0, &invalid{ErrNumber, text.T("%q is no time", one)}
	})
}

// ParsePercents reads percentages, with or without the sign; a comma list.
// Errors: ErrNumber.
func ParsePercents(s string) ([]float64, error) {
	return list(s, func(one string) (float64, error) {
		if f, ok := cutUnit(one, map[string]float64{"": 1, "%": 1}); ok && f <= 100 {
			return f, nil
		}
		return 0, &invalid{ErrNumber, text.T("%q is no percentage", one)}
	})
}

// Queue is the length of a queue: one of the two is 0.
type Queue struct {
	BDP     float64 // bandwidth-delay products
	Packets int
}

// ParseQueues reads lengths of queues: "64" packets, or "1.5x" the
// bandwidth-delay product; a comma list. Errors: ErrNumber.
func ParseQueues(s string) ([]Queue, error) {
	return list(s, func(one string) (Queue, error) {
		if f, ok := cutUnit(one, map[string]float64{"x": 1, "bdp": 1}); ok && f > 0 {
			return Queue{BDP: f}, nil
		}
		if n, err := strconv.ParseUint(strings.TrimSuffix(one, "p"), 10, 31); err == nil && n >= minQueue && n <= maxPackets {
			return Queue{Packets: int(n)}, nil
		}
		return Queue{}, &invalid{ErrNumber, text.T("%q is no length of a queue", one)}
	})
}
