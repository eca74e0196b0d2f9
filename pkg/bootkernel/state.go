package bootkernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"time"

	"accel/pkg/text"
	"accel/pkg/tuning"
)

const stateVersion = 1

// Phase tells how far an install came. It is on disk before the step that it
// names begins.
type Phase string

// The phases. Those up to Arming are steps of install and are repeated or undone
// as a whole; Armed and Trying wait for a boot; Promoted and FellBack are ends.
const (
	Preparing   Phase = "preparing"    // apt is told about backports
	Pinning     Phase = "pinning"      // the running kernel becomes GRUB's default
	Installing  Phase = "installing"   // apt is at work
	Arming      Phase = "arming"       // the trial entry is made, the next boot is set
	Armed       Phase = "armed"        // the next boot starts the new kernel, once
	Trying      Phase = "trying"       // the new kernel runs and is judged
	Promoting   Phase = "promoting"    // the checks were good; the pin is being taken away
	Promoted    Phase = "promoted"     // the new kernel is the default
	Failing     Phase = "failing"      // the checks were bad; the machine is about to reboot
	FellBack    Phase = "fell-back"    // the old kernel runs again and stays the default
	RollingBack Phase = "rolling-back" // rollback or remove is at work
	RolledBack  Phase = "rolled-back"  // the old kernel is the default; the new one is still installed
)

var phases = []Phase{Preparing, Pinning, Installing, Arming, Armed, Trying, Promoting, Promoted, Failing, FellBack, RollingBack, RolledBack}

// State is what accel remembers about an install.
type State struct {
	Version int       `json:"version"`
	Phase   Phase     `json:"phase"`
	Token   string    `json:"token"` // on the kernel's command line in the trial boot, and nowhere else
	Since   time.Time `json:"since"`
	Auto    bool      `json:"auto"` // promote and reboot without being asked
	Old     string    `json:"old"`  // release that worked before
	New     string    `json:"new"`  // release that is tried
	// Packages are what install had apt change.
	Packages []Package       `json:"packages"`
	MadeDirs []string        `json:"made_dirs"`          // directories that accel made for its files
	Before   Checks          `json:"before"`             // what was true before
	Default  string          `json:"default"`            // GRUB's default before, as grub.cfg had it
	Panic    string          `json:"panic"`              // kernel.panic before
	Oops     string          `json:"panic_on_oops"`      // kernel.panic_on_oops before
	BootID   string          `json:"boot_id"`            // the boot in which it was armed
	Reasons  []text.Sentence `json:"reasons,omitempty"`  // why it fell back
	Rebooted bool            `json:"rebooted,omitempty"` // the one automatic reboot was used up
	Kept     bool            `json:"kept,omitempty"`     // promoted, and pinned since GRUB_DEFAULT names another kernel
	Ended    time.Time       `json:"ended,omitzero"`
	// Earlier is the promoted install that this one came after: undone, this one
	// leaves it, and its pin, as it was.
	Earlier *State `json:"earlier,omitempty"`
}

// Package is one package that apt changed, with its version before ("" for one
// that was not there) and after.
type Package struct {
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// settled: nothing is under way.
func (s *State) settled() bool {
	return s == nil || slices.Contains([]Phase{Promoted, FellBack, RolledBack}, s.Phase)
}

// waiting: a boot of the new kernel is expected or being judged.
func (s *State) waiting() bool {
	return s != nil && slices.Contains([]Phase{Armed, Trying, Promoting, Failing}, s.Phase)
}

var (
	releasePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+~-]{0,127}$`)
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]{1,127}$`)
	tokenPattern   = regexp.MustCompile(`^[A-Z0-9]{8,32}$`)
)

// loadState reads the state; nil without an error means that there is none.
func (h *Host) loadState() (*State, error) {
	data, err := h.Files.ReadFile(StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, problem(tuning.ExitFailed, err, text.T("reading accel's state"), text.T("Make %s readable and try again.", StateFile))
	}
	s, err := parseState(data)
	if err != nil {
		return nil, problem(tuning.ExitFailed, err, text.T("%s cannot be used", StateFile),
			text.T("Put a good copy back, or look at %s and %s yourself: while they exist they decide what GRUB starts.", PinFile, TrialFile))
	}
	return s, nil
}

func parseState(data []byte) (*State, error) {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("%w: %w", tuning.ErrDamagedState, err)
	}
	if version.Version > stateVersion {
		return nil, fmt.Errorf("%w: version %d, this one knows %d", tuning.ErrNewerState, version.Version, stateVersion)
	}
	var s State
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", tuning.ErrDamagedState, err)
	}
	for e := &s; e != nil; e = e.Earlier {
		if err := e.check(); err != nil {
			return nil, err
		}
	}
	return &s, nil
}

// check refuses a state that this package has not written.
func (s *State) check() error {
	if s.Version != stateVersion || !slices.Contains(phases, s.Phase) || !releasePattern.MatchString(s.Old) ||
		!releasePattern.MatchString(s.New) || !tokenPattern.MatchString(s.Token) {
		return fmt.Errorf("%w: it is incomplete", tuning.ErrDamagedState)
	}
	for _, p := range s.Packages {
		if !packagePattern.MatchString(p.Name) {
			return fmt.Errorf("%w: %q is no package", tuning.ErrDamagedState, p.Name)
		}
	}
	return nil
}

func (h *Host) saveState(s *State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = h.Files.Mkdir(tuning.StateDir, 0o755)
	}
	if err == nil {
		err = h.Files.WriteFile(StateFile, append(data, '\n'), 0o644)
	}
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("writing down how far it got"), tuning.FileHint(err, StateFile))
	}
	return nil
}

// enter writes a phase down before its step begins.
func (h *Host) enter(s *State, p Phase) error {
	s.Phase = p
	return h.saveState(s)
}
