package sysctld

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"accel/pkg/doctor"
	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/sysctl"
	"accel/pkg/tuning"
)

// predictions is how many hosts doctor foretells the boot of, in each release.
const predictions = 40

// TestPrediction compares what doctor says of the next boot with what the boot
// does: its report on generated hosts of both releases, with what the real tools
// then leave of accel's keys. (Four more are really booted, in test/hosts.)
func TestPrediction(t *testing.T) {
	if os.Getuid() != 0 {
		need(t, "needs root, to run the tools in namespaces of their own")
	}
	var wait sync.WaitGroup
	for _, suite := range releases {
		root, err := ensureRoot(suite)
		if err != nil {
			need(t, "needs mmdebstrap and a Debian mirror in apt's sources: %v", err)
		}
		wait.Go(func() {
			out, err := inNamespaces(job{Suite: suite, Root: root, Predict: true})
			t.Logf("%s:\n%s", suite, out)
			if err != nil {
				t.Errorf("%s: %v", suite, err)
			}
		})
	}
	wait.Wait()
}

// predict is the helper's part.
func predict(suite, root string) error {
	m, err := newMachine(root)
	if err != nil {
		return fmt.Errorf("preparing the namespaces: %w", err)
	}
	// Outside of the initial namespace there is no default qdisc. A file plays
	// its part, which takes every kind.
	core := filepath.Join(m.root, "proc/sys/net/core")
	if err := unix.Mount("tmpfs", core, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	allowed, err := os.ReadFile(path(sysctl.AllowedCongestionControl))
	if err != nil {
		return err
	}
	of := Choice{Algorithms: strings.Fields(string(allowed)), Qdiscs: []string{"fq", "fq_codel", "cake"}, Numbers: map[string][]string{
		"net.ipv4.tcp_rmem":                  {"4096 131072 16777216", "8192\t262144\t33554432", "4096 87380 67108864 # bytes", "4096,87380,67108864", "8192 65536"},
		"net.ipv4.tcp_notsent_lowat":         {"16384", "131072", "0x20000", "32768 # less", "lots", "4294967295"},
		"net.ipv4.tcp_slow_start_after_idle": {"0", "1", "0 # off", "off", "00"},
	}}
	for key := range of.Numbers {
		if own[key], err = read(m.root, key); err != nil {
			return err
		}
	}
	own[sysctl.CongestionControl.String()] = before[sysctl.CongestionControl]
	bad, differ, set := 0, 0, 0
	for i := range predictions {
		c := config{}
		at := map[string]int{}
		// What nobody can mean: only the algorithm has a kernel behind it that
		// refuses it.
		for _, f := range append(Base(suite), Touched(suite, i, of)...) {
			n := node{path: f.Path, content: f.Content, link: f.Link}
			if j, ok := at[f.Path]; ok {
				c.files[j] = n
				continue
			}
			at[f.Path] = len(c.files)
			c.files = append(c.files, n)
		}
		if i%4 == 0 {
			c.files = append(c.files, node{path: "/etc/sysctl.d/97-nosuch.conf", content: "net.ipv4.tcp_congestion_control = " + []string{"bbrplus", "bbr # comment", "nosuch", "bbr3"}[i/4%4] + "\n"})
		}
		told := map[string]map[sysctl.Order]string{}
		if err := lay(m.root, c); err != nil {
			return err
		}
		if err := errors.Join(enabled(m.root, of), begin(m.root)); err != nil {
			return err
		}
		report, err := doctor.Examine(context.Background(), asHost(m.root, of), doctor.Options{})
		if err != nil {
			return fmt.Errorf("config %d: %w", i, err)
		}
		text, err := json.MarshalIndent(report.Keys, "", "  ")
		if err != nil {
			return err
		}
		for _, k := range report.Keys {
			told[k.Key] = map[sysctl.Order]string{}
			for _, b := range k.Boot {
				v := own[k.Key]
				if b.Value != nil {
					v = *b.Value
				}
				for _, order := range []sysctl.Order{sysctl.Systemd, sysctl.Procps} {
					if b.Order == order.String() {
						told[k.Key][order] = v
					}
				}
			}
			// A host with systemd has what systemd's order makes of it.
			next := own[k.Key]
			if k.Next != nil {
				next = *k.Next
			}
			if next != told[k.Key][sysctl.Systemd] {
				bad++
				fmt.Printf("config %d, %s: by the files %q, and next %q\n", i, k.Key, told[k.Key][sysctl.Systemd], next)
			}
		}
		results := map[sysctl.Order]string{}
		for _, order := range []sysctl.Order{sysctl.Systemd, sysctl.Procps} {
			if err := begin(m.root); err != nil {
				return err
			}
			said, err := run(m.root, order)
			if err != nil {
				return err
			}
			for _, key := range slices.Sorted(maps.Keys(own)) {
				found, err := read(m.root, key)
				if err != nil {
					return err
				}
				results[order] += found + " "
				want, ok := told[key][order]
				if !ok {
					return fmt.Errorf("config %d: doctor does not tell of %s in the order of %v", i, key, order)
				}
				if found != own[key] {
					set++
				}
				if !sysctl.Equal(found, want) {
					bad++
					fmt.Printf("config %d, %s as %v: found %q, foretold %q\n%sdoctor: %s\nthe tool: %s\n", i, key, order, found, want, c, text, said)
				}
			}
		}
		if results[sysctl.Systemd] != results[sysctl.Procps] {
			differ++
		}
	}
	fmt.Printf("%d hosts, %d of %d values set; on %d hosts the orders differ\n", predictions, set, 10*predictions, differ)
	if bad > 0 {
		return fmt.Errorf("%d predictions are wrong", bad)
	}
	if set < 3*predictions || differ < 3 {
		return errors.New("the generated hosts have lost their force")
	}
	return nil
}

// own is what the keys hold that no file sets.
var own = map[string]string{sysctl.DefaultQdisc.String(): "pfifo_fast"}

// begin gives every key what it holds before a boot's tools.
func begin(root string) error {
	for key, value := range own {
		if err := os.WriteFile(file(root, key), []byte(value+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func file(root, key string) string {
	return filepath.Join(root, "proc/sys", strings.ReplaceAll(key, ".", "/"))
}

// read reads what a tool left. It need not truncate a file of the kernel's, so of
// the one that plays the default qdisc the first line counts.
func read(root, key string) (string, error) {
	data, err := os.ReadFile(file(root, key))
	line, _, _ := strings.Cut(string(data), "\n")
	return line, err
}

// enabled makes accel care for all the keys.
func enabled(root string, of Choice) error {
	st := tuning.State{Version: 1, Phase: tuning.Settled, Enabled: &tuning.Enabled{Algorithm: "bbr", Profile: "boost"}}
	for key := range of.Numbers {
		st.Records = append(st.Records, tuning.Record{Kind: tuning.KindSysctl, Name: strings.ReplaceAll(key, ".", "/"), Wanted: "1"})
	}
	data, err := json.Marshal(st)
	if err != nil {
		return err
	}
	name := filepath.Join(root, tuning.StateFile)
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, data, 0o644))
}

// asHost makes a host of a root that has no kernel of its own.
func asHost(root string, of Choice) *tuning.Host {
	f := kernel.Facts{UID: 0, Systemd: true, PID1: "systemd", ModuleIndex: true}
	for _, a := range of.Algorithms {
		f.Algorithms = append(f.Algorithms, kernel.Algorithm{Name: a, Origin: kernel.Builtin, Available: true})
	}
	for _, q := range of.Qdiscs {
		f.Qdiscs = append(f.Qdiscs, kernel.Algorithm{Name: q, Origin: kernel.Builtin, Available: true})
	}
	return &tuning.Host{
		Root: root, Recorded: true, Files: files.OS{Root: root}, Sysctl: sysctl.Tree{Root: filepath.Join(root, "proc/sys")},
		Qdiscs: noQdiscs{}, Routes: noRoutes{}, Sockets: noSockets{},
		Detect: func() (*kernel.Facts, error) { return &f, nil },
		Now:    time.Now,
	}
}

// Nothing is known of links, routes and connections.
type (
	noQdiscs  struct{ tuning.Qdiscs }
	noRoutes  struct{ tuning.Routes }
	noSockets struct{ tuning.Sockets }
)

func (noQdiscs) Trees() ([]qdisc.Tree, error)          { return nil, fs.ErrNotExist }
func (noRoutes) Defaults() ([]route.Route, error)      { return nil, fs.ErrNotExist }
func (noSockets) Connections() (map[string]int, error) { return nil, fs.ErrNotExist }
