// Package files writes small configuration and state files so that they are
// either wholly there or not at all, and stay so across a power cut, and tells
// apart why a write could not be done.
//
// It is made for the handful of files that accel owns. It never follows or
// replaces a symbolic link that stands in such a file's place, never writes
// into a file that is mounted over, and leaves nothing behind when it fails.
package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// MaxSize is the largest file that ReadFile returns, in bytes. The files that
// accel reads are a few kilobytes; the limit only keeps a hostile one from
// filling the memory.
const MaxSize = 16 << 20

// The causes of a failure, for errors.Is. A failure with none of them (an I/O
// error, a missing parent directory) still carries its errno, so that
// errors.Is(err, fs.ErrNotExist) and the like work on every error.
var (
	// ErrReadOnly: the file system is mounted read-only (EROFS).
	ErrReadOnly = errors.New("read-only file system")
	// ErrNoSpace: the file system or the quota is full (ENOSPC, EDQUOT).
	ErrNoSpace = errors.New("no space left")
	// ErrImmutable: the file or its directory carries the immutable or the
	// append-only attribute (chattr +i, chattr +a), which stops root too.
	ErrImmutable = errors.New("immutable attribute is set")
	// ErrSymlink: a symbolic link stands where the file belongs.
	ErrSymlink = errors.New("a symbolic link stands in its place")
	// ErrMounted: something is mounted on the file, so it cannot be replaced
	// or removed (EBUSY). Usual in containers, where single files of /etc are
	// bind mounts.
	ErrMounted = errors.New("something is mounted on it")
	// ErrPermission: the process may not do this (EACCES, EPERM).
	ErrPermission = errors.New("permission denied")
	// ErrNotRegular: a directory, device, pipe or socket stands where the
	// file belongs.
	ErrNotRegular = errors.New("not a regular file")
	// ErrTooLarge: the file is larger than MaxSize.
	ErrTooLarge = errors.New("file is too large")
)

// Error is what every function of this package returns on failure. It unwraps
// to its cause (one of the sentinels, or nil) and to the system's own error.
type Error struct {
	Op    string // "reading", "writing", "removing", "renaming", "locking", "making directory", "listing"
	Name  string // the name as given, or the directory if that is what stands in the way
	Cause error  // one of the sentinels above; nil if there is none for it
	Err   error  // the system's own error; nil if the cause was found without one
}

func (e *Error) Error() string {
	switch {
	case e.Cause == nil:
		return fmt.Sprintf("%s %s: %v", e.Op, e.Name, errno(e.Err))
	case e.Err == nil:
		return fmt.Sprintf("%s %s: %v", e.Op, e.Name, e.Cause)
	case strings.HasPrefix(errno(e.Err).Error(), e.Cause.Error()):
		return fmt.Sprintf("%s %s: %v", e.Op, e.Name, errno(e.Err)) // says it already
	default:
		return fmt.Sprintf("%s %s: %v (%v)", e.Op, e.Name, e.Cause, errno(e.Err))
	}
}

// Unwrap makes errors.Is find both the cause and the errno.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Cause, e.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// errno strips the wrappers of package os, whose text repeats the path and
// names our temporary file.
func errno(err error) error {
	var no unix.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}

// FS is what the rest of accel needs from a file system. Names are absolute.
type FS interface {
	// ReadFile returns the whole file, MaxSize bytes at most.
	ReadFile(name string) ([]byte, error)
	// WriteFile replaces the file or creates it, atomically. When it returns
	// nil, the content and the directory entry are on stable storage. The
	// mode is perm, whatever the umask. The directory must exist.
	WriteFile(name string, data []byte, perm fs.FileMode) error
	// Remove deletes a file or an empty directory, durably. One that does not
	// exist is not an error.
	Remove(name string) error
	// Mkdir makes one directory, durably, with mode perm whatever the umask.
	// One that exists is left as it is and is not an error. The parent must
	// exist.
	Mkdir(name string, perm fs.FileMode) error
	// Lstat does not follow a link in the last element.
	Lstat(name string) (fs.FileInfo, error)
	// ReadDir lists a directory, sorted by name.
	ReadDir(name string) ([]fs.DirEntry, error)
}

// OS is the operating system's file system below Root. The zero value is the
// whole host. With a Root, links in a name are followed as if Root were "/", so
// that nothing outside of it is read or written.
//
// Two processes that write the same name at once must hold a lock of their own:
// each removes the temporary files that it takes for leftovers of a crash.
type OS struct{ Root string }

