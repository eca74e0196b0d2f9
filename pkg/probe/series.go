package probe

import "time"

const (
	// Samples are taken at this distance; when there are too many, every second
	// one is dropped and the distance doubled.
	sampleEvery = 500 * time.Microsecond
	maxSamples  = 64
)

// series is at most maxSamples values, evenly over a time that is not known
// beforehand.
type series[T any] struct {
	values []T
	every  time.Duration
	times  []time.Time
}

// due says whether it is time for the next value.
func (s *series[T]) due(now time.Time) bool {
	return len(s.times) == 0 || now.Sub(s.times[len(s.times)-1]) >= s.every
}

func (s *series[T]) add(now time.Time, value T) {
	if s.every == 0 {
		s.every = sampleEvery
	}
	if len(s.values) == maxSamples {
		for i := range maxSamples / 2 {
			s.values[i], s.times[i] = s.values[2*i], s.times[2*i]
		}
		s.values, s.times = s.values[:maxSamples/2], s.times[:maxSamples/2]
		s.every *= 2
	}
	s.values, s.times = append(s.values, value), append(s.times, now)
}
