package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"accel/pkg/bootkernel"
	"accel/pkg/doctor"
	"accel/pkg/lab"
	"accel/pkg/probe"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// The man page accel(8) in mdoc(7). Commands and flags come from the
// definitions in app.go; what cannot be derived is written here.

// manPage prints the page. Its date is that of the build (SOURCE_DATE_EPOCH),
// so that the same source makes the same page.
func manPage(app *cli.App) string {
	var b strings.Builder
	date := time.Date(2026, time.November, 30, 0, 0, 0, 0, time.UTC)
	if epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		date = time.Unix(epoch, 0).UTC()
	}
	fmt.Fprintf(&b, ".Dd %s\n.Dt ACCEL 8\n.Os accel\n", date.Format("January 2, 2006"))
	fmt.Fprintf(&b, ".Sh NAME\n.Nm accel\n.Nd %s\n", roff(app.Usage))
	b.WriteString(".Sh SYNOPSIS\n")
	for _, c := range app.VisibleCommands() {
		if c.Name == "help" {
			continue
		}
		b.WriteString(".Nm\n")
		if readsRecorded(c) {
			b.WriteString(".Op Fl -root Ar DIR\n")
		}
		fmt.Fprintf(&b, ".Cm %s\n", c.Name)
		switch {
		case c.ArgsUsage == anyNumber:
			b.WriteString(".Ar ARM ARM ...\n")
		case strings.HasPrefix(c.ArgsUsage, "["):
			fmt.Fprintf(&b, ".Op Ar %s\n", strings.Trim(c.ArgsUsage, "[]"))
		case c.ArgsUsage != "":
			fmt.Fprintf(&b, ".Ar %s\n", c.ArgsUsage)
		}
		for _, f := range c.Flags {
			fmt.Fprintf(&b, ".Op %s\n", manFlag(f))
		}
	}
	b.WriteString(manDescription)
	b.WriteString(`.Sh COMMANDS
Flags may stand before or after arguments.
A word after
.Fl -
is never taken for a flag.
.Fl h
or
.Fl -help
shows help everywhere.
A command line that makes no sense is refused as a whole, with exit code 2.
`)
	for _, c := range app.VisibleCommands() {
		fmt.Fprintf(&b, ".Ss accel %s\n", c.Name)
		fmt.Fprintf(&b, "%s.\n", roff(capital(c.Usage)))
		if c.Description != "" {
			fmt.Fprintf(&b, "%s\n", sentences(c.Description))
		}
		flags := c.Flags
		if readsRecorded(c) {
			flags = append(append([]cli.Flag{}, flags...), app.Flags[0])
		}
		if len(flags) == 0 {
			continue
		}
		b.WriteString(".Bl -tag -width Ds\n")
		for _, f := range flags {
			fmt.Fprintf(&b, ".It %s\n%s\n", manFlag(f), sentences(capital(flagUsage(f))+"."))
		}
		b.WriteString(".El\n")
	}
	b.WriteString(manProfiles)
	b.WriteString(manDoctor())
	b.WriteString(manKernels)
	b.WriteString(manPaths())
	b.WriteString(manRest())
	return b.String()
}

// manFlag is "Fl -qdisc Ar KIND".
func manFlag(f cli.Flag) string {
	s := "Fl -" + f.Names()[0]
	if d := f.(cli.DocGenerationFlag); d.TakesValue() {
		s += " Ar " + placeholder(d)
	}
	return s
}

// sentences begins each sentence on a line of its own, as roff wants it, and
// folds the lines.
func sentences(s string) string {
	var lines []string
	for _, sentence := range strings.Split(strings.ReplaceAll(s, ". ", ".\n"), "\n") {
		lines = append(lines, text.Wrap(sentence, 78)...)
	}
	return roff(strings.Join(lines, "\n"))
}

