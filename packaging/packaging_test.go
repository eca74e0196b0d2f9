// Package packaging tests what is shipped: the .deb for each architecture, its
// maintainer scripts and the systemd unit.
package packaging

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"accel/test/vm"
)

var arches = []string{"amd64", "arm64"}

// maxDeb is the size, in bytes, that a package should stay below.
const maxDeb = 6 << 20

// shipped lists everything a package holds, sorted by name: what is fixed, and
// every JSON Schema.
func shipped(t *testing.T) []string {
	t.Helper()
	all := slices.Clone(fixed)
	schemas := must(filepath.Glob("../docs/schema/*.json"))(t)
	if len(schemas) < 6 {
		t.Errorf("only %d schemas in docs/schema", len(schemas))
	}
	for _, s := range schemas {
		all = append(all, "-rw-r--r-- root/root /usr/share/doc/accel/schema/"+filepath.Base(s))
	}
	slices.SortFunc(all, byName)
	return all
}

// byName compares two lines of shipped.
func byName(a, b string) int {
	return strings.Compare(a[strings.Index(a, "/usr"):], b[strings.Index(b, "/usr"):])
}

var fixed = []string{
	"-rwxr-xr-x root/root /usr/bin/accel",
	"-rw-r--r-- root/root /usr/lib/systemd/system/accel-kernel-deadline.service",
	"-rw-r--r-- root/root /usr/lib/systemd/system/accel-kernel-deadline.timer",
	"-rw-r--r-- root/root /usr/lib/systemd/system/accel-kernel.service",
	"-rw-r--r-- root/root /usr/lib/systemd/system/accel.service",
	"lrwxrwxrwx root/root /usr/lib/systemd/system/emergency.target.wants/accel-kernel-deadline.timer -> ../accel-kernel-deadline.timer",
	"lrwxrwxrwx root/root /usr/lib/systemd/system/multi-user.target.wants/accel-kernel.service -> ../accel-kernel.service",
	"lrwxrwxrwx root/root /usr/lib/systemd/system/rescue.target.wants/accel-kernel-deadline.timer -> ../accel-kernel-deadline.timer",
	"lrwxrwxrwx root/root /usr/lib/systemd/system/sysinit.target.wants/accel-kernel-deadline.timer -> ../accel-kernel-deadline.timer",
	"-rw-r--r-- root/root /usr/share/bash-completion/completions/accel",
	"-rw-r--r-- root/root /usr/share/doc/accel/README.md",
	"-rw-r--r-- root/root /usr/share/doc/accel/README.zh.md",
	"-rw-r--r-- root/root /usr/share/doc/accel/changelog.gz",
	"-rw-r--r-- root/root /usr/share/doc/accel/copyright",
	"-rw-r--r-- root/root /usr/share/lintian/overrides/accel",
	"-rw-r--r-- root/root /usr/share/man/man8/accel.8.gz",
	"-rw-r--r-- root/root /usr/share/zsh/vendor-completions/_accel",
}

// need skips the test, or fails it in CI, where a program is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing(t, p+" is not installed; packaging/deps.sh test installs it")
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		missing(t, "needs root, for a mount namespace with a root of its own")
	}
}

