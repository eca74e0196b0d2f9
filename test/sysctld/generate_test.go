package sysctld

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf16"
)

// A config is one generated world of sysctl files.
type config struct {
	files []node
	split bool // /lib/sysctl.d is a directory of its own
}

// A node is a file to be made.
type node struct {
	path    string
	content string
	link    string // a symbolic link to this, if not empty
	dir     bool
	mode0   bool // nobody may read it (root can)
}

func (c config) String() string {
	var b strings.Builder
	if c.split {
		b.WriteString("/lib is not /usr/lib\n")
	}
	for _, n := range c.files {
		switch {
		case n.dir:
			fmt.Fprintf(&b, "%s/\n", n.path)
		case n.link != "":
			fmt.Fprintf(&b, "%s -> %s\n", n.path, n.link)
		case len(n.content) > 4096:
			fmt.Fprintf(&b, "%s: %d bytes: %.200q ... %.200q\n", n.path, len(n.content), n.content, n.content[len(n.content)-200:])
		default:
			fmt.Fprintf(&b, "%q: %q\n", n.path, n.content)
		}
	}
	return b.String()
}

// A gen makes one config; its values count up, so that the value tells the line.
type gen struct {
	*rand.Rand
	next int
}

func generate(seed uint64, index int) config {
	g := &gen{Rand: rand.New(rand.NewPCG(seed, uint64(index)))}
	var c config
	c.split = g.chance(10)
	dirs := []string{"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d"}
	if c.split {
		dirs = append(dirs, "/lib/sysctl.d")
	}
	if g.chance(40) {
		c.files = append(c.files, node{path: "/etc/sysctl.conf", content: g.content()})
	} else if g.chance(5) {
		c.files = append(c.files, node{path: "/etc/sysctl.conf", link: pick(g, "sysctl.d/10-a.conf", "/dev/null", "nowhere")})
	}
	if g.chance(25) {
		c.files = append(c.files, node{path: "/etc/sysctl.d/99-sysctl.conf", link: "../sysctl.conf"})
	}
	// Now and then a whole directory is a link or a file.
	if g.chance(4) {
		c.files = append(c.files, node{path: "/run/sysctl.d", link: pick(g, "../etc/sysctl.d", "/usr/local/lib/sysctl.d", "nowhere", "sysctl.d")})
		dirs = []string{"/etc/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d"}
	} else if g.chance(2) {
		c.files = append(c.files, node{path: "/run/sysctl.d", content: "net.ipv4.tcp_retries2=3\n"})
		dirs = []string{"/etc/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d"}
	}
	taken := map[string]bool{"/etc/sysctl.d/99-sysctl.conf": true}
	for range 1 + g.IntN(5) {
		n := node{path: pick(g, dirs...) + "/" + g.name()}
		if taken[n.path] {
			continue
		}
		taken[n.path] = true
		switch r := g.IntN(100); {
		case r < 5:
			n.link = "/dev/null"
		case r < 8: // an empty file
		case r < 10:
			n.link = "nowhere"
		case r < 12:
			n.link = pick(g, "/etc/sysctl.conf", "../sysctl.conf", "/usr/lib/sysctl.d/"+g.name(), g.name(), "/etc/sysctl.d/../sysctl.d/10-a.conf")
		case r < 14:
			n.dir = true
		case r < 15:
			n.link = strings.TrimPrefix(n.path, n.path[:strings.LastIndex(n.path, "/")+1]) // to itself
		default:
			n.content = g.content()
			n.mode0 = g.chance(3)
		}
		c.files = append(c.files, n)
	}
	return c
}

func (g *gen) chance(percent int) bool { return g.IntN(100) < percent }

func pick(g *gen, of ...string) string { return of[g.IntN(len(of))] }

