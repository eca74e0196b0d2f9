package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// keyring holds the keys of Debian's archive, old and new releases' alike.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// freshFor is how long package lists and chosen kernel versions are used
// before the mirror is asked again.
const freshFor = 7 * 24 * time.Hour

// command runs a program of the host and returns what it wrote to its standard
// output. Its error holds the end of what it wrote to standard error.
func command(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program(name), args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := runBound(cmd); err != nil {
		return stdout.String(), fmt.Errorf("running %s %s: %w\n%s%s", name, strings.Join(args, " "), err,
			tail(stdout.String(), 2000), tail(stderr.String(), 4000))
	}
	return stdout.String(), nil
}

// startBound starts a program that ends with this process, also where this
// process is killed, and delivers the error it ends with.
func startBound(cmd *exec.Cmd) (done <-chan error, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		// The signal is sent when the thread that started the program ends, so
		// that thread stays here until the program is gone (golang/go#27505).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	return ended, <-started
}

// runBound is startBound and waiting for the end.
func runBound(cmd *exec.Cmd) error {
	done, err := startBound(cmd)
	if err != nil {
		return err
	}
	return <-done
}

// tail returns the last n bytes of s, from the start of a line.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return "...\n" + s
}

// mirrors returns the address of this machine's Debian mirror and that of its
// security mirror ("" if it uses none), as its apt configuration names them.
func mirrors(ctx context.Context) (main, security string, err error) {
	out, err := command(ctx, nil, "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI) $(COMPONENT) $(ORIGIN)", "Created-By: Packages")
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(out) {
		// The origin is known only after an "apt-get update"; before, the
		// names of the suite and the component must do.
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "main" || len(f) > 3 && f[3] != "Debian" && !strings.HasPrefix(f[3], "$(") {
			continue
		}
		suite, uri := f[0], strings.TrimSuffix(f[1], "/")
		if strings.Contains(suite, "-security") || strings.HasSuffix(suite, "/updates") {
			if security == "" {
				security = uri
			}
		} else if main == "" && debianSuites[strings.SplitN(suite, "-", 2)[0]] {
			main = uri
		}
	}
	if main == "" {
		return "", "", errors.New("this machine's apt configuration names no Debian mirror (see: apt-get indextargets)")
	}
	return main, security, nil
}

var debianSuites = map[string]bool{
	"oldoldstable": true, "oldstable": true, "stable": true, "testing": true, "unstable": true, "sid": true,
	"bullseye": true, "bookworm": true, "trixie": true, "forky": true, "duke": true,
}

// sources returns the lines of a sources.list for a suite: "bookworm" with its
// security updates, or "trixie-backports" alone.
func sources(ctx context.Context, suite string) ([]string, error) {
	main, security, err := mirrors(ctx)
	if err != nil {
		return nil, err
	}
	lines := []string{fmt.Sprintf("deb [signed-by=%s] %s %s main", keyring, main, suite)}
	if security != "" && !strings.Contains(suite, "-") && suite != "sid" {
		lines = append(lines, fmt.Sprintf("deb [signed-by=%s] %s %s-security main", keyring, security, suite))
	}
	return lines, nil
}

// apt is a private apt, with lists and a cache of its own for one suite and
// architecture, so that the configuration of this machine stays untouched.
// Signatures are checked as usual.
type apt struct {
	dir string
}

// openApt readies the private apt of a suite and architecture, with package
// lists not older than freshFor.
func openApt(ctx context.Context, suite, arch string) (*apt, error) {
	root, err := CacheDir()
	if err != nil {
		return nil, err
	}
	a := &apt{dir: filepath.Join(root, "apt", suite+"-"+arch)}
	unlock, err := lock(ctx, "apt-"+suite+"-"+arch)
	if err != nil {
		return nil, err
	}
	defer unlock()
	stamp := filepath.Join(a.dir, "updated")
	if fi, err := os.Stat(stamp); err == nil && time.Since(fi.ModTime()) < freshFor {
		return a, nil
	}
	for _, d := range []string{"etc/preferences.d", "etc/apt.conf.d", "lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	lines, err := sources(ctx, suite)
	if err != nil {
		return nil, err
	}
	conf := fmt.Sprintf(`Dir %[1]q;
Dir::Etc "%[1]s/etc";
Dir::Etc::sourcelist "%[1]s/etc/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
Dir::State %[1]q;
Dir::State::lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Acquire::GzipIndexes "true";
Acquire::Languages "none";
APT::Architecture %[2]q;
APT::Architectures { %[2]q; };
APT::Sandbox::User "root";
`, a.dir, arch)
	// The way to the mirror (a proxy, say) is this machine's own; nothing
	// else is taken over, its hooks least of all.
	dump, err := command(ctx, nil, "apt-config", "dump")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(dump) {
		if l := strings.ToLower(line); strings.HasPrefix(l, "acquire::http") {
			conf += line
		}
	}
	for name, content := range map[string]string{
		"apt.conf":         conf,
		"etc/sources.list": strings.Join(lines, "\n") + "\n",
		"status":           "",
	} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	if _, err := command(ctx, a.env(), "apt-get", "update", "-qq", "--error-on=any"); err != nil {
		return nil, err
	}
	return a, os.WriteFile(stamp, nil, 0o644)
}

func (a *apt) env() []string {
	return []string{"APT_CONFIG=" + filepath.Join(a.dir, "apt.conf"), "LC_ALL=C"}
}

// depends returns the packages that the newest version of pkg depends on.
func (a *apt) depends(ctx context.Context, pkg string) ([]string, error) {
	out, err := command(ctx, a.env(), "apt-cache", "depends", "--important", pkg)
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.Lines(out) {
		if dep, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
			list = append(list, strings.SplitN(dep, ":", 2)[0])
		}
	}
	return list, nil
}

// unpack downloads the packages and unpacks them into dir.
func (a *apt) unpack(ctx context.Context, dir string, pkgs ...string) error {
	tmp, err := os.MkdirTemp(a.dir, "debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-q"}, pkgs...)...)
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), a.env()...)
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := runBound(cmd); err != nil {
		return fmt.Errorf("downloading %s: %w\n%s", strings.Join(pkgs, " "), err, tail(out.String(), 4000))
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) != len(pkgs) {
		return fmt.Errorf("downloading %s brought %d packages", strings.Join(pkgs, " "), len(debs))
	}
	for _, deb := range debs {
		if err := unpackDeb(ctx, deb, dir); err != nil {
			return err
		}
	}
	return nil
}

// unpackDeb unpacks the files of a package into dir. Links to directories that
// are there (of a merged /usr) are followed, where dpkg-deb -x would put
// directories in their place.
func unpackDeb(ctx context.Context, deb, dir string) error {
	_, err := command(ctx, nil, "sh", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink --no-same-owner -C "$2"`, "sh", deb, dir)
	return err
}
