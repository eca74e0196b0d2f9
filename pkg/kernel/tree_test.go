package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTreeStaysInside(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 40)
	tree := host{
		"usr/lib/os-release":          "inside",
		"etc/os-release":              "-> ../usr/lib/os-release",
		"etc/absolute":                "-> /usr/lib/os-release",
		"etc/above":                   "-> " + up + "usr/lib/os-release",
		"lib":                         "-> usr/lib",
		"run/netns/x":                 "run",
		"var/run":                     "-> /run",
		"var/twice":                   "-> run/netns",
		"etc/leak":                    "-> " + filepath.Join(outside, "secret"),
		"etc/leak-up":                 "-> " + up + filepath.Join(outside, "secret"),
		"etc/leak-dir":                "-> " + outside,
		"etc/loop":                    "-> loop",
		"etc/a":                       "-> b",
		"etc/b":                       "-> a",
		"etc/null":                    "-> /dev/null",
		"etc/dir/file":                "x",
		"etc/through-file":            "-> dir/file/more",
		"etc/sysctl.d/99-sysctl.conf": "-> ../sysctl.conf",
		"etc/sysctl.conf":             "settings",
	}.tree(t)

	for name, want := range map[string]string{
		"/etc/os-release":                     "inside",
		"/etc/absolute":                       "inside",
		"/etc/above":                          "inside",
		"etc/../../../etc/./os-release":       "inside",
		"/lib/os-release":                     "inside",
		"/var/run/netns/x":                    "run",
		"/var/twice/x":                        "run",
		"/etc/sysctl.d/99-sysctl.conf":        "settings",
		"//etc//dir///file":                   "x",
		"/etc/sysctl.d/../dir/../sysctl.conf": "settings",
	} {
		got, err := tree.ReadFile(name)
		if string(got) != want || err != nil {
			t.Errorf("ReadFile(%q) = %q, %v, want %q", name, got, err, want)
		}
	}
	for _, name := range []string{
		"/etc/leak", "/etc/leak-up", "/etc/leak-dir/secret", "/etc/loop", "/etc/a", "/etc/null",
		"/etc/through-file", "/etc/dir/file/more", filepath.Join(outside, "secret"),
		up + filepath.Join(outside, "secret"),
	} {
		if got, err := tree.ReadFile(name); err == nil {
			t.Errorf("ReadFile(%q) = %q, want an error", name, got)
		}
	}
	if _, err := tree.ReadFile("/etc/a"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a loop of links gives %v, want ELOOP", err)
	}
	if _, err := tree.ReadFile("/etc/leak"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link to outside gives %v, want not exist", err)
	}
	if entries, err := tree.ReadDir("/var/run"); err != nil || len(entries) != 1 || entries[0].Name() != "netns" {
		t.Errorf("ReadDir through an absolute link: %v, %v", entries, err)
	}
	if info, err := tree.Lstat("/etc/leak"); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("Lstat follows the last link: %v, %v", info, err)
	}
	if target, err := tree.Readlink("/var/run"); target != "/run" || err != nil {
		t.Errorf("Readlink = %q, %v", target, err)
	}
	if !tree.isDir("/") || !tree.isDir("..") {
		t.Error("the root is no directory")
	}
}

// What is no regular file is refused at once, whatever it is.
func TestTreeNeverBlocks(t *testing.T) {
	dir := host{"etc/dir/": ""}.dir(t)
	fifo := filepath.Join(dir, "etc/os-release")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tree := range []*Tree{openTree(t, dir), openTree(t, "/")} {
		name := "/etc/os-release"
		if tree.Live() {
			name = fifo
		}
		done := make(chan error, 1)
		go func() {
			_, err := tree.ReadFile(name)
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, ErrNotRegular) {
				t.Errorf("reading a FIFO: %v, want ErrNotRegular", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("reading a FIFO blocks")
		}
	}
	if _, err := openTree(t, dir).ReadFile("/etc/dir"); !errors.Is(err, ErrNotRegular) {
		t.Errorf("reading a directory: %v, want ErrNotRegular", err)
	}
	if f := detect(t, dir); f.Distribution.ID != "" {
		t.Errorf("a FIFO gave %+v", f.Distribution)
	}
}

func TestTreeBoundsSize(t *testing.T) {
	dir := host{"proc/meminfo": "MemTotal: 1024 kB\n"}.dir(t)
	if err := os.Truncate(filepath.Join(dir, "proc/meminfo"), 1<<40); err != nil {
		t.Fatal(err)
	}
	if _, err := openTree(t, dir).ReadFile("/proc/meminfo"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a file of 1 TiB: %v, want ErrTooLarge", err)
	}
}

func TestOpenTreeMissing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no")
	if _, err := OpenTree(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenTree: %v", err)
	}
	if _, err := Detect(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Detect: %v", err)
	}
	if _, _, err := ReadRecording(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadRecording: %v", err)
	}
}
