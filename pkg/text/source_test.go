package text

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// sentences finds the English text of every call of T, Errorf and Keep in a Go file.
// A call whose first argument is not built from string literals is reported: it
// could not be looked up in a catalogue.
func sentences(fset *token.FileSet, file *ast.File) (found map[string]token.Position, bad []string) {
	found = map[string]token.Position{}
	name := ""
	for _, imp := range file.Imports {
		if path, _ := strconv.Unquote(imp.Path.Value); path == "accel/pkg/text" {
			name = "text"
			if imp.Name != nil {
				name = imp.Name.Name
			}
		}
	}
	if name == "" {
		return found, nil
	}
	called := map[*ast.SelectorExpr]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || !isCatalogueFunc(sel, name) {
				return true
			}
			called[sel] = true
			if len(n.Args) == 0 {
				bad = append(bad, fset.Position(n.Pos()).String()+": no text")
				return true
			}
			s, ok := literal(n.Args[0])
			if !ok {
				bad = append(bad, fset.Position(n.Pos()).String()+": the text is not a constant string")
				return true
			}
			found[s] = fset.Position(n.Pos())
		case *ast.SelectorExpr:
			if isCatalogueFunc(n, name) && !called[n] {
				bad = append(bad, fset.Position(n.Pos()).String()+": used as a value, so its texts cannot be found")
			}
		}
		return true
	})
	return found, bad
}

func isCatalogueFunc(sel *ast.SelectorExpr, pkg string) bool {
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == pkg && (sel.Sel.Name == "T" || sel.Sel.Name == "Errorf" || sel.Sel.Name == "Keep")
}

func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		x, okX := literal(e.X)
		y, okY := literal(e.Y)
		return x + y, okX && okY
	case *ast.ParenExpr:
		return literal(e.X)
	}
	return "", false
}

// source gives every sentence of the program.
func source(t *testing.T) map[string]token.Position {
	t.Helper()
	all := map[string]token.Position{}
	files := 0
	for _, dir := range []string{"../../cmd", "../../pkg"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && d.Name() == "testdata" {
				return fs.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			files++
			found, bad := sentences(fset, file)
			for _, b := range bad {
				t.Error(b)
			}
			for s, pos := range found {
				all[s] = pos
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 20 || len(all) < 50 {
		t.Fatalf("only %d files with %d sentences found: the test looks at the wrong place", files, len(all))
	}
	return all
}

func TestEverySentenceIsConstant(t *testing.T) {
	for s, pos := range source(t) {
		if _, err := verbs(s); err != nil && !strings.Contains(s, "%w") {
			t.Errorf("%s: %q: %v", pos, s, err)
		}
	}
}

// TestCatalogues checks that every translation fits its English text, and that
// the catalogues keep up with the code: a sentence without a translation is
// English, which is bearable for one, so a few may be missing, or be left from
// sentences that are gone.
func TestCatalogues(t *testing.T) {
	all := source(t)
	for language, c := range catalogues {
		if err := c.Check(); err != nil {
			t.Errorf("%s: %v", language, err)
		}
		off := 0
		for s, pos := range all {
			if _, ok := c[s]; !ok {
				off++
				t.Logf("%s: no translation for %q (%s)", language, s, pos)
			}
		}
		for s := range c {
			if _, ok := all[s]; !ok {
				off++
				t.Logf("%s: no such sentence any more: %q", language, s)
			}
		}
		if limit := len(all) * 3 / 100; off > limit {
			t.Errorf("%s: %d translations are missing or left over, more than %d", language, off, limit)
		}
	}
}

// TestSentencesFindsMistakes makes sure that the scan itself can fail.
func TestSentencesFindsMistakes(t *testing.T) {
	const header = "package p\n\nimport \"accel/pkg/text\"\n\n"
	tests := map[string]int{
		`var a = text.T("x %s", 1)`:                    0,
		`var a = text.T("x " + ("y" + "z"))`:           0,
		`var a = text.Errorf("x: %w", nil)`:            0,
		`var a = text.Keep("x: %s", 1)`:                0,
		`func f(s string) any { return text.Keep(s) }`: 1,
		`func f(s string) string { return text.T(s) }`: 1,
		`var f = text.T`:                               1,
		`var a = text.T("x" + string(rune(1)))`:        1,
		`const c = "x"; var a = text.T(c)`:             1,
	}
	for code, want := range tests {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "p.go", header+code, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, bad := sentences(fset, file); len(bad) != want {
			t.Errorf("%s: %q", code, bad)
		}
	}
}
