package bootkernel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/kernel"
)

// The given cases about kernels.
const cases = "../../test/cases/"

func expected(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(cases + name + "/expect.json")
	if err != nil {
		t.Fatal(err)
	}
	doc := struct{ Expect any }{into}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
}

// Case 69: a new kernel is installed, and an old one boots.
func TestCase69(t *testing.T) {
	const name = "69-grub-default-old"
	var want map[string]string
	expected(t, name, &want)
	data, err := os.ReadFile(cases + name + "/grub/grub.cfg")
	if err != nil {
		t.Fatal(err)
	}
	m := ParseMenu(data)
	for which, sentence := range want {
		def := ""
		file, err := os.ReadFile(filepath.Join(cases, name, "grub", which, "default"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(file)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "GRUB_DEFAULT="); ok {
				def = strings.Trim(v, `"`)
			}
		}
		env := map[string]string{}
		if def == "saved" {
			def = "${saved_entry}"
			block, err := os.ReadFile(filepath.Join(cases, name, "grub", which, "grubenv"))
			if err != nil {
				t.Fatal(err)
			}
			if env, err = parseEnv(block); err != nil {
				t.Fatal(err)
			}
		}
		want := strings.Fields(strings.TrimPrefix(sentence, "boots "))[0]
		switch which {
		case "saved":
			// The case expects the entry within the submenu. GRUB looks for a name
			// on one level only, and what it does not find is the first entry
			// (get_entry_number and grub_menu_execute_with_fallback in its
			// normal/menu.c): savedefault writes the whole way, "a>b".
			if got := m.Find(def, env).Release(); got != "6.12.9-joeyblog-bbrv3" {
				t.Errorf("%s: starts %s", which, got)
			}
			env["saved_entry"] = "gnulinux-advanced-aaaa>" + env["saved_entry"]
			fallthrough
		case "pinned":
			if got := m.Find(def, env).Release(); got != want {
				t.Errorf("%s: starts %s, want %s", which, got, want)
			}
		case "id":
			if got := m.Find(def, env).Release(); got != want {
				t.Errorf("%s: starts %s, want %s", which, got, want)
			}
		default:
			t.Errorf("%s is not tested", which)
		}
	}
}

// Case 70: the disk ran full, and GRUB has an entry without an initial ramdisk.
func TestCase70(t *testing.T) {
	const name = "70-boot-full"
	var want struct {
		Bootable []string
		Not      map[string]string `json:"not_bootable"`
	}
	expected(t, name, &want)
	tree, err := kernel.OpenTree(cases + name + "/root")
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	for _, r := range want.Bootable {
		if why := bootable(tree, r); why != "" {
			t.Errorf("%s: %s", r, why)
		}
	}
	for r, reason := range want.Not {
		if why := bootable(tree, r); why != reason {
			t.Errorf("%s: %q, want %q", r, why, reason)
		}
	}
}

// Case 72: a kernel without the drivers of this machine.
func TestCase72(t *testing.T) {
	const name = "72-wrong-driver-set"
	var want struct {
		New     string   `json:"new_kernel"`
		Missing []string `json:"missing_drivers"`
	}
	expected(t, name, &want)
	tree, err := kernel.OpenTree(cases + name + "/root")
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	m := readModules(tree, want.New)
	if m == nil {
		t.Fatal("no modules")
	}
	var missing []string
	for _, names := range deviceDrivers(tree, "/sys/class/block/sda") {
		if !(driver{Names: names}).in(m) {
			missing = append(missing, names...)
		}
	}
	for _, names := range [][]string{driverNames(tree, "/sys/class/net/ens33/device/driver", linkBase(tree, "/sys/class/net/ens33/device/driver"))} {
		if !(driver{Names: names}).in(m) {
			missing = append(missing, names...)
		}
	}
	if d := cmp.Diff(want.Missing, missing); d != "" {
		t.Error(d)
	}
	if err := driverCheck([]driver{{Names: missing, For: "the root disk sda"}}, m, want.New); err == nil {
		t.Error("not refused")
	}
}

func TestCompareVersions(t *testing.T) {
	// In ascending order, as dpkg --compare-versions has them.
	order := []string{
		"4.9.0-1", "4.10.0-1", "6.1.0-9-amd64", "6.1.0-57-amd64", "6.12.95-1~bpo12+1", "6.12.95-1", "6.12.95+deb12-amd64", "7.3.4-1~bpo13+1", "7.3.4-1", "1:1.0-1",
	}
	for i := range order {
		for j := range order {
			got := compareVersions(order[i], order[j])
			if got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("%s and %s: %d", order[i], order[j], got)
			}
		}
	}
}

