package vm

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testsLimit is how long the tests of a package may take in a machine, on a busy
// computer.
const testsLimit = 5 * time.Minute

// RunTests compiles the tests of a package, given as for "go test" from the
// module's directory ("./pkg/qdisc"), runs those whose names match run inside
// a small machine, as root, and reports each as a subtest of t. They are told
// to be short unless ACCEL_LONG is set. Files named testdata beside the package
// are not there.
func RunTests(t *testing.T, g Guest, pkg, run string) {
	t.Helper()
	Need(t)
	binary := filepath.Join(t.TempDir(), "test")
	if err := goBuild(t.Context(), g.Kernel.Arch, "test", "-c", "-o", binary, pkg); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"/test": binary}
	for to, from := range g.Files {
		files[to] = from
	}
	g.Files = files
	m := Small(t, g)
	short := ""
	if long := os.Getenv("ACCEL_LONG"); long == "" || long == "0" {
		short = "-test.short"
	}
	ctx, cancel := context.WithTimeout(t.Context(), testsLimit)
	defer cancel()
	r, err := m.Exec(ctx, fmt.Sprintf("cd /tmp && ACCEL_GUEST=1 /test -test.v %s -test.timeout %v -test.run %s 2>&1", short, testsLimit, Quote(run)))
	if err != nil {
		t.Fatal(err)
	}
	results := parseTests(r.Stdout)
	for _, result := range results {
		t.Run(result.name, func(t *testing.T) {
			if result.output != "" {
				t.Log("\n" + result.output)
			}
			switch result.verdict {
			case "FAIL":
				t.Fail()
			case "SKIP":
				t.SkipNow()
			}
		})
	}
	switch {
	case r.Exit != 0:
		t.Errorf("%s in %s exited %d:\n%s", pkg, m.Name, r.Exit, tail(r.Stdout, 8000))
	case len(results) == 0:
		t.Errorf("%s has no test %s", path.Base(pkg), run)
	}
}

// testResult is how one test ended, and what it wrote.
type testResult struct{ name, verdict, output string }

// parseTests reads the output of a test program run with -test.v.
func parseTests(output string) []testResult {
	var results []testResult
	written := map[string]*strings.Builder{}
	current := ""
	for line := range strings.Lines(output) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 3 && f[0] == "===":
			current = f[2]
			if f[1] == "RUN" {
				written[current] = new(strings.Builder)
			}
		case len(f) >= 3 && f[0] == "---" && written[f[2]] != nil:
			current = f[2]
			results = append(results, testResult{name: current, verdict: strings.TrimSuffix(f[1], ":")})
		case line == "PASS\n" || line == "FAIL\n":
			current = ""
		case written[current] != nil:
			written[current].WriteString(line)
		}
	}
	for i := range results {
		results[i].output = written[results[i].name].String()
	}
	return results
}
