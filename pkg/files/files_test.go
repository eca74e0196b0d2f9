package files_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"accel/pkg/files"
)

// names lists a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func content(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "99-zz-accel.conf")
	// The mode must not depend on who runs it.
	defer unix.Umask(unix.Umask(0o077))
	for _, c := range []struct {
		data string
		perm fs.FileMode
	}{
		{"one\n", 0o644},
		{"a longer one\n", 0o600},
		{"", 0o644},
		{strings.Repeat("x", 1<<20), 0o666},
	} {
		if err := (files.OS{}).WriteFile(name, []byte(c.data), c.perm); err != nil {
			t.Fatal(err)
		}
		got, err := (files.OS{}).ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != c.data {
			t.Errorf("content is %d bytes, want %d", len(got), len(c.data))
		}
		st, err := (files.OS{}).Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode() != c.perm {
			t.Errorf("mode is %v, want %v", st.Mode(), c.perm)
		}
	}
	if diff := cmp.Diff([]string{"99-zz-accel.conf"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// A reader that had the old file open keeps it: it was replaced, not changed.
func TestWriteFileReplaces(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.conf")
	if err := (files.OS{}).WriteFile(name, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := (files.OS{}).WriteFile(name, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	n, _ := f.Read(b[:])
	if got := string(b[:n]); got != "old" {
		t.Errorf("the open file now says %q", got)
	}
}

// What a killed run left is removed; what only looks alike is not.
func TestLeftovers(t *testing.T) {
	for _, do := range []struct {
		name string
		run  func(name string) error
		want []string
	}{
		{"write", func(n string) error { return files.OS{}.WriteFile(n, []byte("x"), 0o644) },
			[]string{".x.conf.swp", ".x.conf7a", ".y.conf12", "x.conf"}},
		{"remove", func(n string) error { return files.OS{}.Remove(n) },
			[]string{".x.conf.swp", ".x.conf7a", ".y.conf12"}},
	} {
		t.Run(do.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, n := range []string{".x.conf123", ".x.conf9182736455463728190", ".x.conf.swp", ".x.conf7a", ".y.conf12"} {
				if err := os.WriteFile(filepath.Join(dir, n), []byte("left"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := do.run(filepath.Join(dir, "x.conf")); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(do.want, names(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	file, empty, full := filepath.Join(dir, "f"), filepath.Join(dir, "empty"), filepath.Join(dir, "full")
	if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Mkdir(empty, 0o755), os.MkdirAll(full+"/x", 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, empty, file, filepath.Join(dir, "never"), filepath.Join(dir, "no/such/dir")} {
		if err := (files.OS{}).Remove(name); err != nil {
			t.Errorf("Remove(%s): %v", name, err)
		}
	}
	if err := (files.OS{}).Remove(full); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("a directory with something in it: %v", err)
	}
	if diff := cmp.Diff([]string{"full"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestMkdir(t *testing.T) {
	dir := t.TempDir()
	defer unix.Umask(unix.Umask(0o077))
	name := filepath.Join(dir, "accel")
	for range 2 { // the second finds it there
		if err := (files.OS{}).Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := st.Mode(), fs.ModeDir|0o755; got != want {
		t.Errorf("mode is %v, want %v", got, want)
	}
	if err := (files.OS{}).Mkdir(filepath.Join(dir, "no/such"), 0o755); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a parent: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (files.OS{}).Mkdir(filepath.Join(dir, "f"), 0o755); !errors.Is(err, files.ErrNotRegular) {
		t.Errorf("where a file is: %v", err)
	}
}

// Something else in the file's place is neither followed, replaced nor waited for.
func TestInPlace(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("victim"), 0o644); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.Symlink(victim, in("link")),
		os.Symlink("nowhere", in("dangling")),
		os.Symlink("/dev/null", in("mask")),
		os.MkdirAll(in("dir/sub"), 0o755),
		unix.Mkfifo(in("pipe"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	before := names(t, dir)
	for _, c := range []struct {
		name          string
		write, remove error
	}{
		{"link", files.ErrSymlink, files.ErrSymlink},
		{"dangling", files.ErrSymlink, files.ErrSymlink},
		{"mask", files.ErrSymlink, files.ErrSymlink},
		{"dir", files.ErrNotRegular, unix.ENOTEMPTY},
		{"pipe", files.ErrNotRegular, files.ErrNotRegular},
	} {
		if err := (files.OS{}).WriteFile(in(c.name), []byte("x"), 0o644); !errors.Is(err, c.write) {
			t.Errorf("WriteFile(%s): %v, want %v", c.name, err, c.write)
		}
		if err := (files.OS{}).Remove(in(c.name)); !errors.Is(err, c.remove) {
			t.Errorf("Remove(%s): %v, want %v", c.name, err, c.remove)
		}
	}
	if _, err := (files.OS{}).ReadFile(in("pipe")); !errors.Is(err, files.ErrNotRegular) {
		t.Errorf("ReadFile of a pipe: %v", err)
	}
	if _, err := (files.OS{}).ReadFile(in("dir")); !errors.Is(err, files.ErrNotRegular) {
		t.Errorf("ReadFile of a directory: %v", err)
	}
	if err := (files.OS{}).Mkdir(in("link"), 0o755); !errors.Is(err, files.ErrSymlink) {
		t.Errorf("Mkdir where a link is: %v", err)
	}
	if got := content(t, victim); got != "victim" {
		t.Errorf("the link's target now says %q", got)
	}
	if diff := cmp.Diff(before, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", "/", "x", "./x", "/tmp/../x", "/tmp//x", "/tmp/x/", "/tmp/\x00"} {
		err := files.OS{}.WriteFile(name, nil, 0o644)
		if !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("WriteFile(%q): %v", name, err)
		}
	}
}

func TestReadFileMissing(t *testing.T) {
	_, err := files.OS{}.ReadFile(filepath.Join(t.TempDir(), "x"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if !strings.HasSuffix(err.Error(), "/x: no such file or directory") || !strings.HasPrefix(err.Error(), "reading /") {
		t.Errorf("the text repeats itself: %q", err)
	}
}

func TestReadFileLarge(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]error{files.MaxSize: nil, files.MaxSize + 1: files.ErrTooLarge} {
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
		if _, err := (files.OS{}).ReadFile(name); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
	}
}

// Below a root, links lead to where they would on that host.
func TestRoot(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644),
		os.MkdirAll(filepath.Join(root, "usr/lib/sysctl.d"), 0o755),
		os.MkdirAll(filepath.Join(root, "etc"), 0o755),
		os.Symlink("usr/lib", filepath.Join(root, "lib")),
		os.Symlink("/usr/lib/sysctl.d", filepath.Join(root, "etc/sysctl.d")),
		os.Symlink("../../../../../usr/lib/os-release", filepath.Join(root, "etc/os-release")),
		os.WriteFile(filepath.Join(root, "usr/lib/os-release"), []byte("ID=debian\n"), 0o644),
		os.Symlink(outside, filepath.Join(root, "out")),
		os.Symlink("loop", filepath.Join(root, "loop")),
	); err != nil {
		t.Fatal(err)
	}
	o := files.OS{Root: root}
	if got, err := o.ReadFile("/etc/os-release"); err != nil || string(got) != "ID=debian\n" {
		t.Errorf("os-release: %q, %v", got, err)
	}
	if err := o.WriteFile("/etc/sysctl.d/x.conf", []byte("x"), 0o644); err != nil {
		t.Error(err)
	} else if got := content(t, filepath.Join(root, "usr/lib/sysctl.d/x.conf")); got != "x" {
		t.Errorf("written %q", got)
	}
	if got, err := o.ReadFile("/lib/sysctl.d/x.conf"); err != nil || string(got) != "x" {
		t.Errorf("by way of lib: %q, %v", got, err)
	}
	if _, err := o.ReadFile("/out/secret"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("out of the root: %v", err)
	}
	if _, err := o.ReadFile("/loop/x"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a loop: %v", err)
	}
	if _, err := o.ReadFile("/usr/lib/os-release/x"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	if entries, err := o.ReadDir("/etc/sysctl.d"); err != nil || len(entries) != 1 {
		t.Errorf("ReadDir: %v, %v", entries, err)
	}
	if entries, err := o.ReadDir("/"); err != nil || len(entries) == 0 {
		t.Errorf("ReadDir of the root: %v, %v", entries, err)
	}
}

func TestRename(t *testing.T) {
	dir := t.TempDir()
	o := files.OS{Root: dir}
	if err := o.WriteFile("/a", []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.WriteFile("/b", []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.Rename("/a", "/b"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over another file: %v", err)
	}
	if err := o.Rename("/a", "/c"); err != nil {
		t.Error(err)
	}
	if err := o.Rename("/a", "/d"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a file that is gone: %v", err)
	}
	for name, want := range map[string]string{"/b": "two", "/c": "one"} {
		if got, err := o.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestLock(t *testing.T) {
	o := files.OS{Root: t.TempDir()}
	unlock, err := o.Lock(t.Context(), "/")
	if err == nil {
		t.Error("locked / itself, which is no name here")
		unlock()
	}
	if err := o.Mkdir("/d", 0o755); err != nil {
		t.Fatal(err)
	}
	if unlock, err = o.Lock(t.Context(), "/d"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := o.Lock(ctx, "/d"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked twice: %v", err)
	}
	got := make(chan error)
	go func() {
		unlock, err := o.Lock(context.Background(), "/d")
		if err == nil {
			unlock()
		}
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	if err := o.WriteFile("/f", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Lock(t.Context(), "/f"); err == nil {
		t.Error("a file is no directory")
	}
}

// Who makes a directory that somebody else makes at the same time finds it there.
func TestMkdirAtOnce(t *testing.T) {
	o := files.OS{Root: t.TempDir()}
	for n := range 50 {
		name := fmt.Sprintf("/%d", n)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := o.Mkdir(name, 0o755); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}
