package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of LoadModule, to be matched with errors.Is.
var (
	// ErrNoModprobe: the program is not installed (package kmod), and the module
	// could not be loaded without it either.
	ErrNoModprobe = errors.New("modprobe is not installed")
	// ErrModule: modprobe or the kernel refused; the error's text says what they
	// answered.
	ErrModule = errors.New("cannot load module")
)

// modprobePlaces are where modprobe is looked for. Never in PATH: a normal user's
// has no sbin, and root's may have anything.
var modprobePlaces = []string{"/usr/sbin/modprobe", "/sbin/modprobe", "/usr/bin/modprobe", "/bin/modprobe"}

var moduleNamePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,62}$`)

// modprobeTimeout bounds one run: an install command of modprobe.d may do anything.
const modprobeTimeout = 30 * time.Second

// LoadModule loads a module of the running kernel, with modprobe, so that the host's
// modprobe.d is obeyed. Where there is no modprobe, or modules.dep does not list
// the module yet, it hands the file to the kernel itself, unless modprobe.d
// forbids the module. A module that is loaded already is no error. This is the one
// place where accel runs a program.
//
// Errors: ErrNoModprobe, ErrModule.
func LoadModule(ctx context.Context, name string) error {
	return loadModule(ctx, name, modprobePlaces, insertModule)
}

func loadModule(ctx context.Context, name string, places []string, insert func(string) error) error {
	if !moduleNamePattern.MatchString(name) {
		return fmt.Errorf("%w %q: not a module name", ErrModule, name)
	}
	program := ""
	for _, p := range places {
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			program = p
			break
		}
	}
	var failed error
	if program == "" {
		failed = fmt.Errorf("%w (package kmod)", ErrNoModprobe)
	} else if failed = runModprobe(ctx, program, name); failed == nil {
		return nil
	}
	// modprobe not found, or it did not find the module.
	if program != "" && !errors.Is(failed, errNotListed) {
		return failed
	}
	if err := insert(name); err != nil {
		return fmt.Errorf("%w; without it: %w", failed, err)
	}
	return nil
}

// errNotListed marks that modprobe does not know the module.
var errNotListed = errors.New("modprobe does not find it")

func runModprobe(ctx context.Context, program, name string) error {
	ctx, cancel := context.WithTimeout(ctx, modprobeTimeout)
	defer cancel()
	// "--": a name never becomes an option.
	cmd := exec.CommandContext(ctx, program, "--", name)
	// Only what it needs: the messages in English, and none of the caller's
	// MODPROBE_OPTIONS.
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w %s: modprobe: %w", ErrModule, name, ctx.Err())
	}
	answer := modprobeAnswer(said.String())
	if answer == "" {
		return fmt.Errorf("%w %s: modprobe: %w", ErrModule, name, err)
	}
	if strings.Contains(answer, "not found in directory") || strings.Contains(answer, "could not open moddep file") {
		return fmt.Errorf("%w %s: modprobe: %s%w", ErrModule, name, answer, hidden{errNotListed})
	}
	return fmt.Errorf("%w %s: modprobe: %s", ErrModule, name, answer)
}

// hidden is an error to be matched that adds nothing to the text.
type hidden struct{ error }

func (hidden) Error() string   { return "" }
func (h hidden) Unwrap() error { return h.error }

// sourcePlace is where in its source libkmod complains.
var sourcePlace = regexp.MustCompile(`^\S*libkmod\S*:\d+ \w+\(\) ?`)

// modprobeAnswer makes one line of what modprobe said.
func modprobeAnswer(output string) string {
	var lines []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		for _, prefix := range []string{"modprobe: ", "FATAL: ", "ERROR: "} {
			line = strings.TrimPrefix(line, prefix)
		}
		line = sourcePlace.ReplaceAllString(line, "")
		if line != "" && len(lines) < 4 {
			lines = append(lines, line)
		}
	}
	return strings.ToValidUTF8(strings.Join(lines, "; "), "?")
}

// insertModule gives a module of the running kernel, and before it those it needs,
// to the kernel.
func insertModule(name string) error {
	t, err := OpenTree("/")
	if err != nil {
		return err
	}
	defer t.Close()
	name = normalize(name)
	store := readModuleStore(t, t.text("/proc/sys/kernel/osrelease"))
	file, ok := store.files[name]
	if !ok {
		return fmt.Errorf("%w %s: the running kernel has no such module", ErrModule, name)
	}
	if blocked, _ := readModprobeConfig(t).verdict(name, file.deps); blocked != "" {
		return fmt.Errorf("%w %s: %s", ErrModule, name, blocked)
	}
	// modules.dep lists what is needed last first.
	paths := append([]string{file.path}, file.depPaths...)
	for i := len(paths) - 1; i >= 0; i-- {
		if err := finit(path.Join(store.dir, paths[i])); err != nil {
			return fmt.Errorf("%w %s: %s: %w", ErrModule, name, path.Base(paths[i]), err)
		}
	}
	return nil
}

// finit hands one file to the kernel, which unpacks a compressed one itself (since
// 5.17, if so configured).
func finit(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(file, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	err = unix.FinitModule(int(f.Fd()), "", flags)
	if errors.Is(err, unix.EEXIST) {
		return nil // loaded already
	}
	return err
}
