package doctor

import (
	"path"
	"regexp"
	"strings"
)

// Tool knows what one script or panel leaves on a host. A tool is known by the
// files that are its own, or by the lines that it writes into files of others.
type Tool struct {
	ID     string // for --only
	Name   string // as people know it
	Source string // what the knowledge was read from
	// Weak: a person could have written the same lines. They are taken out only
	// where that changes nothing, since accel sets the same.
	Weak   bool
	Files  []OwnFile
	Blocks []Block
}

// OwnFile is a file that belongs to a tool. If it holds nothing but what the
// tool writes, it is retired as a whole; if somebody added lines, only the
// tool's are taken out.
type OwnFile struct {
	Path string // may have a star in its last element
	// Keys are the settings that the tool writes there, dotted, a star matches
	// one element. Nil where the file is none of sysctl's: Lines says then what
	// the tool writes.
	Keys  []string
	Lines []string // whole lines, as in Block
	Rule  string   // the file does harm, see fileRules; "" if it does not by itself
}

// Block is a group of lines that a tool writes into a file of the system.
// Lines are compared with blanks collapsed; a star at the end stands for any
// value. The tool is recognised if Need different ones of the lines are there,
// and only runs of such lines that no line of somebody else interrupts count.
type Block struct {
	Files []string
	Lines []string
	Need  int
	Run   int // the least number of lines of a run; 0 is 3, or all lines if there are fewer
	Rule  string
}

// The files into which everybody writes.
var sysctlFiles = []string{"/etc/sysctl.conf", "/etc/sysctl.d/99-sysctl.conf"}

const (
	limitsFile  = "/etc/security/limits.conf"
	managerFile = "/etc/systemd/system.conf"
	profileFile = "/etc/profile"
)