var _ FS = OS{}

// ReadFile implements FS. A pipe or device is refused, never waited for.
func (o OS) ReadFile(name string) ([]byte, error) {
	const op = "reading"
	path, err := o.follow(name)
	if err != nil {
		return nil, fail(op, name, "", err)
	}
	// O_NONBLOCK, so that opening a pipe without a writer returns.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fail(op, name, "", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, fail(op, name, "", err)
	} else if !st.Mode().IsRegular() {
		return nil, &Error{Op: op, Name: name, Cause: ErrNotRegular}
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fail(op, name, "", err)
	}
	if len(data) > MaxSize {
		return nil, &Error{Op: op, Name: name, Cause: ErrTooLarge}
	}
	return data, nil
}

// WriteFile implements FS. The data go to a hidden file .NAME<number> beside
// the target, which then takes its name; leftovers of that form from an earlier
// crash are removed first.
func (o OS) WriteFile(name string, data []byte, perm fs.FileMode) error {
	const op = "writing"
	path, err := o.place(name)
	if err != nil {
		return fail(op, name, "", err)
	}
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // a new file
	case err != nil:
		return fail(op, name, path, err)
	case st.Mode().Type() == fs.ModeSymlink:
		return &Error{Op: op, Name: name, Cause: ErrSymlink}
	case !st.Mode().IsRegular():
		return &Error{Op: op, Name: name, Cause: ErrNotRegular}
	}
	// Looked at before anything is made: in an append-only directory a
	// temporary file can be created but neither renamed nor removed.
	if protected(filepath.Dir(path)) {
		return &Error{Op: op, Name: filepath.Dir(name), Cause: ErrImmutable}
	}
	if protected(path) {
		return &Error{Op: op, Name: name, Cause: ErrImmutable}
	}
	if err := sweep(path); err != nil {
		return fail(op, name, path, err)
	}
	if err := replace(path, data, perm); err != nil {
		// Besides replace's own clean-up: renameio leaves its file behind
		// when the mode cannot be set.
		_ = sweep(path)
		return fail(op, name, path, err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fail(op, name, path, err)
	}
	return nil
}

// replace writes path by way of a temporary file, without syncing the
// directory.
func replace(path string, data []byte, perm fs.FileMode) error {
	// The directory is given, since renameio would otherwise try $TMPDIR.
	f, err := renameio.NewPendingFile(path,
		renameio.WithTempDir(filepath.Dir(path)),
		renameio.WithStaticPermissions(perm))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	if _, err := io.Copy(f, bytes.NewReader(data)); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

// Remove implements FS. It refuses a symbolic link, which accel never makes.
func (o OS) Remove(name string) error {
	const op = "removing"
	path, err := o.place(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fail(op, name, "", err)
	}
	dir := filepath.Dir(path)
	if err := sweep(path); errors.Is(err, fs.ErrNotExist) {
		return nil // not even the directory is there
	} else if err != nil {
		return fail(op, name, path, err)
	}
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Synced all the same: an earlier run may have been killed between
		// the removal and its sync.
	case err != nil:
		return fail(op, name, path, err)
	case st.Mode().Type() == fs.ModeSymlink:
		return &Error{Op: op, Name: name, Cause: ErrSymlink}
	case !st.Mode().IsRegular() && !st.IsDir():
		return &Error{Op: op, Name: name, Cause: ErrNotRegular}
	default:
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fail(op, name, path, err)
		}
	}
	if err := syncDir(dir); err != nil {
		return fail(op, name, path, err)
	}
	return nil
}

// Mkdir implements FS.
func (o OS) Mkdir(name string, perm fs.FileMode) error {
	const op = "making directory"
	path, err := o.place(name)
	if err != nil {
		return fail(op, name, "", err)
	}
	st, err := os.Lstat(path)
	switch {
	case err == nil && st.IsDir():
		return nil
	case err == nil && st.Mode().Type() == fs.ModeSymlink:
		return &Error{Op: op, Name: name, Cause: ErrSymlink}
	case err == nil:
		return &Error{Op: op, Name: name, Cause: ErrNotRegular}
	case !errors.Is(err, fs.ErrNotExist):
		return fail(op, name, path, err)
	}
	// Undone if it cannot be finished, and then not even made if the parent
	// is append-only.
	if protected(filepath.Dir(path)) {
		return &Error{Op: op, Name: filepath.Dir(name), Cause: ErrImmutable}
	}
	if err := os.Mkdir(path, perm.Perm()); err != nil {
		// Another process has made it since.
		if st, lerr := os.Lstat(path); lerr == nil && st.IsDir() && errors.Is(err, fs.ErrExist) {
			return nil
		}
		return fail(op, name, path, err)
	}
	if err := os.Chmod(path, perm.Perm()); err != nil {
		_ = os.Remove(path)
		return fail(op, name, path, err)
	}
	for _, dir := range []string{path, filepath.Dir(path)} {
		if err := syncDir(dir); err != nil {
			_ = os.Remove(path)
			return fail(op, name, path, err)
		}
	}
	return nil
}

