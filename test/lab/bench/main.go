// Bench measures long comparisons inside a virtual machine and keeps their
// results. The machine has a clock of its own (vm.Guest.OwnTime), so that it does
// not matter what else this computer does meanwhile. It can be interrupted at any
// time, and goes on where it was, but for what the last minutes had measured.
//
//	go run ./test/lab/bench [-kernel 6.12] [-rounds N] [-out docs/results] [NAME...]
//
// Each NAME is one of the comparisons below; without one, all of them are made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"accel/test/vm"
)

// comparisons are the questions that the results answer.
var comparisons = []struct{ name, command string }{
	// What README shows.
	{"readme", "compare cubic bbr --path home --size 2M"},
	// The test that forums copy: 640 MB over loopback with loss.
	{"forum", "compare cubic bbr --path loopback,loopback-1,loopback-10 --size 640M"},
	// Figure 8 of the BBR paper.
	{"bbr-paper", "compare cubic bbr --path bbr-paper --loss 0.001,0.01,0.1,0.5,1,2,5,10,20,30 --size 25M"},
	// What people transfer, over what they have.
	{"matrix", "compare cubic bbr --path bbr-paper,pacific,home,mobile,satellite --size 640K --size 8M --size 25M"},
	// Fairness, a value for all of whom somebody else shares the line.
	{"fairness", "compare cubic bbr --rate 50 --rtt 40 --loss 0 --queue 0.5x,1x,2x,4x --size 25M --against cubic"},
}

// What one machine has measured is kept when its shift ends, which is so long on
// the machine's own clock. On this computer's it is from half a minute to half an
// hour.
const (
	shift = 150 * time.Second
	limit = 50 * time.Minute
	boots = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kernel := flag.String("kernel", "6.12", "of Debian: 5.10, 6.1, 6.12 or 7")
	rounds := flag.Int("rounds", 10, "of each comparison")
	out := flag.String("out", "docs/results", "directory of the results")
	extra := flag.String("with", "", "more options for accel compare")
	flag.Parse()
	if err := vm.Missing(); err != nil {
		return err
	}
	k := slices.IndexFunc(vm.Kernels(), func(k vm.Kernel) bool { return k.String() == *kernel })
	if k < 0 {
		return fmt.Errorf("there is no kernel %q", *kernel)
	}
	dir, err := os.MkdirTemp("", "accel-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "accel")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", binary, "accel/cmd/accel")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building accel: %w\n%s", err, said)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	for _, c := range comparisons {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), c.name) {
			continue
		}
		b := bench{guest: vm.Guest{Kernel: vm.Kernels()[k], OwnTime: true, Files: map[string]string{"/usr/bin/accel": binary}}, accel: binary, dir: *out, name: c.name}
		b.command = strings.TrimSpace(fmt.Sprintf("%s --rounds %d %s", c.command, *rounds, *extra))
		if err := b.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

type bench struct {
	guest                     vm.Guest
	accel, dir, name, command string
}

func (b bench) file(suffix string) string { return filepath.Join(b.dir, b.name+suffix) }

func (b bench) run(ctx context.Context) error {
	if _, err := os.Stat(b.file(".json")); err == nil {
		fmt.Printf("%s: %s is there; delete it to measure anew\n", b.name, b.file(".json"))
		return nil
	}
	for {
		done, err := b.shift(ctx)
		if err != nil {
			return err
		}
		if done {
			break
		}
	}
	// The page is made of the result, as everybody can make it.
	show := exec.CommandContext(ctx, b.accel, "report", b.file(".json"), "--html", b.file(".html"))
	show.Stdout, show.Stderr = os.Stdout, os.Stderr
	if err := show.Run(); err != nil {
		return err
	}
	return os.Remove(b.file(".part"))
}

// shift measures for a while in a machine of its own, and keeps what was
// measured.
func (b bench) shift(ctx context.Context) (done bool, err error) {
	part, err := os.ReadFile(b.file(".part"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	fmt.Printf("%s: accel %s; %d transfers are there\n", b.name, b.command, max(strings.Count(string(part), "\n")-1, 0))
	// An emulated boot fails once in a while; a run of hours must not end by it.
	m, err := vm.StartSmall(ctx, b.guest)
	for try := 1; err != nil && try < boots && ctx.Err() == nil; try++ {
		fmt.Fprintln(os.Stderr, "bench:", err)
		m, err = vm.StartSmall(ctx, b.guest)
	}
	if err != nil {
		return false, err
	}
	defer m.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if len(part) > 0 {
		if _, err := m.ExecStdin(ctx, "cat >/tmp/x.part", part); err != nil {
			return false, err
		}
	}
	r, err := m.Exec(ctx, fmt.Sprintf("timeout %d accel %s --resume /tmp/x.part --json >/tmp/x.json", int(shift.Seconds()), b.command))
	if err != nil {
		return false, err
	}
	kept, err := m.Exec(ctx, "cat /tmp/x.part")
	if err != nil {
		return false, err
	}
	if kept.Exit == 0 {
		if err := os.WriteFile(b.file(".part"), []byte(kept.Stdout), 0o644); err != nil {
			return false, err
		}
	}
	switch {
	case r.Exit == 0:
		result, err := m.Exec(ctx, "cat /tmp/x.json")
		if err != nil {
			return false, err
		}
		return true, os.WriteFile(b.file(".json"), []byte(result.Stdout), 0o644)
	case len(kept.Stdout) > len(part):
		return false, nil
	}
	return false, fmt.Errorf("exit %d: %s", r.Exit, r.Stderr)
}