func settings(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = normal(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

var equals = regexp.MustCompile(`\s*=\s*`)

// normal is a line with blanks collapsed and none around the first equals sign.
func normal(line string) string {
	line = strings.Join(strings.Fields(line), " ")
	if i := equals.FindStringIndex(line); i != nil {
		line = line[:i[0]] + "=" + line[i[1]:]
	}
	return line
}

// matchLine compares a normal line with one of a Block.
func matchLine(pattern, line string) bool {
	if p, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(line, p) && len(line) > len(p)
	}
	return pattern == line
}

func (o OwnFile) known(key string) bool {
	for _, k := range o.Keys {
		if matchKey(k, key) {
			return true
		}
	}
	return false
}

// is tells whether a file has the name of this one.
func (o OwnFile) is(name string) bool {
	ok, err := path.Match(o.Path, name)
	return ok && err == nil
}

var twoKeys = []string{"net.core.default_qdisc", "net.ipv4.tcp_congestion_control"}

// YL-1: menu 21 of ylx2016's tcpx.sh, "optimise" of jinwyp's script, and many
// copies of both. The same lines with other values in between are not theirs.
var oldOptimise = settings(`
net.ipv4.tcp_retries2=8
net.ipv4.tcp_slow_start_after_idle=0
fs.file-max=1000000
fs.inotify.max_user_instances=8192
net.ipv4.tcp_syncookies=1
net.ipv4.tcp_fin_timeout=30
net.ipv4.tcp_tw_reuse=1
net.ipv4.ip_local_port_range=1024 65000
net.ipv4.tcp_max_syn_backlog=16384
net.ipv4.tcp_max_tw_buckets=6000
net.ipv4.route.gc_timeout=100
net.ipv4.tcp_syn_retries=1
net.ipv4.tcp_synack_retries=1
net.core.somaxconn=32768
net.core.netdev_max_backlog=32768
net.ipv4.tcp_timestamps=0
net.ipv4.tcp_max_orphans=32768
# forward ipv4
# net.ipv4.ip_forward=1
net.ipv4.ip_forward=1
net.core.default_qdisc=fq
net.core.default_qdisc=fq_codel
net.core.default_qdisc=fq_pie
net.core.default_qdisc=cake
net.ipv4.tcp_congestion_control=bbr
net.ipv4.tcp_congestion_control=bbr2
net.ipv4.tcp_congestion_control=bbrplus
`)

var johnrosen = settings(`
## Enable bbr
net.ipv4.tcp_fack=1
net.ipv4.tcp_early_retrans=3
net.ipv4.neigh.default.unres_qlen=10000
net.ipv4.conf.all.route_localnet=1
net.ipv4.ip_forward=1
net.ipv4.conf.all.forwarding=1
net.ipv4.conf.default.forwarding=1
net.ipv6.conf.all.forwarding=1
net.ipv6.conf.default.forwarding=1
net.ipv6.conf.lo.forwarding=1
net.ipv6.conf.all.disable_ipv6=0
net.ipv6.conf.default.disable_ipv6=0
net.ipv6.conf.lo.disable_ipv6=0
net.ipv6.conf.all.accept_ra=2
net.ipv6.conf.default.accept_ra=2
net.core.netdev_max_backlog=100000
net.core.netdev_budget=50000
net.core.netdev_budget_usecs=5000
net.core.rmem_max=67108864
net.core.wmem_max=67108864
net.core.rmem_default=67108864
net.core.wmem_default=67108864
net.core.optmem_max=65536
net.core.somaxconn=1000000
net.ipv4.icmp_echo_ignore_all=0
net.ipv4.icmp_echo_ignore_broadcasts=1
net.ipv4.icmp_ignore_bogus_error_responses=1
net.ipv4.conf.all.accept_redirects=0
net.ipv4.conf.default.accept_redirects=0
net.ipv4.conf.all.secure_redirects=0
net.ipv4.conf.default.secure_redirects=0
net.ipv4.conf.all.send_redirects=0
net.ipv4.conf.default.send_redirects=0
net.ipv4.conf.default.rp_filter=0
net.ipv4.conf.all.rp_filter=0
net.ipv6.conf.all.accept_redirects=0
net.ipv6.conf.default.accept_redirects=0
net.ipv4.tcp_keepalive_time=600
net.ipv4.tcp_keepalive_intvl=15
net.ipv4.tcp_keepalive_probes=2
net.ipv4.tcp_synack_retries=1
net.ipv4.tcp_syncookies=1
net.ipv4.tcp_rfc1337=0
net.ipv4.tcp_timestamps=1
net.ipv4.tcp_tw_reuse=0
net.ipv4.tcp_fin_timeout=15
net.ipv4.ip_local_port_range=1024 65535
net.ipv4.tcp_max_tw_buckets=5000
#net.ipv4.tcp_fastopen=3
net.ipv4.tcp_fastopen=3
net.ipv4.tcp_rmem=4096 87380 67108864
net.ipv4.tcp_wmem=4096 65536 67108864
net.ipv4.udp_rmem_min=8192
net.ipv4.udp_wmem_min=8192
net.ipv4.tcp_mtu_probing=1
net.ipv4.tcp_autocorking=0
net.ipv4.tcp_slow_start_after_idle=0
net.ipv4.tcp_max_syn_backlog=819200
net.ipv4.tcp_notsent_lowat=16384
net.ipv4.tcp_no_metrics_save=0
net.ipv4.tcp_ecn=1
net.ipv4.tcp_ecn_fallback=1
net.ipv4.tcp_frto=0
net.ipv4.tcp_orphan_retries=1
net.ipv4.tcp_retries2=5
net.ipv4.tcp_low_latency=1
net.ipv4.neigh.default.gc_thresh3=8192
net.ipv4.neigh.default.gc_thresh2=4096
net.ipv4.neigh.default.gc_thresh1=2048
net.ipv6.neigh.default.gc_thresh3=8192
net.ipv6.neigh.default.gc_thresh2=4096
net.ipv6.neigh.default.gc_thresh1=2048
vm.swappiness=1
vm.overcommit_memory=1
kernel.pid_max=64000
net.netfilter.nf_conntrack_max=262144
net.nf_conntrack_max=262144
net.core.default_qdisc=fq
net.ipv4.tcp_congestion_control=bbr
`)

// Values with a star depend on what the person typed, or on the memory.
var radical = settings(`
net.core.rmem_max=*
net.core.wmem_max=*
net.core.rmem_default=262144
net.core.wmem_default=262144
net.core.optmem_max=262144
net.core.netdev_max_backlog=*
net.core.somaxconn=*
net.ipv4.tcp_rmem=32768 262144 *
net.ipv4.tcp_wmem=32768 262144 *
net.ipv4.tcp_max_syn_backlog=*
net.ipv4.tcp_init_cwnd=*
net.ipv4.tcp_fastopen=3
net.ipv4.tcp_timestamps=1
net.ipv4.tcp_tw_reuse=1
net.ipv4.tcp_fin_timeout=10
net.ipv4.tcp_slow_start_after_idle=0
net.ipv4.tcp_max_tw_buckets=32768
net.ipv4.tcp_sack=1
net.ipv4.tcp_fack=1
net.ipv4.tcp_mtu_probing=1
net.ipv4.tcp_notsent_lowat=16384
net.ipv4.tcp_window_scaling=1
net.ipv4.tcp_adv_win_scale=2
net.ipv4.tcp_moderate_rcvbuf=1
net.ipv4.tcp_no_metrics_save=1
net.ipv4.tcp_max_orphans=32768
net.ipv4.tcp_synack_retries=2
net.ipv4.tcp_syn_retries=2
net.ipv4.tcp_abort_on_overflow=0
net.ipv4.tcp_stdurg=0
net.ipv4.tcp_rfc1337=0
net.ipv4.tcp_syncookies=1
net.ipv4.tcp_low_latency=1
net.ipv4.ip_local_port_range=1024 65535
net.ipv4.ip_no_pmtu_disc=0
net.ipv4.route.gc_timeout=100
net.ipv4.neigh.default.gc_stale_time=120
net.ipv4.neigh.default.gc_thresh3=4096
net.ipv4.neigh.default.gc_thresh2=2048
net.ipv4.neigh.default.gc_thresh1=512
net.ipv4.icmp_echo_ignore_broadcasts=1
net.ipv4.icmp_ignore_bogus_error_responses=1
net.ipv4.conf.all.rp_filter=1
net.ipv4.conf.default.rp_filter=1
net.ipv4.conf.all.arp_announce=2
net.ipv4.conf.default.arp_announce=2
net.ipv4.conf.all.arp_ignore=1
net.ipv4.conf.default.arp_ignore=1
net.netfilter.nf_conntrack_max=262144
net.nf_conntrack_max=262144
kernel.pid_max=65535
kernel.panic=1
kernel.sysrq=1
kernel.core_pattern=core_%e
kernel.printk=3 4 1 3
kernel.numa_balancing=0
kernel.sched_autogroup_enabled=0
vm.swappiness=5
vm.dirty_ratio=5
vm.dirty_background_ratio=2
vm.panic_on_oom=1
vm.overcommit_memory=1
vm.min_free_kbytes=*
`)

var chiakge = settings(`
fs.file-max=1000000
fs.inotify.max_user_instances=8192
net.ipv4.tcp_tw_reuse=1
net.ipv4.ip_local_port_range=1024 65535
net.ipv4.tcp_rmem=16384 262144 8388608
net.ipv4.tcp_wmem=32768 524288 16777216
net.core.somaxconn=8192
net.core.rmem_max=16777216
net.core.wmem_max=16777216
net.core.wmem_default=2097152
net.ipv4.tcp_max_tw_buckets=5000
net.ipv4.tcp_max_syn_backlog=10240
net.core.netdev_max_backlog=10240
net.ipv4.tcp_slow_start_after_idle=0
# forward ipv4
net.ipv4.ip_forward=1
net.core.default_qdisc=fq
net.core.default_qdisc=fq_codel
net.core.default_qdisc=fq_pie
net.core.default_qdisc=cake
net.ipv4.tcp_congestion_control=bbr
net.ipv4.tcp_congestion_control=bbr2
net.ipv4.tcp_congestion_control=bbrplus
`)

var hawshemi = settings(`
# /etc/sysctl.conf
fs.file-max=67108864
net.core.default_qdisc=fq
net.ipv4.tcp_congestion_control=bbr
net.core.netdev_max_backlog=32768
net.core.optmem_max=262144
net.core.somaxconn=65536
net.core.rmem_max=33554432
net.core.wmem_max=33554432
net.core.rmem_default=1048576
net.core.wmem_default=1048576
net.ipv4.tcp_rmem=16384 1048576 33554432
net.ipv4.tcp_wmem=16384 1048576 33554432
net.ipv4.tcp_fin_timeout=25
net.ipv4.tcp_keepalive_time=1200
net.ipv4.tcp_keepalive_intvl=30
net.ipv4.tcp_keepalive_probes=7
net.ipv4.tcp_max_orphans=819200
net.ipv4.tcp_max_syn_backlog=20480
net.ipv4.tcp_max_tw_buckets=1440000
net.ipv4.tcp_mem=65536 1048576 33554432
net.ipv4.udp_mem=65536 1048576 33554432
net.ipv4.tcp_mtu_probing=1
net.ipv4.tcp_notsent_lowat=32768
net.ipv4.tcp_retries2=8
net.ipv4.tcp_sack=1
net.ipv4.tcp_dsack=1
net.ipv4.tcp_slow_start_after_idle=0
net.ipv4.tcp_window_scaling=1
net.ipv4.tcp_adv_win_scale=-2
net.ipv4.tcp_ecn=1
net.ipv4.tcp_ecn_fallback=1
net.ipv4.tcp_syncookies=1
net.unix.max_dgram_qlen=256
vm.min_free_kbytes=65536
vm.swappiness=10
vm.vfs_cache_pressure=250
vm.dirty_ratio=20
kernel.panic=1
net.ipv4.conf.default.rp_filter=2
net.ipv4.conf.all.rp_filter=2
net.ipv4.conf.default.accept_source_route=0
net.ipv4.conf.all.accept_source_route=0
net.ipv4.neigh.default.gc_thresh1=512
net.ipv4.neigh.default.gc_thresh2=2048
net.ipv4.neigh.default.gc_thresh3=16384
net.ipv4.neigh.default.gc_stale_time=60
net.ipv4.conf.default.arp_announce=2
net.ipv4.conf.lo.arp_announce=2
net.ipv4.conf.all.arp_announce=2
`)

var seedbox = settings(`
#### Network Security Settings
net.ipv4.conf.default.rp_filter=1
net.ipv4.conf.all.rp_filter=1
net.ipv4.tcp_syncookies=1
net.core.somaxconn=10000
net.ipv4.tcp_max_syn_backlog=10000
net.ipv4.tcp_max_orphans=10000
net.ipv4.tcp_orphan_retries=2
net.ipv4.tcp_invalid_ratelimit=500
net.ipv4.ip_forward=0
net.ipv6.conf.all.forwarding=0
net.ipv4.conf.all.accept_redirects=0
net.ipv6.conf.all.accept_redirects=0
net.ipv4.conf.all.send_redirects=0
net.ipv4.conf.all.accept_source_route=0
net.ipv6.conf.all.accept_source_route=0
net.ipv4.conf.all.log_martians=1
net.ipv4.tcp_rfc1337=0
net.core.netdev_max_backlog=10000
net.core.netdev_budget=50000
net.core.netdev_budget_usecs=8000
net.ipv4.tcp_adv_win_scale=*
net.core.rmem_default=262144
net.core.rmem_max=*
net.ipv4.tcp_rmem=8192 262144 *
net.core.wmem_default=262144
net.core.wmem_max=*
net.ipv4.tcp_wmem=8192 262144 *
net.ipv4.tcp_moderate_rcvbuf=1
net.ipv4.tcp_window_scaling=1
net.ipv4.tcp_workaround_signed_windows=1
net.ipv4.ip_no_pmtu_disc=0
net.ipv4.tcp_mtu_probing=2
net.ipv4.tcp_base_mss=1460
net.ipv4.tcp_min_snd_mss=536
net.ipv4.ipfrag_high_threshold=8388608
net.ipv4.tcp_sack=1
net.ipv4.tcp_dsack=1
net.ipv4.tcp_early_retrans=3
net.ipv4.tcp_ecn=0
net.ipv4.tcp_reordering=10
net.ipv4.tcp_max_reordering=1000
net.ipv4.tcp_frto=2
net.ipv4.tcp_autocorking=1
net.ipv4.tcp_retries1=5
net.ipv4.tcp_retries2=20
net.ipv4.tcp_keepalive_time=7200
net.ipv4.tcp_keepalive_intvl=120
net.ipv4.tcp_keepalive_probes=15
net.ipv4.tcp_synack_retries=10
net.ipv4.tcp_syn_retries=7
fs.file-max=1000000
fs.nr_open=1000000
net.ipv4.ip_local_port_range=*
net.ipv4.tcp_max_syn_recv=10000
net.ipv4.tcp_max_tw_buckets=10000
net.ipv4.tcp_fin_timeout=10
net.ipv4.tcp_fastopen=3
net.ipv4.tcp_fastopen_blackhole_timeout_sec=0
net.ipv4.tcp_notsent_lowat=131072
net.ipv4.tcp_slow_start_after_idle=0
net.ipv4.tcp_timestamps=0
net.ipv4.tcp_no_metrics_save=0
net.ipv4.neigh.default.unres_qlen_bytes=16777216
vm.dirty_background_ratio=*
vm.dirty_ratio=*
vm.dirty_writeback_centisecs=*
vm.dirty_expire_centisecs=*
vm.swappiness=*
net.core.default_qdisc=fq
net.ipv4.tcp_congestion_control=bbr
`)

var joeyKeys = append([]string{
	"net.core.rmem_max", "net.core.wmem_max", "net.core.optmem_max", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
	"net.ipv4.tcp_limit_output_bytes", "net.core.netdev_max_backlog", "net.core.somaxconn", "net.ipv4.tcp_slow_start_after_idle",
	"net.ipv4.tcp_notsent_lowat", "net.ipv4.tcp_autocorking", "net.ipv4.tcp_no_metrics_save", "net.ipv4.tcp_mtu_probing",
	"net.ipv4.tcp_fastopen", "net.ipv4.tcp_window_scaling", "net.ipv4.tcp_moderate_rcvbuf", "net.ipv4.tcp_ecn",
}, twoKeys...)

var netOptimizeKeys = append([]string{
	"net.core.netdev_max_backlog", "net.core.somaxconn", "net.core.netdev_budget", "net.core.netdev_budget_usecs",
	"net.core.busy_poll", "net.core.busy_read", "net.core.rmem_max", "net.core.wmem_max", "net.core.rmem_default",
	"net.core.wmem_default", "net.core.optmem_max",
	"net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_max_tw_buckets", "net.ipv4.tcp_mtu_probing",
	"net.ipv4.tcp_window_scaling", "net.ipv4.tcp_sack", "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_no_metrics_save",
	"net.ipv4.tcp_ecn", "net.ipv4.tcp_ecn_fallback", "net.ipv4.tcp_notsent_lowat", "net.ipv4.tcp_fastopen",
	"net.ipv4.tcp_timestamps", "net.ipv4.tcp_autocorking", "net.ipv4.tcp_orphan_retries", "net.ipv4.tcp_retries2",
	"net.ipv4.tcp_synack_retries", "net.ipv4.tcp_early_retrans", "net.ipv4.tcp_thin_linear_timeouts", "net.ipv4.tcp_rmem",
	"net.ipv4.tcp_wmem", "net.ipv4.tcp_mem", "net.ipv4.udp_mem", "net.ipv4.udp_rmem_min", "net.ipv4.udp_wmem_min",
	"net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_forward", "net.ipv4.conf.*.forwarding",
	"net.ipv4.conf.*.route_localnet", "net.ipv4.conf.*.rp_filter", "net.ipv4.conf.*.accept_redirects",
	"net.ipv4.conf.*.secure_redirects", "net.ipv4.conf.*.send_redirects", "net.ipv4.neigh.default.gc_thresh*",
	"net.ipv4.neigh.default.unres_qlen", "net.ipv6.neigh.default.gc_thresh*", "net.ipv6.conf.*.disable_ipv6",
	"net.ipv6.conf.*.forwarding", "net.ipv6.conf.*.accept_ra", "net.ipv6.conf.*.use_tempaddr", "net.ipv6.conf.*.accept_redirects",
	"net.mptcp.enabled",
	"vm.swappiness", "vm.overcommit_memory", "vm.overcommit_ratio", "vm.max_map_count", "vm.mmap_min_addr",
	"kernel.pid_max", "kernel.kptr_restrict", "kernel.yama.ptrace_scope", "kernel.sysrq", "fs.protected_*", "fs.file-max",
	"fs.inotify.*", "net.netfilter.nf_conntrack_*",
}, twoKeys...)

// tools are the tools that doctor knows, the surest first: a line belongs to
// the first tool that claims it.
var tools = []Tool{
	{ID: "x-ui", Name: "3x-ui", Source: "MHSanaei/3x-ui @02002dc, x-ui.sh",
		Files: []OwnFile{{Path: "/etc/sysctl.d/99-bbr-x-ui.conf", Keys: twoKeys}}},
	{ID: "joeyblog", Name: "Actions-bbr-v3", Source: "byJoey/Actions-bbr-v3 @c13d9ef, install.sh",
		Files: []OwnFile{
			{Path: "/etc/sysctl.d/99-joeyblog.conf", Keys: joeyKeys},
			{Path: "/etc/modules-load.d/joeyblog-qdisc.conf", Lines: []string{"sch_fq", "sch_fq_codel", "sch_fq_pie", "sch_cake"}},
			{Path: "/etc/modprobe.d/99-joeyblog-security.conf", Rule: "modules-blocked", Lines: []string{
				"blacklist esp4", "install esp4 /bin/false", "blacklist esp6", "install esp6 /bin/false",
				"blacklist rxrpc", "install rxrpc /bin/false", "blacklist algif_aead", "install algif_aead /bin/false"}},
		}},
	{ID: "net-optimize", Name: "nodekit net-optimize", Source: "bgpeer/nodekit @0130614, net-optimize.py",
		Files: []OwnFile{
			{Path: "/etc/sysctl.d/99-net-optimize.conf", Keys: netOptimizeKeys},
			{Path: "/etc/sysctl.d/zzz-net-optimize-override.conf", Keys: netOptimizeKeys},
			{Path: "/etc/security/limits.d/99-net-optimize.conf", Rule: "limits-replaced", Lines: []string{
				"* soft nofile *", "* hard nofile *", "root soft nofile *", "root hard nofile *",
				"* soft nproc *", "* hard nproc *", "root soft nproc *", "root hard nproc *"}},
		}},
	{ID: "moav", Name: "MoaV", Source: "MotherofallVPNs/MoaV, pull request 119",
		Files: []OwnFile{{Path: "/etc/sysctl.d/99-moav-net.conf", Keys: append([]string{
			"net.core.rmem_max", "net.core.wmem_max", "net.core.rmem_default", "net.core.wmem_default",
			"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.core.netdev_max_backlog"}, twoKeys...)}}},
	{ID: "johnrosen", Name: "Linux-NetSpeed, scheme 2 (johnrosen1)", Source: "ylx2016/Linux-NetSpeed @cf5c8bb, tcpx.sh menu 22",
		Blocks: []Block{
			{Files: sysctlFiles, Lines: johnrosen, Need: 40},
			{Files: []string{managerFile}, Need: 4, Rule: "manager-replaced", Lines: []string{
				"#DefaultTimeoutStartSec=90s", "DefaultTimeoutStopSec=30s", "#DefaultRestartSec=100ms", "DefaultLimitCORE=infinity",
				"DefaultLimitNOFILE=infinity", "DefaultLimitNOFILE=51200", "DefaultLimitNOFILE=65535", "DefaultLimitNPROC=infinity",
				"DefaultLimitNPROC=51200", "DefaultLimitNPROC=65535", "DefaultTasksMax=infinity"}},
			{Files: []string{limitsFile}, Need: 2, Rule: "limits-replaced", Lines: []string{
				"* soft nofile unlimited", "* hard nofile unlimited", "* soft nproc unlimited", "* hard nproc unlimited",
				"* soft nofile 51200", "* hard nofile 51200", "* soft nproc 51200", "* hard nproc 51200"}},
		}},
	{ID: "radical", Name: "Linux-NetSpeed, scheme 3", Source: "ylx2016/Linux-NetSpeed @cf5c8bb, tcp.sh",
		Blocks: []Block{{Files: sysctlFiles, Lines: radical, Need: 35}}},
	{ID: "hawshemi", Name: "Linux-Optimizer (hawshemi)", Source: "hawshemi/Linux-Optimizer @ffbf216, files/sysctl.conf",
		Blocks: []Block{
			{Files: sysctlFiles, Lines: hawshemi, Need: 30, Run: 1},
			{Files: []string{limitsFile}, Need: 4, Rule: "limits-replaced", Lines: []string{
				"* soft nproc 999999", "* hard nproc 999999", "* soft nofile 999999", "* hard nofile 999999",
				"root soft nproc 999999", "root hard nproc 999999", "root soft nofile 999999", "root hard nofile 999999"}},
		}},
	{ID: "seedbox", Name: "Tune (jerry048)", Source: "jerry048/Tune @e638ac9, tune.sh",
		Blocks: []Block{
			{Files: sysctlFiles, Lines: seedbox, Need: 45, Run: 1},
			{Files: []string{limitsFile}, Need: 4, Rule: "limits-replaced", Lines: []string{
				"## Hard limit for max opened files", "root hard nofile 1048576", "## Soft limit for max opened files", "root soft nofile 1048576"}},
		}},
	{ID: "old-optimise", Name: "Linux-NetSpeed, scheme 1, or one of its copies", Source: "ylx2016/Linux-NetSpeed @cf5c8bb, tcpx.sh menu 21; jinwyp/one_click_script @86b2bc3",
		Blocks: []Block{
			{Files: sysctlFiles, Lines: oldOptimise, Need: 12},
			nofileMillion, ulimitMillion,
		}},
	{ID: "chiakge", Name: "Linux-NetSpeed (chiakge), or one of its copies", Source: "chiakge/Linux-NetSpeed @351f4c5, tcp.sh",
		Blocks: []Block{
			{Files: sysctlFiles, Lines: chiakge, Need: 11},
			nofileMillion, ulimitMillion,
		}},
	// Last: the two lines that everybody else writes, too.
	{ID: "two-lines", Weak: true, Name: "bbr.sh (teddysun), or one of the many scripts that append the same two lines", Source: "teddysun/across @ac11f0d, bbr.sh",
		Blocks: []Block{{Files: sysctlFiles, Need: 2, Run: 2, Lines: settings(`
net.core.default_qdisc=fq
net.core.default_qdisc=fq_codel
net.core.default_qdisc=fq_pie
net.core.default_qdisc=cake
net.ipv4.tcp_congestion_control=bbr
net.ipv4.tcp_congestion_control=bbr2
net.ipv4.tcp_congestion_control=bbrplus
`)}}},
}

var (
	nofileMillion = Block{Files: []string{limitsFile}, Need: 2, Rule: "limits-replaced", Lines: []string{
		"* soft nofile 1000000", "* hard nofile 1000000", "root soft nofile 1000000", "root hard nofile 1000000"}}
	ulimitMillion = Block{Files: []string{profileFile}, Need: 1, Run: 1, Lines: []string{"ulimit -SHn 1000000"}, Rule: "profile-ulimit"}
)
