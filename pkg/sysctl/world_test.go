package sysctl_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"accel/pkg/sysctl"
)

// A world of plain lines, of which the answer can be told by two rules: of one
// name the first directory counts, and of all files the last by name.
func TestWorlds(t *testing.T) {
	dirs := []string{"etc", "run", "usr/local/lib", "usr/lib"}
	names := []string{"10-a", "9-b", "50-c", "99-d", "zz", "A"}
	keys := []sysctl.Key{"net/ipv4/tcp_retries2", "net/ipv4/conf/eth0.100/tag", "net/core/default_qdisc"}
	base := t.TempDir()
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		root := filepath.Join(base, fmt.Sprint(round))
		type line struct {
			key   sysctl.Key
			value string
		}
		world := map[string][]line{} // by "dir/name"
		n := 0
		for range rapid.IntRange(0, 6).Draw(t, "files") {
			place := rapid.SampledFrom(dirs).Draw(t, "dir") + "/sysctl.d/" + rapid.SampledFrom(names).Draw(t, "name") + ".conf"
			world[place] = nil
			var text strings.Builder
			for range rapid.IntRange(0, 4).Draw(t, "lines") {
				k := rapid.SampledFrom(keys).Draw(t, "key")
				n++
				world[place] = append(world[place], line{k, fmt.Sprint(n)})
				form := rapid.SampledFrom([]string{k.String(), string(k), " " + k.String(), "-" + string(k)}).Draw(t, "form")
				fmt.Fprintf(&text, "%s%s%d%s", form, rapid.SampledFrom([]string{"=", " = "}).Draw(t, "equals"), n, rapid.SampledFrom([]string{"\n", "\r\n", " \n"}).Draw(t, "end"))
			}
			p := filepath.Join(root, place)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(root, 0o755); err != nil {
			t.Fatal(err)
		}

		want := map[sysctl.Key][]string{}
		slices.Sort(names)
		for _, name := range names {
			for _, dir := range dirs {
				place := dir + "/sysctl.d/" + name + ".conf"
				if lines, ok := world[place]; ok {
					for _, l := range lines {
						want[l.key] = append(want[l.key], l.value)
					}
					break
				}
			}
		}
		for _, order := range orders {
			c, err := sysctl.ReadConfig(root, order)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Keys(); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
				t.Fatalf("%v: keys %v, want %v", order, got, want)
			}
			for _, k := range keys {
				var all []string
				for _, a := range c.All(k) {
					all = append(all, a.Value)
				}
				if !slices.Equal(all, want[k]) {
					t.Fatalf("%v: all of %s: %v, want %v", order, k, all, want[k])
				}
				a, ok := c.Lookup(k)
				if ok != (len(all) > 0) || ok && a.Value != all[len(all)-1] {
					t.Fatalf("%v: %s: %+v, want the last of %v", order, k, a, all)
				}
				accepted, _ := c.InForce(k, func(string) bool { return true })
				if accepted != a {
					t.Fatalf("%v: %s: in force %+v, decided by %+v", order, k, accepted, a)
				}
				// Taking the deciding files away ends, and none decides twice.
				seen := map[string]bool{}
				for w := c; ok; {
					if seen[a.File] {
						t.Fatalf("%v: %s decides although it was taken away", order, a.File)
					}
					seen[a.File] = true
					w = w.Without(a.File)
					a, ok = w.Lookup(k)
				}
			}
			for _, p := range c.Problems() {
				if p.Kind != sysctl.Repeated {
					t.Fatalf("%v: %+v", order, p)
				}
			}
		}
	})
}

// What Render writes decides, if its file is the last.
func TestRenderDecides(t *testing.T) {
	base := t.TempDir()
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		root := filepath.Join(base, fmt.Sprint(round))
		other := rapid.StringMatching(`(-?net[./]ipv4[./](tcp_[a-z]{1,3}|conf[./]\*[./]tag|\*)[ ]?=[ ]?[a-z0-9 ]{0,4}\r?\n|#x\n|\x{feff}|-net.ipv4.tcp_a\n){0,6}`).Draw(t, "other")
		var settings []sysctl.KeyValue
		used := map[sysctl.Key]bool{}
		for range rapid.IntRange(1, 4).Draw(t, "settings") {
			k := sysctl.Key(rapid.StringMatching(`net/ipv4/(tcp_[a-z]{1,2}|conf/eth[0-9]\.[0-9]{1,2}/tag)`).Draw(t, "key"))
			if !used[k] {
				settings = append(settings, sysctl.KeyValue{Key: k, Value: rapid.StringMatching(`[a-z0-9]{1,4}( [0-9]{1,3}){0,2}`).Draw(t, "value")})
			}
			used[k] = true
		}
		for name, data := range map[string]string{"50-x.conf": other, "99-zz-accel.conf": string(sysctl.Render([]string{"accel"}, settings))} {
			p := filepath.Join(root, "etc/sysctl.d", name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(data), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, order := range orders {
			c, err := sysctl.ReadConfig(root, order)
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range settings {
				if a, _ := c.Lookup(kv.Key); a.Value != kv.Value || a.File != "/etc/sysctl.d/99-zz-accel.conf" {
					t.Fatalf("%v: %s is %+v, want %s", order, kv.Key, a, kv.Value)
				}
			}
		}
	})
}