func (g *gen) name() string {
	if g.chance(75) {
		return pick(g, "10-a.conf", "9-b.conf", "50-c.conf", "99-d.conf", "zz.conf", "a.conf", "b.conf")
	}
	return pick(g,
		"99-accel (1).conf", ".hidden.conf", ".conf", "A.conf", "Z.CONF", "x.conf.bak", "x.conf~", "x.confx",
		"[ab].conf", "[!a].conf", "{a,b}.conf", "{a,9-b}.conf", "?.conf", "*.conf", "9*.conf", `a\b.conf`, "ab.conf", `\a.conf`,
		"{zz}.conf", "{x,y}.conf", "[a.conf", "~a.conf", "-.conf", "\xff.conf", "\u00e4.conf", "README", "conf", "10_a.conf", "10-A.conf", "a=b.conf",
		"#x.conf", "\ta.conf", "lost+found.conf", "x.rpmnew.conf", "99-sysctl.conf", "99-protect-links.conf")
}

// content makes a file of a few lines, in one of many encodings.
func (g *gen) content() string {
	var lines []string
	for range g.IntN(7) {
		lines = append(lines, g.line())
	}
	if g.chance(1) {
		// Around the longest line that systemd reads.
		long := "# " + strings.Repeat("x", 1<<20-4+g.IntN(5))
		lines = append(lines, long, g.line())
	}
	end := "\n"
	if g.chance(12) {
		end = pick(g, "\r\n", "\r", "\n\r", "\x00", "\n\x00", "\r\n\x00", "\r\x00", "\n\n", "\v", "\f\n", "\r\r\n")
	}
	s := strings.Join(lines, end)
	if g.chance(85) {
		s += end
	}
	switch r := g.IntN(100); {
	case r < 3:
		s = "\xef\xbb\xbf" + s
	case r < 4:
		s = "\xff\xfe" + wide(s)
	case r < 6:
		// One byte anywhere is something else.
		if len(s) > 0 {
			i := g.IntN(len(s))
			s = s[:i] + pick(g, "\x00", "\r", "\n", " ", "\t", "\v", "=", "-", ".", "/", "#", "\xa0", "[", "*", "\\") + s[i+1:]
		}
	case r < 8:
		if len(s) > 0 {
			i := g.IntN(len(s))
			s = s[:i] + pick(g, "\x00", "\r", "\n", "\n\r", "\x00\x00\x00\n", " ", "\v") + s[i:]
		}
	}
	return s
}

func wide(s string) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(s)) {
		b.WriteByte(byte(u))
		b.WriteByte(byte(u >> 8))
	}
	return b.String()
}

func (g *gen) line() string {
	switch r := g.IntN(100); {
	case r < 3:
		return pick(g, "# net.ipv4.tcp_retries2=3", ";net.ipv4.tcp_retries2=3", " # x", "#", ";", "//x=3", "")
	case r < 6:
		return pick(g, "hello world", "=5", "-", "-=5", "x", "a=", "=", "[net]", "net.ipv4.tcp_retries2 8", "net.ipv4.tcp_retries2: 8", "net.ipv4.tcp_retries2\uff1d8",
			"sysctl -w net.ipv4.tcp_retries2=8", "net=5", "net.ipv4=5", ".=5", "/=5", "..=5", "net.ipv4.nosuch=5", "*=5", "[=5", "\\")
	}
	if g.chance(1) {
		// Around the longest name, which makes systemd-sysctl crash.
		long := strings.Repeat("x", 250+g.IntN(8))
		return pick(g, long+"*", "*"+long, long+"[", long, "net."+long+"*", long+".*", "["+strings.Repeat("n", 256)+"]et.ipv4.tcp_retries2", "["+strings.Repeat("n", 256)+"]et", "{"+strings.Repeat("a,", 200)+"net}.ipv4.tcp_retries?", "{"+strings.Repeat("a,", 200)+"b}.ipv4.tcp_retries?") + "=7"
	}
	key, isName := g.key()
	// Most are plain; some carry what people and programs put around them.
	s := key
	exclude := g.chance(10)
	switch r := g.IntN(100); {
	case exclude:
		s = pick(g, "-", "-", "-", "- ", "--", " -", "-\t") + s
	case r < 8:
		s = "-" + s
	case r < 10:
		s = pick(g, "- ", "--", "---", "-\t", "-/", "-.", "+", "- -") + s
	}
	if g.chance(10) {
		s = pick(g, " ", "\t", "  ", "\v", "\f", "\r", "\u00a0") + s
	}
	if exclude {
		return s + pick(g, "", "", " ", "\t", "\v")
	}
	return s + pick(g, "=", "=", "=", " = ", "\t=\t", "= ", " =", "==", "\v=\f", "\u00a0=\u00a0") + g.value(isName)
}

