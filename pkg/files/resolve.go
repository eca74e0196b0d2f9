package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// place gives the path on the host of name, with the links of its directory
// followed but not one in its last element.
func (o OS) place(name string) (string, error) {
	if !filepath.IsAbs(name) || filepath.Clean(name) != name || name == "/" || strings.ContainsRune(name, 0) {
		return "", &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	root := o.Root
	if root == "" {
		root = "/"
	}
	// On the host too, so that it is the real directory whose attributes are
	// looked at and which is synced.
	dir, err := resolve(root, filepath.Dir(name))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(name)), nil
}

// follow gives the path on the host of name with all links followed.
func (o OS) follow(name string) (string, error) {
	if name == "/" {
		return filepath.Join("/", o.Root), nil
	}
	path, err := o.place(name)
	if err != nil || o.Root == "" || o.Root == "/" {
		return path, err
	}
	return resolve(o.Root, name)
}

// maxLinks is how many links a name may lead through, as in the kernel.
const maxLinks = 40

// resolve follows the links of name as a process would whose root directory is
// root, and returns the path from outside. Elements that do not exist give
// fs.ErrNotExist.
func resolve(root, name string) (string, error) {
	done, todo := "", name // done is resolved, absolute and within root
	for links := 0; ; {
		todo = strings.TrimLeft(todo, "/")
		if todo == "" {
			return filepath.Join(root, done), nil
		}
		elem, rest, _ := strings.Cut(todo, "/")
		switch elem {
		case ".":
			todo = rest
			continue
		case "..":
			// Join keeps "/.." at "/", as the kernel does.
			done, todo = filepath.Join("/", done, ".."), rest
			continue
		}
		path := filepath.Join(root, done, elem)
		st, err := os.Lstat(path)
		if err != nil {
			return "", err
		}
		if st.Mode().Type() != fs.ModeSymlink {
			if rest != "" && !st.IsDir() {
				return "", &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
			}
			done, todo = filepath.Join("/", done, elem), rest
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
		}
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if target == "" {
			return "", &fs.PathError{Op: "open", Path: path, Err: errors.New("empty link")}
		}
		if filepath.IsAbs(target) {
			done = ""
		}
		todo = target + "/" + rest
	}
}
