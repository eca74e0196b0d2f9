package vm

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// cpio writes an archive of the "newc" kind, which the kernel takes as its
// first root file system (Documentation/driver-api/early-userspace/
// buffer-format.rst). Everything in it belongs to root.
type cpio struct {
	w    *bufio.Writer
	ino  int
	made map[string]bool
	err  error
}

func newCpio(w io.Writer) *cpio {
	return &cpio{w: bufio.NewWriterSize(w, 1<<20), made: map[string]bool{}}
}

const (
	cpioDir    = 0o040000
	cpioFile   = 0o100000
	cpioLink   = 0o120000
	cpioDevice = 0o020000
)

func (c *cpio) entry(name string, mode uint32, size int64, major, minor int) {
	c.ino++
	c.printf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.ino, mode, 0, 0, 1, 0, size, 0, 0, major, minor, len(name)+1, 0, name)
	c.pad(110 + len(name) + 1)
}

func (c *cpio) printf(format string, args ...any) {
	if c.err == nil {
		_, c.err = fmt.Fprintf(c.w, format, args...)
	}
}

func (c *cpio) pad(n int) {
	for ; n%4 != 0 && c.err == nil; n++ {
		c.err = c.w.WriteByte(0)
	}
}

// parents adds the directories above name that are not there yet.
func (c *cpio) parents(name string) {
	if dir := path.Dir(name); dir != "." && dir != "/" {
		c.dir(dir)
	}
}

func (c *cpio) dir(name string) {
	if c.made[name] {
		return
	}
	c.parents(name)
	c.made[name] = true
	c.entry(name, cpioDir|0o755, 0, 0, 0)
}

func (c *cpio) link(name, target string) {
	if c.made[name] {
		return
	}
	c.parents(name)
	c.made[name] = true
	c.entry(name, cpioLink|0o777, int64(len(target)), 0, 0)
	c.printf("%s", target)
	c.pad(len(target))
}

func (c *cpio) device(name string, major, minor int) {
	c.parents(name)
	c.entry(name, cpioDevice|0o600, 0, major, minor)
}

func (c *cpio) bytes(name string, data []byte, perm fs.FileMode) {
	c.parents(name)
	c.entry(name, cpioFile|uint32(perm.Perm()), int64(len(data)), 0, 0)
	if c.err == nil {
		_, c.err = c.w.Write(data)
	}
	c.pad(len(data))
}

// file adds a file of the host, whose links are followed.
func (c *cpio) file(name, from string) {
	if c.err != nil {
		return
	}
	data, err := os.ReadFile(from)
	if err != nil {
		c.err = err
		return
	}
	fi, err := os.Stat(from)
	if err != nil {
		c.err = err
		return
	}
	c.bytes(name, data, fi.Mode())
}

// tree adds all that is below the host's directory dir.
func (c *cpio) tree(dir string) { c.treeAt("", dir) }

// treeAt adds all that is below the host's directory dir below at.
func (c *cpio) treeAt(at, dir string) {
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil || rel == "." {
			return err
		}
		rel = path.Join(at, rel)
		switch {
		case d.IsDir():
			c.dir(rel)
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			c.link(rel, target)
		case d.Type().IsRegular():
			c.file(rel, name)
		}
		return c.err
	})
	if c.err == nil {
		c.err = err
	}
}

func (c *cpio) close() error {
	c.entry("TRAILER!!!", 0, 0, 0, 0)
	if c.err != nil {
		return c.err
	}
	return c.w.Flush()
}