// key gives a key or pattern in some form; isName if it takes an algorithm.
func (g *gen) key() (key string, isName bool) {
	if g.chance(15) {
		return g.form(pick(g,
			"net/ipv4/tcp_congestion_control", "net/ipv4/tcp_congestion_control", "net/ipv4/tcp_congestion_control",
			"net/ipv4/tcp_congestion_contro*", "net/ipv4/*congestion_control", "net/ipv4/tcp_conges[t]ion_control")), true
	}
	if g.chance(45) {
		return g.form(pick(g,
			"net/ipv4/tcp_retries2", "net/ipv4/tcp_fin_timeout", "net/ipv4/ip_default_ttl",
			"net/ipv4/conf/all/tag", "net/ipv4/conf/lo/tag", "net/ipv4/conf/default/tag", "net/ipv4/conf/v0.100/tag", "net/ipv4/conf/v0/tag", "net/ipv4/conf/v0.100.2/tag",
			"net/ipv4/conf/all/rp_filter", "net/ipv4/conf/v0.100/rp_filter", "net/ipv4/conf/lo/rp_filter",
			"NET/ipv4/tcp_retries2", "net/ipv4/conf/v0/100/tag", "net/ipv4/tcp_retries2 ", "net/ipv4/conf/{all,lo}/tag")), false
	}
	return g.form(pick(g,
		"net/ipv4/conf/*/tag", "net/ipv4/conf/*/tag", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/v*/tag", "net/ipv4/conf/v0*/tag", "net/ipv4/conf/v0.*/tag", "net/ipv4/conf/v?/tag",
		"net/ipv4/conf/[al]*/tag", "net/ipv4/conf/[!l]*/tag", "net/ipv4/conf/[^l]*/tag", "net/ipv4/conf/[a-l]*/ta[fg]", "net/ipv4/conf/??/tag", "net/ipv4/conf/*[0-9]/tag",
		"net/ipv4/conf/[[:alpha:]]*/tag", "net/ipv4/conf/*[[:digit:]]/tag", "net/ipv4/conf/[[:nosuch:]]*/tag", "net/ipv4/conf/[l[:nosuch:]]*/tag", "net/ipv4/conf/[![:nosuch:]]*/tag", "net/ipv4/conf/[[:ABC:]]*/tag", "net/ipv4/conf/[[.lo.]]o/tag", "net/ipv4/conf\\/l*/tag", "net/ipv4/conf/l*\\/tag", "net/ipv4/conf/*/tag/", "net/ipv4/conf/*///tag", "net/ipv4/conf/lo///ta*", "net/ipv4/conf/*/./tag", "net/ipv4/conf/[]a]*/tag", "net/ipv4/conf/[l-]*/tag", "net/ipv4/conf/[[=l=]]o/tag", "net/ipv4/conf/[[.l.]]o/tag",
		"net/ipv4/*/all/tag", "net/*/conf/all/tag", "*/ipv4/conf/lo/tag", "net/ipv4/conf/*/*_filter", "*/*/conf/*/tag", "net/ipv4/conf/*/{tag,rp_filter}", "net/ipv4/conf/{all,lo}/ta*", "net/ipv4/conf/{all,l*}/tag", "net/ipv4/{conf/l*,tcp_retries2}/tag",
		"net/ipv4/{tcp_retries2,tcp_fin*}", "net/ipv4/{tcp_{retries2,fin_timeout},ip_default_tt?}", "net/ipv4/conf/{al,*/tag", "net/ipv4/conf/{}*/tag", "net/ipv4/conf/{,v0.}*/tag", "net/ipv4/conf/\\{all,lo}/ta*", "net/ipv4/conf/{all\\,lo,v0}*/tag",
		"net/ipv4/tcp_retries[2]", "net/ipv4/tcp_retries[2", "net/ipv4/tcp_retries2[", "net/ipv4/tcp_retries?", "net/ipv4/tcp_retries\\2", "net/ipv4/tcp_retrie\\s*", "net/ipv4/tcp_retries\\*", "net/ipv4/t\\cp_retries[2]", "net/ipv4/tcp_retries2\\", "net/ipv4/tcp_retries2*\\",
		"net/ipv4/conf/**/tag", "net/ipv4/conf/*a*l*/tag", "net/ipv4/conf/\\v0*/tag", "net/ipv4/conf/[\\l]o/tag", "net/ipv4/conf/[/]*/tag", "net/ipv4/conf/l[/o]/tag", "net/ipv4/conf/lo/tag*", "net/ipv4/c*/lo/tag", "net/ipv4/conf/*/nosuch", "net/ipv4/conf/.*/tag",
		"net/ipv4/conf/[a-", "net/ipv4/conf/[z-a]*/tag", "net/ipv4/conf/[!]a]*/tag", "net/ipv4/tcp_f[h-j]n_timeout", "net/ipv4/conf/v0[.]100/tag", "net/ipv4/conf/[]/tag", "net/ipv4/conf/[!]/tag", "net/ipv4/conf/*/tag/*")), false
}