func missing(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// run runs a program in a directory, with some variables more, and returns
// what it wrote; the test fails if the program does.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := tryRun(dir, env, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func tryRun(dir string, env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// debs are the packages of one build, by architecture.
type debs map[string]string

// builds makes all packages twice: from copies of the tree in two directories,
// under different umasks, time zones and languages. With ACCEL_LONG=1 the second
// time gets no help from Go's build cache, which takes minutes.
var builds = sync.OnceValues(func() ([2]debs, error) {
	var both [2]debs
	top, err := os.MkdirTemp("", "accel-packaging-")
	if err != nil {
		return both, err
	}
	buildsDir = top
	again := "make deb"
	if os.Getenv("ACCEL_LONG") != "" {
		again = "make deb BUILDFLAGS=-a"
	}
	ways := [2]struct{ dir, umask, env, build string }{
		{"a", "022", "TZ=UTC LC_ALL=C.UTF-8", "make deb"},
		{"a/rather/longer/path", "077", "TZ=Asia/Shanghai LC_ALL=C LANGUAGE=zh_CN ACCEL_LANG=zh_CN", again},
	}
	var dirs [2]string
	from := ".."
	for i, w := range ways {
		dirs[i] = filepath.Join(top, fmt.Sprint(i), w.dir)
		script := fmt.Sprintf(`set -e; umask %s; mkdir -p %s
			tar -C %s -c --exclude=./.git --exclude=./dist --exclude=./.cache . | tar -C %s -x --no-same-permissions -m`, w.umask, dirs[i], from, dirs[i])
		if out, err := tryRun(".", nil, "sh", "-c", script); err != nil {
			return both, fmt.Errorf("copying the tree: %w\n%s", err, out)
		}
		from = dirs[i] // the second is like the first, even if somebody edits meanwhile
	}
	for i, w := range ways {
		dir := dirs[i]
		script := fmt.Sprintf(`umask %s; cd %s; unset MAKEFLAGS; export %s; %s`, w.umask, dir, w.env, w.build)
		if out, err := tryRun(".", nil, "sh", "-c", script); err != nil {
			return both, fmt.Errorf("%s in %s: %w\n%s", w.build, dir, err, out)
		}
		both[i] = debs{}
		for _, arch := range arches {
			found, _ := filepath.Glob(filepath.Join(dir, "dist", "accel_*_"+arch+".deb"))
			if len(found) != 1 {
				return both, fmt.Errorf("make deb left %d packages for %s: %v", len(found), arch, found)
			}
			both[i][arch] = found[0]
		}
	}
	return both, nil
})

// buildsDir holds both builds; removed when all tests are done.
var buildsDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if buildsDir != "" {
		os.RemoveAll(buildsDir)
	}
	os.Exit(code)
}

// built returns the packages that the tests look at.
func built(t *testing.T) debs {
	t.Helper()
	need(t, "make", "dpkg-deb")
	both, err := builds()
	if err != nil {
		t.Fatal(err)
	}
	return both[0]
}

func TestReproducible(t *testing.T) {
	built(t)
	both, _ := builds()
	for _, arch := range arches {
		a, errA := os.ReadFile(both[0][arch])
		b, errB := os.ReadFile(both[1][arch])
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if bytes.Equal(a, b) {
			continue
		}
		t.Errorf("%s: two builds differ (%d and %d bytes)", arch, len(a), len(b))
		for _, what := range []string{"--contents", "--info"} {
			t.Log(cmp.Diff(run(t, "", nil, "dpkg-deb", what, both[0][arch]), run(t, "", nil, "dpkg-deb", what, both[1][arch])))
		}
		t.Log(cmp.Diff(sums(t, unpack(t, both[0][arch])), sums(t, unpack(t, both[1][arch]))))
	}
}

// unpack extracts a package, its control files in DEBIAN.
func unpack(t *testing.T, deb string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deb")
	run(t, "", nil, "dpkg-deb", "-R", deb, dir)
	return dir
}

func sums(t *testing.T, dir string) string {
	t.Helper()
	return run(t, dir, nil, "sh", "-c", "find . -type f | LC_ALL=C sort | xargs sha256sum")
}

