package bootkernel

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The only place of this package that runs programs. The boot loader and the
// packages of a host have no other interface than apt, dpkg, update-grub,
// grub-editenv and systemctl.

// places are where programs are looked for, never in the caller's PATH.
var places = []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// environment is what programs get, and nothing of the caller's: messages in
// English, no questions, no reboot or restart by needrestart behind our back.
var environment = []string{
	"LC_ALL=C", "PATH=" + strings.Join(places, ":"), "HOME=/root", "TERM=dumb",
	"DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=l", "NEEDRESTART_SUSPEND=1",
	// A reboot has to go through GRUB: not by kexec into whatever is loaded.
	"SYSTEMCTL_SKIP_AUTO_KEXEC=1", "SYSTEMCTL_SKIP_AUTO_SOFT_REBOOT=1",
	"APT_LISTCHANGES_FRONTEND=none", "UCF_FORCE_CONFFOLD=1",
}

// lookTimeout bounds a program that only looks. Unpacking a kernel's package to see
// what is in it takes minutes on a small machine.
const lookTimeout = 15 * time.Minute

type programs struct{}

func (programs) Run(ctx context.Context, c Command) (string, error) {
	program := ""
	for _, dir := range places {
		if info, err := os.Stat(path.Join(dir, c.Name)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			program = path.Join(dir, c.Name)
			break
		}
	}
	if program == "" {
		return "", fmt.Errorf("%s: %w", c.Name, ErrNoProgram)
	}
	if c.Change {
		ctx = context.WithoutCancel(ctx)
	} else {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, lookTimeout)
		defer cancel()
	}
	args := c.Args
	if c.Progress != nil {
		args = append([]string{"-o", "APT::Status-Fd=3"}, args...)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = environment
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	// Ctrl-C at a terminal reaches the whole group: dpkg must not get it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	said := &tail{}
	cmd.Stdout, cmd.Stderr = &out, said
	if c.Progress != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return "", err
		}
		defer r.Close()
		cmd.ExtraFiles = []*os.File{w} // descriptor 3
		done := make(chan struct{})
		go func() { followApt(r, c.Progress); close(done) }()
		if err := cmd.Start(); err != nil {
			w.Close()
			return "", fmt.Errorf("%s: %w", c.Name, err)
		}
		w.Close()
		err = cmd.Wait()
		r.SetReadDeadline(time.Now()) // a daemon may keep the other end
		<-done
		return out.String(), ended(c, err, said, ctx)
	}
	if c.Output != nil {
		cmd.Stdout = nil
		r, err := cmd.StdoutPipe()
		if err != nil {
			return "", err
		}
		if err := cmd.Start(); err != nil {
			return "", fmt.Errorf("%s: %w", c.Name, err)
		}
		readErr := c.Output(r)
		if err := ended(c, cmd.Wait(), said, ctx); err != nil {
			return "", err
		}
		return "", readErr
	}
	err := cmd.Run()
	return out.String(), ended(c, err, said, ctx)
}

func ended(c Command, err error, said *tail, ctx context.Context) error {
	if err == nil {
		return nil
	}
	name := c.Name
	for _, a := range c.Args {
		if !strings.HasPrefix(a, "-") && !strings.Contains(a, "::") {
			name += " " + a
			break
		}
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", name, ctx.Err())
	case errors.As(err, &exit):
		return &ProgramError{Command: name, Exit: exit.ExitCode(), Said: said.String()}
	}
	return fmt.Errorf("%s: %w", name, err)
}

// tail keeps the last lines of what a program said.
type tail struct{ b bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	t.b.Write(p)
	if t.b.Len() > 16<<10 {
		t.b.Next(t.b.Len() - 8<<10)
	}
	return len(p), nil
}

// String is the errors among the lines, or else the last three lines, in one.
func (t *tail) String() string {
	var errs, all []string
	for line := range strings.Lines(t.b.String()) {
		line = strings.TrimSpace(strings.ToValidUTF8(line, "?"))
		if line == "" {
			continue
		}
		all = append(all, line)
		if strings.HasPrefix(line, "E: ") || strings.HasPrefix(line, "dpkg: error") {
			errs = append(errs, strings.TrimPrefix(line, "E: "))
		}
	}
	if len(errs) > 0 {
		all = errs
	}
	return strings.Join(all[max(0, len(all)-3):], "; ")
}

// followApt reads what apt writes to APT::Status-Fd (apt's
// README.progress-reporting): kind:package:percent:text.
func followApt(r io.Reader, each func(float64, string)) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		f := strings.SplitN(s.Text(), ":", 4)
		if len(f) < 4 || f[0] != "pmstatus" && f[0] != "dlstatus" {
			continue
		}
		percent, err := strconv.ParseFloat(f[2], 64)
		if err != nil {
			percent = -1
		}
		each(percent, f[3])
	}
}

// holder asks the kernel who holds a lock as apt and dpkg take it (fcntl).
func holder(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return ""
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", lock.Pid))
	if err != nil {
		return fmt.Sprintf("process %d", lock.Pid)
	}
	return fmt.Sprintf("%s, process %d", strings.TrimSpace(string(name)), lock.Pid)
}
