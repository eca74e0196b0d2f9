package kernel

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var modprobeRounds = flag.Int("modprobe-rounds", 60, "how many generated modprobe.d to compare with the real modprobe")

// The verdict on a module is what the real modprobe does with generated
// configurations.
func TestModprobeDifferential(t *testing.T) {
	modprobe, depmod := findProgram("modprobe"), findProgram("depmod")
	if modprobe == "" || depmod == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs modprobe and depmod (package kmod)")
		}
		t.Skip("needs modprobe and depmod (package kmod)")
	}
	const release = "1.2.3"
	store := t.TempDir()
	lib := filepath.Join(store, "lib/modules", release)
	for _, name := range []string{"kernel/net/ipv4/tcp_bbr.ko", "kernel/net/sched/sch_fq.ko"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(lib, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(lib, name), emptyModule(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"modules.order", "modules.builtin", "modules.builtin.modinfo"} {
		if err := os.WriteFile(filepath.Join(lib, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(depmod, "-b", store, release).CombinedOutput(); err != nil {
		t.Fatalf("depmod: %v\n%s", err, out)
	}

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	name := func() string {
		return pick("tcp_bbr", "tcp-bbr", "tcp_*", "tcp-*", "tcp_?br", "tcp_[ab]br", "tcp_[!a]br", "tcp-[a-c]br", "[t]cp_bbr", "*", "sch_fq", "tcp_bbr.ko", "tcp_cubic", "TCP_BBR")
	}
	line := func() string {
		switch random.IntN(8) {
		case 0, 1, 2:
			return pick("install ", "install\t", " install  ", "INSTALL ", "install") + name() + pick(" ", "\t", "  ", " \\\n ") +
				pick("/bin/false", "/bin/true", "/bin/true; exit 0", ": nothing", "/sbin/modprobe -i tcp_bbr", "/usr/local/bin/x", "/bin/false # no", "")
		case 3:
			return pick("blacklist ", "blacklist\t") + name()
		case 4:
			return "alias " + name() + " " + pick("off", "tcp_bbr", "tcp-bbr", "sch_fq", "nothing", "")
		case 5:
			return pick("options tcp_bbr a=1", "softdep tcp_bbr pre: sch_fq", "blacklist", "", "   ", "install")
		case 6:
			return pick("# ", " #", "#\\\n", "; ") + "install tcp_bbr /bin/false"
		default:
			return pick("install tcp_bbr", "blacklist tcp_bbr", "alias foo tcp_bbr", "\\", "\x00")
		}
	}
	dirs := []string{"etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d", "usr/lib/modprobe.d"}
	for round := range *modprobeRounds {
		root := t.TempDir()
		args := []string{"-n", "-v", "-d", store, "-S", release}
		var shown strings.Builder
		for _, dir := range dirs {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
			args = append(args, "-C", filepath.Join(root, dir))
		}
		for range 1 + random.IntN(3) {
			file := filepath.Join(pick(dirs...), pick("a.conf", "b.conf", "c.conf", ".d.conf", "e"))
			var content strings.Builder
			for range random.IntN(4) {
				content.WriteString(line() + pick("\n", "\n", "\r\n"))
			}
			fmt.Fprintf(&shown, "%s: %q\n", file, content.String())
			if err := os.WriteFile(filepath.Join(root, file), []byte(content.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(modprobe, append(args, "tcp_bbr")...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		blocked, _ := readModprobeConfig(openTree(t, root)).verdict("tcp_bbr", nil)

		loads, runs, unknown := false, false, false
		for said := range strings.Lines(stdout.String()) {
			loads = loads || strings.HasPrefix(said, "insmod ") && strings.Contains(said, "tcp_bbr.ko")
			if command, ok := strings.CutPrefix(said, "install "); ok {
				runs = true
				unknown = unknown || !loadsNothing(command)
			}
		}
		// A command of which nothing is known may load the module; but not if an
		// alias leads elsewhere.
		ok := blocked != ""
		if loads || runs && unknown && !strings.Contains(blocked, ": alias ") {
			ok = blocked == ""
		}
		if !ok {
			t.Errorf("round %d\n%smodprobe (%v) said %q %q\nblocked: %q", round, shown.String(), err, stdout.String(), stderr.String(), blocked)
		}
	}
}

func findProgram(name string) string {
	for _, dir := range []string{"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name
		}
	}
	return ""
}

// emptyModule is the least that depmod takes for a module: an ELF file for x86-64
// with empty symbols and a .modinfo section.
func emptyModule() []byte {
	names := "\x00.shstrtab\x00.strtab\x00.symtab\x00.modinfo\x00"
	sections := []struct {
		name, kind uint32
		data       string
		link       uint32
		entry      uint64
	}{
		{},
		{name: 1, kind: 3, data: names},
		{name: 11, kind: 3, data: "\x00"},
		{name: 19, kind: 2, data: strings.Repeat("\x00", 24), link: 2, entry: 24},
		{name: 27, kind: 1, data: "license=GPL\x00"},
	}
	var body, table bytes.Buffer
	for _, s := range sections {
		binary.Write(&table, binary.LittleEndian, [2]uint32{s.name, s.kind})
		binary.Write(&table, binary.LittleEndian, [4]uint64{0, 0, uint64(64 + body.Len()), uint64(len(s.data))})
		binary.Write(&table, binary.LittleEndian, [2]uint32{s.link, 0})
		binary.Write(&table, binary.LittleEndian, [2]uint64{1, s.entry})
		body.WriteString(s.data)
		body.Write(make([]byte, -body.Len()&7))
	}
	var out bytes.Buffer
	out.WriteString("\x7fELF\x02\x01\x01")
	out.Write(make([]byte, 9))
	binary.Write(&out, binary.LittleEndian, [2]uint16{1, 62})
	binary.Write(&out, binary.LittleEndian, uint32(1))
	binary.Write(&out, binary.LittleEndian, [3]uint64{0, 0, uint64(64 + body.Len())})
	binary.Write(&out, binary.LittleEndian, uint32(0))
	binary.Write(&out, binary.LittleEndian, [6]uint16{64, 0, 0, 64, uint16(len(sections)), 1})
	out.Write(body.Bytes())
	out.Write(table.Bytes())
	return out.Bytes()
}