func TestContents(t *testing.T) {
	for arch, deb := range built(t) {
		t.Run(arch, func(t *testing.T) {
			var got []string
			stamps := map[string]bool{}
			for line := range strings.Lines(run(t, "", []string{"TZ=UTC"}, "dpkg-deb", "--contents", deb)) {
				f := strings.Fields(line)
				stamps[f[3]+" "+f[4]] = true
				path := strings.TrimPrefix(strings.Join(f[5:], " "), ".")
				if strings.HasPrefix(f[0], "d") {
					if f[0] != "drwxr-xr-x" || f[1] != "root/root" {
						t.Errorf("directory %s is %s %s", path, f[0], f[1])
					}
					continue
				}
				got = append(got, f[0]+" "+f[1]+" "+path)
			}
			slices.SortFunc(got, func(a, b string) int {
				return strings.Compare(a[strings.Index(a, "/usr"):], b[strings.Index(b, "/usr"):])
			})
			if d := cmp.Diff(shipped(t), got); d != "" {
				t.Errorf("contents (-want +got):\n%s", d)
			}
			if len(stamps) != 1 {
				t.Errorf("times differ: %v", stamps)
			}
			if fi, err := os.Stat(deb); err != nil {
				t.Error(err)
			} else if fi.Size() > maxDeb {
				t.Errorf("%d bytes, more than %d", fi.Size(), maxDeb)
			} else {
				t.Logf("%.2f MiB", float64(fi.Size())/(1<<20))
			}

			dir := unpack(t, deb)
			var control []string
			for _, e := range must(os.ReadDir(filepath.Join(dir, "DEBIAN")))(t) {
				control = append(control, e.Name())
			}
			// No conffiles: nothing of accel's is the administrator's to edit.
			if d := cmp.Diff([]string{"control", "md5sums", "postinst", "postrm", "prerm"}, control); d != "" {
				t.Errorf("control files (-want +got):\n%s", d)
			}
			for field, want := range map[string]string{"Package": "accel", "Architecture": arch, "Depends": "", "Section": "net"} {
				if got := strings.TrimSpace(run(t, "", nil, "dpkg-deb", "--field", deb, field)); got != want {
					t.Errorf("field %s is %q, want %q", field, got, want)
				}
			}
			testProgram(t, filepath.Join(dir, "usr/bin/accel"), arch)
		})
	}
}

// must returns a function that gives a value, or ends the test on an error.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// testProgram checks that a program is static, for an architecture, and that
// the copyright file knows every module in it.
func testProgram(t *testing.T, path, arch string) {
	t.Helper()
	f := must(elf.Open(path))(t)
	defer f.Close()
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; f.Machine != want {
		t.Errorf("program is for %v, want %v", f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("program is not static: it has a %v segment", p.Type)
		}
	}
	copyright := string(must(os.ReadFile("copyright"))(t))
	info := must(buildinfo.ReadFile(path))(t)
	for _, m := range info.Deps {
		if !strings.Contains(copyright, " "+m.Path+"/*\n") {
			t.Errorf("packaging/copyright does not name %s, which is linked in", m.Path)
		}
	}
	// The other way round: what is named is in there, or was dropped.
	for _, m := range regexp.MustCompile(`(?m)^(?:Files:)? ((?:github\.com|golang\.org)/\S+)/\*$`).FindAllStringSubmatch(copyright, -1) {
		if !slices.ContainsFunc(info.Deps, func(d *debug.Module) bool { return d.Path == m[1] }) {
			t.Errorf("packaging/copyright names %s, which is not linked in", m[1])
		}
	}
}

func TestLintian(t *testing.T) {
	need(t, "lintian")
	for arch, deb := range built(t) {
		out, err := tryRun("", nil, "lintian", "--allow-root", "--fail-on", "error,warning", deb)
		out = strings.TrimSpace(strings.ReplaceAll(out, "running with root privileges is not recommended!", ""))
		if err != nil || out != "" {
			t.Errorf("%s: lintian: %v\n%s", arch, err, out)
		}
	}
	// An override that hides nothing, or one without a reason, is not wanted.
	overrides := string(must(os.ReadFile("lintian-overrides"))(t))
	if n := strings.Count(overrides, "\naccel: "); n != 2 || strings.Count(overrides, "\n# ") < 1 || !strings.HasPrefix(overrides, "# ") {
		t.Errorf("lintian-overrides has %d overrides, want two, each with its reason above it", n)
	}
}

// TestLintianDebian13 judges the packages with the newer lintian too. It
// installs a Debian 13, which takes a minute.
func TestLintianDebian13(t *testing.T) {
	if os.Getenv("ACCEL_LONG") == "" {
		t.Skip("installs a Debian 13; set ACCEL_LONG=1")
	}
	needRoot(t)
	need(t, "mmdebstrap")
	deb := built(t)["amd64"]
	root := filepath.Join(t.TempDir(), "root")
	mirror := strings.Fields(run(t, "", nil, "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"))
	if len(mirror) == 0 {
		t.Fatal("no Debian source configured on this machine")
	}
	run(t, "", nil, "mmdebstrap", "--variant=minbase", "--include=lintian", "trixie", root, "deb "+mirror[0]+" trixie main")
	run(t, "", nil, "cp", deb, filepath.Join(root, "accel.deb"))
	out := run(t, "", nil, "chroot", root, "lintian", "--allow-root", "--fail-on", "error,warning", "/accel.deb")
	if strings.Contains(out, "accel:") {
		t.Errorf("lintian of Debian 13:\n%s", out)
	}
}

