package bootkernel

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"accel/pkg/kernel"
)

// This file reads what GRUB 2 will do: grub.cfg as grub-mkconfig writes it, and
// the environment block. It follows GRUB's own rules (grub-core/normal/menu.c):
// an entry is named by its number, its title or its id, each level of a submenu
// by itself with ">" between, and a name that is not found means the first
// entry.

// Entry is one entry of GRUB's menu.
type Entry struct {
	Title   string
	ID      string
	Path    []string // how GRUB is told about it: ids (titles where there is none), outermost first
	Kernel  string   // path of the kernel as GRUB sees it; "" for an entry that starts none
	Args    string   // the kernel's command line
	Initrd  []string // paths of the initial ramdisks
	Body    []string // the lines between the braces
	Entries []*Entry // of a submenu
	submenu bool
}

// Release is the kernel release that an entry starts, from the name of its
// kernel: "6.1.0-57-amd64" of "/boot/vmlinuz-6.1.0-57-amd64".
func (e *Entry) Release() string {
	if e == nil {
		return ""
	}
	return releaseOf(e.Kernel)
}

// releaseOf takes the release out of a kernel's file name.
func releaseOf(file string) string {
	base := path.Base(file)
	for _, prefix := range []string{"vmlinuz-", "vmlinux-", "kernel-"} {
		if r, ok := strings.CutPrefix(base, prefix); ok {
			return strings.TrimSuffix(r, ".efi.signed")
		}
	}
	return ""
}

// Name is what GRUB_DEFAULT or next_entry has to be for the entry.
func (e *Entry) Name() string {
	var parts []string
	for _, p := range e.Path {
		parts = append(parts, strings.ReplaceAll(p, ">", ">>"))
	}
	return strings.Join(parts, ">")
}

// Menu is what grub.cfg says.
type Menu struct {
	Entries []*Entry
	// Default is the value that default gets where next_entry is not set:
	// GRUB_DEFAULT, or "${saved_entry}".
	Default string
	// OneTime: next_entry is obeyed, and cleared on disk before anything is
	// started.
	OneTime bool
	// Password: GRUB asks for a user and a password before it starts an entry or
	// opens a submenu that is not marked as open to all.
	Password bool
	// Strange are lines that set the default in a way that grub-mkconfig does
	// not: what boots is then not known.
	Strange []string
}

// ParseMenu reads a grub.cfg. What it does not understand it leaves out.
func ParseMenu(data []byte) *Menu {
	m := &Menu{}
	type level struct {
		entry *Entry // nil: a function, or anything else in braces
	}
	var stack []level
	inside := func() *Entry { // the innermost entry
		for _, l := range slices.Backward(stack) {
			if l.entry != nil {
				return l.entry
			}
		}
		return nil
	}
	clears := 0
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\r\n")
		trimmed := strings.TrimSpace(line)
		words := shellWords(trimmed)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#"):
		case len(words) > 1 && (words[0] == "menuentry" || words[0] == "submenu") && strings.HasSuffix(trimmed, "{"):
			e := &Entry{Title: words[1], submenu: words[0] == "submenu"}
			for i, w := range words {
				if (w == "$menuentry_id_option" || w == "--id") && i+1 < len(words) {
					e.ID = words[i+1]
				}
				if id, ok := strings.CutPrefix(w, "--id="); ok {
					e.ID = id
				}
			}
			name := e.ID
			if name == "" {
				name = e.Title
			}
			if parent := inside(); parent != nil {
				e.Path = append(slices.Clone(parent.Path), name)
				parent.Entries = append(parent.Entries, e)
			} else {
				e.Path = []string{name}
				m.Entries = append(m.Entries, e)
			}
			stack = append(stack, level{e})
		case trimmed == "}":
			if len(stack) > 0 {
				stack = stack[:len(stack)-1]
			}
		case len(words) > 0 && words[0] == "function" && strings.HasSuffix(trimmed, "{"):
			stack = append(stack, level{})
		default:
			if e := inside(); e != nil {
				e.line(line, words)
				continue
			}
			if len(stack) > 0 {
				continue // in a function
			}
			clears += m.header(trimmed, words)
		}
	}
	m.OneTime = clears == 2
	return m
}

