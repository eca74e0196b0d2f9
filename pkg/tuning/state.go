package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"accel/pkg/files"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// stateVersion is the layout of state.json. A newer one is refused: an older
// accel must not undo what it does not understand. Version 1 knew no floors and
// no routes; it is read as it is.
const stateVersion = 2

// Phase tells how far a command got. Anything but Settled on disk means that a
// command was interrupted.
type Phase string

// The phases of the state.
const (
	Settled   Phase = "settled"
	Enabling  Phase = "enabling"
	Disabling Phase = "disabling"
)

// State is what accel remembers on disk: what is enabled, and every original.
// It is written before the first change, and again after the last.
type State struct {
	Version int       `json:"version"`
	Phase   Phase     `json:"phase"`
	Enabled *Enabled  `json:"enabled"`
	Records []Record  `json:"records"` // in the order of first touch
	Modules []string  `json:"modules"` // for ModulesFile
	Refused []Refusal `json:"refused"` // optional wishes this host refused
	Dirs    []string  `json:"dirs"`    // directories accel made for its files
	// Defaults are all kinds that accel has made the default qdisc: a link that
	// came up since has one of them without being asked.
	Defaults []string `json:"defaults"`
}

// Record is one setting that accel touched or is about to touch.
type Record struct {
	Kind     Kind     `json:"kind"`
	Name     string   `json:"name"`
	Original string   `json:"original"`        // the value before accel first touched it
	Wanted   string   `json:"wanted"`          // "" once the wish is gone
	Wrote    []string `json:"wrote"`           // every value accel has written, or was about to; none where the host had it already
	Floor    string   `json:"floor,omitempty"` // for a setting that is at least something: what its numbers must reach
}

// Refusal is an optional wish that the host did not grant.
type Refusal struct {
	Kind   Kind   `json:"kind"`
	Name   string `json:"name"`
	Wanted string `json:"wanted"`
	Reason string `json:"reason"`
}

// ErrNewerState is wrapped by the error of a state that a newer accel wrote.
var ErrNewerState = errors.New("written by a newer accel")

// ErrDamagedState is wrapped by the error of a state that cannot be understood.
var ErrDamagedState = errors.New("not readable as accel's state")

// ID names the record's setting as Setting.ID does.
func (r Record) ID() string { return settingID(r.Kind, r.Name) }

// ours: accel has written this value, so it may be replaced.
func (r Record) ours(live string) bool {
	return slices.ContainsFunc(r.Wrote, func(w string) bool { return sysctl.Equal(w, live) })
}

// ours: the live value of a record's setting is there because of accel.
func (s *State) ours(r *Record, live string) bool {
	return r.ours(live) || r.Kind == KindQdisc && slices.Contains(s.Defaults, live)
}

// had: the live value is as wished, or better.
func (r Record) had(live string) bool {
	if r.Floor != "" {
		return reaches(live, r.Floor)
	}
	return sysctl.Equal(live, r.Wanted)
}

func (s *State) record(k Kind, name string) *Record {
	for i := range s.Records {
		if s.Records[i].Kind == k && s.Records[i].Name == name {
			return &s.Records[i]
		}
	}
	return nil
}

func (s *State) refused(w Setting) string {
	for _, r := range s.Refused {
		if r.Kind == w.Kind && r.Name == w.Name && (r.Wanted == w.Want || w.Floor) {
			return r.Reason
		}
	}
	return ""
}

func (s *State) clone() *State {
	c := *s
	if s.Enabled != nil {
		e := *s.Enabled
		e.Links = slices.Clone(e.Links)
		c.Enabled = &e
	}
	c.Records = slices.Clone(s.Records)
	for i := range c.Records {
		c.Records[i].Wrote = slices.Clone(c.Records[i].Wrote)
	}
	c.Modules = slices.Clone(s.Modules)
	c.Refused = slices.Clone(s.Refused)
	c.Dirs = slices.Clone(s.Dirs)
	c.Defaults = slices.Clone(s.Defaults)
	return &c
}