func TestManPage(t *testing.T) {
	need(t, "mandoc", "man")
	page := filepath.Join(unpack(t, built(t)[runtime.GOARCH]), "usr/share/man/man8/accel.8.gz")
	if out, err := tryRun("", nil, "mandoc", "-Tlint", "-Wwarning", page); err != nil {
		t.Errorf("mandoc: %v\n%s", err, out)
	}
	text, err := tryRun("", []string{"LC_ALL=C.UTF-8", "MANWIDTH=80", "MANROFFSEQ="}, "man", "--warnings", "-l", page)
	if err != nil || strings.Contains(text, "warning:") {
		t.Errorf("man: %v\n%s", err, text)
	}
	for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "EXIT STATUS", "FILES", "EXAMPLES"} {
		if !regexp.MustCompile(`(?m)^` + section + `$`).MatchString(text) {
			t.Errorf("no section %s", section)
		}
	}
	for _, command := range []string{"enable", "disable", "status", "detect", "probe", "agent"} {
		if !regexp.MustCompile(`(?m)^ +accel ` + command + `$`).MatchString(text) {
			t.Errorf("command %s has no paragraph", command)
		}
	}
	if strings.Contains(text, buildsDir) {
		t.Error("names the directory it was made in")
	}
}

func TestCompletions(t *testing.T) {
	need(t, "bash", "zsh")
	dir := unpack(t, built(t)[runtime.GOARCH])
	bin := filepath.Join(dir, "usr/bin")
	bash := filepath.Join(dir, "usr/share/bash-completion/completions/accel")
	zsh := filepath.Join(dir, "usr/share/zsh/vendor-completions/_accel")
	run(t, "", nil, "zsh", "-n", zsh)
	if first, _, _ := strings.Cut(string(must(os.ReadFile(zsh))(t)), "\n"); first != "#compdef accel" {
		t.Errorf("zsh loads a completion by its first line, which is %q", first)
	}

	// What bash itself does when somebody types "accel st" and the tab key,
	// with no bash-completion package there to help.
	const complete = `set -e; source "$1"; spec=$(complete -p accel)
		COMP_WORDS=(accel st) COMP_CWORD=1 COMP_LINE="accel st" COMP_POINT=8 COMPREPLY=()
		f=$(sed -n 's/.*-F \([^ ]*\).*/\1/p' <<<"$spec"); "$f" accel st accel || true; echo "${COMPREPLY[@]}"`
	out := run(t, "", []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, "bash", "-c", complete, "bash", bash)
	if strings.TrimSpace(out) != "status" {
		t.Errorf("bash completes \"accel st\" to %q, want \"status\"", out)
	}
}

func TestShellcheck(t *testing.T) {
	need(t, "shellcheck")
	var scripts []string
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (slices.Contains([]string{".git", "testdata"}, d.Name()) || path == "../dist" || path == "../.cache") {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if first, _, _ := bytes.Cut(data, []byte("\n")); regexp.MustCompile(`^#!.*\b(sh|bash)\b`).Match(first) {
			scripts = append(scripts, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"../.ci/run", "deps.sh", "scripts/postinst", "scripts/postrm", "scripts/prerm"} {
		if !slices.Contains(scripts, filepath.Join(".", want)) && !slices.Contains(scripts, filepath.Join("../packaging", want)) {
			t.Errorf("%s was not found among the scripts %v", want, scripts)
		}
	}
	if out, err := tryRun("", nil, "shellcheck", scripts...); err != nil {
		t.Errorf("shellcheck: %v\n%s", err, out)
	}
}

// TestDependencies checks that `make test` installs what the virtual machines
// need.
func TestDependencies(t *testing.T) {
	script := strings.Fields(string(must(os.ReadFile("deps.sh"))(t)))
	for _, p := range vm.Packages() {
		essential := p == "dpkg" || p == "apt" || p == "util-linux" // every Debian has them
		if !essential && !slices.Contains(script, p) {
			t.Errorf("deps.sh does not install %s", p)
		}
	}
}
