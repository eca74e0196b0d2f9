package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// Result is how a command in a machine ended.
type Result struct {
	Stdout, Stderr string
	Exit           int // exit code; 128 + the signal's number if one killed it
}

// errDied is in the error of every call that finds that the machine is gone.
var errDied = errors.New("the machine has stopped")

// Machine is a running virtual machine. Its methods may be called by several
// goroutines; commands to a small machine are run one after the other.
type Machine struct {
	// Name says what the machine is, in messages.
	Name string
	// Release is its kernel's release, as uname -r says.
	Release string
	// Booted is how long it took from power on to the first command.
	Booted time.Duration

	mu      sync.Mutex // guards the next two, which change when a machine is started again
	qemu    *qemu
	shell   shell
	release []func() // what to give back when the machine is gone, last first
	whole   *whole   // nil in a small machine
	bootID  string   // of the boot that answered last, in a whole machine
}

// shell is a way to run commands in a machine.
type shell interface {
	run(ctx context.Context, command string, stdin []byte) (Result, error)
	close()
}

// commandLimit is how long a command may take if the caller's context has no
// end.
const commandLimit = 2 * time.Minute

// Exec runs a command with /bin/sh as root and returns what it wrote and its
// exit code. An error means that it could not be run or did not end in time;
// it holds the end of the console.
func (m *Machine) Exec(ctx context.Context, command string) (Result, error) {
	return m.ExecStdin(ctx, command, nil)
}

// ExecStdin is Exec with something on the command's standard input.
func (m *Machine) ExecStdin(ctx context.Context, command string, stdin []byte) (Result, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, commandLimit)
		defer cancel()
	}
	m.mu.Lock()
	sh := m.shell
	m.mu.Unlock()
	r, err := sh.run(ctx, command, stdin)
	if err != nil {
		return r, m.trouble(fmt.Errorf("%s: running %q: %w", m.Name, command, err))
	}
	return r, nil
}

// Run is Exec for tests: it fails the test at once if the command could not be
// run. Its exit code is the caller's to judge.
func (m *Machine) Run(t testing.TB, command string) Result {
	t.Helper()
	r, err := m.Exec(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// MustRun runs a command that has to exit 0 and returns its standard output.
func (m *Machine) MustRun(t testing.TB, command string) string {
	t.Helper()
	r := m.Run(t, command)
	if r.Exit != 0 {
		t.Fatalf("%s: %q exited %d\nstdout:\n%s\nstderr:\n%s", m.Name, command, r.Exit, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Eventually runs a command once a second until it exits 0, and returns its
// standard output. After the limit the test fails with the last result.
func (m *Machine) Eventually(t testing.TB, limit time.Duration, command string) string {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(time.Second) {
		r := m.Run(t, command)
		if r.Exit == 0 {
			return r.Stdout
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %q still exited %d after %v\nstdout:\n%s\nstderr:\n%s", m.Name, command, r.Exit, limit, r.Stdout, r.Stderr)
		}
	}
}

// Console returns what the machine has written to its serial console so far.
func (m *Machine) Console() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.qemu == nil {
		return ""
	}
	return m.qemu.console.String()
}

// Wait waits until the machine stops by itself or ctx ends.
func (m *Machine) Wait(ctx context.Context) {
	m.mu.Lock()
	q := m.qemu
	m.mu.Unlock()
	select {
	case <-q.exited:
	case <-ctx.Done():
	}
}

func (m *Machine) setQemu(q *qemu) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.qemu = q
}

func (m *Machine) setShell(s shell) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shell = s
}

// stop kills the emulator.
func (m *Machine) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shell != nil {
		m.shell.close()
	}
	if m.qemu != nil {
		m.qemu.kill()
	}
}

// Close stops the machine and gives up all it had, its disk too.
func (m *Machine) Close() {
	m.stop()
	for len(m.release) > 0 {
		last := len(m.release) - 1
		m.release[last]()
		m.release = m.release[:last]
	}
}

// trouble adds the end of the console to an error, indented so that it stands
// apart.
func (m *Machine) trouble(err error) error {
	text := strings.TrimRight(tail(m.Console(), 8000), "\n")
	return fmt.Errorf("%w\nserial console of %s:\n    | %s", err, m.Name, strings.ReplaceAll(text, "\n", "\n    | "))
}
