package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"accel/pkg/text"
	"accel/pkg/tuning"
)

// This file stands between the command line and urfave/cli, which silently
// takes a flag that comes after an argument for another argument: `accel enable
// bbr --dry-run` would change the host. Here the whole line is understood
// before anything is done, or refused; what urfave/cli gets is the same line
// with the flags in front.

// line is a command line that makes sense.
type line struct {
	command *cli.Command // nil: help about accel itself
	help    bool         // show help instead of running the command
	group   string       // with help: the commands whose first word this is
	args    []string     // for urfave/cli, beginning with the name of the program
}

// usage is the error for a command line that makes no sense.
func usage(message, next string) error {
	return &tuning.Problem{Exit: tuning.ExitUsage, Next: next, Err: errors.New(message)}
}

// option is a flag as it stood on the command line.
type option struct {
	name  string
	value string
	spec  cli.DocGenerationFlag
}

// arrange understands a command line (without the name of the program). Its
// errors are *tuning.Problem with ExitUsage.
func arrange(app *cli.App, argv []string) (line, error) {
	known := everyFlag(app)
	options, words, literal, help, err := split(app, known, argv)
	if err != nil {
		return line{}, err
	}

	if len(words) == 0 {
		for _, o := range options {
			if o.name == "version" {
				return line{command: app.Command("version"), args: []string{app.Name, "version"}}, nil
			}
		}
		if help {
			return line{help: true}, nil
		}
		if len(literal) > 0 {
			return line{}, usage(text.T("no command before --"), text.T("Commands: %s.", commandNames(app)))
		}
		return line{}, usage(text.T("no command given"), text.T("Commands: %s. For help: accel --help", commandNames(app)))
	}

	words = joined(app, words)
	command := app.Command(words[0])
	if command == nil {
		if group(app, words[0]) {
			if help {
				return line{help: true, group: words[0]}, nil
			}
			return line{}, incomplete(app, words)
		}
		return line{}, unknownCommand(app, words[0])
	}
	arguments := append(slices.Clone(words[1:]), literal...)
	if command.Name == "help" {
		return helpLine(app, arguments)
	}
	if help {
		return line{command: command, help: true}, nil
	}
	if err := checkOptions(app, command, options); err != nil {
		return line{}, err
	}
	if err := checkArguments(app, command, words[1:], literal); err != nil {
		return line{}, err
	}

	args := []string{app.Name}
	for _, o := range options {
		if o.name == "root" {
			args = append(args, "--root="+o.value)
		}
	}
	args = append(args, command.Name)
	for _, o := range options {
		if o.name != "root" {
			args = append(args, "--"+o.name+"="+o.value)
		}
	}
	args = append(args, "--")
	return line{command: command, args: append(args, arguments...)}, nil
}

// split sorts a command line into flags and other words. Words after -- are
// taken literally.
func split(app *cli.App, known map[string]cli.DocGenerationFlag, argv []string) (options []option, words, literal []string, help bool, err error) {
	// Help is asked for by people who do not know the line yet, so it comes
	// before anything that could be wrong with the rest.
	for _, arg := range argv {
		if arg == "--" {
			break
		}
		help = help || arg == "-h" || arg == "--help"
	}
	for i := 0; i < len(argv); i++ {
		arg := argv[i]
		switch {
		case arg == "--":
			return options, words, argv[i+1:], help, nil
		case arg == "-h" || arg == "--help":
			continue
		case len(arg) < 2 || arg[0] != '-':
			words = append(words, arg)
			continue
		}
		name, value, hasValue := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		spec, ok := known[name]
		if !ok || !strings.HasPrefix(arg, "--") {
			if help {
				continue
			}
			return nil, nil, nil, false, unknownFlag(app, known, arg, words)
		}
		switch {
		case !spec.TakesValue() && !hasValue:
			value = "true"
		case !spec.TakesValue():
			if value != "true" && value != "false" {
				err = usage(text.T("--%s is a switch and takes no value %q", name, value), text.T("Write --%s, or leave it out.", name))
			}
		case !hasValue && (i+1 == len(argv) || strings.HasPrefix(argv[i+1], "-") && argv[i+1] != "-"):
			err = usage(text.T("--%s needs a value", name), text.T("Write --%s=%s.", name, placeholder(spec)))
		case !hasValue:
			i++
			value = argv[i]
		}
		if err == nil && spec.TakesValue() && value == "" {
			err = usage(text.T("the value of --%s is empty", name), text.T("Write --%s=%s.", name, placeholder(spec)))
		}
		if err != nil {
			if help {
				err = nil
				continue
			}
			return nil, nil, nil, false, err
		}
		options = append(options, option{name, value, spec})
	}
	return options, words, nil, help, nil
}

