// Package tuning is the heart of accel: a profile turns facts into settings,
// a plan compares the settings with the host, and applying, healing and
// undoing a plan are one comparison acted upon in different directions.
//
// The rules that every function here keeps: the originals and the intent are
// on disk before the first change; what is required succeeds or everything is
// undone; only what took is persisted; the kernel, not a file, is the witness.
package tuning

import (
	"errors"
	"fmt"
	"time"

	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/socket"
)

// Exit codes of accel, constant for ever.
const (
	ExitGood       = 0 // as wished
	ExitFailed     = 1 // failed, everything undone
	ExitUsage      = 2 // the command line makes no sense
	ExitNotEnabled = 3 // nothing is enabled
	ExitAttention  = 4 // enabled but not in force, or drifted
	ExitImpossible = 5 // not possible on this host
)

// Verdict is the one-line judgement of status.
type Verdict string

// The verdicts, as they stand in the JSON contract.
const (
	Good        Verdict = "good"
	NotEnabled  Verdict = "not-enabled"
	NotInForce  Verdict = "not-in-force"
	Drifted     Verdict = "drifted"
	Unsupported Verdict = "unsupported"
)

// Exit gives the exit code that belongs to a verdict.
func (v Verdict) Exit() int {
	switch v {
	case Good:
		return ExitGood
	case NotEnabled:
		return ExitNotEnabled
	case Unsupported:
		return ExitImpossible
	default:
		return ExitAttention
	}
}

// Names of the files accel owns on a host, design section 5.
const (
	StateDir    = "/var/lib/accel"
	StateFile   = StateDir + "/state.json"
	SysctlFile  = "/etc/sysctl.d/99-zz-accel.conf"
	ModulesFile = "/etc/modules-load.d/accel.conf"
	RuntimeDir  = "/run/accel"
	AgentFile   = RuntimeDir + "/agent.json"
)

// Request is what a person asks enable for.
type Request struct {
	Algorithm string   // kernel name; "" means DefaultAlgorithm
	Profile   string   // "" means DefaultProfile
	Qdisc     string   // kind; "" means what the profile says
	Links     []string // only these links get the qdisc; nil means every suitable one
	DryRun    bool     // plan only, change nothing
}

// DefaultAlgorithm and DefaultProfile are used where a Request names none.
const (
	DefaultAlgorithm = "bbr"
	DefaultProfile   = "basic"
)

// Action says what a plan does about one setting.
type Action string

// The actions of a plan.
const (
	Set     Action = "set"     // change the host
	Keep    Action = "keep"    // already as wanted
	Restore Action = "restore" // put the original back
	Skip    Action = "skip"    // cannot be had or is left alone; Reason says why
)

// Step is one line of a plan: a setting compared with the host, and, once the
// plan was acted on, what came of it.
type Step struct {
	Setting  string  `json:"setting"`           // "net.ipv4.tcp_congestion_control", "qdisc eth0", "module tcp_bbr", "file /etc/..."
	Current  *string `json:"current"`           // null: not there or not readable
	Wanted   string  `json:"wanted"`            // "" for a skipped link
	Action   Action  `json:"action"`            //
	Required bool    `json:"required"`          // without it the command fails and undoes itself
	Why      string  `json:"why,omitempty"`     // what the setting is for
	Reason   string  `json:"reason,omitempty"`  // why it is skipped, or why it failed
	Changed  bool    `json:"changed,omitempty"` // the host was changed by this step
}

// Result tells what enable, disable or heal did or, for a dry run, would do.
type Result struct {
	Schema  string   `json:"schema"`  // "accel.result/1"
	Command string   `json:"command"` // "enable", "disable", "heal"
	DryRun  bool     `json:"dry_run"`
	Changed bool     `json:"changed"` // false: everything was as wanted already
	Enabled *Enabled `json:"enabled"` // what is enabled afterwards (of a dry run: would be)
	Steps   []Step   `json:"steps"`
	Notes   []string `json:"notes"`            // what a person should know, in plain words
	Left    []Left   `json:"left"`             // disable only: what was not put back, and why
	Status  *Status  `json:"status,omitempty"` // enable only: the check at its end
}

// Left is a value that disable found changed by someone else, or could not put
// back.
type Left struct {
	Setting  string `json:"setting"`
	Live     string `json:"live"`
	Original string `json:"original"`
	Reason   string `json:"reason"`
	Failed   bool   `json:"failed"` // true: putting it back was tried and failed; the original is kept
}

// Enabled is what the state remembers as the operator's wish.
type Enabled struct {
	Algorithm string    `json:"algorithm"`
	Profile   string    `json:"profile"`
	Qdisc     string    `json:"qdisc"`                 // the kind in effect; "" where the host cannot have one
	AskedFor  string    `json:"asked_qdisc,omitempty"` // the kind the operator named, if any
	Links     []string  `json:"links,omitempty"`       // only where the operator named links
	Since     time.Time `json:"since"`
}

// Drift is a setting whose live value is no longer the wanted one.
type Drift struct {
	Setting string `json:"setting"`
	Wanted  string `json:"wanted"`
	Live    string `json:"live"`
}

