package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
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
	// Boot is how the machine starts its kernel.
	Boot Boot
	// ExtraPackages are installed besides the usual ones. Another list is
	// another image, which costs a minute or two when it is first used.
	ExtraPackages []string
	// Cold powers the machine on. Otherwise it begins as the copy of one that
	// has finished its boot, which is there much sooner.
	Cold bool
}

// WholeLife is how long a whole machine may live before it is stopped.
const WholeLife = 40 * time.Minute

// wholeBoot is how long one boot may take. Generous: it takes half a minute,
// but several times that on a busy computer.
const wholeBoot = 5 * time.Minute

// whole is what a machine needs to be started again.
type whole struct {
	image  *image
	opts   Options
	accel  string
	dir    string // for the files of this machine alone
	disk   string // file
	vars   string // file of the firmware's variables, "" without such
	signer ssh.Signer
	port   int // of this host, where the machine's ssh answers

	// Of a machine with a boot loader:
	archive *archive
	boots   bootLog
	console *console // of all its boots
}

// wholeArch is the architecture of whole machines.
const wholeArch = "amd64"

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
// time the system is installed, which takes some minutes.
func StartWhole(ctx context.Context, release Release, opts Options) (*Machine, error) {
	if opts.CPUs == 0 {
		opts.CPUs = 2
	}
	if opts.MemoryMB == 0 {
		opts.MemoryMB = 1024
	}
	_, _, public, err := sshKey(ctx)
	if err != nil {
		return nil, err
	}
	recipe, err := newRecipe(ctx, release, opts.Boot.image(), opts.ExtraPackages, public)
	if err != nil {
		return nil, err
	}
	img, err := recipe.build(ctx)
	if err != nil {
		return nil, err
	}
	name := "whole " + string(release)
	if opts.Boot != "" {
		name += " " + string(opts.Boot)
	}
	if opts.Cold {
		return startWhole(ctx, img, opts, name, "")
	}
	saved, err := img.booted(ctx, opts, name)
	if err != nil {
		return nil, err
	}
	resumed := *img
	resumed.Disk = filepath.Join(saved, "disk")
	if _, vars := opts.Boot.firmware(); vars != "" {
		resumed.Vars = filepath.Join(saved, "vars")
	}
	return startWhole(ctx, &resumed, opts, name, filepath.Join(saved, "memory"))
}

// booted returns a directory with the disk and the memory of a machine that
// has finished its boot.
func (img *image) booted(ctx context.Context, opts Options, name string) (string, error) {
	accel, err := accelerator(ctx, wholeArch)
	if err != nil {
		return "", err
	}
	hardware, err := img.hardware(accel, opts)
	if err != nil {
		return "", err
	}
	version, err := command(ctx, nil, hardware[0], "--version")
	if err != nil {
		return "", err
	}
	// The saved state fits only the same machine in the same emulator.
	key := filepath.Base(filepath.Dir(img.Disk)) + "-" + hash(version, strings.Join(hardware, " "), "1")
	return cached(ctx, "booted", key, func(ctx context.Context, dir string) error {
		ctx, cancel := context.WithTimeout(ctx, wholeBoot)
		defer cancel()
		m, err := startWhole(ctx, img, opts, name, "")
		if err != nil {
			return err
		}
		defer m.Close()
		if err := m.settle(ctx); err != nil {
			return err
		}
		// What is not saved need not be read: free the memory that only
		// caches.
		if _, err := m.Exec(ctx, "sync; echo 3 > /proc/sys/vm/drop_caches"); err != nil {
			return err
		}
		m.shell.close()
		c, err := dialQMP(ctx, m.qemu, m.whole.socket())
		if err != nil {
			return m.trouble(err)
		}
		if err := c.save(filepath.Join(dir, "memory")); err != nil {
			return m.trouble(err)
		}
		if err := c.do("quit", nil, nil); err != nil {
			return m.trouble(err)
		}
		<-m.qemu.exited
		if m.whole.vars != "" {
			if err := os.Rename(m.whole.vars, filepath.Join(dir, "vars")); err != nil {
				return err
			}
		}
		return os.Rename(m.whole.disk, filepath.Join(dir, "disk"))
	})
}

