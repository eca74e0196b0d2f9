package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// qemu is a running emulator.
type qemu struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser // the serial line's input
	console *console
	exited  chan struct{} // closed when the process is gone
	err     error         // how it ended, when exited is closed
}

// startQemu starts an emulator whose serial console goes to screen. It is killed
// when this process ends, however that comes about.
func startQemu(args []string, extra []*os.File, screen *console) (*qemu, error) {
	q := &qemu{exited: make(chan struct{}), console: screen}
	q.cmd = exec.Command(args[0], args[1:]...)
	q.cmd.Stdout, q.cmd.Stderr = q.console, q.console
	q.cmd.ExtraFiles = extra
	q.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	q.cmd.WaitDelay = 5 * time.Second
	stdin, err := q.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	q.stdin = stdin
	done, err := startBound(q.cmd)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", args[0], err)
	}
	go func() {
		q.err = <-done
		close(q.exited)
	}()
	return q, nil
}

// kill ends the emulator and all its children at once.
func (q *qemu) kill() {
	syscall.Kill(-q.cmd.Process.Pid, syscall.SIGKILL)
	<-q.exited
}

// console gathers what a machine writes to its serial line.
type console struct {
	mu     sync.Mutex
	text   []byte // what is shown to people
	line   []byte // the line that has not ended yet
	onLine func(line string) (shown string)
}

// consoleLimit is how much of a console is kept: the end of it.
const consoleLimit = 1 << 20

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range p {
		switch b {
		case '\r', 0:
		case '\n':
			line := string(c.line)
			c.line = c.line[:0]
			if c.onLine != nil {
				line = c.onLine(line)
			}
			c.text = append(append(c.text, line...), '\n')
		default:
			c.line = append(c.line, b)
		}
	}
	if len(c.text) > consoleLimit {
		c.text = append(c.text[:0], c.text[len(c.text)-consoleLimit/2:]...)
	}
	return len(p), nil
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.text) + string(c.line)
}

// arguments returns the start of a command line of qemu for the architecture,
// up to and without disks and links. accel is "kvm", "tcg" for one thread for
// each CPU, or an accelerator in qemu's own words.
func arguments(arch string, accel string, cpus, memoryMB int) ([]string, error) {
	var args []string
	var cpu string
	switch arch {
	case "amd64":
		args, cpu = []string{program("qemu-system-x86_64"), "-machine", "q35"}, "max,la57=off" // four-level page tables are walked faster
	case "arm64":
		args, cpu = []string{program("qemu-system-aarch64"), "-machine", "virt"}, "max"
	default:
		return nil, fmt.Errorf("no machine for the architecture %s", arch)
	}
	switch accel {
	case "kvm":
		args = append(args, "-accel", "kvm", "-cpu", "host")
	case "tcg":
		args = append(args, "-accel", "tcg,thread=multi", "-cpu", cpu)
	default:
		args = append(args, "-accel", accel, "-cpu", cpu)
	}
	return append(args, "-smp", fmt.Sprint(cpus), "-m", fmt.Sprint(memoryMB),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-rng-pci"), nil
}

// serialConsole is the kernel's name of the first serial line.
func serialConsole(arch string) string {
	if arch == "arm64" {
		return "ttyAMA0"
	}
	return "ttyS0"
}

// kvmTrial is how long a machine may take to boot with KVM before KVM is taken
// to be broken here. A working one takes about a second.
const kvmTrial = 15 * time.Second

// accelerator returns "tcg", or "kvm" if ACCEL_VM_ACCEL=kvm asks for it, the
// machine's architecture is the host's, and a trial boot succeeded. The trial
// is made once for each kernel that the host boots.
func accelerator(ctx context.Context, arch string) (string, error) {
	switch asked := os.Getenv("ACCEL_VM_ACCEL"); {
	case asked == "" || asked == "tcg":
		return "tcg", nil
	case asked != "kvm":
		return "", fmt.Errorf("ACCEL_VM_ACCEL=%q is neither tcg nor kvm", asked)
	case arch != runtime.GOARCH:
		return "tcg", nil
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "", err
	}
	dir, err := cached(ctx, "kvm", hash(string(release)), func(ctx context.Context, dir string) error {
		verdict := "kvm"
		k := Kernel61
		k.Arch = arch
		ctx, cancel := context.WithTimeout(ctx, kvmTrial)
		defer cancel()
		m, err := startSmall(ctx, Guest{Kernel: k}, "kvm")
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, errDied) {
				return err
			}
			verdict = "tcg"
		} else {
			m.Close()
		}
		return os.WriteFile(filepath.Join(dir, "verdict"), []byte(verdict), 0o644)
	})
	if err != nil {
		return "", err
	}
	verdict, err := os.ReadFile(filepath.Join(dir, "verdict"))
	return strings.TrimSpace(string(verdict)), err
}
