// Package house holds the rules of the house that a compiler does not check.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// floors from the roof down: a package imports only from floors below its own.
// A new package gets its place here with the change that adds it.
var floors = [][]string{
	{"cmd/accel"},
	{"pkg/agent", "pkg/bootkernel", "pkg/doctor", "pkg/report"},
	{"pkg/tuning", "pkg/probe", "pkg/lab"},
	{"pkg/files", "pkg/kernel", "pkg/memory", "pkg/qdisc", "pkg/route", "pkg/socket", "pkg/sysctl", "pkg/text"},
}

type listed struct {
	ImportPath, Dir, Doc string
	Imports              []string
	TestImports          []string
}

func list(t *testing.T, pattern string) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,Imports,TestImports", pattern)
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func floor(name string) int {
	return slices.IndexFunc(floors, func(f []string) bool { return slices.Contains(f, name) })
}

func TestImportsRunDownward(t *testing.T) {
	for _, pattern := range []string{"./cmd/...", "./pkg/..."} {
		for _, p := range list(t, pattern) {
			name := strings.TrimPrefix(p.ImportPath, "accel/")
			at := floor(name)
			if at < 0 {
				t.Errorf("%s has no floor: give it one in this test", name)
				continue
			}
			for _, i := range p.Imports {
				below, ours := strings.CutPrefix(i, "accel/")
				if ours && floor(below) <= at {
					t.Errorf("%s imports %s, which is not below it", name, below)
				}
			}
		}
	}
}

// Programs are run in two places; everything else asks the kernel. pkg/kernel
// runs modprobe, so that modprobe.d is obeyed. pkg/bootkernel runs apt, dpkg,
// update-grub, grub-editenv and systemctl: packages, the boot loader and a reboot
// have no other interface.
func TestFewRunPrograms(t *testing.T) {
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, "accel/")
		if slices.Contains(p.Imports, "os/exec") && (strings.HasPrefix(name, "pkg/") || strings.HasPrefix(name, "cmd/")) && name != "pkg/kernel" && name != "pkg/bootkernel" {
			t.Errorf("%s imports os/exec", name)
		}
	}
}

func TestDocComments(t *testing.T) {
	for _, p := range list(t, "./...") {
		if strings.HasPrefix(p.ImportPath, "accel/test") || p.ImportPath == "accel/packaging" {
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		fset := token.NewFileSet()
		entries, err := os.ReadDir(p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, e.Name()), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				undocumented(t, fset, d)
			}
		}
	}
}

// implied are methods whose meaning their interface gives.
var implied = []string{"Error", "Unwrap", "String", "MarshalText", "UnmarshalText", "Is"}

func undocumented(t *testing.T, fset *token.FileSet, d ast.Decl) {
	t.Helper()
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && !(d.Recv != nil && (slices.Contains(implied, d.Name.Name) || !exportedReceiver(d))) {
			t.Errorf("%s: %s has no comment", fset.Position(d.Pos()), d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() && ts.Doc == nil && d.Doc == nil {
				t.Errorf("%s: %s has no comment", fset.Position(ts.Pos()), ts.Name)
			}
			if vs, ok := s.(*ast.ValueSpec); ok && vs.Names[0].IsExported() && vs.Doc == nil && vs.Comment == nil && d.Doc == nil {
				t.Errorf("%s: %s has no comment", fset.Position(vs.Pos()), vs.Names[0])
			}
		}
	}
}

func exportedReceiver(d *ast.FuncDecl) bool {
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

// elsewhere names where packages come from on one machine; such a name has no
// place in the source, which takes it from the machine it runs on.
var elsewhere = regexp.MustCompile(`(?i)\b(deb|security|ftp)\.debian\.org\b|https?://[a-z0-9.-]*(debian\.org/debian|proxy\.golang\.org|registry\.npmjs\.org|/repository/)|` + `/` + `work/`)

func TestNoRegistryHosts(t *testing.T) {
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "dist" || d.Name() == ".cache"):
			return filepath.SkipDir
		case !d.Type().IsRegular() || d.Name() == ".git" || d.Name() == "go.sum" || strings.HasSuffix(name, "house_test.go"):
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			if elsewhere.Match(line) {
				t.Errorf("%s:%d names a place of one machine: %.100q", name, i+1, line)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
