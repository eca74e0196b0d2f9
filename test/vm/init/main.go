// Init is the first process of a small virtual machine (see package vm). It
// mounts what programs expect, brings up the loopback link, and then runs
// commands that arrive on the serial console.
//
// Each message is a line on the console, in both directions: a token that the
// host chose for this boot and gave on the kernel command line, a blank, a
// letter, a blank, and base64. Lines without the token are the kernel's. The
// host sends
//
//	c  a command for the shell, as JSON of [Command]
//
// one at a time, and gets back
//
//	r  ready for a command (once, at the start; with the kernel release)
//	o  some of the command's standard output
//	e  some of its standard error
//	x  the end of the command, with its exit code in decimal
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Command is what the host wants to be run.
type Command struct {
	Shell string   // text for /bin/sh -c
	Env   []string // added to the environment
	Stdin []byte
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		fmt.Println("init:", serve())
		return
	}
	if err := setup(); err != nil {
		fmt.Println("init:", err)
	}
	// Commands run below a second process, so that this one can do nothing
	// but collect orphans, which is the first process's duty.
	server, err := os.StartProcess("/init", []string{"/init", "serve"}, &os.ProcAttr{
		Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb", "LANG=C"},
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		fmt.Println("init:", err)
	} else {
		for {
			pid, err := unix.Wait4(-1, nil, 0, nil)
			if pid == server.Pid || err != nil && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("init:", err)
	}
	select {}
}

// setup readies the machine as far as it can and returns all that failed.
func setup() error {
	var errs []error
	for _, m := range []struct {
		kind, at, data string
		flags          uintptr
	}{
		{"proc", "/proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "/sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"devtmpfs", "/dev", "mode=0755", unix.MS_NOSUID},
		{"devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=000", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "/dev/shm", "", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/run", "mode=0755", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"cgroup2", "/sys/fs/cgroup", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := unix.Mount(m.kind, m.at, m.kind, m.flags, m.data); err != nil {
			errs = append(errs, fmt.Errorf("mounting %s: %w", m.at, err))
		}
	}
	// The kernel lets everybody write to its first root.
	errs = append(errs, unix.Chmod("/", 0o755), unix.Sethostname([]byte("small")), loopbackUp(),
		exec.Command("/bin/busybox", "--install", "-s").Run())
	return errors.Join(errs...)
}

// loopbackUp does what every Linux system does at boot.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("bringing up lo: %w", err)
	}
	return nil
}

// serve runs commands from the console until that fails.
func serve() error {
	token, err := token()
	if err != nil {
		return err
	}
	if err := raw(0); err != nil {
		return fmt.Errorf("setting up the console: %w", err)
	}
	// From here on the kernel only writes to the console when it dies, since
	// its messages can break up the lines.
	if _, err := unix.Klogctl(unix.SYSLOG_ACTION_CONSOLE_LEVEL, make([]byte, 1)); err != nil {
		return fmt.Errorf("silencing the kernel: %w", err)
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	out := &console{w: os.Stdout, token: token}
	out.send('r', bytes.TrimSpace(release))
	lines := bufio.NewReaderSize(os.Stdin, 1<<16)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		text, ok := strings.CutPrefix(strings.TrimSpace(line), token+" c ")
		if !ok {
			continue
		}
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return err
		}
		var c Command
		if err := json.Unmarshal(data, &c); err != nil {
			return err
		}
		out.send('x', fmt.Append(nil, run(c, out)))
	}
}

func run(c Command, out *console) int {
	cmd := exec.Command("/bin/sh", "-c", c.Shell)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(c.Stdin)
	cmd.Stdout, cmd.Stderr = out.stream('o'), out.stream('e')
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			return 128 + int(ws.Signal()) // as a shell says it
		}
		return exit.ExitCode()
	}
	if err != nil {
		out.send('e', []byte(err.Error()+"\n"))
		return 127
	}
	return 0
}

// console writes messages to the host.
type console struct {
	mu    sync.Mutex
	w     io.Writer
	token string
}

func (c *console) send(kind byte, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.w, "%s %c %s\n", c.token, kind, base64.StdEncoding.EncodeToString(data))
}

func (c *console) stream(kind byte) io.Writer { return stream{c, kind} }

type stream struct {
	c    *console
	kind byte
}

func (s stream) Write(p []byte) (int, error) {
	s.c.send(s.kind, p)
	return len(p), nil
}

// token returns the word by which the host knows our lines.
func token() (string, error) {
	data, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return "", err
	}
	for _, f := range strings.Fields(string(data)) {
		if t, ok := strings.CutPrefix(f, "vm.token="); ok {
			return t, nil
		}
	}
	return "", errors.New("no vm.token= on the kernel command line")
}

// raw makes the terminal pass every byte as it is.
func raw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}
