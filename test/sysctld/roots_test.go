package sysctld

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// releases are the Debian suites whose tools accel's answers are compared with.
var releases = []string{"bookworm", "trixie"}

func cacheDir() (string, error) {
	dir := os.Getenv("ACCEL_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "accel-test")
	}
	dir = filepath.Join(dir, "sysctld")
	return dir, os.MkdirAll(dir, 0o755)
}

// debianMirror finds the mirror that the machine itself installs from, in either
// format of apt's sources.
func debianMirror() (string, error) {
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	for _, name := range append(files, "/etc/apt/sources.list") {
		data, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for _, stanza := range strings.Split(string(data), "\n\n") {
			fields := map[string][]string{}
			s := bufio.NewScanner(strings.NewReader(stanza))
			for s.Scan() {
				line := strings.TrimSpace(s.Text())
				if key, value, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(name, ".sources") {
					fields[strings.ToLower(key)] = strings.Fields(value)
				} else if strings.HasPrefix(line, "deb ") {
					words := strings.Fields(line)[1:]
					for i, w := range words { // options in brackets
						if strings.HasSuffix(w, "]") {
							words = words[i+1:]
							break
						}
					}
					if len(words) >= 3 && usable(words[:1], words[1:2], words[2:]) {
						return direct(words[0])
					}
				}
			}
			if uris := fields["uris"]; usable(uris, fields["suites"], fields["components"]) {
				return direct(uris[0])
			}
		}
	}
	return "", errors.New("no source of a Debian release in apt's sources")
}

// direct looks up a source that is a list of mirrors, as cloud images have it.
func direct(uri string) (string, error) {
	list, ok := strings.CutPrefix(uri, "mirror+file:")
	if !ok {
		return uri, nil
	}
	data, err := os.ReadFile(filepath.Join("/", list))
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(data), "\n") {
		if f := strings.Fields(line); len(f) > 0 && !strings.HasPrefix(f[0], "#") {
			return f[0], nil
		}
	}
	return "", fmt.Errorf("no mirror in %s", list)
}

// usable reports whether a source is a plain Debian archive.
func usable(uris, suites, components []string) bool {
	if len(uris) == 0 || len(components) == 0 || components[0] != "main" {
		return false
	}
	for _, s := range suites {
		switch s {
		case "bookworm", "trixie", "forky", "sid", "stable", "testing", "oldstable":
			return !strings.Contains(uris[0], "security")
		}
	}
	return false
}

// ensureRoot returns a directory with the tools of a release, made once.
func ensureRoot(suite string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	// Several test runs may share the cache.
	lock, err := os.OpenFile(filepath.Join(cache, suite+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	root := filepath.Join(cache, suite)
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	mirror, err := debianMirror()
	if err != nil {
		return "", err
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return "", errors.New("mmdebstrap is not installed")
	}
	half := root + ".new"
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	// extract: unpacked but not configured, which is all that the tools need.
	packages := "procps,systemd"
	if suite == "trixie" {
		packages += ",linux-sysctl-defaults"
	}
	var out bytes.Buffer
	cmd := exec.Command("mmdebstrap", "--variant=extract", "--include="+packages,
		"--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
		`--aptopt=APT::Install-Recommends "false"`, suite, half, mirror)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building a root of %s with mmdebstrap: %w\n%s", suite, err, out.Bytes())
	}
	for _, dir := range []string{"proc", "run", "etc", "dev", "usr/local/lib", "usr/lib/sysctl.d"} {
		if err := os.MkdirAll(filepath.Join(half, dir), 0o755); err != nil {
			return "", err
		}
	}
	return root, os.Rename(half, root)
}
