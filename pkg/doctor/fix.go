package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"accel/pkg/files"
	"accel/pkg/sysctl"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Change is what a clean-up, or putting it back, changes.
type Change struct {
	Command   string       `json:"command"` // "fix" or "undo"
	DryRun    bool         `json:"dry_run"`
	Changed   bool         `json:"changed"`
	Adopt     string       `json:"adopt,omitempty"` // the algorithm that accel is enabled with first (fix), or disabled (undo)
	Files     []FileChange `json:"files"`
	Live      []LiveChange `json:"live"`
	Left      []Left       `json:"left"`      // what was left as it is, and why
	Directory string       `json:"directory"` // where the copies are; "" before, and after they went back
}

// FileChange is what becomes of one file.
type FileChange struct {
	File    string `json:"file"`
	Removed bool   `json:"removed"` // the file as a whole
	Tool    string `json:"tool,omitempty"`
	Diff    string `json:"diff,omitempty"` // unified
}

// LiveChange is what becomes of the live value of a setting.
type LiveChange struct {
	Key  string `json:"key"`
	From string `json:"from"`
	To   string `json:"to"`
	raw  sysctl.Key
}

// Left is something that was not changed.
type Left struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

// Plan is a clean-up that was thought through and not begun.
type Plan struct {
	Report *Report
	Change Change
	h      *tuning.Host
	edits  []edit
	qdisc  string // that accel is enabled with, if it adopts
}

// edit is one file before and after.
type edit struct {
	name          string
	before, after []byte // after is nil for a file that goes
	mode          fs.FileMode
	tool          string
}

// Empty says that there is nothing to do.
func (p *Plan) Empty() bool { return len(p.edits) == 0 && len(p.Change.Live) == 0 }

// IDs are the names that --only understands, sorted.
func IDs() []string {
	set := map[string]bool{}
	for _, t := range tools {
		set[t.ID] = true
		for _, f := range t.Files {
			set[f.Rule] = true
		}
		for _, b := range t.Blocks {
			set[b.Rule] = true
		}
	}
	for _, r := range rules() {
		if r.Class == Harmful {
			set[r.ID] = true
		}
	}
	delete(set, "")
	return slices.Sorted(maps.Keys(set))
}

// PlanFix examines a host and plans what a clean-up would change. only names
// tools and rules; none means all. It changes nothing. The error is a
// *tuning.Problem.
func PlanFix(_ context.Context, h *tuning.Host, only []string) (*Plan, error) {
	for _, id := range only {
		if ids := IDs(); !slices.Contains(ids, id) {
			next := text.T("Choose one of: %s.", strings.Join(ids, " "))
			if near := text.Nearest(id, ids); near != "" {
				next = text.T("Did you mean: --only %s", near)
			}
			return nil, &tuning.Problem{Exit: tuning.ExitUsage, Err: errors.New(text.T("there is no tool or rule %q", id)), Next: next}
		}
	}
	e, err := newExamination(h)
	if err != nil {
		return nil, err
	}
	e.all()
	p := &Plan{Report: e.r, h: h, Change: Change{Command: "fix", Files: []FileChange{}, Live: []LiveChange{}, Left: []Left{}}}
	e.plan(p, only)
	return p, nil
}

