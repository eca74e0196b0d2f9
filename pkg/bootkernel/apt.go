package bootkernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"accel/pkg/kernel"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// apt is the package manager as one set of options sees it.
type apt struct {
	h       *Host
	options []string // before every command's own arguments
}

func (a apt) cache(ctx context.Context, args ...string) (string, error) {
	return a.h.run(ctx, "apt-cache", append(slices.Clone(a.options), args...)...)
}

func (h *Host) apt() apt { return apt{h: h} }

// metas are the packages that bring the newest kernel of a flavour: the release's
// own, and those of one branch of kernels that a release also has, such as
// linux-image-6.12-cloud-amd64 in the security updates of Debian 12.
func (a apt) metas(ctx context.Context, meta string) []string {
	list := []string{meta}
	flavour := strings.TrimPrefix(meta, "linux-image-")
	said, err := a.cache(ctx, "pkgnames", "linux-image-")
	if err != nil {
		return list
	}
	for name := range strings.FieldsSeq(said) {
		branch, ok := strings.CutSuffix(strings.TrimPrefix(name, "linux-image-"), "-"+flavour)
		if ok && branchPattern.MatchString(branch) {
			list = append(list, name)
		}
	}
	slices.Sort(list[1:])
	return list
}

var branchPattern = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)

// offers asks apt what the distribution offers in a flavour, newest first. A
// suite that is configured but not yet fetched offers nothing.
func (a apt) offers(ctx context.Context, meta string) ([]Kernel, error) {
	var list []Kernel
	for _, m := range a.metas(ctx, meta) {
		some, err := a.offersOf(ctx, m)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
	}
	slices.SortStableFunc(list, func(a, b Kernel) int { return compareVersions(b.Version, a.Version) })
	return list, nil
}

func (a apt) offersOf(ctx context.Context, meta string) ([]Kernel, error) {
	said, err := a.cache(ctx, "madison", meta)
	if err != nil {
		return nil, err
	}
	var list []Kernel
	seen := map[string]bool{}
	for line := range strings.Lines(said) {
		// linux-image-amd64 | 6.1.176-1 | http://host/debian bookworm/main amd64 Packages
		f := strings.Split(line, "|")
		if len(f) != 3 || strings.Contains(f[2], " Sources") {
			continue
		}
		version := strings.TrimSpace(f[1])
		suite := ""
		if w := strings.Fields(f[2]); len(w) >= 2 {
			suite, _, _ = strings.Cut(w[1], "/")
		}
		if version == "" || seen[version] {
			continue
		}
		seen[version] = true
		k, err := a.offer(ctx, meta, version)
		if err != nil {
			return nil, err
		}
		if k == nil {
			continue
		}
		k.Source = suite
		list = append(list, *k)
	}
	return list, nil
}

// offer finds the kernel behind a version of the meta package; nil if it names
// none.
func (a apt) offer(ctx context.Context, meta, version string) (*Kernel, error) {
	said, err := a.cache(ctx, "show", meta+"="+version)
	if err != nil {
		return nil, err
	}
	name := ""
	for part := range strings.SplitSeq(field(said, "Depends"), ",") {
		word, _, _ := strings.Cut(strings.TrimSpace(part), " ")
		if strings.HasPrefix(word, "linux-image-") && packagePattern.MatchString(word) {
			name = word
		}
	}
	if name == "" {
		return nil, nil
	}
	return a.image(ctx, name, version, meta)
}

// image describes a package that holds a kernel. Its version is that of the meta
// package, or another if apt has no such one.
func (a apt) image(ctx context.Context, name, version, meta string) (*Kernel, error) {
	spec := name
	if version != "" {
		spec += "=" + version
	}
	said, err := a.cache(ctx, "show", spec)
	if err != nil {
		return nil, err
	}
	if version == "" {
		version = field(said, "Version")
	}
	k := &Kernel{Release: strings.TrimSuffix(strings.TrimPrefix(name, "linux-image-"), "-unsigned"), Package: name, Version: version, meta: meta}
	signed := !strings.HasSuffix(name, "-unsigned") && strings.HasPrefix(field(said, "Source"), "linux-signed")
	k.Signed = &signed
	if n, err := strconv.ParseUint(field(said, "Installed-Size"), 10, 64); err == nil {
		n <<= 10
		k.SizeBytes = &n
	}
	if n, err := strconv.ParseUint(field(said, "Size"), 10, 64); err == nil {
		k.Download = &n
	}
	return k, nil
}