// Status is the document behind `accel status` and, projected, `accel detect`.
// Names are the contract of design section 4.
type Status struct {
	Schema         string               `json:"schema"` // "accel.status/1"
	Verdict        Verdict              `json:"verdict"`
	Reason         string               `json:"reason"`
	Next           string               `json:"next,omitempty"` // what to do about it
	Exit           int                  `json:"exit"`
	Enabled        *Enabled             `json:"enabled"`
	Kernel         StatusKernel         `json:"kernel"`
	Virtualization StatusVirtualization `json:"virtualization"`
	Algorithm      StatusAlgorithm      `json:"algorithm"`
	Connections    map[string]int       `json:"connections"` // null: not known
	Qdisc          StatusQdisc          `json:"qdisc"`
	Routes         []StatusRoute        `json:"routes"`   // default routes; null: not known
	Settings       []StatusSetting      `json:"settings"` // what the enabled profile sets beside algorithm and qdisc
	Boot           []BootValue          `json:"boot"`
	Service        *ServiceState        `json:"service"` // null: not known (a recorded host)
	Drift          []Drift              `json:"drift"`
	Notes          []string             `json:"notes"`
}

// StatusKernel is the kernel part of Status.
type StatusKernel struct {
	Release      string `json:"release"`
	Major        int    `json:"major"`
	Minor        int    `json:"minor"`
	Patch        int    `json:"patch"`
	Flavour      string `json:"flavour"`
	Distribution string `json:"distribution"`
}

// StatusVirtualization is the virtualization part of Status.
type StatusVirtualization struct {
	Machine      string `json:"machine"`
	Container    string `json:"container"`
	InitialNetns *bool  `json:"initial_netns"`
}

// StatusAlgorithm is the algorithm part of Status. Origin and BBRVersion speak
// of the enabled algorithm, or of bbr where nothing is enabled.
type StatusAlgorithm struct {
	Name       string           `json:"name"`    // the one Origin speaks of
	Default    *string          `json:"default"` // the sysctl; null: no such key
	Socket     *string          `json:"socket"`  // both ends of an established connection; null: not tried
	Available  []string         `json:"available"`
	Loadable   []string         `json:"loadable"`
	Origin     kernel.Origin    `json:"origin"`
	BBRVersion *int             `json:"bbr_version"`
	Modules    []string         `json:"modules"` // the lsmod lines
	Evidence   *socket.Evidence `json:"-"`
}

// StatusQdisc is the qdisc part of Status.
type StatusQdisc struct {
	Default   *string      `json:"default"`
	Available []string     `json:"available"`
	Links     []StatusLink `json:"links"`
}

// StatusLink tells what queues packets on one link and whether accel manages it.
type StatusLink struct {
	Name                string        `json:"name"`
	Kind                string        `json:"kind"` // the kind that queues packets: the leaves' under mq
	Root                *qdisc.Qdisc  `json:"root"`
	Leaves              []qdisc.Qdisc `json:"leaves"`
	ConfiguredBySomeone bool          `json:"configured_by_someone"`
	Managed             bool          `json:"managed"`
	Reason              string        `json:"reason"` // why it is not managed
	placeholder         bool          // a rebuild was interrupted
}

// StatusRoute is one default route, or one path of it, and whether its metrics
// are accel's to set. Where the enabled profile sets none, none is managed.
type StatusRoute struct {
	route.Route
	Managed bool   `json:"managed"`
	Reason  string `json:"reason"` // why it is not managed
}

// SettingState says whose the live value of a setting is.
type SettingState string

// The states of a setting.
const (
	StateSet     SettingState = "set"     // accel's
	StateKept    SettingState = "kept"    // the host had it, or more, before accel, which wrote nothing
	StateForeign SettingState = "foreign" // somebody set it to more since
	StateAbsent  SettingState = "absent"  // this kernel, or this network namespace, does not have it
	StateRefused SettingState = "refused" // the host did not take it
	StateDrifted SettingState = "drifted" // not as wished
)

// StatusSetting is one setting of the enabled profile.
type StatusSetting struct {
	Setting string       `json:"setting"`
	Wanted  string       `json:"wanted"`
	AtLeast bool         `json:"at_least"` // Wanted is a floor; a 0 in it asks for nothing
	Live    *string      `json:"live"`     // null: not there or not readable
	State   SettingState `json:"state"`
	Why     string       `json:"why"`
}

// BootValue is what the next boot sets for a key and which line decides.
type BootValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	File  string `json:"file"`
	Line  int    `json:"line"`
	Order string `json:"order"` // "systemd" or "procps"
}

// ServiceState is what systemd says of accel.service.
type ServiceState struct {
	Installed bool   `json:"installed"`
	Enabled   bool   `json:"enabled"`
	Active    bool   `json:"active"`
	Note      string `json:"note,omitempty"` // why it is not known, or what the agent last said
}

// Problem is an error with the exit code it deserves and the next step for the
// operator. Its message names what was tried and the cause.
type Problem struct {
	Exit int
	Next string // what the operator can do; one or two sentences
	Err  error
}

func (p *Problem) Error() string { return p.Err.Error() }
func (p *Problem) Unwrap() error { return p.Err }

// ExitCode gives the exit code of err: that of a wrapped Problem, else
// ExitFailed, and ExitGood for nil.
func ExitCode(err error) int {
	if err == nil {
		return ExitGood
	}
	var p *Problem
	if errors.As(err, &p) {
		return p.Exit
	}
	return ExitFailed
}

// problem builds a Problem whose message is the sentence, followed by the
// cause where there is one.
func problem(exit int, cause error, sentence, next string) error {
	err := errors.New(sentence)
	if cause != nil {
		err = fmt.Errorf("%s: %w", sentence, cause)
	}
	return &Problem{Exit: exit, Next: next, Err: err}
}
