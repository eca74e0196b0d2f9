package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// host is a fake root: name -> content; "-> target" makes a symbolic link, a name
// ending in "/" a directory.
type host map[string]string

// dir writes the fake root to a directory of its own.
func (h host) dir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range h {
		at := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(at, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, at)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tree opens the fake root.
func (h host) tree(t *testing.T) *Tree {
	t.Helper()
	return openTree(t, h.dir(t))
}

func openTree(t *testing.T, dir string) *Tree {
	t.Helper()
	tree, err := OpenTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

// with returns the host with more files.
func (h host) with(more host) host {
	all := host{}
	for _, m := range []host{h, more} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

func detect(t *testing.T, dir string) *Facts {
	t.Helper()
	f, err := Detect(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func ptr[T any](v T) *T { return &v }