func helpLine(app *cli.App, arguments []string) (line, error) {
	arguments = joined(app, arguments)
	if len(arguments) == 1 && group(app, arguments[0]) {
		return line{help: true, group: arguments[0]}, nil
	}
	switch len(arguments) {
	case 0:
		return line{help: true}, nil
	case 1:
		command := app.Command(arguments[0])
		if command == nil {
			return line{}, unknownCommand(app, arguments[0])
		}
		return line{command: command, help: true}, nil
	}
	return line{}, usage(text.T("help takes one command, %q is one too many", arguments[1]), text.T("Write: accel help %s", arguments[0]))
}

// Some commands have a name of two words, such as "kernel list": they belong
// together as a group, and each has its own flags.

// joined makes one word of the two of such a command.
func joined(app *cli.App, words []string) []string {
	if len(words) > 1 && app.Command(words[0]+" "+words[1]) != nil {
		return append([]string{words[0] + " " + words[1]}, words[2:]...)
	}
	return words
}

// group: commands begin with this word.
func group(app *cli.App, word string) bool { return len(members(app, word)) > 0 }

// members are the visible commands of a group.
func members(app *cli.App, word string) []*cli.Command {
	var list []*cli.Command
	for _, c := range app.VisibleCommands() {
		if strings.HasPrefix(c.Name, word+" ") {
			list = append(list, c)
		}
	}
	return list
}

func incomplete(app *cli.App, words []string) error {
	var names []string
	for _, c := range members(app, words[0]) {
		names = append(names, strings.TrimPrefix(c.Name, words[0]+" "))
	}
	next := text.T("Write accel %s and one of: %s. For help: accel %s --help", words[0], strings.Join(names, " "), words[0])
	if len(words) == 1 {
		return usage(text.T("%s alone does nothing", words[0]), next)
	}
	if near := text.Nearest(strings.ToLower(words[1]), names); near != "" {
		next = text.T("Did you mean: accel %s", words[0]+" "+near)
	}
	return usage(text.T("there is no command %q", words[0]+" "+words[1]), next)
}

// checkOptions refuses flags that the command does not have, and a flag with
// two values.
func checkOptions(app *cli.App, command *cli.Command, options []option) error {
	seen := map[string]string{}
	for _, o := range options {
		switch {
		case o.name == "version":
			return usage(text.T("--version stands alone"), text.T("Write: accel version"))
		case o.name == "root":
			if !readsRecorded(command) {
				return usage(text.T("--root is for looking at a recorded host or a mounted image; %s works on this host only", command.Name),
					text.T("Use it with detect, status or doctor: accel --root %s status", o.value))
			}
		case !hasFlag(command.Flags, o.name):
			var names []string
			for _, c := range app.VisibleCommands() {
				if hasFlag(c.Flags, o.name) {
					names = append(names, c.Name)
				}
			}
			return usage(text.T("%s has no flag --%s", command.Name, o.name),
				text.T("It belongs to: %s. For help: accel %s --help", strings.Join(names, " "), command.Name))
		}
		if old, ok := seen[o.name]; ok && old != o.value && !repeats(command, o.name) {
			return usage(text.T("--%s is given twice, with %q and %q", o.name, old, o.value), text.T("Give it once."))
		}
		seen[o.name] = o.value
	}
	if _, root := seen["root"]; root {
		if _, record := seen["record"]; record {
			return usage(text.T("--root and --record exclude each other: only this host can be recorded"), text.T("Leave out one of them."))
		}
	}
	return nil
}

// anyNumber of arguments is what a command takes that has this ArgsUsage.
const anyNumber = "[ARM]..."

// checkArguments compares the words after the command with what it takes.
// literal are those that came after --.
func checkArguments(app *cli.App, command *cli.Command, words, literal []string) error {
	takes := strings.Fields(command.ArgsUsage)
	all := append(slices.Clone(words), literal...)
	if command.ArgsUsage == anyNumber {
		for _, word := range all {
			if word == "" {
				return usage(text.T("an argument of %s is empty", command.Name), text.T("For help: accel %s --help", command.Name))
			}
		}
		return nil
	}
	if len(all) > len(takes) {
		extra := all[len(takes)]
		next := text.T("For help: accel %s --help", command.Name)
		if len(words) > len(takes) { // a flag without its dashes?
			if near := text.Nearest(extra, flagNames(command.Flags)); near != "" || hasFlag(command.Flags, extra) {
				if near == "" {
					near = extra
				}
				next = text.T("Did you mean --%s?", near)
			}
		}
		if len(takes) == 0 {
			return usage(text.T("%s takes no argument, but got %q", command.Name, extra), next)
		}
		return usage(text.T("%s takes one argument, %q is one too many", command.Name, extra), next)
	}
	for i, what := range takes {
		switch {
		case i >= len(all) && !strings.HasPrefix(what, "["):
			return usage(text.T("%s needs an argument: %s", command.Name, what), text.T("For help: accel %s --help", command.Name))
		case i < len(all) && all[i] == "":
			return usage(text.T("the argument of %s is empty", command.Name), text.T("Name it, or leave it out: %s", what))
		}
	}
	return nil
}