// field reads one field of the first paragraph that apt-cache show prints.
func field(said, name string) string {
	for line := range strings.Lines(said) {
		if strings.TrimSpace(line) == "" {
			return ""
		}
		if v, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// transaction is what apt would do.
type transaction struct {
	args     []string // of apt-get, after the options: "install", packages
	Packages []Package
	Removed  []string
	Unpacked uint64 // bytes on the disk that come new
	Download uint64 // bytes, of packages that are not in apt's cache
}

// simulate asks apt what an install would do. The packages are given with their
// versions. Only if that cannot be had with the versions of the host's own
// release, what they need may come from suite too.
func (a apt) simulate(ctx context.Context, suite string, packages ...string) (*transaction, error) {
	args := append([]string{"install"}, packages...)
	said, err := a.get(ctx, append([]string{"-s", "--no-install-recommends"}, args...)...)
	if err != nil && suite != "" {
		args = append([]string{"-t", suite}, args...)
		said, err = a.get(ctx, append([]string{"-s", "--no-install-recommends"}, args...)...)
	}
	if err != nil {
		return nil, problem(tuning.ExitFailed, err, text.T("asking apt what it would do"), text.T("Mend the packages first: apt-get -f install"))
	}
	t := parseSimulation(said)
	t.args = append([]string{"--no-install-recommends"}, args...)
	for _, p := range t.Packages {
		shown, err := a.cache(ctx, "show", p.Name+"="+p.After)
		if err != nil {
			continue
		}
		size, _ := strconv.ParseUint(field(shown, "Installed-Size"), 10, 64)
		t.Unpacked += size << 10
		download, _ := strconv.ParseUint(field(shown, "Size"), 10, 64)
		t.Download += download
	}
	return t, nil
}

func (a apt) get(ctx context.Context, args ...string) (string, error) {
	return a.h.run(ctx, "apt-get", append(slices.Clone(a.options), args...)...)
}

// parseSimulation reads what apt-get -s prints: "Inst name [before] (after ...)".
func parseSimulation(said string) *transaction {
	t := &transaction{}
	for line := range strings.Lines(said) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 3 && f[0] == "Inst":
			p := Package{Name: f[1]}
			rest := f[2:]
			if strings.HasPrefix(rest[0], "[") && len(rest) > 1 {
				p.Before = strings.Trim(rest[0], "[]")
				rest = rest[1:]
			}
			p.After = strings.TrimPrefix(rest[0], "(")
			t.Packages = append(t.Packages, p)
		case len(f) >= 2 && (f[0] == "Remv" || f[0] == "Purg"):
			t.Removed = append(t.Removed, f[1])
		}
	}
	return t
}

// lockFiles are those that apt and dpkg hold while they work, and how long accel
// waits for somebody else's work to end.
var lockFiles = []string{"/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock"}

const lockWait = 5 * time.Minute

// free waits until nobody else works with apt or dpkg.
func (h *Host) free(ctx context.Context, say func(string)) error {
	end := h.Now().Add(lockWait)
	for {
		who := ""
		for _, f := range lockFiles {
			if who == "" {
				who = h.Holder(f)
			}
		}
		if who == "" {
			return nil
		}
		if !h.Now().Before(end) {
			return problem(tuning.ExitFailed, nil, text.T("apt or dpkg is at work (%s), and was for %d minutes", who, int(lockWait.Minutes())),
				text.T("Wait until it has ended, and try again. Nothing was changed."))
		}
		say(text.T("waiting for %s, which works with apt; %d minutes at most", who, int(lockWait.Minutes())))
		if err := h.Sleep(ctx, 2*time.Second); err != nil {
			return err
		}
	}
}

// source is one of the host's configured Debian sources, as far as a source for
// backports can be derived from it.
type source struct {
	File       string
	URIs       string
	Suites     []string
	Components []string
	Options    []string // lines of deb822: "Signed-By: ..."
}

// keptOptions are the options of a source that hold for its mirror as a whole.
var keptOptions = map[string]string{
	"signed-by": "Signed-By", "arch": "Architectures", "architectures": "Architectures", "trusted": "Trusted",
	"check-valid-until": "Check-Valid-Until", "allow-insecure": "Allow-Insecure", "inrelease-path": "InRelease-Path",
}

// sources reads sources.list and sources.list.d (sources.list(5)).
func sources(t *kernel.Tree) []source {
	var list []source
	names := []string{"/etc/apt/sources.list"}
	entries, _ := t.ReadDir("/etc/apt/sources.list.d")
	for _, e := range entries {
		names = append(names, "/etc/apt/sources.list.d/"+e.Name())
	}
	for _, name := range names {
		data, err := t.ReadFile(name)
		if err != nil {
			continue
		}
		switch {
		case strings.HasSuffix(name, ".sources"):
			list = append(list, deb822(name, string(data))...)
		case strings.HasSuffix(name, ".list"):
			list = append(list, oneLine(name, string(data))...)
		}
	}
	return list
}

