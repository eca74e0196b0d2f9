package vm

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// userlandSuite is the release that small machines have their programs from.
const userlandSuite = "bookworm"

// userlandPackages hold the programs of small machines and the libraries that
// those need.
var userlandPackages = []string{
	"busybox-static", "dash", "kmod", "iproute2",
	"libc6", "libkmod2", "liblzma5", "libzstd1", "libssl3", "libbpf1", "libelf1", "zlib1g", "libmnl0", "libcap2",
	"libbsd0", "libmd0", "libselinux1", "libpcre2-8-0", "libxtables12",
}

// userlandPrograms are the ones of which the machine has the real thing;
// busybox stands in for the rest. The shell must be a real one: that of busybox
// prefers its own ip and tc.
var userlandPrograms = []string{"usr/bin/busybox", "usr/bin/dash", "usr/bin/kmod", "usr/bin/ip", "usr/sbin/tc", "usr/sbin/bridge"}

// Tools are programs of Debian that a small machine has besides the usual ones.
type Tools struct {
	// Packages hold the programs and all libraries that they need, of the
	// release that the other programs are from (bookworm).
	Packages []string
	Programs []string // "usr/bin/curl"
}

// userland returns a directory with the programs of small machines and the
// libraries that they need.
func userland(ctx context.Context, arch string, extra Tools) (string, error) {
	packages := slices.Concat(userlandPackages, extra.Packages)
	programs := slices.Concat(userlandPrograms, extra.Programs)
	key := hash(userlandSuite, arch, strings.Join(packages, " "), strings.Join(programs, " "), "3")
	return cached(ctx, "userland", arch+"-"+key, func(ctx context.Context, dir string) error {
		a, err := openApt(ctx, userlandSuite, arch)
		if err != nil {
			return err
		}
		all := filepath.Join(dir, "all")
		if err := os.Mkdir(all, 0o755); err != nil {
			return err
		}
		if err := mergedRoot(all); err != nil {
			return err
		}
		if err := a.unpack(ctx, all, packages...); err != nil {
			return err
		}
		if err := mergedRoot(dir); err != nil {
			return err
		}
		done := map[string]bool{}
		for _, p := range programs {
			if err := copyProgram(all, dir, p, done); err != nil {
				return err
			}
		}
		for _, link := range []string{"modprobe", "lsmod", "insmod", "rmmod", "modinfo", "depmod"} {
			if err := os.Symlink("../bin/kmod", filepath.Join(dir, "usr/sbin", link)); err != nil {
				return err
			}
		}
		// The second is there in Debian too; without it busybox would put its
		// own in the place, which comes first in PATH.
		for link, target := range map[string]string{"usr/bin/sh": "dash", "usr/sbin/ip": "../bin/ip"} {
			if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
				return err
			}
		}
		return os.RemoveAll(all)
	})
}

// copyProgram copies a program or library with its interpreter and the
// libraries that it needs, recursively. What is a link there is a file here.
func copyProgram(from, to, name string, done map[string]bool) error {
	if done[name] {
		return nil
	}
	done[name] = true
	file, err := follow(from, name)
	if err != nil {
		return err
	}
	if err := copyFile(file, filepath.Join(to, name), 0o755); err != nil {
		return err
	}
	f, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err != nil {
				return err
			}
			interp := "usr" + strings.TrimRight(string(b), "\x00")
			if err := copyProgram(from, to, interp, done); err != nil {
				return err
			}
		}
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, lib := range libs {
		if strings.HasPrefix(lib, "ld-linux") {
			continue // the interpreter
		}
		found, err := filepath.Glob(filepath.Join(from, "usr/lib/*/", lib))
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("%s needs %s, which is in none of the packages", name, lib)
		}
		rel, err := filepath.Rel(from, found[0])
		if err != nil {
			return err
		}
		if err := copyProgram(from, to, rel, done); err != nil {
			return err
		}
	}
	return nil
}

// follow returns the path of the file name below root, following a link as it
// would be followed if root were the root.
func follow(root, name string) (string, error) {
	for range 10 {
		file := filepath.Join(root, name)
		target, err := os.Readlink(file)
		if errors.Is(err, syscall.EINVAL) {
			return file, nil // not a link
		}
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(name), target)
		}
		name = target
	}
	return "", fmt.Errorf("%s below %s: too many links", name, root)
}