// line takes one line of an entry.
func (e *Entry) line(line string, words []string) {
	if e.submenu {
		return
	}
	e.Body = append(e.Body, line)
	if len(words) > 2 && words[0] == "if" && words[len(words)-1] == "then" { // as in accel's own entry
		words = words[1 : len(words)-1]
	}
	if len(words) < 2 {
		return
	}
	switch words[0] {
	case "linux", "linux16", "linuxefi":
		e.Kernel, e.Args = words[1], strings.Join(words[2:], " ")
	case "initrd", "initrd16", "initrdefi":
		e.Initrd = words[1:]
	}
}

// header takes one line outside of all entries, and counts the steps by which
// a one-time entry is used up.
func (m *Menu) header(trimmed string, words []string) (clears int) {
	switch trimmed {
	case `set default="${next_entry}"`:
		return 1
	case "save_env next_entry":
		return 1
	}
	if slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "superusers=") }) {
		m.Password = true
	}
	at := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "default=") })
	if at < 0 {
		return 0
	}
	// 10_linux corrects titles of old GRUBs. An id is none of them.
	if strings.HasPrefix(trimmed, `if [ "x$default" = '`) {
		return 0
	}
	if at == 1 && words[0] == "set" && len(words) == 2 && m.Default == "" {
		m.Default = strings.TrimPrefix(words[1], "default=")
		if m.Default == "" {
			m.Default = "0"
		}
		return 0
	}
	m.Strange = append(m.Strange, trimmed)
	return 0
}

// shellWords splits a line as GRUB's shell does, with quotes taken away.
// Variables stay as they are written.
func shellWords(s string) []string {
	var words []string
	var b strings.Builder
	started := false
	end := func() {
		if started {
			words = append(words, b.String())
			b.Reset()
			started = false
		}
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ' ', '\t', ';':
			end()
		case '\'':
			started = true
			for i++; i < len(s) && s[i] != '\''; i++ {
				b.WriteByte(s[i])
			}
		case '"':
			started = true
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' && i+1 < len(s) {
					i++
				}
				b.WriteByte(s[i])
			}
		case '\\':
			started = true
			if i+1 < len(s) {
				i++
				b.WriteByte(s[i])
			}
		case '#':
			if !started {
				return words
			}
			b.WriteByte(c)
		default:
			started = true
			b.WriteByte(c)
		}
	}
	end()
	return words
}

// Find gives the entry that GRUB takes for a value of default. A name that no
// entry has means the first entry. nil: there is none, or the name ends at a
// submenu, where GRUB waits for a person.
func (m *Menu) Find(value string, env map[string]string) *Entry {
	if value == "${saved_entry}" || value == "$saved_entry" {
		value = env["saved_entry"]
	}
	level := m.Entries
	for {
		if len(level) == 0 {
			return nil
		}
		first, rest, more := cutEntry(value)
		e := pick(level, first)
		if e == nil {
			e, more, rest = level[0], false, ""
		}
		if !e.submenu {
			return e
		}
		if !more {
			return nil
		}
		level, value = e.Entries, rest
	}
}

// cutEntry cuts a value at the first single ">".
func cutEntry(value string) (first, rest string, more bool) {
	for i := 0; i < len(value); i++ {
		if value[i] != '>' {
			continue
		}
		if i+1 < len(value) && value[i+1] == '>' {
			i++
			continue
		}
		return strings.ReplaceAll(value[:i], ">>", ">"), value[i+1:], true
	}
	return strings.ReplaceAll(value, ">>", ">"), "", false
}

func pick(level []*Entry, name string) *Entry {
	if name == "" {
		return level[0]
	}
	if n, ok := entryNumber(name); ok {
		if n < uint64(len(level)) {
			return level[n]
		}
		return nil
	}
	for _, e := range level {
		if e.Title == name || e.ID == name && e.ID != "" {
			return e
		}
	}
	return nil
}

// entryNumber takes a name for a number as GRUB does (get_entry_number in
// grub-core/normal/menu.c): what begins with a number is that number, "010" is
// octal, and "6.1 of mine" is the entry 6.
func entryNumber(name string) (uint64, bool) {
	name = strings.TrimLeft(name, " \t\n\v\f\r")
	base, digits := 10, "0123456789"
	switch {
	case strings.HasPrefix(strings.ToLower(name), "0x"):
		name, base, digits = name[2:], 16, "0123456789abcdefABCDEF"
	case strings.HasPrefix(name, "0"):
		base, digits = 8, "01234567"
	}
	n := strings.IndexFunc(name, func(r rune) bool { return !strings.ContainsRune(digits, r) })
	if n < 0 {
		n = len(name)
	}
	v, err := strconv.ParseUint(name[:n], base, 64)
	return v, err == nil
}