// settle waits until the boot of a new system is over and checks that nothing
// in it failed.
func (m *Machine) settle(ctx context.Context) error {
	r, err := m.Exec(ctx, "systemctl is-system-running --wait; systemctl --failed --no-legend")
	if err != nil {
		return err
	}
	if strings.TrimSpace(r.Stdout) != "running" {
		return m.trouble(fmt.Errorf("%s: the boot ended so: %s%s", m.Name, r.Stdout, r.Stderr))
	}
	return nil
}

// startWhole starts a machine on a copy of the image's disk: from power off,
// or from the saved memory in a file.
func startWhole(ctx context.Context, img *image, opts Options, name, memory string) (*Machine, error) {
	m, err := newWhole(ctx, img, opts, name)
	if err != nil {
		return nil, err
	}
	if err := m.start(ctx, memory); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// newWhole makes a machine with a copy of the image's disk, without power.
func newWhole(ctx context.Context, img *image, opts Options, name string) (_ *Machine, err error) {
	m := &Machine{Name: name, whole: &whole{image: img, opts: opts}}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	w := m.whole
	if w.accel, err = accelerator(ctx, wholeArch); err != nil {
		return nil, err
	}
	if _, w.signer, _, err = sshKey(ctx); err != nil {
		return nil, err
	}
	if opts.Boot != "" || img.loader != "" {
		if w.archive, err = openArchive(ctx, img.Release); err != nil {
			return nil, err
		}
		m.release = append(m.release, w.archive.close)
	}
	var release func()
	if w.dir, release, err = slot(ctx); err != nil {
		return nil, err
	}
	m.release = append(m.release, release)
	w.disk = filepath.Join(w.dir, "disk")
	if _, begin := opts.Boot.firmware(); begin != "" {
		w.vars = filepath.Join(w.dir, "vars")
		if img.Vars != "" {
			begin = img.Vars
		}
		if err := copyFile(begin, w.vars, 0o644); err != nil {
			return nil, err
		}
	}
	_, err = command(ctx, nil, "qemu-img", "create", "-q", "-f", "qcow2", "-b", img.Disk, "-F", img.Format, w.disk)
	if err != nil {
		return nil, err
	}
	life := time.AfterFunc(WholeLife, m.Kill)
	m.release = append(m.release, func() { life.Stop() })
	return m, nil
}

// start powers the machine on, or lets it go on from its saved memory, and
// waits until it answers.
func (m *Machine) start(ctx context.Context, memory string) error {
	w := m.whole
	ctx, cancel := context.WithTimeout(ctx, wholeBoot)
	defer cancel()
	begin := time.Now()
	for {
		err := w.launch(m, memory)
		if err == nil {
			break
		}
		if !errors.Is(err, errPortTaken) || ctx.Err() != nil {
			return err
		}
	}
	if memory != "" {
		c, err := dialQMP(ctx, m.qemu, w.socket())
		if err == nil {
			err = c.resume()
			c.conn.Close()
		}
		if err != nil {
			return m.trouble(fmt.Errorf("%s: resuming: %w", m.Name, err))
		}
	}
	shell, err := dialSSH(ctx, m.qemu, w.port, w.signer)
	if err != nil {
		return m.trouble(fmt.Errorf("%s: booting: %w", m.Name, err))
	}
	m.setShell(shell)
	m.Booted = time.Since(begin)
	return m.greet(ctx)
}

// errPortTaken means that somebody took the port of this host between our
// choosing it and the emulator's opening it.
var errPortTaken = errors.New("the port for ssh is taken")

// socket is where the emulator can be controlled.
func (w *whole) socket() string { return filepath.Join(w.dir, "qmp") }

// hardware returns the arguments that say what the machine is; a saved memory
// fits only the same.
func (img *image) hardware(accel string, opts Options) ([]string, error) {
	args, err := arguments(wholeArch, accel, opts.CPUs, opts.MemoryMB)
	if err != nil {
		return nil, err
	}
	if opts.Boot == "" {
		args = append(args, "-kernel", img.Kernel, "-initrd", img.Initrd,
			"-append", "root=/dev/vda1 rw net.ifnames=0 panic=-1 cryptomgr.notests console="+serialConsole(wholeArch))
	} else {
		// It is to start anew as often as it likes.
		args = slices.DeleteFunc(args, func(a string) bool { return a == "-no-reboot" })
		firmware, _ := opts.Boot.firmware()
		args = append(args, firmware...)
	}
	args = append(args, "-device", "virtio-blk-pci,drive=disk",
		"-device", "virtio-net-pci,netdev=net,romfile=")
	if opts.Queues > 0 {
		args = append(args, tapArguments(0, opts.Queues)...)
	}
	return args, nil
}

// launch starts the emulator.
func (w *whole) launch(m *Machine, memory string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	args, err := w.image.hardware(w.accel, w.opts)
	if err != nil {
		return err
	}
	if w.vars != "" {
		args = append(args, "-drive", "if=pflash,unit=1,format=raw,cache=unsafe,file="+w.vars)
	}
	// The machine is shut off from the world, but for our ssh.
	network := fmt.Sprintf("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:%d-:22", w.port)
	if w.archive != nil {
		forward, err := w.archive.forwarder(w.dir)
		if err != nil {
			return err
		}
		network += "," + forward
	}
	args = append(args,
		// Only the emulator is ever killed, never the host, whose buffers are
		// safe: what the machine has flushed is there afterwards, and nothing
		// waits for the host's disk.
		"-drive", "if=none,id=disk,cache=unsafe,discard=unmap,format=qcow2,file="+w.disk,
		"-netdev", network,
		"-qmp", "unix:"+w.socket()+",server=on,wait=off")
	if memory != "" {
		args = append(args, "-incoming", "exec:cat "+Quote(memory))
	}
	var extra []*os.File
	if w.opts.Queues > 0 {
		if extra, err = openTaps(w.opts.Queues); err != nil {
			return err
		}
		defer closeAll(extra)
	}
	screen := &console{}
	if w.opts.Boot != "" {
		screen.onLine = w.boots.line
		if w.console != nil {
			// What was written before the power went stays.
			screen = w.console
			screen.Write([]byte("\n"))
		}
	}
	q, err := startQemu(args, extra, screen)
	if err != nil {
		return err
	}
	m.setQemu(q)
	select {
	case <-q.exited:
		if strings.Contains(m.Console(), "Could not set up host forwarding rule") {
			return errPortTaken
		}
		return m.trouble(fmt.Errorf("%s: %w: %w", m.Name, errDied, q.err))
	case <-time.After(200 * time.Millisecond):
		w.console = screen
		return nil
	}
}

// Kill cuts the power of a whole machine: what its kernel has not written to
// the disk is lost. It can be started again.
func (m *Machine) Kill() { m.stop() }

// Start powers a whole machine on again, after Kill or PowerOff.
func (m *Machine) Start(t testing.TB) {
	t.Helper()
	if err := m.start(t.Context(), ""); err != nil {
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
	if m.whole.opts.Boot != "" {
		m.MustRun(t, "systemctl --no-block reboot")
		m.AwaitBoot(t, offLimit+2*wholeBoot) // GRUB and the firmware take their time too
		return
	}
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

// Build fetches all kernels and builds the images, so that tests find them in
// the cache.
func Build(ctx context.Context) error {
	for _, k := range Kernels() {
		if _, err := k.fetch(ctx); err != nil {
			return err
		}
		if _, err := userland(ctx, k.Arch, Tools{}); err != nil {
			return err
		}
	}
	for _, r := range []Release{Bookworm, Trixie} {
		m, err := StartWhole(ctx, r, Options{})
		if err != nil {
			return err
		}
		m.Close()
	}
	return nil
}
