package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Machines with a boot loader see a Debian archive: at the usual addresses,
// with the real packages, but only those that kernels are made of, so that apt
// has little to read in an emulated computer. The package lists are cut from
// the real ones and signed with a key of the cache; packages are fetched from
// the mirror when a machine first asks for them, and kept.

// archiveAddress is where machines find the archive.
const archiveAddress = "10.0.2.100"

// ArchiveURL is what machines know it by; their /etc/hosts leads to
// archiveAddress.
const (
	archiveHost = "archive.example"
	ArchiveURL  = "http://" + archiveHost
)

// archiveSuites are the suites that a machine with a release may ask for,
// first those that it is configured with.
func archiveSuites(r Release) []archiveSuite {
	name := string(r)
	return []archiveSuite{
		{"debian", name, name},
		{"debian-security", name + "-security", name},
		{"debian", name + "-backports", name + "-backports"},
	}
}

// archiveSuite is a suite of Debian's archive.
type archiveSuite struct {
	Base string // the path of its archive on the server
	Name string
	apt  string // the private apt that knows it
}

// archived says whether a package is in the machines' archive.
func archived(name string) bool {
	if strings.HasSuffix(name, "-dbg") {
		return false
	}
	for _, prefix := range []string{"linux-image-", "linux-base", "linux-binary-", "linux-modules-", "initramfs-tools", "grub-", "kmod", "libkmod2"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// pooled is a package of the archive.
type pooled struct {
	Suite, Package, Version, SHA256 string
}

// archiveKey returns the key that signs the archive, as the home directory of
// gpg and the public key. It is made once for each cache.
func archiveKey(ctx context.Context) (home string, public []byte, err error) {
	dir, err := cached(ctx, "gpg", "key", func(ctx context.Context, dir string) error {
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
		_, err := command(ctx, nil, "gpg", "--homedir", dir, "--batch", "--passphrase", "", "--quick-generate-key", "Archive of test machines <archive@localhost>", "rsa3072", "sign", "never")
		if err != nil {
			return err
		}
		_, err = command(ctx, nil, "gpg", "--homedir", dir, "--batch", "--output", filepath.Join(dir, "public"), "--export")
		stopAgent(ctx, dir)
		return err
	})
	if err != nil {
		return "", nil, err
	}
	public, err = os.ReadFile(filepath.Join(dir, "public"))
	return dir, public, err
}

// stopAgent ends the agent that gpg starts, which would stay for ever.
func stopAgent(ctx context.Context, home string) {
	command(ctx, nil, "gpgconf", "--homedir", home, "--kill", "all")
}

// archiveHook returns the shell text by which an image gets the archive as its
// own Debian source, each release in the form that its installer writes.
func archiveHook(ctx context.Context, release Release) (string, error) {
	_, public, err := archiveKey(ctx)
	if err != nil {
		return "", err
	}
	hook := `rm -rf "$1"/etc/apt/sources.list.d/* "$1"/var/lib/apt/lists/*
printf '` + archiveAddress + " " + archiveHost + `\n' >> "$1/etc/hosts"
printf 'Acquire::EnableSrvRecords "false";\n' > "$1/etc/apt/apt.conf.d/90nodns"
printf '` + base64.StdEncoding.EncodeToString(public) + `' | base64 -d > "$1/root/archive.gpg"
`
	switch release {
	case Bookworm:
		hook += `mv "$1/root/archive.gpg" "$1/etc/apt/trusted.gpg.d/archive.gpg"
printf 'deb ` + ArchiveURL + `/debian bookworm main\ndeb ` + ArchiveURL + `/debian-security bookworm-security main\n' > "$1/etc/apt/sources.list"
`
	case Trixie:
		hook += `cat "$1/root/archive.gpg" >> "$1/usr/share/keyrings/debian-archive-keyring.gpg"
rm "$1/root/archive.gpg" "$1/etc/apt/sources.list"
printf 'Types: deb\nURIs: ` + ArchiveURL + `/debian\nSuites: trixie\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\nTypes: deb\nURIs: ` + ArchiveURL + `/debian-security\nSuites: trixie-security\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' > "$1/etc/apt/sources.list.d/debian.sources"
`
	}
	return hook, nil
}

// archiveLists returns a directory with the package lists of a release's
// archive, not older than freshFor, and the file "pool" that tells where each
// package is.
func archiveLists(ctx context.Context, release Release) (string, error) {
	suites := archiveSuites(release)
	key := "2"
	for _, s := range suites {
		a, err := openApt(ctx, s.apt, wholeArch)
		if err != nil {
			return "", err
		}
		fi, err := os.Stat(filepath.Join(a.dir, "updated"))
		if err != nil {
			return "", err
		}
		key += fi.ModTime().UTC().Format(time.RFC3339Nano)
	}
	home, _, err := archiveKey(ctx)
	if err != nil {
		return "", err
	}
	return cached(ctx, "archive", string(release)+"-"+hash(key), func(ctx context.Context, dir string) error {
		pool := map[string]pooled{}
		for _, s := range suites {
			if err := s.write(ctx, dir, home, pool); err != nil {
				return fmt.Errorf("the package list of %s: %w", s.Name, err)
			}
		}
		stopAgent(ctx, home)
		data, err := json.MarshalIndent(pool, "", "\t")
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "pool"), data, 0o644)
	})
}