// Ordinary gives the entry that starts a release in the ordinary way: not the
// recovery mode, and not with another init. One with its own id in a submenu is
// preferred, since the id of the top entry is that of whichever kernel is the
// newest.
func (m *Menu) Ordinary(release string) *Entry {
	var found *Entry
	var walk func([]*Entry)
	walk = func(level []*Entry) {
		for _, e := range level {
			walk(e.Entries)
			if e.Release() != release || e.ID == trialID {
				continue
			}
			if strings.Contains(e.ID, "-recovery-") || strings.Contains(e.ID, "-init-") || slices.Contains(strings.Fields(e.Args), "single") {
				continue
			}
			if strings.HasPrefix(e.ID, "gnulinux-simple") || e.ID == "" {
				if found == nil {
					found = e
				}
				continue
			}
			if found == nil || found.ID == "" || strings.HasPrefix(found.ID, "gnulinux-simple") {
				found = e
			}
		}
	}
	walk(m.Entries)
	return found
}

// Trial gives accel's own entry, nil where there is none.
func (m *Menu) Trial() *Entry {
	for _, e := range m.Entries {
		if e.ID == trialID {
			return e
		}
	}
	return nil
}

// envSize is the size of GRUB's environment block in bytes
// (include/grub/lib/envblk.h).
const envSize = 1024

