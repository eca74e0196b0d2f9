package kernel

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// maxFile bounds what Tree.ReadFile returns, in bytes. The largest file that is
// read for facts is modules.dep, well under 2 MiB on a distribution's kernel.
const maxFile = 16 << 20

// maxLinks is how many symbolic links one name may pass through, the kernel's
// own limit (MAXSYMLINKS).
const maxLinks = 40

// Errors of Tree, to be matched with errors.Is.
var (
	// ErrNotRegular: the name is a FIFO, a device, a socket or a directory
	// where a regular file was expected. Such a file is never opened for reading.
	ErrNotRegular = errors.New("not a regular file")
	// ErrTooLarge: the file is larger than any file that holds facts.
	ErrTooLarge = errors.New("file too large")
)

// Tree reads a directory as a process whose root directory it is would see it:
// absolute links and links with too many ".." stay inside. It never writes, never
// blocks on a FIFO or device, and reads a bounded amount. For "/" it is the host.
//
// os.Root alone is not enough: it keeps everything inside, but it refuses the
// absolute links that every real host has (/var/run, the sysctl.d links) instead
// of resolving them below the root.
type Tree struct {
	dir  string
	root *os.Root // nil for the host's own root
}

// OpenTree opens the tree below dir; "" and "/" mean the host itself. The caller
// closes it. The error is that of opening the directory.
func OpenTree(dir string) (*Tree, error) {
	if dir == "" {
		dir = "/"
	}
	if path.Clean(dir) == "/" {
		return &Tree{dir: "/"}, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the recorded host: %w", err)
	}
	return &Tree{dir: dir, root: root}, nil
}

// Live reports whether the tree is the host itself.
func (t *Tree) Live() bool { return t.root == nil }

// Close releases the tree.
func (t *Tree) Close() error {
	if t.root == nil {
		return nil
	}
	return t.root.Close()
}

// ReadFile returns the content of a regular file. Errors: those of opening and
// reading, ErrNotRegular, ErrTooLarge.
func (t *Tree) ReadFile(name string) ([]byte, error) {
	return t.readLimited(name, maxFile)
}

func (t *Tree) readLimited(name string, limit int64) ([]byte, error) {
	f, err := t.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, &fs.PathError{Op: "read", Path: name, Err: ErrTooLarge}
	}
	return data, nil
}

// open opens a regular file. It looks before it opens, because opening some
// devices has effects, and opens without blocking, because the answer may be
// stale by then.
func (t *Tree) open(name string) (*os.File, error) {
	info, err := t.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	const flags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY
	var f *os.File
	if t.root == nil {
		f, err = os.OpenFile(path.Clean("/"+name), flags, 0)
	} else {
		var at string
		if at, err = t.resolve(name, true); err == nil {
			f, err = t.root.OpenFile(at, flags, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadDir returns the entries of a directory, sorted by name.
func (t *Tree) ReadDir(name string) ([]fs.DirEntry, error) {
	if t.root == nil {
		return os.ReadDir(path.Clean("/" + name))
	}
	at, err := t.resolve(name, true)
	if err != nil {
		return nil, err
	}
	return fs.ReadDir(t.root.FS(), at)
}

// Stat describes what the name stands for, links followed.
func (t *Tree) Stat(name string) (fs.FileInfo, error) {
	if t.root == nil {
		return os.Stat(path.Clean("/" + name))
	}
	at, err := t.resolve(name, true)
	if err != nil {
		return nil, err
	}
	return t.root.Lstat(at)
}

// Lstat describes the name itself; a link in its last element is not followed.
func (t *Tree) Lstat(name string) (fs.FileInfo, error) {
	if t.root == nil {
		return os.Lstat(path.Clean("/" + name))
	}
	at, err := t.resolve(name, false)
	if err != nil {
		return nil, err
	}
	return t.root.Lstat(at)
}

// Readlink returns the text of a link.
func (t *Tree) Readlink(name string) (string, error) {
	if t.root == nil {
		return os.Readlink(path.Clean("/" + name))
	}
	at, err := t.resolve(name, false)
	if err != nil {
		return "", err
	}
	return t.root.Readlink(at)
}

// Exists reports whether the name stands for anything.
func (t *Tree) Exists(name string) bool {
	_, err := t.Stat(name)
	return err == nil
}

// isDir reports whether the name stands for a directory.
func (t *Tree) isDir(name string) bool {
	info, err := t.Stat(name)
	return err == nil && info.IsDir()
}

// text returns a file's content without surrounding white space, "" when it
// cannot be read.
func (t *Tree) text(name string) string {
	data, err := t.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// resolve turns a name into one without links, relative to the root, as the
// kernel's path walk with that root would.
func (t *Tree) resolve(name string, followLast bool) (string, error) {
	pending := strings.Split(name, "/")
	var done []string
	links := 0
	for len(pending) > 0 {
		element := pending[0]
		pending = pending[1:]
		switch element {
		case "", ".":
			continue
		case "..":
			if len(done) > 0 {
				done = done[:len(done)-1]
			}
			continue
		}
		at := path.Join(path.Join(done...), element)
		info, err := t.root.Lstat(at)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 || (len(pending) == 0 && !followLast) {
			done = append(done, element)
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "open", Path: name, Err: syscall.ELOOP}
		}
		target, err := t.root.Readlink(at)
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			done = nil
		}
		pending = append(strings.Split(target, "/"), pending...)
	}
	if len(done) == 0 {
		return ".", nil
	}
	return path.Join(done...), nil
}
