package main

import (
	"strings"

	"github.com/urfave/cli/v2"

	"accel/pkg/text"
)

// help prints the help about a command, or about accel itself, to stdout. It is
// made from the definitions in app.go.
func (a *accel) help(app *cli.App, command *cli.Command, group string) error {
	p := &page{screen: a.outScreen}
	switch {
	case command != nil:
		commandHelp(p, app, command)
	case group != "":
		groupHelp(p, app, group)
	default:
		appHelp(p, app)
	}
	return p.print()
}

func appHelp(p *page, app *cli.App) {
	p.paragraph("accel: " + app.Usage)
	p.gap()
	p.row(text.T("Usage"), text.T("accel COMMAND [ARGUMENT] [FLAGS]"))
	p.gap()
	for _, c := range app.VisibleCommands() {
		p.row("  "+c.Name, c.Usage)
	}
	p.gap()
	flagRows(p, app.Flags)
	p.row("  -h, --help", text.T("show help for accel or for a command"))
	p.gap()
	p.paragraph(text.T("Examples:"))
	p.row("  sudo accel enable bbr", text.T("turn BBR on, now and after every boot"))
	p.row("  accel status", text.T("say whether it is in force"))
	p.row("  sudo accel disable", text.T("put everything back"))
	p.gap()
	p.paragraph(text.T("Exit codes: 0 good, 1 failed and everything undone, 2 usage, 3 not enabled, 4 needs attention, 5 not possible on this host. More: man accel"))
}

// groupHelp lists the commands that begin with one word.
func groupHelp(p *page, app *cli.App, word string) {
	p.paragraph(text.T("The commands of accel %s:", word))
	p.gap()
	for _, c := range members(app, word) {
		p.row("  "+c.Name, c.Usage)
	}
	p.gap()
	p.paragraph(text.T("For help on one: accel %s --help", members(app, word)[0].Name))
}

func commandHelp(p *page, app *cli.App, c *cli.Command) {
	p.paragraph("accel " + c.Name + ": " + c.Usage)
	p.gap()
	p.row(text.T("Usage"), synopsis(c))
	if c.Description != "" {
		p.gap()
		p.paragraph(c.Description)
	}
	p.gap()
	flagRows(p, c.Flags)
	if readsRecorded(c) {
		flagRows(p, app.Flags[:1])
	}
	p.row("  -h, --help", text.T("show this help"))
}

// synopsis is the command line of a command in one line.
func synopsis(c *cli.Command) string {
	words := []string{"accel", c.Name}
	if c.ArgsUsage != "" {
		words = append(words, c.ArgsUsage)
	}
	if len(c.Flags) > 0 {
		words = append(words, text.T("[FLAGS]"))
	}
	return strings.Join(words, " ")
}

func flagRows(p *page, flags []cli.Flag) {
	for _, f := range flags {
		p.row("  "+flagLabel(f), flagUsage(f))
	}
}

// flagLabel is "--qdisc KIND".
func flagLabel(f cli.Flag) string {
	label := "--" + f.Names()[0]
	if d := f.(cli.DocGenerationFlag); d.TakesValue() {
		label += " " + placeholder(d)
	}
	return label
}

func flagUsage(f cli.Flag) string {
	return strings.ReplaceAll(f.(cli.DocGenerationFlag).GetUsage(), "`", "")
}