// plan chooses the lines that go, and what follows from that.
func (e *examination) plan(p *Plan, only []string) {
	chosen := func(id string) bool { return len(only) == 0 || slices.Contains(only, id) }
	drop := map[string]map[int]bool{} // file -> lines
	whole := map[string]bool{}
	by := map[string][]string{}
	var order []string
	for i := range e.r.Leftovers {
		l := &e.r.Leftovers[i]
		all := chosen(l.Tool)
		for _, pl := range l.Places {
			lines := map[int]bool{}
			switch {
			case all, pl.Rule != "" && chosen(pl.Rule):
				for _, n := range pl.Lines {
					lines[n] = true
				}
			default:
				for _, k := range l.Keys {
					if k.File == pl.File && k.Class == Harmful && chosen(k.Rule) {
						lines[k.Line] = true
					}
				}
			}
			goes := pl.Whole && len(lines) == len(pl.Lines) && (all || pl.Rule != "" && chosen(pl.Rule))
			if len(lines) == 0 && !goes {
				continue
			}
			reason := pl.Blocked
			if reason == "" && !l.Fixable {
				reason = text.T("a person could have written it, and accel does not set the same yet: enable it first")
			}
			if reason != "" {
				p.Change.Left = append(p.Change.Left, Left{What: pl.File, Reason: reason})
				continue
			}
			if drop[pl.raw] == nil {
				drop[pl.raw] = map[int]bool{}
				order = append(order, pl.raw)
			}
			maps.Copy(drop[pl.raw], lines)
			whole[pl.raw] = whole[pl.raw] || goes
			by[pl.raw] = append(by[pl.raw], l.Name)
			if adopt := e.adoptable(l); adopt != "" && slices.ContainsFunc(l.Keys, func(k LeftKey) bool {
				return k.raw == string(sysctl.CongestionControl) && k.File == pl.File && lines[k.Line]
			}) {
				p.Change.Adopt = adopt
				if q := e.f.DefaultQdisc; q != nil && *q != "fq" && slices.ContainsFunc(l.Keys, func(k LeftKey) bool {
					return k.raw == string(sysctl.DefaultQdisc) && k.Value == *q
				}) {
					p.qdisc = *q
				}
			}
		}
	}
	for _, name := range order {
		f := e.texts[name]
		st, err := e.h.Files.Lstat(name)
		if err != nil {
			p.Change.Left = append(p.Change.Left, Left{What: sysctl.Printable(name), Reason: err.Error()})
			continue
		}
		ed := edit{name: name, before: f.data, mode: st.Mode().Perm(), tool: strings.Join(by[name], ", ")}
		if !whole[name] {
			ed.after = without(f.data, drop[name])
		}
		p.edits = append(p.edits, ed)
		p.Change.Files = append(p.Change.Files, FileChange{File: sysctl.Printable(name), Removed: ed.after == nil, Tool: ed.tool, Diff: diff(name, f.data, drop[name], whole[name])})
	}
	e.planLive(p, drop, whole)
}

// planLive: a harmful value that one of the dropped lines had set is put to what
// the next boot will set.
func (e *examination) planLive(p *Plan, drop map[string]map[int]bool, whole map[string]bool) {
	dropped := func(file string, line int) bool { return whole[file] || drop[file][line] }
	seen := map[sysctl.Key]bool{}
	for _, h := range e.r.Harmful {
		if h.raw == "" || h.Live == nil || seen[h.raw] || !sysctl.Equal(*h.Live, h.Value) || !dropped(h.File, h.Line) {
			continue
		}
		to := h.Default
		for _, a := range e.boot.All(h.raw) {
			file := a.File
			if a.Target != "" {
				file = a.Target
			}
			if !dropped(file, a.Line) && a.Glob == "" {
				to = a.Value
			}
		}
		if to == "" || sysctl.Equal(to, *h.Live) || e.ruleOf(h.raw, to, true) != nil {
			continue
		}
		seen[h.raw] = true
		p.Change.Live = append(p.Change.Live, LiveChange{Key: h.Setting, From: *h.Live, To: sysctl.Printable(to), raw: h.raw})
	}
}

// without drops lines, counted from 1.
func without(data []byte, drop map[int]bool) []byte {
	out := []byte{}
	n := 0
	for line := range bytes.Lines(data) {
		if n++; !drop[n] {
			out = append(out, line...)
		}
	}
	return out
}

// diff is a unified diff of a file that only loses lines.
func diff(name string, data []byte, drop map[int]bool, whole bool) string {
	const context = 3
	var lines []string
	for line := range bytes.Lines(data) {
		lines = append(lines, strings.TrimSuffix(string(line), "\n"))
	}
	gone := func(n int) bool { return whole || drop[n] }
	var b strings.Builder
	to := name
	if whole {
		to = "/dev/null"
	}
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", sysctl.Printable(name), sysctl.Printable(to))
	lost := 0
	for i := 1; i <= len(lines); {
		if !gone(i) {
			i++
			continue
		}
		// A hunk: from the context before this line to that after the last one
		// that is near.
		first, last := max(1, i-context), i
		for n := i; n <= min(len(lines), last+2*context); n++ {
			if gone(n) {
				last = n
			}
		}
		end := min(len(lines), last+context)
		minus := 0
		for n := first; n <= end; n++ {
			if gone(n) {
				minus++
			}
		}
		before, after := end-first+1, end-first+1-minus
		start := first - lost
		if after == 0 {
			start--
		}
		fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@\n", first, before, start, after)
		for n := first; n <= end; n++ {
			mark := " "
			if gone(n) {
				mark = "-"
			}
			b.WriteString(mark + sysctl.Printable(strings.ReplaceAll(lines[n-1], "\t", "    ")) + "\n")
		}
		lost += minus
		i = end + 1
	}
	return b.String()
}