// oneLine reads the form "deb [option=value] URI suite component...".
func oneLine(name, data string) []source {
	var list []source
	for line := range strings.Lines(data) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		s := source{File: name}
		rest = strings.TrimSpace(rest)
		if options, after, ok := strings.Cut(rest, "]"); ok && strings.HasPrefix(rest, "[") {
			for o := range strings.FieldsSeq(strings.TrimPrefix(options, "[")) {
				k, v, _ := strings.Cut(o, "=")
				if long := keptOptions[strings.ToLower(k)]; long != "" {
					s.Options = append(s.Options, long+": "+strings.ReplaceAll(v, ",", " "))
				}
			}
			rest = after
		}
		f := strings.Fields(rest)
		if len(f) < 2 {
			continue
		}
		s.URIs, s.Suites, s.Components = f[0], f[1:2], f[2:]
		list = append(list, s)
	}
	return list
}

// deb822 reads paragraphs of "Field: value". A value may go on in lines that
// begin with a blank.
func deb822(name, data string) []source {
	var list []source
	for paragraph := range strings.SplitSeq(strings.ReplaceAll(data, "\r", ""), "\n\n") {
		fields := map[string]string{}
		last := ""
		for line := range strings.SplitSeq(paragraph, "\n") {
			switch {
			case strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t"):
				if last != "" {
					fields[last] += "\n" + line
				}
			default:
				k, v, ok := strings.Cut(line, ":")
				if ok {
					last = strings.ToLower(strings.TrimSpace(k))
					fields[last] = strings.TrimSpace(v)
				}
			}
		}
		if !slices.Contains(strings.Fields(fields["types"]), "deb") || strings.EqualFold(fields["enabled"], "no") {
			continue
		}
		s := source{File: name, URIs: strings.Join(strings.Fields(fields["uris"]), " "),
			Suites: strings.Fields(fields["suites"]), Components: strings.Fields(fields["components"])}
		for _, k := range []string{"signed-by", "architectures", "trusted", "check-valid-until", "allow-insecure", "inrelease-path"} {
			if v := fields[k]; v != "" {
				s.Options = append(s.Options, keptOptions[k]+": "+v)
			}
		}
		list = append(list, s)
	}
	return list
}

// backports derives the source for backports from the host's own. configured says
// that the host has one already. nil where no source fits.
func backports(t *kernel.Tree, codename string) (file []byte, configured bool) {
	if codename == "" {
		return nil, false
	}
	suite := codename + "-backports"
	var found *source
	for _, s := range sources(t) {
		if slices.Contains(s.Suites, suite) && slices.Contains(s.Components, "main") {
			if s.File != BackportsFile {
				return nil, true
			}
			continue
		}
		if found == nil && slices.Contains(s.Suites, codename) && slices.Contains(s.Components, "main") {
			found = &s
		}
	}
	if found == nil {
		return nil, false
	}
	var b strings.Builder
	b.WriteString(written + "Derived from " + found.File + ", for a newer kernel.\n# accel kernel remove takes it away with that kernel.\n")
	fmt.Fprintf(&b, "Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n", found.URIs, suite)
	for _, o := range found.Options {
		b.WriteString(o + "\n")
	}
	return []byte(b.String()), false
}

// peek lets apt look at a source that is not configured, without changing
// anything of the host: its lists go to a directory of their own. The function
// removes it.
func (h *Host) peek(ctx context.Context, file []byte) (apt, func(), error) {
	dir, err := os.MkdirTemp("", "accel-apt-")
	if err != nil {
		return apt{}, nil, err
	}
	done := func() { os.RemoveAll(dir) }
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			done()
			return apt{}, nil, err
		}
	}
	// The download runs as another user.
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "x.sources"), file, 0o644)); err != nil {
		done()
		return apt{}, nil, err
	}
	a := apt{h: h, options: []string{
		"-o", "Dir::State::lists=" + filepath.Join(dir, "lists"), "-o", "Dir::Cache=" + filepath.Join(dir, "cache"),
		"-o", "Dir::Etc::sourcelist=" + filepath.Join(dir, "x.sources"), "-o", "Dir::Etc::sourceparts=-",
		"-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=",
	}}
	if _, err := a.get(ctx, aptUpdate...); err != nil {
		done()
		return apt{}, nil, err
	}
	return a, done, nil
}
