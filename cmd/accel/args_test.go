package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
	"pgregory.net/rapid"

	"accel/pkg/tuning"
)

func testApp() *cli.App {
	return newAccel(io.Discard, io.Discard, func(string) string { return "" }).commands()
}

func TestArrange(t *testing.T) {
	tests := []struct {
		line string
		want string // for urfave/cli
	}{
		{"status", "accel status --"},
		{"status --json", "accel status --json=true --"},
		{"--json status", "accel status --json=true --"},
		{"enable bbr --dry-run", "accel enable --dry-run=true -- bbr"},
		{"enable --dry-run bbr", "accel enable --dry-run=true -- bbr"},
		{"--dry-run enable bbr", "accel enable --dry-run=true -- bbr"},
		{"enable --dry-run=false bbr", "accel enable --dry-run=false -- bbr"},
		{"enable --dry-run -- bbr", "accel enable --dry-run=true -- bbr"},
		{"enable -- --dry-run", "accel enable -- --dry-run"},
		{"enable bbr --link eth0 --link=eth1", "accel enable --link=eth0 --link=eth1 -- bbr"},
		{"enable --qdisc fq --qdisc fq", "accel enable --qdisc=fq --qdisc=fq --"},
		{"--root /x status", "accel --root=/x status --"},
		{"status --root /x --json", "accel --root=/x status --json=true --"},
		{"--root=/x detect", "accel --root=/x detect --"},
		{"detect --record /x", "accel detect --record=/x --"},
		{"probe --size=16M", "accel probe --size=16M --"},
		{"probe --size=-5", "accel probe --size=-5 --"},
		{"--version", "accel version"},
		{"gen man", "accel gen -- man"},
	}
	for _, test := range tests {
		l, err := arrange(testApp(), strings.Fields(test.line))
		if err != nil {
			t.Errorf("%s: %v", test.line, err)
			continue
		}
		if l.help {
			t.Errorf("%s: taken for help", test.line)
		}
		if diff := cmp.Diff(test.want, strings.Join(l.args, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.line, diff)
		}
	}
}

func TestArrangeHelp(t *testing.T) {
	for line, want := range map[string]string{
		"--help": "", "-h": "", "help": "", "help status": "status", "status -h": "status", "-h status": "status",
		"enable bbr --help": "enable", "enable --bogus -h": "enable", "enable --qdisc --help": "enable", "-h enable x y z": "enable",
	} {
		l, err := arrange(testApp(), strings.Fields(line))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		got := ""
		if l.command != nil {
			got = l.command.Name
		}
		if !l.help || got != want {
			t.Errorf("%s: help %v about %q, want %q", line, l.help, got, want)
		}
	}
}

// Each of these must be refused, and the next step must help.
func TestArrangeRefuses(t *testing.T) {
	tests := []struct {
		argv []string
		err  string
		next string
	}{
		{nil, "no command", "enable"},
		{[]string{"enabel", "bbr"}, `"enabel"`, "accel enable"},
		{[]string{"STATUS"}, `"STATUS"`, "accel status"},
		{[]string{"frobnicate"}, "frobnicate", "Commands: enable disable status"},
		{[]string{""}, "empty", "Commands"},
		{[]string{"--", "status"}, "before --", "Commands"},
		{[]string{"help", "nosuch"}, "nosuch", "Commands"},
		{[]string{"help", "status", "detect"}, "detect", "accel help status"},
		{[]string{"nosuch", "--help"}, "nosuch", "Commands"},
		{[]string{"enable", "bbr", "--dryrun"}, "--dryrun", "--dry-run"},
		{[]string{"enable", "bbr", "--dry_run"}, "--dry_run", "--dry-run"},
		{[]string{"enable", "bbr", "-dry-run"}, "-dry-run", "--dry-run"},
		{[]string{"enable", "bbr", "-n"}, "-n", "accel enable --help"},
		{[]string{"enable", "bbr", "--Json"}, "--Json", "--json"},
		{[]string{"--jsn", "status"}, "--jsn", "--json"},
		{[]string{"enable", "bbr", "cubic"}, `"cubic"`, "accel enable --help"},
		{[]string{"enable", "bbr", "dry-run"}, `"dry-run"`, "--dry-run"},
		{[]string{"enable", "bbr", "dryrun"}, `"dryrun"`, "--dry-run"},
		{[]string{"enable", "bbr", "--", "--dry-run"}, "--dry-run", "accel enable --help"},
		{[]string{"enable", ""}, "empty", "ALGORITHM"},
		{[]string{"disable", "bbr"}, `"bbr"`, "accel disable --help"},
		{[]string{"status", "-"}, `"-"`, "accel status --help"},
		{[]string{"enable", "--qdisc"}, "--qdisc needs a value", "--qdisc=KIND"},
		{[]string{"enable", "--qdisc", "--dry-run"}, "--qdisc needs a value", "--qdisc=KIND"},
		{[]string{"enable", "--qdisc", "--", "bbr"}, "--qdisc needs a value", "--qdisc=KIND"},
		{[]string{"enable", "--qdisc="}, "empty", "--qdisc=KIND"},
		{[]string{"enable", "--qdisc", ""}, "empty", "--qdisc=KIND"},
		{[]string{"enable", "--qdisc", "fq", "--qdisc", "cake"}, "twice", "once"},
		{[]string{"enable", "--dry-run", "--dry-run=false"}, "twice", "once"},
		{[]string{"enable", "--dry-run=yes"}, "switch", "--dry-run"},
		{[]string{"enable", "--dry-run="}, "switch", "--dry-run"},
		{[]string{"status", "--dry-run"}, "status has no flag --dry-run", "enable disable"},
		{[]string{"disable", "--qdisc", "fq"}, "disable has no flag --qdisc", "enable"},
		{[]string{"--root", "/x", "enable", "bbr"}, "--root", "accel --root /x status"},
		{[]string{"disable", "--root", "/x"}, "--root", "status"},
		{[]string{"probe", "--root=/x"}, "--root", "status"},
		{[]string{"agent", "--root=/x"}, "--root", "status"},
		{[]string{"--root", "/x", "detect", "--record", "/y"}, "--record", "one of them"},
		{[]string{"--root", "status"}, "no command", "Commands"},
		{[]string{"--version", "status"}, "--version", "accel version"},
		{[]string{"gen"}, "man|bash|zsh", "accel gen --help"},
		{[]string{"version", "1"}, `"1"`, "accel version --help"},
		{[]string{"status", "---json"}, "---json", "--json"},
		{[]string{"status", "--json", "\x1b[2J"}, `"\x1b[2J"`, "accel status --help"},
	}
	for _, test := range tests {
		l, err := arrange(testApp(), test.argv)
		if err == nil {
			t.Errorf("%q: accepted as %q", test.argv, l.args)
			continue
		}
		var p *tuning.Problem
		if !errors.As(err, &p) || p.Exit != tuning.ExitUsage {
			t.Errorf("%q: %v is no usage error", test.argv, err)
			continue
		}
		if !strings.Contains(err.Error(), test.err) || !strings.Contains(p.Next, test.next) {
			t.Errorf("%q: %q, next %q", test.argv, err, p.Next)
		}
	}
}