// lock takes the host's lock.
func lock(ctx context.Context, h *tuning.Host) (func(), error) {
	unlock, err := h.Lock(ctx)
	if err != nil {
		next := text.T("Wait until it is done and try again.")
		if errors.Is(err, fs.ErrPermission) {
			next = text.T("Run accel as root.")
		}
		return nil, &tuning.Problem{Exit: tuning.ExitFailed, Err: fmt.Errorf("%s: %w", text.T("nothing was changed"), err), Next: next}
	}
	return unlock, nil
}

func failed(err error, sentence string) error {
	next := text.T("Mend the cause and try again.")
	switch {
	case errors.Is(err, files.ErrReadOnly):
		next = text.T("The file system is read-only.")
	case errors.Is(err, files.ErrNoSpace):
		next = text.T("The file system is full: make room and try again.")
	case errors.Is(err, files.ErrImmutable):
		next = text.T("It has the immutable attribute: lsattr shows it, chattr -i takes it away.")
	case errors.Is(err, files.ErrPermission):
		next = text.T("Run accel as root.")
	}
	return &tuning.Problem{Exit: tuning.ExitFailed, Err: fmt.Errorf("%s: %w", sentence, err), Next: next}
}

// Apply makes the changes of a plan: all of them, or none. What the kernel does
// not take of live values is left and named; the next boot sets them. The error
// is a *tuning.Problem.
func (p *Plan) Apply(ctx context.Context) error {
	unlock, err := lock(ctx, p.h)
	if err != nil {
		return err
	}
	defer func() { unlock() }()
	f := p.h.Files
	list, err := journals(f)
	if err != nil {
		return failed(err, text.T("reading what earlier clean-ups did; nothing was changed"))
	}
	for _, j := range list {
		if !j.Done {
			return &tuning.Problem{Exit: tuning.ExitFailed, Err: errors.New(text.T("an earlier clean-up was interrupted; nothing was changed")),
				Next: text.T("Put it back first: accel doctor --undo")}
		}
	}
	for _, ed := range p.edits {
		if have, err := f.ReadFile(ed.name); err != nil || !bytes.Equal(have, ed.before) {
			return &tuning.Problem{Exit: tuning.ExitFailed, Err: errors.Join(errors.New(text.T("%s was changed meanwhile; nothing was done", sysctl.Printable(ed.name))), err), Next: text.T("Run it again.")}
		}
	}
	if p.Empty() {
		return nil
	}
	j, err := p.begin()
	if err != nil {
		_ = sweepAll(f)
		return failed(err, text.T("saving the copies; nothing was changed"))
	}
	if p.Change.Adopt != "" {
		// Enable takes the lock itself. Meanwhile the journal keeps others out.
		unlock()
		_, err := tuning.Enable(ctx, p.h, tuning.Request{Algorithm: p.Change.Adopt, Qdisc: p.qdisc})
		relock, lockErr := lock(context.WithoutCancel(ctx), p.h)
		if lockErr != nil {
			unlock = func() {}
			return lockErr
		}
		unlock = relock
		if err != nil {
			return errors.Join(err, j.forget(f))
		}
	}
	if err := p.write(ctx); err != nil {
		undo := Change{}
		back := p.putBack(ctx, j, &undo, &unlock)
		if back != nil || len(undo.Left) > 0 {
			return failed(errors.Join(err, back), text.T("cleaning up failed, and not everything could be put back; the copies are in %s", path.Join(Dir, j.dir)))
		}
		return failed(err, text.T("cleaning up; everything was put back"))
	}
	j.Done = true
	if err := j.save(f); err != nil {
		undo := Change{}
		if back := p.putBack(ctx, j, &undo, &unlock); back != nil {
			err = errors.Join(err, back)
		}
		return failed(err, text.T("cleaning up; everything was put back"))
	}
	p.Change.Changed, p.Change.Directory = true, path.Join(Dir, j.dir)
	return nil
}

