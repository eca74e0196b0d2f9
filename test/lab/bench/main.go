// Bench measures long comparisons inside a virtual machine and keeps their
// results. The machine has a clock of its own (vm.Guest.OwnTime), so that it does
// not matter what else this computer does meanwhile. It can be interrupted at any
// time, and goes on where it was, but for what the last minutes had measured.
//
//	go run ./test/lab/bench [-out docs/results] [-rounds N] GROUP|NAME...
//	go run ./test/lab/bench [-out docs/results] -summary
//
// Groups are "path" (algorithm against algorithm) and "boost" (the profile boost
// against bbr, cubic and published tunings); plan.go says what is in them. With
// -summary nothing is measured: what the results of boost say together is written
// to boost.md beside them.
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

// What one machine has measured is kept when its shift ends, which is so long on
// the machine's own clock. On this computer's it is from half a minute to half an
// hour.
const (
	shift = 400 * time.Second
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
	rounds := flag.Int("rounds", 0, "of each comparison, instead of its own number")
	out := flag.String("out", "docs/results", "directory of the results")
	summary := flag.Bool("summary", false, "write what the results of boost say together")
	flag.Parse()
	if *summary {
		return summarize(*out)
	}
	if flag.NArg() == 0 {
		return errors.New("name a group (path, boost) or comparisons")
	}
	known := map[string]bool{}
	for _, c := range comparisons {
		known[c.name], known[c.group] = true, true
	}
	for _, name := range flag.Args() {
		if !known[name] {
			return fmt.Errorf("there is neither a group nor a comparison %q", name)
		}
	}
	if err := vm.Missing(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "accel-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "accel")
	if err := build(ctx, binary); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	for _, c := range comparisons {
		if !slices.Contains(flag.Args(), c.name) && !slices.Contains(flag.Args(), c.group) {
			continue
		}
		if *rounds > 0 {
			c.rounds = *rounds
		}
		b := bench{comparison: c, accel: binary, dir: *out}
		if err := b.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// build builds accel for a machine.
func build(ctx context.Context, name string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", name, "accel/cmd/accel")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building accel: %w\n%s", err, said)
	}
	return nil
}

type bench struct {
	comparison
	accel, dir string
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

// guest is the machine that measures. What a processor needs against attacks by
// others would only be more to emulate.
func (b bench) guest() vm.Guest {
	return vm.Guest{
		Kernel: b.kernel, OwnTime: true, Parameters: "mitigations=off",
		Files: map[string]string{"/usr/bin/accel": b.accel, "/arms": "test/lab/bench/arms", "/candidates": "test/lab/bench/candidates"},
	}
}

// shift measures for a while in a machine of its own, and keeps what was
// measured.
func (b bench) shift(ctx context.Context) (done bool, err error) {
	part, err := os.ReadFile(b.file(".part"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	command := fmt.Sprintf("accel compare %s --rounds %d", b.command, b.rounds)
	fmt.Printf("%s: %s (Linux %s); %d transfers are there\n", b.name, command, b.kernel, max(strings.Count(string(part), "\n")-1, 0))
	// An emulated boot fails once in a while; a run of hours must not end by it.
	m, err := vm.StartSmall(ctx, b.guest())
	for try := 1; err != nil && try < boots && ctx.Err() == nil; try++ {
		fmt.Fprintln(os.Stderr, "bench:", err)
		m, err = vm.StartSmall(ctx, b.guest())
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
	r, err := m.Exec(ctx, fmt.Sprintf("timeout %d %s --resume /tmp/x.part --json >/tmp/x.json", int(shift.Seconds()), command))
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