// parseEnv reads an environment block.
func parseEnv(data []byte) (map[string]string, error) {
	if !strings.HasPrefix(string(data), "# GRUB Environment Block\n") {
		return nil, fmt.Errorf("it is no environment block")
	}
	env := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if ok {
			env[k] = strings.NewReplacer(`\\`, `\`, "\\\n", "\n").Replace(v)
		}
	}
	return env, nil
}

// The names of what accel adds to GRUB.
const (
	trialID = "accel-trial"
	// PinFile keeps the good kernel the default while another one is tried. Its
	// late name is deliberate: the files of this directory are read in order of
	// their names, after /etc/default/grub, and the last one decides.
	PinFile = "/etc/default/grub.d/zz-accel.cfg"
	// TrialFile writes the entry that is started once. Its late name puts it
	// behind every other entry, so that no number changes.
	TrialFile = "/etc/grub.d/zz_accel_trial"
	// KeepFile keeps apt from taking the good kernel away as no longer needed.
	KeepFile = "/etc/apt/apt.conf.d/99-accel-kernel"
	// BackportsFile is the one source that accel adds, where it is asked to.
	BackportsFile = "/etc/apt/sources.list.d/accel-backports.sources"

	grubDir     = "/boot/grub"
	grubConfig  = grubDir + "/grub.cfg"
	grubEnv     = grubDir + "/grubenv"
	trialOption = "accel.trial"
	// panicSeconds is how long a panic, or the initial ramdisk without a root
	// file system, waits before it reboots: long enough to be read on a console.
	panicSeconds = 30
)

// written begins every file that accel generates. The package's scripts look
// for it.
const written = "# Written by accel. "

// renderPin writes the drop-in that pins an entry. It is a piece of shell that
// grub-mkconfig reads, and it takes itself back: once one of the two kernels is
// gone, whoever removed it, the operator's GRUB_DEFAULT counts again. Before the
// other kernel is installed it holds without that condition, so that grub.cfg
// can be seen to obey it.
func renderPin(good *Entry, goodRelease, otherRelease string, installed bool) []byte {
	var b strings.Builder
	b.WriteString(written + "It keeps Linux " + goodRelease + "\n" +
		"# the default beside " + otherRelease + ".\n" +
		"# accel kernel list says how things stand; accel kernel rollback undoes it.\n" +
		"# It has no effect once either kernel is removed.\n")
	fmt.Fprintf(&b, "if [ -e %s ]", quote("/boot/vmlinuz-"+goodRelease))
	if installed {
		fmt.Fprintf(&b, " && [ -e %s ]", quote("/boot/vmlinuz-"+otherRelease))
	}
	b.WriteString("; then\n")
	if len(good.Path) == 2 && strings.HasPrefix(good.Path[0], "gnulinux-advanced-") {
		// Somebody may turn the submenus off meanwhile.
		fmt.Fprintf(&b, "  case \"${GRUB_DISABLE_SUBMENU:-}\" in\n  true | yes | y) GRUB_DEFAULT=%s ;;\n  *) GRUB_DEFAULT=%s ;;\n  esac\n",
			quote(good.Path[1]), quote(good.Name()))
	} else {
		fmt.Fprintf(&b, "  GRUB_DEFAULT=%s\n", quote(good.Name()))
	}
	// What was saved with GRUB_DEFAULT=saved stays as it is.
	b.WriteString("  GRUB_SAVEDEFAULT=false\nfi\n")
	return []byte(b.String())
}

// renderTrial writes the script that makes the entry which is started once: the
// ordinary entry of the new kernel, with a command line that makes a panic, an
// oops, and an initial ramdisk that finds no root file system, reboot. If GRUB
// cannot even load the kernel (a signature that is refused, a file that is gone)
// the machine reboots too, where an ordinary entry would wait for a key.
//
// A GRUB that cannot write to its disk leaves the one-time entry set and would start
// it at every boot. It can see that by itself: it reads the block again, and starts
// the old kernel where the entry is still set.
func renderTrial(old, ordinary *Entry, release, token string) []byte {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n" + written + "It makes the entry that starts\n# Linux " + release + " once. accel kernel rollback removes it.\nset -e\n")
	fmt.Fprintf(&b, "[ -e %s ] || exit 0\n", quote("/boot/vmlinuz-"+release))
	b.WriteString("cat <<'ACCEL'\n")
	fmt.Fprintf(&b, "menuentry %s $menuentry_id_option '%s' {\n", quote("accel: Linux "+release+", once"), trialID)
	b.WriteString("set next_entry=\nload_env next_entry\nif [ \"${next_entry}\" ]; then\n\techo 'accel: GRUB cannot write to its disk; starting the kernel that works'\n")
	for _, line := range plainLines(old) {
		b.WriteString("\t" + line + "\n")
	}
	b.WriteString("else\n")
	for _, line := range plainLines(ordinary) {
		word, _, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		switch {
		case strings.HasPrefix(word, "linux"):
			// rd.*: an initial ramdisk that dracut made (dracut.cmdline(7)).
			line += fmt.Sprintf(" panic=%d oops=panic rd.shell=0 rd.emergency=reboot %s=%s", panicSeconds, trialOption, token)
			fallthrough
		case strings.HasPrefix(word, "initrd"):
			fmt.Fprintf(&b, "\tif %s; then\n\t\tset accel_loaded=y\n\telse\n\t\techo 'accel: this kernel cannot be loaded; starting the other one'\n\t\tsleep 5\n\t\treboot\n\tfi\n", line)
		default:
			b.WriteString("\t" + line + "\n")
		}
	}
	b.WriteString("fi\n}\nACCEL\n")
	return []byte(b.String())
}

// plainLines are the lines of an entry, without those that write to GRUB's
// environment block.
func plainLines(e *Entry) []string {
	var out []string
	for _, line := range e.Body {
		line = strings.TrimSpace(line)
		if line != "" && line != "savedefault" && line != "recordfail" {
			out = append(out, line)
		}
	}
	return out
}

// quote quotes for a POSIX shell and for GRUB's.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// readMenu reads what GRUB will do on this host.
func readMenu(t *kernel.Tree) (*Menu, map[string]string, error) {
	data, err := t.ReadFile(grubConfig)
	if err != nil {
		return nil, nil, err
	}
	m := ParseMenu(data)
	// 41_custom makes GRUB read this one too.
	if custom, err := t.ReadFile(grubDir + "/custom.cfg"); err == nil {
		c := ParseMenu(custom)
		m.Entries = append(m.Entries, c.Entries...)
		if c.Default != "" {
			m.Strange = append(m.Strange, "custom.cfg: set default="+c.Default)
		}
		m.Strange = append(m.Strange, c.Strange...)
		m.Password = m.Password || c.Password
	}
	env := map[string]string{}
	if data, err := t.ReadFile(grubEnv); err == nil {
		if env, err = parseEnv(data); err != nil {
			env = map[string]string{} // so does GRUB
		}
	}
	return m, env, nil
}
