package vm

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Guest says what a small machine is made of.
type Guest struct {
	Kernel Kernel
	// Files maps paths in the machine to files or directories of the host.
	Files map[string]string
	// Tools are programs of Debian that the machine has besides the usual ones.
	Tools Tools
	// Without names kernel modules that the machine shall not have, nor any
	// that need them.
	Without []string
	// Parameters are added to the kernel command line.
	Parameters string
	CPUs       int // 2 if zero
	MemoryMB   int // 512 if zero
	// OwnTime gives the machine a clock that counts the instructions which its
	// only CPU executes, one a nanosecond, and jumps over the times when it has
	// nothing to do. So nothing that it measures depends on how fast or busy this
	// computer is, and waiting costs nothing: what takes a path of 600 ms an hour
	// takes here as long as the computing in it. Only in software emulation.
	OwnTime bool
	// Links is how many virtio links the machine has, eth0 and up, connected
	// to nothing. Their driver is loaded; they are down.
	Links int
	// Queues, if not zero, is how many pairs of queues the first link has. The
	// kernel uses no more of them than it has CPUs.
	Queues int
}

// Limits of a small machine: until it takes commands, and its whole life.
// Generous: a boot takes seconds, but many times that on a busy computer.
const (
	smallBoot = 4 * time.Minute
	smallLife = 15 * time.Minute
	// Who measures in a machine's own time measures for long.
	ownTimeLife = time.Hour
)

// Small starts a small machine for a test, which is stopped when the test
// ends. It skips or fails the test where machines cannot be had (see Need).
func Small(t testing.TB, g Guest) *Machine {
	t.Helper()
	Need(t)
	m, err := StartSmall(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// StartSmall starts a small machine, waiting for a place for it, and returns
// when it takes commands. The caller closes it.
func StartSmall(ctx context.Context, g Guest) (*Machine, error) {
	accel, err := accelerator(ctx, g.Kernel.Arch)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		m, err := startSmall(ctx, g, accel)
		if attempt == bootAttempts || !errors.Is(err, errPanic) {
			return m, err
		}
	}
}

// bootAttempts is how often a small machine is started whose kernel panics
// before anything of ours runs: software emulation with several threads breaks
// one boot in some hundreds, where a kernel patches its own code.
const bootAttempts = 3

// errPanic: the kernel panicked while it booted.
var errPanic = errors.New("the kernel panicked")

func startSmall(ctx context.Context, g Guest, accel string) (_ *Machine, err error) {
	m := &Machine{Name: "small " + g.Kernel.String()}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	files, err := g.Kernel.fetch(ctx)
	if err != nil {
		return nil, err
	}
	dir, release, err := slot(ctx)
	if err != nil {
		return nil, err
	}
	m.release = append(m.release, release)
	initramfs := filepath.Join(dir, "initramfs")
	if err := g.initramfs(ctx, files, dir, initramfs); err != nil {
		return nil, fmt.Errorf("making the initramfs: %w", err)
	}

	cpus, memory := g.CPUs, g.MemoryMB
	if cpus == 0 {
		cpus = 2
	}
	if memory == 0 {
		memory = 512
	}
	if g.OwnTime {
		accel, cpus = "tcg,thread=single", 1
	}
	args, err := arguments(g.Kernel.Arch, accel, cpus, memory)
	if err != nil {
		return nil, err
	}
	s := &serial{token: rand.Text(), messages: make(chan message, 1024)}
	if g.OwnTime {
		args = append(args, "-icount", "shift=0,sleep=off", "-rtc", "clock=vm")
		if at := slices.Index(args, "-cpu") + 1; at > 0 && g.Kernel.Arch == "amd64" {
			// Otherwise the kernel copies and clears with an instruction that counts
			// as one for each byte.
			args[at] += ",erms=off,fsrm=off,fsrs=off,fzrm=off"
		}
	}
	args = append(args, "-kernel", files.Image, "-initrd", initramfs,
		"-append", fmt.Sprintf("console=%s panic=-1 loglevel=5 cryptomgr.notests net.ifnames=0 vm.token=%s %s", serialConsole(g.Kernel.Arch), s.token, g.Parameters))
	var extra []*os.File
	for i := range g.Links {
		if i == 0 && g.Queues > 0 {
			if extra, err = openTaps(g.Queues); err != nil {
				return nil, err
			}
			defer closeAll(extra)
			args = append(args, tapArguments(0, g.Queues)...)
			continue
		}
		args = append(args, "-netdev", fmt.Sprintf("hubport,id=link%[1]d,hubid=%[1]d", i),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=link%d,mac=52:54:00:00:00:%02x,romfile=", i, i))
	}
	start := time.Now()
	q, err := startQemu(args, extra, &console{onLine: s.line})
	if err != nil {
		return nil, err
	}
	m.setQemu(q)
	limit := smallLife
	if g.OwnTime {
		limit = ownTimeLife
	}
	life := time.AfterFunc(limit, m.stop)
	m.release = append(m.release, func() { life.Stop() })
	s.qemu = q
	m.setShell(s)
	ctx, cancel := context.WithTimeout(ctx, smallBoot)
	defer cancel()
	ready, err := s.next(ctx)
	if err != nil {
		if strings.Contains(m.Console(), "Kernel panic") {
			err = fmt.Errorf("%w: %w", errPanic, err)
		}
		return nil, m.trouble(fmt.Errorf("%s: booting: %w", m.Name, err))
	}
	m.Release = string(ready.data)
	m.Booted = time.Since(start)
	if g.Links > 0 {
		r, err := m.Exec(ctx, "modprobe virtio_pci && modprobe virtio_net && ip link show eth0")
		if err != nil {
			return nil, err
		}
		if r.Exit != 0 {
			return nil, m.trouble(fmt.Errorf("%s: loading the driver of the links: %s", m.Name, r.Stderr))
		}
	}
	return m, nil
}

// initramfs makes the root file system.
func (g Guest) initramfs(ctx context.Context, k *kernelFiles, dir, name string) error {
	programs, err := userland(ctx, g.Kernel.Arch, g.Tools)
	if err != nil {
		return err
	}
	initBinary, err := buildInit(ctx, g.Kernel.Arch)
	if err != nil {
		return err
	}
	modules := filepath.Join(dir, "modules")
	if err := k.modules(ctx, modules, g.Without); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	c := newCpio(f)
	for _, d := range []string{"dev", "proc", "sys", "run", "tmp", "root", "etc", "var/lib", "mnt"} {
		c.dir(d)
	}
	// The kernel opens it for the first process, before anything is mounted.
	c.device("dev/console", 5, 1)
	c.file("init", initBinary)
	c.tree(programs)
	c.tree(modules)
	c.bytes("etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"), 0o644)
	c.bytes("etc/group", []byte("root:x:0:\nnogroup:x:65534:\n"), 0o644)
	for _, d := range []string{"etc/sysctl.d", "etc/modules-load.d", "etc/modprobe.d"} {
		c.dir(d) // a Debian without systemd has them too
	}
	for _, to := range slices.Sorted(maps.Keys(g.Files)) {
		from := g.Files[to]
		fi, err := os.Stat(from)
		if err != nil {
			return err
		}
		to = strings.TrimPrefix(to, "/")
		if fi.IsDir() {
			c.treeAt(to, from)
		} else {
			c.file(to, from)
		}
	}
	if err := c.close(); err != nil {
		return err
	}
	return f.Close()
}

// moduleDir returns the directory of this Go module.
var moduleDir = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("running go env GOMOD: %w", err)
	}
	file := strings.TrimSpace(string(out))
	if file == "" || file == os.DevNull {
		return "", errors.New("virtual machine tests have to be run inside the module")
	}
	return filepath.Dir(file), nil
})

