package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"accel/pkg/text"
)

// The scripts have one command of their own:
//
//	run CODE PROGRAM [ARGUMENT...]
//
// runs a program that must exit with CODE ("3", or "3|5"), and checks of every
// accel that it starts what always holds: see always.

// TestScripts runs testdata/script, all at once: none of them changes anything.
func TestScripts(t *testing.T) {
	p := params()
	p.Dir = "testdata/script"
	testscript.Run(t, p)
}

// TestChanges runs testdata/change one after the other: they change the sandbox.
func TestChanges(t *testing.T) {
	if os.Getenv(sandboxVar) == "" {
		t.Skip("needs root, for namespaces")
	}
	files, err := filepath.Glob("testdata/change/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts:", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) {
			p := params()
			p.Files = []string{f}
			testscript.Run(t, p)
		})
	}
}

func params() testscript.Params {
	return testscript.Params{
		Setup: func(e *testscript.Env) error {
			bin := os.Getenv(binVar)
			cases, err := filepath.Abs("../cases")
			if err != nil {
				return err
			}
			e.Setenv("PATH", bin+":/usr/sbin:/usr/bin:/sbin:/bin")
			e.Setenv("ACCEL", filepath.Join(bin, "accel"))
			e.Setenv("CASES", cases)
			e.Setenv("LC_ALL", "C")
			e.Setenv("SITE", site())
			return os.Chmod(e.WorkDir, 0o755)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"run":    cmdRun,
			"member": cmdMember,
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "sandbox":
				return os.Getenv(sandboxVar) != "", nil
			case "mandoc", "groff", "bash", "zsh":
				_, err := exec.LookPath(cond)
				return err == nil, nil
			}
			return false, errors.New("unknown condition " + cond)
		},
	}
}

// site is the address of a server to download from.
var site = sync.OnceValue(func() string {
	mux := http.NewServeMux()
	mux.HandleFunc("/file", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(2<<20))
		w.Write(make([]byte, 2<<20))
	})
	mux.HandleFunc("/empty", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/file", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "ftp://example.org/")
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000000")
		w.Write(make([]byte, 5000))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	s := httptest.NewUnstartedServer(mux)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	return s.URL
})

func cmdRun(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: run CODE PROGRAM [ARGUMENT...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if !slices.Contains(strings.Split(args[0], "|"), strconv.Itoa(code)) {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
	if problem := always(args[1:], code, ts.ReadFile("stdout"), ts.ReadFile("stderr")); problem != "" {
		ts.Fatalf("%s", problem)
	}
}

// always checks what holds for every run: text fits 80 columns and holds no
// control characters; with --json, stdout is one document that matches its
// schema and repeats the exit code; an error is said on stderr.
func always(args []string, code int, stdout, stderr string) string {
	asJSON := slices.Contains(args, "--json")
	texts := []string{stderr}
	if slices.Contains(args, "agent") && code == 0 {
		texts = nil // a log
	}
	if !asJSON && !slices.Contains(args, "gen") {
		texts = append(texts, stdout)
	}
	for _, t := range texts {
		for _, line := range strings.Split(t, "\n") {
			if w := text.Width(line); w > 80 {
				return strconv.Itoa(w) + " columns: " + line
			}
			for _, r := range line {
				if unicode.IsControl(r) || r == unicode.ReplacementChar {
					return "control character in " + strconv.Quote(line)
				}
			}
		}
	}
	if (code == 1 || code == 2) && !strings.HasPrefix(stderr, "accel: ") {
		return "exit " + strconv.Itoa(code) + " without a word on stderr"
	}
	if code == 2 && !asJSON && stdout != "" {
		return "a usage error on stdout"
	}
	if asJSON && code >= 0 {
		return checkDocument([]byte(stdout), code)
	}
	return ""
}

var compiled = sync.OnceValues(func() (map[string]*jsonschema.Schema, error) {
	files, err := filepath.Glob("../../docs/schema/*.json")
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		if err := c.AddResource(filepath.Base(name), doc); err != nil {
			return nil, err
		}
	}
	out := map[string]*jsonschema.Schema{}
	for _, name := range files {
		schema := strings.TrimSuffix(filepath.Base(name), ".json") // accel.status.1
		i := strings.LastIndex(schema, ".")
		if out[schema[:i]+"/"+schema[i+1:]], err = c.Compile(filepath.Base(name)); err != nil {
			return nil, err
		}
	}
	return out, nil
})

func checkDocument(stdout []byte, code int) string {
	schemas, err := compiled()
	if err != nil {
		return err.Error()
	}
	d := json.NewDecoder(bytes.NewReader(stdout))
	d.UseNumber()
	var doc map[string]any
	if err := d.Decode(&doc); err != nil {
		return "stdout is no document: " + err.Error()
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "stdout holds more than one document"
	}
	name, _ := doc["schema"].(string)
	if schemas[name] == nil {
		return "no schema " + name
	}
	if err := schemas[name].Validate(doc); err != nil {
		return err.Error()
	}
	if exit, ok := doc["exit"].(json.Number); !ok || exit.String() != strconv.Itoa(code) {
		return "the document says exit " + string(exit) + ", the program exits with " + strconv.Itoa(code)
	}
	return ""
}

// cmdMember compares a member of the document on stdout:
//
//	[!] member PATH VALUE
//
// PATH has dots between names and indexes; VALUE is compared with the JSON text
// of the member.
func cmdMember(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: member PATH VALUE")
	}
	var doc any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &doc))
	got := find(doc, args[0])
	if (got == args[1]) == neg {
		ts.Fatalf("%s is %s", args[0], got)
	}
}

func find(doc any, path string) string {
	for _, part := range strings.Split(path, ".") {
		switch d := doc.(type) {
		case map[string]any:
			v, ok := d[part]
			if !ok {
				return "missing"
			}
			doc = v
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(d) {
				return "missing"
			}
			doc = d[i]
		default:
			return "missing"
		}
	}
	if s, ok := doc.(string); ok {
		return s
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return err.Error()
	}
	return string(out)
}