func FuzzCompareVersions(f *testing.F) {
	f.Add("6.1.0-57", "6.12.95-1~bpo12+1")
	f.Fuzz(func(t *testing.T, a, b string) {
		if compareVersions(a, b) != -compareVersions(b, a) && compareVersions(a, b)*compareVersions(b, a) >= 0 && compareVersions(a, b) != 0 {
			t.Errorf("%q and %q have no order", a, b)
		}
		if compareVersions(a, a) != 0 {
			t.Errorf("%q differs from itself", a)
		}
	})
}

func FuzzParseMenu(f *testing.F) {
	data, err := os.ReadFile(cases + "69-grub-default-old/grub/grub.cfg")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(data), "1>2")
	f.Add("menuentry 'a' {\n}\n}\nsubmenu 'b' {\n", "b>>c>d")
	f.Fuzz(func(t *testing.T, s, name string) {
		m := ParseMenu([]byte(s))
		m.Find(name, nil)
		if e := m.Ordinary("6.12.9-joeyblog-bbrv3"); e != nil {
			if found := m.Find(e.Name(), nil); found == nil && len(e.Path) == 1 && !e.submenu {
				t.Errorf("%q is not found", e.Name())
			}
			renderTrial(e, e, "x", "y")
		}
	})
}

func TestBackportsSource(t *testing.T) {
	for name, c := range map[string]struct {
		files      map[string]string
		configured bool
		want       []string // lines; nil: none can be derived
	}{
		"deb822": {map[string]string{"debian.sources": "# a comment\nTypes: deb deb-src\nURIs: http://a.example/debian\nSuites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\nTypes: deb\nURIs: http://a.example/debian-security\nSuites: bookworm-security\nComponents: main\n"}, false,
			[]string{"Types: deb", "URIs: http://a.example/debian", "Suites: bookworm-backports", "Components: main", "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg"}},
		"a key in the file": {map[string]string{"debian.sources": "Types: deb\nURIs: http://a.example/debian\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n"}, false,
			[]string{"Types: deb", "URIs: http://a.example/debian", "Suites: bookworm-backports", "Components: main", "Signed-By: ", " -----BEGIN PGP PUBLIC KEY BLOCK-----", " .", " abc", " -----END PGP PUBLIC KEY BLOCK-----"}},
		"one line": {map[string]string{"a.list": "# deb http://old.example bookworm main\ndeb [arch=amd64,arm64 signed-by=/k.gpg] http://b.example/debian bookworm main non-free # mirror\n"}, false,
			[]string{"Types: deb", "URIs: http://b.example/debian", "Suites: bookworm-backports", "Components: main", "Architectures: amd64 arm64", "Signed-By: /k.gpg"}},
		"configured":         {map[string]string{"a.list": "deb http://b.example/debian bookworm main\ndeb http://b.example/debian bookworm-backports main\n"}, true, nil},
		"turned off":         {map[string]string{"a.sources": "Enabled: no\nTypes: deb\nURIs: http://a\nSuites: bookworm\nComponents: main\n"}, false, nil},
		"another release":    {map[string]string{"a.list": "deb http://b.example/debian trixie main\n"}, false, nil},
		"not the main part":  {map[string]string{"a.list": "deb http://b.example/debian bookworm contrib\n"}, false, nil},
		"sources, no binary": {map[string]string{"a.list": "deb-src http://b.example/debian bookworm main\n"}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(dir+"/etc/apt/sources.list.d", 0o755); err != nil {
				t.Fatal(err)
			}
			for n, content := range c.files {
				if err := os.WriteFile(dir+"/etc/apt/sources.list.d/"+n, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			tree, err := kernel.OpenTree(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			file, configured := backports(tree, "bookworm")
			if configured != c.configured || (file == nil) != (c.want == nil) {
				t.Fatalf("configured %v, %q", configured, file)
			}
			if file == nil {
				return
			}
			lines := slices.DeleteFunc(strings.Split(strings.TrimSuffix(string(file), "\n"), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
			if d := cmp.Diff(c.want, lines); d != "" {
				t.Error(d)
			}
			if !ours(file) {
				t.Error("it does not say who wrote it")
			}
			// What accel wrote does not count as configured by somebody else.
			if err := os.WriteFile(dir+BackportsFile, file, 0o644); err != nil {
				t.Fatal(err)
			}
			if again, configured := backports(tree, "bookworm"); configured || string(again) != string(file) {
				t.Errorf("beside its own: %v, %q", configured, again)
			}
		})
	}
}