// begin writes the copies and the journal.
func (p *Plan) begin() (*journal, error) {
	f := p.h.Files
	if err := sweepAll(f); err != nil {
		return nil, err
	}
	j := &journal{Version: journalVersion, Files: []journalFile{}, Live: []journalLive{}}
	if p.Change.Adopt != "" {
		j.Adopt = p.Change.Adopt
	}
	for _, dir := range []string{tuning.StateDir, Dir} {
		if err := makeDir(f, dir); err != nil {
			return nil, err
		}
	}
	stamp := p.h.Now().UTC().Format("20060102T150405Z")
	for n := 1; ; n++ {
		j.dir = stamp
		if n > 1 {
			j.dir = fmt.Sprintf("%s-%d", stamp, n)
		}
		if _, err := f.Lstat(path.Join(Dir, j.dir)); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	if err := f.Mkdir(path.Join(Dir, j.dir), 0o755); err != nil {
		return nil, err
	}
	for i, ed := range p.edits {
		x := journalFile{Name: ed.name, Copy: fmt.Sprintf("%04d", i+1), Before: sum(ed.before), Mode: ed.mode}
		if ed.after != nil {
			x.After = sum(ed.after)
		}
		if err := f.WriteFile(j.path(x.Copy), ed.before, ed.mode); err != nil {
			return nil, err
		}
		j.Files = append(j.Files, x)
	}
	for _, l := range p.Change.Live {
		j.Live = append(j.Live, journalLive{Key: string(l.raw), Before: l.From, After: l.To})
	}
	return j, j.save(f)
}

func makeDir(f files.FS, name string) error {
	if _, err := f.Lstat(name); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if parent := path.Dir(name); parent != "/" {
		if err := makeDir(f, parent); err != nil {
			return err
		}
	}
	return f.Mkdir(name, 0o755)
}

// write changes files and live values.
func (p *Plan) write(ctx context.Context) error {
	for _, ed := range p.edits {
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if ed.after == nil {
			err = p.h.Files.Remove(ed.name)
		} else {
			err = p.h.Files.WriteFile(ed.name, ed.after, ed.mode)
		}
		if err != nil {
			return err
		}
	}
	for _, l := range p.Change.Live {
		if err := p.h.Sysctl.Write(l.raw, l.To); err != nil {
			p.Change.Left = append(p.Change.Left, Left{What: l.Key, Reason: err.Error()})
		}
	}
	return nil
}

// putBack undoes one clean-up and forgets it if all went back.
func (p *Plan) putBack(ctx context.Context, j *journal, c *Change, unlock *func()) error {
	return putBack(context.WithoutCancel(ctx), p.h, j, c, unlock)
}

// Undo puts back what clean-ups changed, the latest first. What somebody else
// changed since is left and named in the result, and its copy is kept. The
// error, a *tuning.Problem, is of what was tried and failed.
func Undo(ctx context.Context, h *tuning.Host, dryRun bool) (*Change, error) {
	c := &Change{Command: "undo", DryRun: dryRun, Files: []FileChange{}, Live: []LiveChange{}, Left: []Left{}}
	if dryRun {
		list, err := journals(h.Files)
		if err != nil {
			return nil, failed(err, text.T("reading what was changed"))
		}
		for _, j := range slices.Backward(list) {
			foresee(h, j, c)
		}
		return c, nil
	}
	unlock, err := lock(ctx, h)
	if err != nil {
		return nil, err
	}
	defer func() { unlock() }()
	list, err := journals(h.Files)
	if err != nil {
		return nil, failed(err, text.T("reading what was changed"))
	}
	for _, j := range slices.Backward(list) {
		if ctx.Err() != nil {
			return c, failed(ctx.Err(), text.T("interrupted"))
		}
		if err := putBack(context.WithoutCancel(ctx), h, j, c, &unlock); err != nil {
			return c, failed(err, text.T("putting back; the copies are kept in %s", path.Join(Dir, j.dir)))
		}
	}
	if err := sweepAll(h.Files); err != nil {
		return c, failed(err, text.T("removing the copies"))
	}
	return c, nil
}

// state of a journal's file: whether it is to be put back, and if not, why.
func (x journalFile) state(f files.FS) (write bool, reason string) {
	have, err := f.ReadFile(x.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && x.After == "":
		return true, ""
	case err != nil:
		return false, err.Error()
	case sum(have) == x.Before:
		return false, ""
	case x.After != "" && sum(have) == x.After:
		return true, ""
	}
	return false, text.T("somebody changed it since")
}

// state of a journal's live value.
func (l journalLive) state(h *tuning.Host) (write bool, live, reason string) {
	live, err := h.Sysctl.Read(sysctl.Key(l.Key))
	switch {
	case errors.Is(err, sysctl.ErrMissing):
		return false, "", ""
	case err != nil:
		return false, "", err.Error()
	case sysctl.Equal(live, l.Before):
		return false, live, ""
	case sysctl.Equal(live, l.After):
		return true, live, ""
	}
	return false, live, text.T("somebody changed it since")
}

// foresee tells what putBack would do.
func foresee(h *tuning.Host, j *journal, c *Change) {
	for _, x := range j.Files {
		if write, reason := x.state(h.Files); reason != "" {
			c.Left = append(c.Left, Left{What: sysctl.Printable(x.Name), Reason: reason})
		} else if write {
			c.Files = append(c.Files, FileChange{File: sysctl.Printable(x.Name)})
			c.Changed = true
		}
	}
	for _, l := range j.Live {
		if write, live, reason := l.state(h); reason != "" {
			c.Left = append(c.Left, Left{What: sysctl.Key(l.Key).String(), Reason: reason})
		} else if write {
			c.Live = append(c.Live, LiveChange{Key: sysctl.Key(l.Key).String(), From: live, To: l.Before})
			c.Changed = true
		}
	}
	if adopted(h, j) {
		c.Adopt, c.Changed = j.Adopt, true
	}
}

// adopted: accel is enabled because of this clean-up, and still is.
func adopted(h *tuning.Host, j *journal) bool {
	if j.Adopt == "" {
		return false
	}
	_, enabled, err := tuning.Wanted(h)
	return err == nil && enabled != nil && enabled.Algorithm == j.Adopt
}

func putBack(ctx context.Context, h *tuning.Host, j *journal, c *Change, unlock *func()) error {
	var errs []error
	var keptFiles []journalFile
	var keptLive []journalLive
	c.Changed = true
	for _, x := range j.Files {
		write, reason := x.state(h.Files)
		if reason != "" {
			c.Left = append(c.Left, Left{What: sysctl.Printable(x.Name), Reason: reason})
			keptFiles = append(keptFiles, x)
			continue
		}
		if !write {
			continue
		}
		data, err := h.Files.ReadFile(j.path(x.Copy))
		if err == nil && sum(data) != x.Before {
			err = errors.New(text.T("%s is not the copy that was made", j.path(x.Copy)))
		}
		if err == nil {
			err = h.Files.WriteFile(x.Name, data, x.Mode)
		}
		if err != nil {
			errs, keptFiles = append(errs, err), append(keptFiles, x)
			continue
		}
		c.Files = append(c.Files, FileChange{File: sysctl.Printable(x.Name)})
	}
	for _, l := range j.Live {
		write, live, reason := l.state(h)
		if reason != "" {
			c.Left = append(c.Left, Left{What: sysctl.Key(l.Key).String(), Reason: reason})
			continue // there is nothing to be kept for later
		}
		if !write {
			continue
		}
		if err := h.Sysctl.Write(sysctl.Key(l.Key), l.Before); err != nil {
			c.Left = append(c.Left, Left{What: sysctl.Key(l.Key).String(), Reason: err.Error()})
			keptLive = append(keptLive, l)
			continue
		}
		c.Live = append(c.Live, LiveChange{Key: sysctl.Key(l.Key).String(), From: live, To: l.Before})
	}
	if len(errs) == 0 && adopted(h, j) {
		(*unlock)()
		_, err := tuning.Disable(ctx, h, false)
		relock, lockErr := lock(ctx, h)
		if lockErr != nil {
			*unlock = func() {}
			return lockErr
		}
		*unlock = relock
		if err != nil {
			errs = append(errs, err)
		} else {
			c.Adopt = j.Adopt
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if len(keptFiles) == 0 && len(keptLive) == 0 {
		return j.forget(h.Files)
	}
	j.Files, j.Live, j.Done, j.Adopt = keptFiles, keptLive, true, ""
	if j.Files == nil {
		j.Files = []journalFile{}
	}
	if j.Live == nil {
		j.Live = []journalLive{}
	}
	return j.save(h.Files)
}