// loadState reads the state; nil without an error means that accel has touched
// nothing. errors.Is: ErrNewerState, ErrDamagedState.
func loadState(f files.FS) (*State, error) {
	data, err := f.ReadFile(StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, problem(ExitFailed, err, text.T("reading accel's state"), text.T("Make %s readable and try again.", StateFile))
	}
	s, err := parseState(data)
	if errors.Is(err, ErrNewerState) {
		return nil, problem(ExitFailed, err, text.T("%s cannot be used", StateFile), text.T("Install the newer accel again; it can undo its own work."))
	}
	if err != nil {
		return nil, problem(ExitFailed, err, text.T("%s cannot be used", StateFile),
			text.T("It holds the original values of this host. Put a good copy back, or move it away to start anew: the originals are lost then."))
	}
	return s, nil
}

func parseState(data []byte) (*State, error) {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamagedState, err)
	}
	if version.Version > stateVersion {
		return nil, fmt.Errorf("%w: version %d, this one knows %d", ErrNewerState, version.Version, stateVersion)
	}
	var s State
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamagedState, err)
	}
	if s.Version < 1 || !slices.Contains([]Phase{Settled, Enabling, Disabling}, s.Phase) ||
		s.Enabled == nil || s.Enabled.Algorithm == "" {
		return nil, fmt.Errorf("%w: it is incomplete", ErrDamagedState)
	}
	for _, r := range s.Records {
		if !validRecord(r) {
			return nil, fmt.Errorf("%w: record %q is not one of accel's", ErrDamagedState, r.Name)
		}
	}
	s.Version = stateVersion
	return &s, nil
}

// validRecord keeps a state that was tampered with from making accel write
// anything but its own kind of settings.
func validRecord(r Record) bool {
	switch r.Kind {
	case KindSysctl:
		k, err := sysctl.ParseKey(r.Name)
		return err == nil && string(k) == r.Name && strings.HasPrefix(r.Name, "net/")
	case KindRoute:
		_, _, ok := splitRoute(r.Name)
		_, err := strconv.ParseUint(r.Original, 10, 16)
		return ok && err == nil
	case KindQdisc:
		return r.Name != "" && !strings.ContainsAny(r.Name, "/ \t\n")
	}
	return false
}

func saveState(f files.FS, s *State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = makeDir(f, StateDir, 0o755)
	}
	if err == nil {
		err = f.WriteFile(StateFile, append(data, '\n'), 0o644)
	}
	if err != nil {
		return problem(ExitFailed, err, text.T("saving the original values"), FileHint(err, StateFile))
	}
	return nil
}

// makeDir makes a directory with its parents where it is missing.
func makeDir(f files.FS, name string, perm fs.FileMode) error {
	if exists(f, name) {
		return nil
	}
	if err := makeDir(f, path.Dir(name), perm); err != nil {
		return err
	}
	if err := f.Mkdir(name, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// FileHint is the next step after a file could not be written.
func FileHint(err error, name string) string {
	switch {
	case errors.Is(err, files.ErrReadOnly):
		return text.T("The file system of %s is read-only. On an image that is generated elsewhere (NixOS: boot.kernel.sysctl), set the values there.", name)
	case errors.Is(err, files.ErrNoSpace):
		return text.T("The file system of %s is full: make room and try again.", name)
	case errors.Is(err, files.ErrImmutable):
		return text.T("%s or its directory has the immutable or append-only attribute: lsattr -d shows it, chattr -i -a takes it away.", name)
	case errors.Is(err, files.ErrSymlink):
		return text.T("A symbolic link stands where accel writes %s; accel follows and replaces none. Move it away and try again.", name)
	case errors.Is(err, files.ErrMounted):
		return text.T("%s is a mount point, so it cannot be replaced. Unmount it and try again.", name)
	case errors.Is(err, files.ErrNotRegular):
		return text.T("Something that is not a file stands at %s. Move it away and try again.", name)
	case errors.Is(err, files.ErrPermission):
		return text.T("Run accel as root.")
	}
	return text.T("Mend the cause and try again.")
}