// write makes the lists of one suite below dir, and enters its packages in the
// pool.
func (s archiveSuite) write(ctx context.Context, dir, home string, pool map[string]pooled) error {
	a, err := openApt(ctx, s.apt, wholeArch)
	if err != nil {
		return err
	}
	out, err := command(ctx, a.env(), "apt-get", "indextargets", "--format", "$(RELEASE) $(FILENAME)", "Created-By: Packages")
	if err != nil {
		return err
	}
	var list string
	for line := range strings.Lines(out) {
		if suite, file, ok := strings.Cut(strings.TrimSpace(line), " "); ok && suite == s.Name {
			list = file
		}
	}
	if list == "" {
		if strings.HasSuffix(s.Name, "-security") {
			return nil // this computer's apt has no security mirror
		}
		return fmt.Errorf("apt has no list:\n%s", out)
	}
	all, err := command(ctx, a.env(), "/usr/lib/apt/apt-helper", "cat-file", list)
	if err != nil {
		return err
	}
	var packages strings.Builder
	for paragraph := range strings.SplitSeq(all, "\n\n") {
		f := fields(paragraph)
		if !archived(f["Package"]) {
			continue
		}
		packages.WriteString(strings.TrimSpace(paragraph) + "\n\n")
		pool[path.Join("/", s.Base, f["Filename"])] = pooled{s.apt, f["Package"], f["Version"], f["SHA256"]}
	}
	// The list's name is that of the signed file with the rest of its path.
	base, _, ok := strings.Cut(list, "_dists_"+s.Name+"_")
	if !ok {
		return fmt.Errorf("an unexpected name: %s", list)
	}
	signed, err := os.ReadFile(base + "_dists_" + s.Name + "_InRelease")
	if err != nil {
		return err
	}
	f := fields(string(signed))
	var release strings.Builder
	for _, name := range []string{"Origin", "Label", "Suite", "Version", "Codename", "NotAutomatic", "ButAutomaticUpgrades", "Description"} {
		if f[name] != "" {
			fmt.Fprintf(&release, "%s: %s\n", name, f[name])
		}
	}
	fmt.Fprintf(&release, "Date: %s\nArchitectures: %s\nComponents: main\nSHA256:\n %x %d main/binary-%s/Packages\n",
		time.Now().UTC().Format(time.RFC1123), wholeArch, sha256.Sum256([]byte(packages.String())), packages.Len(), wholeArch)
	top := filepath.Join(dir, s.Base, "dists", s.Name)
	for name, content := range map[string]string{"Release": release.String(), "main/binary-" + wholeArch + "/Packages": packages.String()} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(top, name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(top, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	_, err = command(ctx, nil, "gpg", "--homedir", home, "--batch", "--digest-algo", "SHA512", "--output", filepath.Join(top, "InRelease"), "--clearsign", filepath.Join(top, "Release"))
	return err
}

// fields reads the one-line fields of a paragraph of a package list, or those
// of a signed Release file.
func fields(paragraph string) map[string]string {
	f := map[string]string{}
	for line := range strings.Lines(paragraph) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\n"), ": "); ok && !strings.HasPrefix(line, " ") {
			f[name] = value
		}
	}
	return f
}

