package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// Options say what a whole machine is like. The zero value is a small virtual
// server.
type Options struct {
	MemoryMB int // 1024 if zero
	CPUs     int // 2 if zero
	// Queues, if not zero, gives the machine a second link (eth1, not
	// configured) with that many pairs of queues, connected to nothing. The
	// kernel uses as many of them as it has CPUs, unless told otherwise with
	// ethtool -L.
	Queues int
	// ExtraPackages are installed besides the usual ones. Another list is
	// another image, which costs a minute or two when it is first used.
	ExtraPackages []string
}

// Limits of a whole machine: for one boot, and for its whole life.
const (
	wholeBoot = 5 * time.Minute
	wholeLife = 20 * time.Minute
)

// whole is what a machine needs to be started again.
type whole struct {
	arch   string
	accel  string
	image  *image
	opts   Options
	disk   string // file
	format string // of the disk
	signer ssh.Signer
	port   int // of this host, where the machine's ssh answers
	life   *time.Timer
}

// Whole starts a machine with Debian on a disk of its own for a test, which is
// stopped when the test ends. It skips or fails the test where machines cannot
// be had (see Need).
func Whole(t testing.TB, release Release, opts Options) *Machine {
	t.Helper()
	Need(t)
	m, err := StartWhole(t.Context(), release, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// StartWhole starts a machine with Debian on a disk of its own, waiting for a
// place for it, and returns when it answers. The caller closes it. The first
// time the system is installed, which takes a minute or two.
func StartWhole(ctx context.Context, release Release, opts Options) (_ *Machine, err error) {
	_, _, public, err := sshKey(ctx)
	if err != nil {
		return nil, err
	}
	recipe, err := newRecipe(release, opts.ExtraPackages, public)
	if err != nil {
		return nil, err
	}
	img, err := recipe.build(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "accel-vm-")
	if err != nil {
		return nil, err
	}
	disk := filepath.Join(dir, "disk")
	_, err = command(ctx, nil, "qemu-img", "create", "-q", "-f", "qcow2", "-b", img.Disk, "-F", "raw", disk)
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	m, err := startWhole(ctx, img, opts, disk, "qcow2", "whole "+string(release))
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	m.release = append([]func(){func() { os.RemoveAll(dir) }}, m.release...)
	return m, nil
}

// startWhole starts a machine from the image on the given disk.
func startWhole(ctx context.Context, img *image, opts Options, disk, format, name string) (_ *Machine, err error) {
	m := &Machine{Name: name}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	w := &whole{arch: "amd64", image: img, opts: opts, disk: disk, format: format}
	if w.accel, err = accelerator(ctx, w.arch); err != nil {
		return nil, err
	}
	if _, w.signer, _, err = sshKey(ctx); err != nil {
		return nil, err
	}
	release, err := slot(ctx)
	if err != nil {
		return nil, err
	}
	m.release = append(m.release, release)
	w.life = time.AfterFunc(wholeLife, m.Kill)
	m.release = append(m.release, func() { w.life.Stop() })
	m.whole = w
	return m, m.start(ctx)
}

// start powers the machine on and waits until it answers.
func (m *Machine) start(ctx context.Context) error {
	w := m.whole
	ctx, cancel := context.WithTimeout(ctx, wholeBoot)
	defer cancel()
	begin := time.Now()
	for {
		err := w.launch(m)
		if err == nil {
			break
		}
		if !errors.Is(err, errPortTaken) || ctx.Err() != nil {
			return err
		}
	}
	shell, err := dialSSH(ctx, m.qemu, w.port, w.signer)
	if err != nil {
		return m.trouble(fmt.Errorf("%s: booting: %w", m.Name, err))
	}
	m.shell = shell
	m.Booted = time.Since(begin)
	r, err := m.Exec(ctx, "uname -r")
	m.Release = strings.TrimSpace(r.Stdout)
	return err
}

// errPortTaken means that somebody took the port of this host between our
// choosing it and the emulator's opening it.
var errPortTaken = errors.New("the port for ssh is taken")

// launch starts the emulator.
func (w *whole) launch(m *Machine) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	cpus, memory := w.opts.CPUs, w.opts.MemoryMB
	if cpus == 0 {
		cpus = 2
	}
	if memory == 0 {
		memory = 1024
	}
	args, err := arguments(w.arch, w.accel, cpus, memory)
	if err != nil {
		return err
	}
	args = append(args, "-kernel", w.image.Kernel, "-initrd", w.image.Initrd,
		"-append", "root=/dev/vda1 rw net.ifnames=0 panic=-1 cryptomgr.notests console="+serialConsole(w.arch),
		// Host buffers are never lost, only the emulator is ever killed: what
		// the machine has flushed is there afterwards, and nothing waits for
		// the host's disk.
		"-drive", "if=none,id=disk,cache=unsafe,discard=unmap,format="+w.format+",file="+w.disk,
		"-device", "virtio-blk-pci,drive=disk",
		// The machine is shut off from the world, but for our ssh.
		"-netdev", fmt.Sprintf("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:%d-:22", w.port),
		"-device", "virtio-net-pci,netdev=net,romfile=")
	var extra []*os.File
	if w.opts.Queues > 0 {
		if extra, err = openTaps(w.opts.Queues); err != nil {
			return err
		}
		defer closeAll(extra)
		args = append(args, tapArguments(0, w.opts.Queues)...)
	}
	if m.qemu, err = startQemu(args, extra, nil); err != nil {
		return err
	}
	select {
	case <-m.qemu.exited:
		if strings.Contains(m.Console(), "Could not set up host forwarding rule") {
			return errPortTaken
		}
		return m.trouble(fmt.Errorf("%s: %w: %w", m.Name, errDied, m.qemu.err))
	case <-time.After(300 * time.Millisecond):
		return nil
	}
}

// Kill cuts the power of a whole machine: what its kernel has not written to
// the disk is lost. It can be started again.
func (m *Machine) Kill() {
	if m.shell != nil {
		m.shell.close()
	}
	if m.qemu != nil {
		m.qemu.kill()
	}
}

// Start powers a whole machine on again, after Kill or PowerOff.
func (m *Machine) Start(t testing.TB) {
	t.Helper()
	if err := m.start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// offLimit is how long a machine may take to shut down. systemd itself gives
// a service 90 seconds.
const offLimit = 2 * time.Minute

// PowerOff shuts a whole machine down in order.
func (m *Machine) PowerOff(t testing.TB) {
	t.Helper()
	m.leave(t, "systemctl --no-block poweroff")
}

// Reboot shuts a whole machine down in order and starts it again; it answers
// when this returns, but its boot may not be over (see WaitBooted).
func (m *Machine) Reboot(t testing.TB) {
	t.Helper()
	before := m.MustRun(t, "cat /proc/sys/kernel/random/boot_id")
	m.leave(t, "systemctl --no-block reboot")
	m.Start(t)
	if after := m.MustRun(t, "cat /proc/sys/kernel/random/boot_id"); after == before {
		t.Fatalf("%s has not rebooted", m.Name)
	}
}

// leave runs a command that ends the machine, and waits for that: the
// emulator is told to exit where a real machine would start anew.
func (m *Machine) leave(t testing.TB, command string) {
	t.Helper()
	m.MustRun(t, command)
	select {
	case <-m.qemu.exited:
		m.shell.close()
	case <-time.After(offLimit):
		t.Fatal(m.trouble(fmt.Errorf("%s: still running %v after %q", m.Name, offLimit, command)))
	}
}

// WaitBooted waits until systemd has nothing more to start, and returns the
// units that failed.
func (m *Machine) WaitBooted(t testing.TB) (failed []string) {
	t.Helper()
	r := m.Run(t, "systemctl is-system-running --wait")
	state := strings.TrimSpace(r.Stdout)
	if state != "running" && state != "degraded" {
		t.Fatalf("%s: after the boot the system is %q: %s", m.Name, state, r.Stderr)
	}
	for line := range strings.Lines(m.MustRun(t, "systemctl --failed --plain --no-legend")) {
		failed = append(failed, strings.Fields(line)[0])
	}
	return failed
}

// Push copies a file of the host into the machine, with its mode. Small
// machines better get theirs by Guest.Files: their line is slow.
func (m *Machine) Push(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	m.Write(t, to, data, fi.Mode())
}

// Write makes a file in the machine, and the directories above it.
func (m *Machine) Write(t testing.TB, name string, data []byte, perm os.FileMode) {
	t.Helper()
	command := fmt.Sprintf("mkdir -p %s && cat > %s && chmod %o %s", Quote(path.Dir(name)), Quote(name), perm.Perm(), Quote(name))
	r, err := m.ExecStdin(t.Context(), command, data)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != 0 {
		t.Fatalf("%s: writing %s: %s", m.Name, name, r.Stderr)
	}
}

// SSH returns the command line by which a person gets into a whole machine.
func (m *Machine) SSH(ctx context.Context) (string, error) {
	file, _, _, err := sshKey(ctx)
	return fmt.Sprintf("ssh -i %s -p %d -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR root@127.0.0.1", file, m.whole.port), err
}

// Quote returns s as one word for a shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
