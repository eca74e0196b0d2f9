// Command accel makes a Linux server send faster over long and lossy paths: it
// turns a TCP congestion control algorithm and the qdisc for it on, now and at
// every boot, says whether they are in force, and puts everything back.
//
// This package holds flags, exit codes and what is printed. Decisions are made
// in pkg/tuning.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"accel/pkg/agent"
	"accel/pkg/bootkernel"
	"accel/pkg/lab"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == lab.ChildCommand {
		// One of the processes of a comparison, of which there are several at
		// once: nothing of the command line is needed.
		os.Exit(labChild())
	}
	text.SetLanguage(text.Language(os.Getenv))
	a := newAccel(os.Stdout, os.Stderr, os.Getenv)
	os.Exit(a.run(os.Args[1:]))
}

// accel is one run of the program.
type accel struct {
	out, err  io.Writer
	outScreen screen
	errScreen screen
	getenv    func(string) string
	euid      func() int
	in        io.Reader
	asks      func() bool // there is somebody to ask
	live      func() *tuning.Host
	liveBoot  func() *bootkernel.Host
	exit      int // of a command that failed in no way: the verdict's
}

func newAccel(out, err io.Writer, getenv func(string) string) *accel {
	return &accel{
		out:       out,
		err:       err,
		outScreen: newScreen(out, getenv),
		errScreen: newScreen(err, getenv),
		getenv:    getenv,
		euid:      os.Geteuid,
		in:        os.Stdin,
		asks:      terminals,
		liveBoot:  bootkernel.Live,
		live: func() *tuning.Host {
			h := tuning.Live()
			h.Service = agent.NewSystemd()
			return h
		},
	}
}

// run runs one command line, given without the program's name, and returns the
// exit code.
func (a *accel) run(argv []string) int {
	// A reader that goes away must not kill a change half-way.
	signal.Ignore(syscall.SIGPIPE)
	if wantsJSON(argv) {
		text.SetLanguage("") // documents are English everywhere
	}
	app := a.commands()
	l, err := arrange(app, argv)
	if err != nil {
		return a.report(err, wantsJSON(argv))
	}
	if l.help {
		if err := a.help(app, l.command, l.group); err != nil {
			return a.report(err, false)
		}
		return tuning.ExitGood
	}
	ctx, stop := interruptible()
	defer stop()
	if err := app.RunContext(ctx, l.args); err != nil {
		return a.report(err, wantsJSON(argv))
	}
	return a.exit
}

// interruptible is a context that ends with the signals that ask a program to
// stop, the one of a lost terminal included: a command finishes or undoes what
// it began, and then returns. A signal that the parent ignores (nohup) stays
// ignored.
func interruptible() (context.Context, func()) {
	var signals []os.Signal
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	if len(signals) == 0 { // NotifyContext would take none for all
		return context.WithCancel(context.Background())
	}
	return signal.NotifyContext(context.Background(), signals...)
}

// host is the host that a command looks at.
func (a *accel) host(c *cli.Context) (*tuning.Host, error) {
	if dir := c.String("root"); dir != "" {
		return tuning.Recorded(dir)
	}
	return a.live(), nil
}

// needRoot refuses what only root can do, before anything is tried. again is
// the command line to repeat.
func (a *accel) needRoot(command, again string) error {
	if a.euid() == 0 {
		return nil
	}
	return &tuning.Problem{
		Exit: tuning.ExitFailed,
		Err:  errors.New(text.T("%s changes the settings of the kernel, which only root may do; nothing was changed", command)),
		Next: text.T("Run it as root: sudo accel %s", again),
	}
}

// agent is the command `accel agent`.
func (a *accel) agent(c *cli.Context) error {
	return agent.Run(c.Context, agent.Options{Host: a.live()})
}
