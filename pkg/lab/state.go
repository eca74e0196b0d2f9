package lab

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"accel/pkg/text"
)

// stateSchema names the layout of a state file: a line of JSON that is a
// stateHeader, and then one for each finished transfer, which is a list of
// Transfer: its flows.
const stateSchema = "accel.compare.part/1"

// ErrState is matched by every error about a state file that cannot be used.
var ErrState = errors.New("not the state of a comparison")

type stateHeader struct {
	Schema  string `json:"schema"`
	Plan    Plan   `json:"plan"`
	Command string `json:"command"`
	Kernel  string `json:"kernel"`
}

// State is a file that a comparison writes as it goes, and from which it goes
// on after it was interrupted or killed.
type State struct {
	Plan    Plan   // complete
	Command string // that began it
	Kernel  string // it ran on: another one would measure something else
	name    string
	file    *os.File
	done    [][]Transfer
}

// CreateState begins a new state file. It never writes over one that is there:
// errors.Is with fs.ErrExist.
func CreateState(name string, plan Plan, command, kernel string) (*State, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, text.Errorf("creating the state file: %w", err)
	}
	s := &State{Plan: plan, Command: command, Kernel: kernel, name: name, file: f}
	err = s.lock()
	if err == nil {
		err = s.append(stateHeader{stateSchema, plan, command, kernel})
	}
	if err != nil {
		_ = s.Remove()
		return nil, err
	}
	return s, nil
}

// OpenState opens a state file to go on from it. A line that was cut off, by a
// crash or a full disk, is taken away. Errors: fs.ErrNotExist, ErrState.
func OpenState(name string) (*State, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, text.Errorf("opening the state file: %w", err)
	}
	s := &State{name: name, file: f}
	var whole int64
	if err = s.lock(); err == nil {
		whole, err = s.read()
	}
	if err == nil {
		err = f.Truncate(whole)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// lock keeps a second comparison from writing the same file.
func (s *State) lock() error {
	if err := unix.Flock(int(s.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return &invalid{ErrState, text.T("%s is in use by another comparison", s.name)}
	}
	return nil
}

// read reads everything and returns the length of the whole lines.
func (s *State) read() (whole int64, err error) {
	in := bufio.NewReader(s.file)
	for first := true; ; first = false {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if first {
				return 0, &invalid{ErrState, text.T("%s is not the state of a comparison", s.name)}
			}
			return whole, nil
		}
		if err != nil {
			return 0, text.Errorf("reading the state file: %w", err)
		}
		if first {
			var h stateHeader
			if err := json.Unmarshal(line, &h); err != nil || h.Schema != stateSchema {
				return 0, &invalid{ErrState, text.T("%s is not the state of a comparison", s.name)}
			}
			if s.Plan, err = h.Plan.Complete(); err != nil {
				return 0, &invalid{ErrState, text.T("%s has a plan that makes no sense: %s", s.name, err)}
			}
			s.Command, s.Kernel = h.Command, h.Kernel
		} else {
			var t []Transfer
			if err := json.Unmarshal(line, &t); err != nil || !s.fits(t) {
				return 0, &invalid{ErrState, text.T("%s is damaged", s.name)}
			}
			s.done = append(s.done, t)
		}
		whole += int64(len(line))
	}
}

// fits says whether flows can be of one transfer of the plan.
func (s *State) fits(flows []Transfer) bool {
	for _, t := range flows {
		if t.Path < 0 || !slices.Contains(s.Plan.Sizes, t.Size) || t.Path >= len(s.Plan.Paths) || t.Arm < 0 || t.Arm >= len(s.Plan.Arms) || t.Round < 0 || t.Round >= s.Plan.Rounds {
			return false
		}
	}
	return len(flows) > 0
}

// Done is how many transfers it holds.
func (s *State) Done() int { return len(s.done) }

// Name is that of the file.
func (s *State) Name() string { return s.name }

// Fits reports whether the state is that of a plan, which has to be complete.
func (s *State) Fits(plan Plan) bool {
	a, errA := json.Marshal(s.Plan)
	b, errB := json.Marshal(plan)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

func (s *State) append(v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = s.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", text.T("writing the state file %s", s.name), err)
	}
	return nil
}

// Close keeps the file.
func (s *State) Close() error { return s.file.Close() }

// Remove closes and removes the file.
func (s *State) Remove() error {
	return errors.Join(s.file.Close(), os.Remove(s.name))
}