// goBuild runs "go build" or "go test -c" for a machine of the architecture.
func goBuild(ctx context.Context, arch string, args ...string) error {
	root, err := moduleDir()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running go %s: %w\n%s", strings.Join(args, " "), err, tail(string(out), 4000))
	}
	return nil
}

// buildInit returns the program that is the first process of small machines.
func buildInit(ctx context.Context, arch string) (string, error) {
	root, err := moduleDir()
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(filepath.Join(root, "test/vm/init/main.go"))
	if err != nil {
		return "", err
	}
	dir, err := cached(ctx, "init", arch+"-"+hash(string(source)), func(ctx context.Context, dir string) error {
		return goBuild(ctx, arch, "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "init"), "./test/vm/init")
	})
	return filepath.Join(dir, "init"), err
}

// message is one from the machine's first process; see ./init.
type message struct {
	kind byte
	data []byte
}

// serial runs commands over the serial console.
type serial struct {
	mu       sync.Mutex // held while a command runs
	qemu     *qemu
	token    string
	messages chan message
	broken   error // set when a command did not end: no other can be run
}

// line takes a line of the console and returns it as people want to see it.
func (s *serial) line(line string) string {
	// Whatever was written before without an end may stand before it.
	before, text, ok := strings.Cut(line, s.token+" ")
	if !ok || len(text) < 2 || strings.Contains(before, "vm.token=") {
		return line
	}
	data, err := base64.StdEncoding.DecodeString(text[2:])
	if err != nil {
		return line
	}
	s.messages <- message{text[0], data}
	return before + text[:1] + "> " + strings.TrimSuffix(string(data), "\n")
}

func (s *serial) next(ctx context.Context) (message, error) {
	select {
	case m := <-s.messages:
		return m, nil
	case <-ctx.Done():
		return message{}, ctx.Err()
	case <-s.qemu.exited:
		return message{}, fmt.Errorf("%w: %w", errDied, s.qemu.err)
	}
}

func (s *serial) run(ctx context.Context, command string, stdin []byte) (Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return Result{}, s.broken
	}
	request, err := json.Marshal(map[string]any{"Shell": command, "Stdin": stdin})
	if err != nil {
		return Result{}, err
	}
	if _, err := fmt.Fprintf(s.qemu.stdin, "%s c %s\n", s.token, base64.StdEncoding.EncodeToString(request)); err != nil {
		return Result{}, fmt.Errorf("%w: %w", errDied, err)
	}
	var r Result
	for {
		m, err := s.next(ctx)
		if err != nil {
			s.broken = fmt.Errorf("an earlier command did not end: %w", err)
			return r, err
		}
		switch m.kind {
		case 'o':
			r.Stdout += string(m.data)
		case 'e':
			r.Stderr += string(m.data)
		case 'x':
			r.Exit, err = strconv.Atoi(string(m.data))
			return r, err
		}
	}
}

func (s *serial) close() {}
