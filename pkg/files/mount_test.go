package files_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"accel/pkg/files"
)

// inside marks the copy of the test binary that runs in a mount namespace of its
// own, where mounting changes nothing on the host.
const inside = "ACCEL_FILES_INSIDE"

// TestMounts runs the tests that need mounts, attributes and other users.
func TestMounts(t *testing.T) {
	if os.Getenv(inside) != "" {
		t.Skip("this is the copy")
	}
	if os.Getuid() != 0 {
		const why = "needs root, to mount file systems in a namespace of its own"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestInside", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if n := strings.Count(string(out), "\n--- PASS: TestInside"); err != nil || n != 5 {
		t.Errorf("%v, %d of 5 passed\n%s", err, n, out)
	}
}

func skipOutside(t *testing.T) {
	t.Helper()
	if os.Getenv(inside) == "" {
		t.Skip("run by TestMounts in a mount namespace")
	}
}

// mount mounts a file system for the length of a test.
func mount(t *testing.T, kind, options string, flags uintptr) string {
	t.Helper()
	skipOutside(t)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, kind, flags, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// unchanged fails if the directory or the file in it is not as it was.
func unchanged(t *testing.T, dir, name, want string) {
	t.Helper()
	if got := content(t, name); got != want {
		t.Errorf("%s now holds %d bytes that differ", name, len(got))
	}
	for _, n := range names(t, dir) {
		if strings.HasPrefix(n, ".") {
			t.Errorf("%s was left behind", n)
		}
	}
}

func TestInsideFull(t *testing.T) {
	skipOutside(t)
	for _, c := range []struct{ name, options string }{
		{"blocks", "size=256k"},
		{"inodes", "nr_inodes=2"}, // the root directory and one file
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := mount(t, "tmpfs", c.options, 0)
			name := filepath.Join(dir, "x.conf")
			old := strings.Repeat("old ", 1000)
			if err := (files.OS{}).WriteFile(name, []byte(old), 0o644); err != nil {
				t.Fatal(err)
			}
			err := files.OS{}.WriteFile(name, make([]byte, 1<<20), 0o644)
			if !errors.Is(err, files.ErrNoSpace) || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("WriteFile: %v", err)
			}
			unchanged(t, dir, name, old)
			if c.name == "inodes" {
				if err := (files.OS{}).Mkdir(filepath.Join(dir, "d"), 0o755); !errors.Is(err, files.ErrNoSpace) {
					t.Errorf("Mkdir: %v", err)
				}
			}
			// There is always room to take something away.
			if err := (files.OS{}).Remove(name); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestInsideReadOnly(t *testing.T) {
	dir := mount(t, "tmpfs", "", 0)
	name := filepath.Join(dir, "x.conf")
	if err := (files.OS{}).WriteFile(name, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for op, err := range map[string]error{
		"WriteFile":     files.OS{}.WriteFile(name, []byte("new"), 0o644),
		"WriteFile new": files.OS{}.WriteFile(filepath.Join(dir, "y.conf"), []byte("new"), 0o644),
		"Remove":        files.OS{}.Remove(name),
		"Mkdir":         files.OS{}.Mkdir(filepath.Join(dir, "d"), 0o755),
	} {
		if !errors.Is(err, files.ErrReadOnly) || !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v", op, err)
		}
	}
	if err := (files.OS{}).Remove(filepath.Join(dir, "never")); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
	unchanged(t, dir, name, "old")
}

func TestInsideMounted(t *testing.T) {
	dir := mount(t, "tmpfs", "", 0)
	name, other := filepath.Join(dir, "resolv.conf"), filepath.Join(t.TempDir(), "other")
	if err := errors.Join(os.WriteFile(name, []byte("below"), 0o644), os.WriteFile(other, []byte("mounted"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(other, name, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	for op, err := range map[string]error{
		"WriteFile": files.OS{}.WriteFile(name, []byte("new"), 0o644),
		"Remove":    files.OS{}.Remove(name),
	} {
		if !errors.Is(err, files.ErrMounted) || !errors.Is(err, unix.EBUSY) {
			t.Errorf("%s: %v", op, err)
		}
	}
	unchanged(t, dir, name, "mounted")
	if err := unix.Unmount(name, 0); err != nil {
		t.Fatal(err)
	}
	unchanged(t, dir, name, "below")
}

// setFlags is chattr =i, =a or neither.
func setFlags(t *testing.T, name string, flags int) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(old)&^0x30|flags); err != nil {
		t.Fatal(err)
	}
}

func TestInsideImmutable(t *testing.T) {
	scratch := mount(t, "tmpfs", "", 0)
	// Not every file system has the attributes; ext4 always does.
	image, dir := filepath.Join(scratch, "image"), filepath.Join(scratch, "ext4")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 8<<20), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{{"mke2fs", "-q", "-t", "ext4", image}, {"mount", "-o", "loop", image, dir}} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
		cmd.Path, cmd.Err = lookPath(argv[0])
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	defer unix.Unmount(dir, 0)
	const immutable, appendOnly = 0x10, 0x20
	for _, c := range []struct {
		name  string
		file  int // attributes of the file
		dir   int // and of its directory
		names string
	}{
		{"file +i", immutable, 0, "x.conf"},
		{"file +a", appendOnly, 0, "x.conf"},
		{"directory +i", 0, immutable, "sysctl.d"},
		{"directory +a", 0, appendOnly, "sysctl.d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := filepath.Join(dir, "sysctl.d")
			name := filepath.Join(sub, "x.conf")
			if err := errors.Join(os.Mkdir(sub, 0o755), os.WriteFile(name, []byte("old"), 0o644)); err != nil {
				t.Fatal(err)
			}
			setFlags(t, name, c.file)
			setFlags(t, sub, c.dir)
			defer func() {
				setFlags(t, sub, 0)
				setFlags(t, name, 0)
				if err := os.RemoveAll(sub); err != nil {
					t.Error(err)
				}
			}()
			for op, err := range map[string]error{
				"WriteFile": files.OS{}.WriteFile(name, []byte("new"), 0o644),
				"Remove":    files.OS{}.Remove(name),
			} {
				var e *files.Error
				if !errors.Is(err, files.ErrImmutable) || errors.Is(err, files.ErrPermission) || !errors.As(err, &e) {
					t.Errorf("%s: %v", op, err)
				} else if filepath.Base(e.Name) != c.names {
					t.Errorf("%s names %s, want %s", op, e.Name, c.names)
				}
			}
			if c.dir != 0 {
				// By way of a link to the directory too.
				link := filepath.Join(scratch, "link")
				if err := os.Symlink(sub, link); err != nil {
					t.Fatal(err)
				}
				defer os.Remove(link)
				if err := (files.OS{}).WriteFile(filepath.Join(link, "new.conf"), nil, 0o644); !errors.Is(err, files.ErrImmutable) {
					t.Errorf("WriteFile through a link: %v", err)
				}
				for op, err := range map[string]error{
					"WriteFile": files.OS{}.WriteFile(filepath.Join(sub, "new.conf"), nil, 0o644),
					"Mkdir":     files.OS{}.Mkdir(filepath.Join(sub, "d"), 0o755),
				} {
					if !errors.Is(err, files.ErrImmutable) {
						t.Errorf("%s: %v", op, err)
					}
				}
			}
			unchanged(t, sub, name, "old")
			if diff := cmp.Diff([]string{"x.conf"}, names(t, sub)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func lookPath(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if p := filepath.Join(dir, name); exists(p) {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is not installed", name)
}

func exists(name string) bool { _, err := os.Stat(name); return err == nil }

func TestInsidePermission(t *testing.T) {
	dir := mount(t, "tmpfs", "mode=0755", 0)
	name := filepath.Join(dir, "x.conf")
	if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The whole path must be open to the other user.
	for d := filepath.Dir(dir); d != "/"; d = filepath.Dir(d) {
		if st, err := os.Stat(d); err != nil {
			t.Fatal(err)
		} else if err := os.Chmod(d, st.Mode()|0o111); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestInsideOther$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"="+dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestInsideOther") {
		t.Errorf("%v\n%s", err, out)
	}
	unchanged(t, dir, name, "old")
}

// TestInsideOther runs as a user who may nothing.
func TestInsideOther(t *testing.T) {
	dir := os.Getenv(inside)
	if os.Getuid() == 0 || !filepath.IsAbs(dir) {
		t.Skip("run by TestInsidePermission as another user")
	}
	name := filepath.Join(dir, "x.conf")
	_, err := files.OS{}.ReadFile(name)
	for op, err := range map[string]error{
		"ReadFile":  err,
		"WriteFile": files.OS{}.WriteFile(name, []byte("new"), 0o644),
		"Remove":    files.OS{}.Remove(name),
		"Mkdir":     files.OS{}.Mkdir(filepath.Join(dir, "d"), 0o755),
	} {
		if !errors.Is(err, files.ErrPermission) || !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v", op, err)
		}
	}
}