func unknownCommand(app *cli.App, word string) error {
	next := text.T("Commands: %s. For help: accel --help", commandNames(app))
	var names []string
	for _, c := range app.Commands {
		first, _, _ := strings.Cut(c.Name, " ")
		names = append(names, first)
	}
	if near := text.Nearest(strings.ToLower(word), names); near != "" {
		next = text.T("Did you mean: accel %s", near)
	} else if word == "" {
		return usage(text.T("the command is empty"), next)
	}
	return usage(text.T("there is no command %q", word), next)
}

// unknownFlag says which flag was probably meant. words are those seen so far;
// the first is the command.
func unknownFlag(app *cli.App, known map[string]cli.DocGenerationFlag, arg string, words []string) error {
	var candidates []string
	help := "accel --help"
	if len(words) > 0 {
		words = joined(app, words)
		if command := app.Command(words[0]); command != nil {
			candidates = append(flagNames(command.Flags), "help")
			if readsRecorded(command) {
				candidates = append(candidates, "root")
			}
			help = "accel " + command.Name + " --help"
		}
	}
	if candidates == nil {
		for name := range known {
			candidates = append(candidates, name)
		}
		candidates = append(candidates, "help")
		slices.Sort(candidates)
	}
	flag, _, _ := strings.Cut(arg, "=")
	name := strings.ToLower(strings.ReplaceAll(strings.TrimLeft(flag, "-"), "_", "-"))
	if near := text.Nearest(name, candidates); near != "" {
		return usage(text.T("there is no flag %q", flag), text.T("Did you mean --%s?", near))
	}
	return usage(text.T("there is no flag %q", flag), text.T("For help: %s", help))
}

// everyFlag gathers the flags of the program and of all commands. A name means
// the same everywhere (a test sees to it), so that a flag may stand before the
// command.
func everyFlag(app *cli.App) map[string]cli.DocGenerationFlag {
	all := map[string]cli.DocGenerationFlag{}
	add := func(flags []cli.Flag) {
		for _, f := range flags {
			all[f.Names()[0]] = f.(cli.DocGenerationFlag)
		}
	}
	add(app.Flags)
	for _, c := range app.Commands {
		add(c.Flags)
	}
	return all
}

func flagNames(flags []cli.Flag) []string {
	var names []string
	for _, f := range flags {
		names = append(names, f.Names()[0])
	}
	return names
}

func hasFlag(flags []cli.Flag, name string) bool {
	return slices.Contains(flagNames(flags), name)
}

// repeats: a flag of this command that may be given several times.
func repeats(c *cli.Command, name string) bool {
	for _, f := range c.Flags {
		if _, ok := f.(*cli.StringSliceFlag); ok && f.Names()[0] == name {
			return true
		}
	}
	return false
}

// readsRecorded: the commands that --root is for.
func readsRecorded(c *cli.Command) bool {
	return c.Name == "detect" || c.Name == "status" || c.Name == "doctor" || c.Name == "kernel list"
}

func commandNames(app *cli.App) string {
	var names []string
	for _, c := range app.VisibleCommands() {
		first, _, _ := strings.Cut(c.Name, " ")
		if !slices.Contains(names, first) {
			names = append(names, first)
		}
	}
	return strings.Join(names, " ")
}

// placeholder is the word for a flag's value: the one in backquotes in its
// usage.
func placeholder(f cli.DocGenerationFlag) string {
	_, rest, ok := strings.Cut(f.GetUsage(), "`")
	if word, _, closed := strings.Cut(rest, "`"); ok && closed {
		return word
	}
	return "VALUE"
}

// wantsJSON looks for --json on a line that may make no sense otherwise, so
// that the refusal can be a document too.
func wantsJSON(argv []string) bool {
	for _, arg := range argv {
		if arg == "--" {
			return false
		}
		if arg == "--json" || arg == "--json=true" {
			return true
		}
	}
	return false
}