// form writes a path in one of the ways that sysctl knows, or nearly.
func (g *gen) form(p string) string {
	swap := func(s string) string { return strings.NewReplacer(".", "/", "/", ".").Replace(s) }
	switch r := g.IntN(100); {
	case r < 60:
		return swap(p)
	case r < 80:
		return p
	case r < 84:
		return strings.ReplaceAll(p, "/", ".") // dots in names are lost
	}
	// Extra separators and elements, in both notations.
	elems := strings.Split(p, "/")
	i := g.IntN(len(elems) + 1)
	extra := pick(g, "", "", "/", "//", ".", "..", "x/..", "net/..", "conf/..", "/..", " ")
	elems = append(elems[:i:i], append([]string{extra}, elems[i:]...)...)
	p = strings.Join(elems, "/")
	if g.chance(50) {
		p = swap(p)
	}
	return p
}

func (g *gen) value(isName bool) string {
	if isName && g.chance(85) {
		v := pick(g, "reno", "bbr", "cubic")
		if g.chance(20) {
			v = pick(g, v+" ", " "+v, v+"\t", `"`+v+`"`, v+" # x", strings.ToUpper(v), "nosuch", "", v+"\r", v+"\v", v+"\u00a0", v+" x", v+"\x00x", v+"\\")
		}
		return v
	}
	g.next++
	v := fmt.Sprint(g.next%200 + 16)
	if g.chance(18) {
		v = pick(g, v+" ", "\t"+v, v+" # x", `"`+v+`"`, v+" net.ipv4.tcp_fin_timeout=9", v+"\t7", "", "-"+v, "0x"+v, "0"+v, v+"x", v+",7", "x", v+"\x00", v+"\v", v+"\r", "99999999999999", v+"=3", v+"\\", "+"+v, v+".5", strings.Repeat("0", 5000)+"1", v+strings.Repeat(" ", 5000)+"7", v+strings.Repeat(",1", 3000))
	}
	return v
}