// A flag name means the same for every command, since it may stand before it.
func TestFlagNamesAreUnambiguous(t *testing.T) {
	app := testApp()
	seen := map[string]bool{}
	for _, c := range app.Commands {
		for _, f := range append(append([]cli.Flag{}, c.Flags...), app.Flags...) {
			name, takes := f.Names()[0], f.(cli.DocGenerationFlag).TakesValue()
			if was, ok := seen[name]; ok && was != takes {
				t.Errorf("--%s takes a value in one place and none in another", name)
			}
			seen[name] = takes
			if len(f.Names()) != 1 {
				t.Errorf("--%s has an alias, which args.go does not know", name)
			}
			if takes && placeholder(f.(cli.DocGenerationFlag)) == "VALUE" {
				t.Errorf("--%s does not name its value", name)
			}
		}
	}
}

// Whatever the words, and in whatever order: a line that asks for a dry run is
// refused or is a dry run. This is the mistake that must never happen.
func TestDryRunIsNeverLost(t *testing.T) {
	words := []string{"enable", "bbr", "cubic", "--json", "--qdisc", "fq", "--qdisc=fq", "--link", "eth0", "--yes", "--", "-h", "--no-probe", "--root", "/x", "", "-", "--bogus", "status", "disable"}
	rapid.Check(t, func(t *rapid.T) {
		argv := rapid.SliceOfN(rapid.SampledFrom(words), 0, 6).Draw(t, "argv")
		at := rapid.IntRange(0, len(argv)).Draw(t, "at")
		argv = append(argv[:at:at], append([]string{"--dry-run"}, argv[at:]...)...)
		l, err := arrange(testApp(), argv)
		if err != nil || l.help {
			return
		}
		for _, w := range argv[:at] {
			if w == "--" { // then it is a word
				if last := l.args[len(l.args)-1]; last != "--dry-run" {
					t.Fatalf("%q became %q", argv, l.args)
				}
				return
			}
		}
		if !strings.Contains(" "+strings.Join(l.args, " ")+" ", " --dry-run=true ") {
			t.Fatalf("%q became %q", argv, l.args)
		}
	})
}

// What arrange lets through, urfave/cli must understand the same way.
func TestArrangedLinesReachTheCommand(t *testing.T) {
	app := testApp()
	got := ""
	for _, c := range app.Commands {
		c.Action = func(c *cli.Context) error {
			got = strings.Join([]string{c.Command.Name, c.String("root"), c.String("qdisc"), strings.Join(c.StringSlice("link"), "+"), strings.Join(c.Args().Slice(), "+")}, ";")
			if c.Bool("dry-run") {
				got += ";dry"
			}
			return nil
		}
	}
	for line, want := range map[string]string{
		"enable bbr --qdisc fq --link a,b --link c --dry-run": "enable;;fq;a,b+c;bbr;dry",
		"enable --dry-run=false -- bbr":                       "enable;;;;bbr",
		"status --root=/x=y":                                  "status;/x=y;;;",
		"disable --yes":                                       "disable;;;;",
	} {
		l, err := arrange(app, strings.Fields(line))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if err := app.Run(l.args); err != nil || got != want {
			t.Errorf("%s: %v, %q, want %q", line, err, got, want)
		}
	}
}