// Lstat implements FS.
func (o OS) Lstat(name string) (fs.FileInfo, error) {
	path, err := o.place(name)
	if err == nil {
		var st fs.FileInfo
		if st, err = os.Lstat(path); err == nil {
			return st, nil
		}
	}
	return nil, fail("reading", name, "", err)
}

// ReadDir implements FS.
func (o OS) ReadDir(name string) ([]fs.DirEntry, error) {
	path, err := o.follow(name)
	if err == nil {
		var entries []fs.DirEntry
		if entries, err = os.ReadDir(path); err == nil {
			return entries, nil
		}
	}
	return nil, fail("listing", name, "", err)
}

// sweep removes what an earlier, killed WriteFile of path left beside it.
func sweep(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if isTemp(e.Name(), filepath.Base(path)) && e.Type().IsRegular() {
			if err := os.Remove(filepath.Join(filepath.Dir(path), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// isTemp reports whether name is one that renameio gives to a temporary file
// for base: a dot, the name, a decimal number. Nothing else that begins alike is
// ours, such as an editor's ".NAME.swp".
func isTemp(name, base string) bool {
	digits, ok := strings.CutPrefix(name, "."+base)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// syncDir makes the entries of a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	// EINVAL: a file system that has no way to sync a directory (some FUSE
	// and network ones); there is nothing more to be done.
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// File attributes as of FS_IOC_GETFLAGS, from linux/fs.h.
const (
	flagImmutable = 0x10 // FS_IMMUTABLE_FL, chattr +i
	flagAppend    = 0x20 // FS_APPEND_FL, chattr +a
)

// protected reports whether path carries the immutable or append-only
// attribute. False if it does not exist or the file system has none.
func protected(path string) bool {
	// Only on files and directories: opening a device may have an effect.
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() && !st.IsDir() {
		return false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	return err == nil && flags&(flagImmutable|flagAppend) != 0
}

// fail gives a system error its cause. path is where the file lies on the host,
// or "" if attributes need not be looked at.
func fail(op, name, path string, err error) error {
	e := &Error{Op: op, Name: name, Err: err}
	switch {
	case errors.Is(err, unix.EROFS):
		e.Cause = ErrReadOnly
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Cause = ErrNoSpace
	case errors.Is(err, unix.EBUSY):
		e.Cause = ErrMounted
	case errors.Is(err, unix.EPERM) && path != "" && protected(path):
		e.Cause = ErrImmutable
	case errors.Is(err, unix.EPERM) && path != "" && protected(filepath.Dir(path)):
		e.Cause, e.Name = ErrImmutable, filepath.Dir(name)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Cause = ErrPermission
	case errors.Is(err, unix.EISDIR):
		e.Cause = ErrNotRegular
	}
	return e
}

// Rename gives a file another name in the same directory, durably. It never
// replaces one: where the new name is taken, errors.Is(err, fs.ErrExist).
func (o OS) Rename(name, to string) error {
	const op = "renaming"
	path, err := o.place(name)
	if err != nil {
		return fail(op, name, "", err)
	}
	target := filepath.Join(filepath.Dir(path), filepath.Base(to))
	err = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, target, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system that cannot
		if _, err = os.Lstat(target); err == nil {
			err = unix.EEXIST
		} else if errors.Is(err, fs.ErrNotExist) {
			err = os.Rename(path, target)
		}
	}
	if err != nil {
		return fail(op, name, path, err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fail(op, name, path, err)
	}
	return nil
}

// Lock locks a directory against everybody else who locks it, and waits for it
// until the context ends. The returned function unlocks; the end of the process
// does, too.
func (o OS) Lock(ctx context.Context, name string) (unlock func(), err error) {
	const op = "locking"
	path, err := o.place(name)
	if err != nil {
		return nil, fail(op, name, "", err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fail(op, name, path, err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fail(op, name, path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fail(op, name, path, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