// roff escapes text for roff.
func roff(s string) string {
	s = strings.ReplaceAll(s, `\`, `\e`)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

const manDescription = `.Sh DESCRIPTION
.Nm
makes a Linux server send with another TCP congestion control algorithm, usually
.Sy bbr ,
and with the qdisc that suits it, from the moment of
.Ic accel enable
and after every boot, until
.Ic accel disable
puts everything back exactly as it was.
It concerns what this host sends; what it receives is up to the other end.
.Pp
An algorithm is
.Em in force
when both ends of a TCP connection that
.Nm
makes to itself carry it and no default route carries another one
.Pq Sy congctl .
.Xr lsmod 8
proves nothing: an algorithm that is built into the kernel is not in it, and one
that is loaded may be unused.
`

// manProfiles is the part about the profiles.
const manProfiles = `.Sh PROFILES
.Bl -tag -width Ds
.It Sy basic
The algorithm, the qdisc that suits it, and the modules for both.
.It Sy boost
The same, and more of what is sent in flight from the first packet on: a larger
initial window on the default routes
.Pq Sy initcwnd , No see Xr ip-route 8 ,
and larger ceilings for the buffers of a socket, computed from the memory and
the links of this host.
.Ic accel enable Fl -profile Cm boost Fl -dry-run
says what it would set and why.
.El
.Pp
Sizes are floors: what is larger already is kept, and
.Ic accel status
says so.
.Pp
Metrics are set on ordinary default routes of the main table only, with all else
that a route carries left as it is.
Routes of policy tables, over tunnels and VPNs, from routing daemons, and
several with the same metric are left alone and named.
So is an IPv6 default route that a router advertised: a change would lose its
expiry, and the router could no longer withdraw it.
When a DHCP client makes a route anew, the service puts the metrics back within
seconds; it does so after a boot, too, since no file holds them.
`

// manDoctor is the part about what doctor knows.
func manDoctor() string {
	return `.Sh WHAT DOCTOR KNOWS
.Bl -tag -width Ds
.It Next boot
Two programs read the files of
.Xr sysctl.d 5
at boot, in two orders:
.Xr systemd-sysctl 8 ,
which does not read
.Pa /etc/sysctl.conf ,
and
.Xr sysctl 8
with
.Fl -system ,
which reads it last.
Both are shown, with the lines that lose; then what comes later: ufw, the hooks
of ifupdown and networkd, tuned, units,
.Pa /etc/rc.local ,
cron.
.It Leftovers
A tool is recognised by files of its own, or by a group of lines that it writes
into a file of the system.
Its settings are sorted into harmful ones, those that are as accel sets them,
those without an effect on this kernel, and harmless ones.
.It Fix
Only lines that belong to a recognised tool are taken out; what a person wrote
is shown and left.
A file that holds nothing else goes as a whole.
Copies and a journal are written before the first change.
Live values that do harm are put to what the next boot will set.
Where a tool has put an algorithm in force and accel is not enabled, accel is
enabled with the same one first, so that nothing is interrupted.
.It Still on the old algorithm
An established connection keeps its algorithm, and a network namespace (a
container) the default that it was made with.
The processes with other connections than those of the chosen algorithm are
named, in all namespaces, with the restart that changes it.
Listeners are not named: what they accept gets the default of that moment.
Nor are connections within the host.
A process that began after the switch, or that has an algorithm which never was
a default, got it from itself
.Pq Dv TCP_CONGESTION ,
from a route or from a BPF program, and a restart would not change it.
Connections end by themselves and leave the exit code alone; a container with
links and an old default does not.
.It Rules for Fl -only
` + sentences(strings.Join(doctor.IDs(), ", ")+".") + `
.El
`
}

// manKernels is the part about accel kernel.
const manKernels = `.Sh HOW A KERNEL IS TRIED
.Bl -enum
.It
.Ic accel kernel install
refuses where a bad kernel could not be undone: in containers, where the
kernel is started from outside, without GRUB, where GRUB cannot clear its
one-time entry (btrfs, ZFS, LVM, RAID), without room, with Secure Boot and an
unsigned kernel, or where the new kernel lacks the driver of the disk or of the
network card.
.It
The running kernel is pinned as the default of GRUB, and
.Pa grub.cfg
is seen to say so.
Then apt installs the new one.
.It
The next boot starts the new kernel, once.
A panic, or no root file system, reboots after 30 seconds; a reset does the
same: every other boot starts the old kernel.
.It
After the boot what was true before has to be true again: the gateways of the
default routes answer ARP or neighbour discovery, the SSH server listens, the
algorithm is in force.
There are six minutes for that.
.It
Good: the pin goes, and GRUB_DEFAULT decides as before.
Where GRUB_DEFAULT names another kernel, a pin keeps the new one the default.
Not good, or not decided ten minutes after the boot, in emergency mode too: one
reboot into the old kernel, which stays pinned until
.Ic accel kernel remove
takes the other away.
.El
.Pp
With
.Fl -no-auto
a host that comes up waits for
.Ic accel kernel confirm ,
whatever its checks said; one that does not is rebooted all the same.
No kernel is removed but by
.Ic remove
and
.Ic rollback .
`

// manKernelFiles lists the files of accel kernel.
func manKernelFiles() string {
	return fmt.Sprintf(`.Ss Of accel kernel
.Bl -tag -width Ds
.It Pa %s
How far an install came, written before each step.
.It Pa %s , %s , %s
Generated while a kernel is tried, and after it has failed: the pin, the entry
that is started once, and what keeps apt from taking the good kernel away.
.It Pa %s
Generated by
.Ic kernel install --backports
where the backports were not among apt's sources.
.It Pa /usr/lib/systemd/system/accel-kernel.service , accel-kernel-deadline.timer
What judges a kernel after its first boot.
They end at once in every other boot.
.El
`, bootkernel.StateFile, bootkernel.PinFile, bootkernel.TrialFile, bootkernel.KeepFile, bootkernel.BackportsFile)
}

// manPaths is the part about what compare emulates.
func manPaths() string {
	var b strings.Builder
	b.WriteString(`.Sh HOW COMPARE MEASURES
Sender, router and receiver are three private network namespaces; they end with
.Ic accel compare ,
however that ends.
The router delays and loses packets in each direction
.Pq Xr tc-netem 8 ,
and behind that has the rate and the queue
.Pq Xr tc-tbf 8 .
Packets have 1500 bytes: offloads are off.
The arms take turns, there and back again (A B B A), after a warm-up that is not
counted; what TCP remembers is cleared between transfers.
.Pp
Both ends begin as a kernel as it comes, with the buffers of tcp_rmem and
tcp_wmem that it has by default, whatever the host is tuned to.
The settings of an arm go to the sender, as on a server;
.Fl Fl client-buffer
is for what another receiver has.
Keys that a network namespace does not have are listed as not compared.
A profile as an arm is what it would give this host: bbr with fq, and the
settings and the initial window that it computes from this host's memory and
links.
Its floors stand on the values of a kernel as it comes, not on what this host is
tuned to; so two hosts with as much memory have the same arm.
An arm that names no algorithm has cubic; bbr has the qdisc
.Sy fq
unless the file says otherwise.
.Pp
A transfer that takes more than 60 seconds is counted as not finished.
The first arm is the one that the others are compared with.
.Ss Paths
.Bl -tag -width Ds
`)
	for _, p := range lab.Paths() {
		fmt.Fprintf(&b, ".It Sy %s\n%s\n", p.Name, sentences(pathWords(p)+": "+p.Source+"."))
	}
	b.WriteString(".El\n")
	return b.String()
}

const manEnvironment = `.Sh ENVIRONMENT
.Bl -tag -width Ds
.It Ev NO_COLOR
If set and not empty, nothing is coloured.
.It Ev ACCEL_LANG , Ev LC_ALL , Ev LC_MESSAGES , Ev LANG
The language of the text: the first that is set decides, English if there is no
translation.
JSON is always English.
.El
`

// manRest is the part of the page after the commands.
func manRest() string {
	var b strings.Builder
	fmt.Fprintf(&b, manEnvironment+`.Sh FILES
.Bl -tag -width Ds
.It Pa %[1]s
Generated: the settings for the next boot.
Its late name is deliberate: files that sort before it lose.
.It Pa %[2]s
Generated, only where modules must be loaded: their names.
.It Pa %[3]s
What is enabled and every original value, written before the first change.
.It Pa %[5]s
The last %[6]d probes that root made, for
.Ic accel probe --history .
A damaged one is set aside beside it.
.It Pa %[7]s
The copies that
.Ic accel doctor --fix
made, each clean-up in a directory of its own.
.It Pa /usr/lib/systemd/system/accel.service
The service, which runs
.Ic accel agent .
.It Pa %[4]s
A lock and the last word of the service.
.El
`, tuning.SysctlFile, tuning.ModulesFile, tuning.StateFile, tuning.RuntimeDir, probe.HistoryFile, probe.MaxHistory, doctor.Dir)
	b.WriteString(manKernelFiles())
	b.WriteString(`.Sh EXIT STATUS
These numbers never change.
.Pp
.Bl -tag -width Ds -compact
.It 0
Good: as wished.
Also where less than everything could be had, which a note says: only the
algorithm in a container, no
.Sy fq
in this kernel, a link whose qdisc somebody configured.
.It 1
Failed, and everything undone.
.It 2
The command line makes no sense; nothing was done.
.It 3
Nothing is enabled.
.It 4
Needs attention: enabled, but not in force, or drifted.
From
.Ic doctor :
something was found.
.It 5
Not possible on this host; also from
.Ic status
where nothing is enabled and nothing could be.
.El
.Pp
.Ic detect
exits with 0 or 5,
.Ic probe
never with anything but 0 for being slow, and
.Ic compare
with 0 whichever arm was faster, with 1 where it was interrupted and with 5
where the kernel lacks what it needs.
.Sh EXAMPLES
Turn BBR on and see whether it is in force:
.Bd -literal -offset indent
# accel enable bbr
$ accel status
.Ed
.Pp
See first what it would do, without root:
.Pp
.Dl $ accel enable bbr --dry-run
.Pp
More from the first packet on:
.Pp
.Dl # accel enable bbr --profile boost
.Pp
Put everything back:
.Pp
.Dl # accel disable
.Pp
Measure bbr against cubic on a long path with growing loss, and keep a page
with plots:
.Bd -literal -offset indent
# accel compare bbr cubic --rtt 100ms --loss 0,0.1,0.5,1,2,5 \e
    --html bbr.html
.Ed
.Pp
What arrives here from a server before and after
.Ic accel enable
on that server, from a machine of one of its users:
.Bd -literal -offset indent
# accel probe --to https://server.example/file
# accel probe --history
.Ed
.Pp
See what else sets the same things, and clean up after other scripts:
.Bd -literal -offset indent
$ accel doctor
# accel doctor --fix
.Ed
.Pp
Try the kernel of Debian's backports once, and keep it if the host can be
reached:
.Bd -literal -offset indent
# accel kernel install --backports
# systemctl reboot
$ accel kernel list
.Ed
.Pp
In a script:
.Bd -literal -offset indent
accel status --json | jq -r .verdict
.Ed
.Pp
Record this host for a bug report, and look at the recording elsewhere:
.Bd -literal -offset indent
$ accel detect --record /tmp/host
$ accel --root /tmp/host status
.Ed
.Sh JSON
With
.Fl -json
stdout carries exactly one document, also when the command failed; diagnostics
go to stderr.
The member
.Sy schema
names its layout, such as
.Sy accel.status/1 ,
and
.Sy exit
repeats the exit code.
Members may be added; none is renamed.
.Pp
.Bl -tag -width "accel.status/1" -compact
.It Sy accel.status/1
.Ic status :
.Sy verdict
.Pq Sy good , not-enabled , not-in-force , drifted , unsupported ,
.Sy reason ,
.Sy next ,
.Sy enabled ,
.Sy kernel ,
.Sy virtualization ,
.Sy algorithm ,
.Sy connections ,
.Sy qdisc ,
.Sy routes ,
.Sy settings ,
.Sy boot ,
.Sy service ,
.Sy drift ,
.Sy notes .
What is not known is null.
.It Sy accel.detect/1
.Ic detect :
the same without
.Sy enabled ,
.Sy settings ,
.Sy service
and
.Sy drift .
.It Sy accel.result/1
.Ic enable
and
.Ic disable :
.Sy steps ,
.Sy left ,
.Sy notes ,
and the status at the end.
.It Sy accel.doctor/1
.Ic doctor :
.Sy keys ,
.Sy leftovers ,
.Sy harmful ,
.Sy writers ,
and with
.Fl -fix
or
.Fl -undo
the
.Sy change .
.It Sy accel.probe/1
.Ic probe :
the kernel's account of the sending socket, rates in bit/s.
.It Sy accel.probe-to/1
.Ic probe --to :
what the receiving end knows.
.It Sy accel.probe-history/1
.Ic probe --history :
the
.Sy entries ,
the oldest first, each with the
.Sy host
at the time.
.It Sy accel.compare/1
.Ic compare
and
.Ic report :
the
.Sy plan ,
every one of the
.Sy transfers ,
and the
.Sy verdicts .
.It Sy accel.kernels/1
.Ic kernel list :
.Sy running ,
.Sy next ,
.Sy after ,
.Sy kernels ,
.Sy offers
and
.Sy upgrade ,
how the last install stands, which
.Ic status
has too.
.It Sy accel.kernel/1
.Ic kernel install , confirm , rollback
and
.Ic remove :
.Sy plan
and
.Sy upgrade .
.It Sy accel.record/1
The file
.Pa accel-record.json
that
.Ic detect --record
writes.
.It Sy accel.error/1
Every failure:
.Sy error
and
.Sy next .
.El
.Sh DIAGNOSTICS
An error is one line that names what was tried and the cause, and one with the
next step.
A missing kernel key, a value that the kernel refused, a read-only file system,
a missing capability and a restriction of the network namespace are told apart.
.Sh SEE ALSO
.Xr sysctl.d 5 ,
.Xr tcp 7 ,
.Xr ss 8 ,
.Xr systemd-sysctl.service 8 ,
.Xr tc-fq 8
.Sh CAVEATS
Connections that exist keep their algorithm, and so do network namespaces
(containers) that were made before: restart what runs in them.
.Pp
Over a fast local network BBR can be slower than CUBIC.
It is meant for long and lossy paths.
.Sh SECURITY CONSIDERATIONS
The rules that are never broken: originals are saved before anything is
written; what is required succeeds or everything is undone; only files and keys
of
.Nm
are touched, except by
.Ic doctor --fix ,
which shows each change and keeps a copy;
sizes and limits are never lowered; a qdisc that somebody
configured is left alone, and so are loopback, bridges, tunnels and every other
link that does not queue packets for a wire.
.Pp
.Ic status ,
.Ic detect ,
.Ic doctor
and every
.Fl -dry-run
work without root and change nothing.
`)
	return b.String()
}