// archive serves the archive of a release to machines.
type archive struct {
	dir    string // archiveLists
	pool   map[string]pooled
	server *http.Server
	addr   string // of this host
}

// openArchive starts to serve a release's archive, on an address of this host
// alone.
func openArchive(ctx context.Context, release Release) (*archive, error) {
	dir, err := archiveLists(ctx, release)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(dir, "pool"))
	if err != nil {
		return nil, err
	}
	a := &archive{dir: dir}
	if err := json.Unmarshal(data, &a.pool); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	a.addr = l.Addr().String()
	a.server = &http.Server{Handler: a}
	go a.server.Serve(l)
	return a, nil
}

func (a *archive) close() { a.server.Close() }

// ServeHTTP gives out a list or a package.
func (a *archive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := path.Clean(r.URL.Path)
	if p, ok := a.pool[name]; ok {
		// The machine may be gone before the package is there, but then the
		// next one has it.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		file, err := p.fetch(ctx)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		http.ServeFile(w, r, file)
		return
	}
	if strings.Contains(name, "/dists/") {
		http.ServeFile(w, r, filepath.Join(a.dir, filepath.FromSlash(name)))
		return
	}
	http.NotFound(w, r)
}

// fetch returns the file of the package, from the mirror if it is not in the
// cache.
func (p pooled) fetch(ctx context.Context) (string, error) {
	const name = "package.deb"
	dir, err := cached(ctx, "pool", p.SHA256, func(ctx context.Context, dir string) error {
		a, err := openApt(ctx, p.Suite, wholeArch)
		if err != nil {
			return err
		}
		// apt-get downloads to its working directory.
		_, err = command(ctx, a.env(), "sh", "-c", `cd "$1" && apt-get download -q "$2" && mv ./*.deb "$3"`, "sh", dir, p.Package+"="+p.Version, name)
		if err != nil {
			return err
		}
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		if got := fmt.Sprintf("%x", h.Sum(nil)); got != p.SHA256 {
			return fmt.Errorf("%s %s came with the checksum %s, not %s", p.Package, p.Version, got, p.SHA256)
		}
		return nil
	})
	return filepath.Join(dir, name), err
}

// forwarder writes the program that carries one connection of a machine to the
// archive, and returns the option of qemu's user networking that runs it.
func (a *archive) forwarder(dir string) (string, error) {
	host, port, err := net.SplitHostPort(a.addr)
	if err != nil {
		return "", err
	}
	script := fmt.Sprintf(`#!/bin/bash
exec 3<>/dev/tcp/%s/%s 4<&0 || exit 1
cat <&3 &
cat <&4 >&3 &
wait -n
kill $(jobs -p)
`, host, port)
	file := filepath.Join(dir, "forward")
	if strings.ContainsAny(file, ", '\"\\") {
		return "", errors.New("the path of the cache has characters that qemu does not take: " + file)
	}
	if err := os.WriteFile(file, bytes.TrimSpace([]byte(script)), 0o755); err != nil {
		return "", err
	}
	return "guestfwd=tcp:" + archiveAddress + ":80-cmd:" + file, nil
}
