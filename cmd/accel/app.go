package main

import (
	"slices"

	"github.com/urfave/cli/v2"

	"accel/pkg/text"
	"accel/pkg/tuning"
)

// commands defines the command line: the commands, their flags and what help,
// the man page and the completions say about them. A flag's value is named by
// the word in backquotes.
func (a *accel) commands() *cli.App {
	asJSON := func() cli.Flag {
		return &cli.BoolFlag{Name: "json", Usage: text.T("print one JSON document instead of text")}
	}
	dryRun := func() cli.Flag {
		return &cli.BoolFlag{Name: "dry-run", Usage: text.T("show what would be done, change nothing; works without root")}
	}
	yes := func() cli.Flag {
		return &cli.BoolFlag{Name: "yes", Usage: text.T("answer every question with yes (for scripts)")}
	}
	app := &cli.App{
		Name:            "accel",
		Usage:           text.T("make this server send faster over long and lossy paths"),
		HideHelp:        true, // help, --help and --version are understood in args.go
		HideHelpCommand: true,
		HideVersion:     true,
		Writer:          a.out,
		ErrWriter:       a.err,
		// A link name may hold a comma.
		DisableSliceFlagSeparator: true,
		// urfave/cli would call os.Exit by itself.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError:   func(_ *cli.Context, err error, _ bool) error { return usage(err.Error(), "") },
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "root", Usage: text.T("look at the recorded host or mounted image in `DIR` (detect, status, doctor and kernel list only)")},
			&cli.BoolFlag{Name: "version", Usage: text.T("print the version")},
		},
		Commands: []*cli.Command{
			{
				Name:      "enable",
				Usage:     text.T("send with an algorithm (bbr), now and after every boot"),
				ArgsUsage: "[ALGORITHM]",
				Description: text.T("Sets ALGORITHM (%s if none is named) as the congestion control of new connections and the qdisc that suits it on every suitable link, verifies both, writes them down for the next boot, and turns the service on. What was there before is saved first. What is required succeeds, or everything is undone. A second enable changes nothing.",
					tuning.DefaultAlgorithm),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "profile", Usage: text.T("the set of settings, a `NAME`: basic (the default), or boost, which adds a larger initial window on the default routes and larger buffers, computed from memory and links")},
					&cli.StringFlag{Name: "qdisc", Usage: text.T("a qdisc `KIND` in place of the profile's, which is fq")},
					&cli.StringSliceFlag{Name: "link", Usage: text.T("set only the qdisc of the link `NAME`; may be repeated")},
					dryRun(),
					&cli.BoolFlag{Name: "no-probe", Usage: text.T("leave out the short download over loopback at the end")},
					yes(),
					asJSON(),
				},
				Action: a.enable,
			},
			{
				Name:        "disable",
				Usage:       text.T("put everything back as it was before the first enable"),
				Description: text.T("Turns the service off and restores every original value, live and on disk. A value that somebody else changed meanwhile is left and named."),
				Flags:       []cli.Flag{dryRun(), yes(), asJSON()},
				Action:      a.disable,
			},
			{
				Name:        "status",
				Usage:       text.T("say whether it is in force, and why not"),
				Description: text.T("Says first whether what was enabled is in force, then why, then what to do. Works without root. The exit code is the verdict: 0 good, 3 not enabled, 4 needs attention, 5 not possible on this host."),
				Flags:       []cli.Flag{asJSON()},
				Action:      a.status,
			},
			{
				Name:        "detect",
				Usage:       text.T("show the facts about this host, change nothing"),
				Description: text.T("Shows kernel, virtualization, algorithms, qdiscs, links and what the next boot would set. The exit code is 0, or 5 where no algorithm could be enabled."),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "record", Usage: text.T("write a recording of this host, without addresses and host names, into the new directory `DIR`, for a bug report or for --root")},
					asJSON(),
				},
				Action: a.detect,
			},
			{
				Name:        "doctor",
				Usage:       text.T("say what else here sets the same things, and clean up after other tools"),
				Description: text.T("Says for every key of accel's what it is now, what the next boot sets, and which line of which file decides that; names what other scripts left behind and which of their settings do harm. With --fix it takes out what it can attribute to a known tool, after showing every change and asking; --undo puts all of it back. The exit code is 0 where nothing was found, 4 where something was."),
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "fix", Usage: text.T("take out what known tools left: shows every change, asks, keeps copies")},
					&cli.StringSliceFlag{Name: "only", Usage: text.T("with --fix: only what the tool or rule `RULE` is about; may be repeated")},
					&cli.BoolFlag{Name: "undo", Usage: text.T("put back everything that --fix took out")},
					dryRun(),
					yes(),
					asJSON(),
				},
				Action: a.doctor,
			},
			{
				Name:        "probe",
				Usage:       text.T("download over a real socket and show the kernel's account of it"),
				Description: text.T("Downloads from a server inside accel over loopback and shows the kernel's account of the sending socket. It proves that the machinery works, not that anything got faster: over loopback no algorithm can gain. With --to it downloads from elsewhere and shows what the receiving end can know. What root measures is kept, with the algorithm and the profile that the host had at the time, for --history."),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "to", Usage: text.T("download from the http or https `URL` to this host instead, and show the receiving end")},
					&cli.BoolFlag{Name: "history", Usage: text.T("show the earlier probes of this host")},
					&cli.StringFlag{Name: "size", Value: "256M", Usage: text.T("how much to download at most, `SIZE` in bytes or with K, M or G (default 256M)")},
					&cli.StringFlag{Name: "algorithm", Usage: text.T("send with the algorithm `NAME` instead of the host's")},
					&cli.StringFlag{Name: "timeout", Value: "60s", Usage: text.T("stop after `TIME`, such as 30s or 2m, and show what was measured until then (default 60s)")},
					asJSON(),
				},
				Action: a.probe,
			},
			{
				Name:        "compare",
				Usage:       text.T("measure algorithm against algorithm on an emulated path"),
				ArgsUsage:   anyNumber,
				Description: text.T("Transfers with each ARM in turn over a path that is emulated in private network namespaces, and says which was how many times as fast, with its interval, or that no difference was seen. An arm is an algorithm, a profile with what it would set on this host (basic or boost), or settings from a file (--arm). A comma list in one option of the path sweeps it: --loss 0,0.1,1,5. Nothing of the host's network is touched, and nothing is left."),
				Flags:       compareFlags(asJSON),
				Action:      a.compare,
			},
			{
				Name:        "report",
				Usage:       text.T("show a saved comparison again"),
				ArgsUsage:   "FILE",
				Description: text.T("Reads FILE, which accel compare --json wrote, judges it anew and shows it."),
				Flags:       reportFlags(asJSON),
				Action:      a.saved,
			},
			{
				Name:        "agent",
				Usage:       text.T("what the service runs; not for the command line"),
				Description: text.T("Re-asserts what is enabled at boot, then watches and heals it, and tells systemd what is in force. Started by accel.service."),
				Action:      a.agent,
			},
			{
				Name:   "version",
				Usage:  text.T("print the version"),
				Action: a.version,
			},
			{
				Name:      "help",
				Usage:     text.T("show help for a command"),
				ArgsUsage: "[COMMAND]",
				// Understood in args.go; this entry is for help and completion.
				Action: func(*cli.Context) error { return nil },
			},
			{
				Name:      "gen",
				Usage:     text.T("print the man page or a shell completion, for packaging"),
				ArgsUsage: "man|bash|zsh",
				Hidden:    true,
				Action:    a.gen,
			},
		},
	}
	at := slices.IndexFunc(app.Commands, func(c *cli.Command) bool { return c.Name == "agent" })
	app.Commands = slices.Insert(app.Commands, at, a.kernelCommands(dryRun, asJSON)...)
	return app
}
