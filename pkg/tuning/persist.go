package tuning

import (
	"bytes"
	"errors"
	"io/fs"
	"path"
	"slices"

	"accel/pkg/files"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// mark is the first line of every file accel generates. A file without it is
// not ours, whatever its name.
const mark = "# Written by accel; changes here are lost."

var header = []string{mark[2:], "To undo everything: accel disable"}

// generatedFiles are the files accel writes outside its state directory.
var generatedFiles = []string{SysctlFile, ModulesFile}

func fileID(name string) string { return "file " + name }

// content says what a generated file holds, compared with what it should.
func content(have, want []byte) string {
	switch {
	case have == nil:
		return text.T("missing")
	case want != nil && bytes.Equal(have, want):
		return text.T("as accel writes it")
	case want == nil:
		return text.T("there")
	default:
		return text.T("different")
	}
}

// fileStep is the step that makes a generated file what a state says.
func fileStep(name string, before []byte, st *State) Step {
	want := persisted(st)[name]
	current := content(before, want)
	return Step{Setting: fileID(name), Current: &current, Wanted: content(want, want), Action: Set, Why: text.T("the same at every boot")}
}

// differ lists the generated files that do not hold what they should.
func differ(have, want map[string][]byte) (names []string) {
	for _, name := range generatedFiles {
		if content(have[name], want[name]) != content(want[name], want[name]) {
			names = append(names, name)
		}
	}
	return names
}

// persisted gives the contents of accel's generated files for a state; a file
// that is not needed has none.
func persisted(s *State) map[string][]byte {
	var kv []sysctl.KeyValue
	for _, r := range s.Records {
		if r.Kind == KindSysctl && r.Wanted != "" && len(r.Wrote) > 0 {
			kv = append(kv, sysctl.KeyValue{Key: sysctl.Key(r.Name), Value: r.Wanted})
		}
	}
	out := map[string][]byte{SysctlFile: nil, ModulesFile: nil}
	if len(kv) > 0 {
		out[SysctlFile] = sysctl.Render(header, kv)
	}
	if len(s.Modules) > 0 {
		var b bytes.Buffer
		for _, h := range header {
			b.WriteString("# " + h + "\n")
		}
		for _, m := range s.Modules {
			b.WriteString(m + "\n")
		}
		out[ModulesFile] = b.Bytes()
	}
	return out
}

// ourFile reads one of accel's files: nil if it is not there. A file without
// the mark is a stranger's.
func ourFile(f files.FS, name string) (data []byte, ours bool, err error) {
	data, err = f.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	return data, bytes.HasPrefix(data, []byte(mark)), nil
}

// generated reads accel's generated files; one that is not there is nil. It
// fails where somebody else's file has the name of one of ours.
func generated(f files.FS) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, name := range generatedFiles {
		data, ours, err := ourFile(f, name)
		if err != nil {
			return nil, problem(ExitFailed, err, text.T("reading %s", name), FileHint(err, name))
		}
		if !ours {
			return nil, problem(ExitFailed, nil, text.T("%s was not written by accel", name), text.T("accel never changes other people's files. Move it away and try again."))
		}
		out[name] = data
	}
	return out, nil
}

// putFiles makes the generated files what they were, and takes away the
// directories that were made for them.
func putFiles(f files.FS, before map[string][]byte, made []string) error {
	var errs []error
	for _, name := range generatedFiles {
		now, ours, err := ourFile(f, name)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !ours, before[name] != nil && bytes.Equal(now, before[name]):
		case before[name] == nil:
			errs = append(errs, f.Remove(name)) // and its unfinished copy
		default:
			errs = append(errs, f.WriteFile(name, before[name], 0o644))
		}
	}
	return errors.Join(append(errs, removeEmpty(f, made))...)
}

// removeEmpty removes directories that hold nothing.
func removeEmpty(f files.FS, dirs []string) (err error) {
	for _, d := range dirs {
		if entries, rerr := f.ReadDir(d); rerr == nil && len(entries) == 0 {
			if rerr := f.Remove(d); rerr != nil {
				err = errors.Join(err, problem(ExitFailed, rerr, text.T("removing %s", d), FileHint(rerr, d)))
			}
		}
	}
	return err
}

// writeFiles makes accel's generated files what the state says, and tells
// which ones it changed.
func writeFiles(f files.FS, s *State) (changed []string, err error) {
	want := persisted(s)
	for _, name := range generatedFiles {
		have, ours, err := ourFile(f, name)
		if err == nil && !ours {
			continue // a stranger's; generated and the drift name it
		}
		if err == nil && (bytes.Equal(have, want[name]) && (have == nil) == (want[name] == nil)) {
			continue
		}
		switch {
		case want[name] == nil:
			err = f.Remove(name)
		default:
			if err = makeDir(f, path.Dir(name), 0o755); err == nil {
				err = f.WriteFile(name, want[name], 0o644)
			}
		}
		if err != nil {
			return changed, problem(ExitFailed, err, text.T("writing %s", name), FileHint(err, name))
		}
		changed = append(changed, name)
	}
	return changed, nil
}

// noteDirs remembers the directories that writeFiles is going to make, so that
// disable can take them away again.
func noteDirs(f files.FS, s *State) {
	for name, data := range persisted(s) {
		if dir := path.Dir(name); data != nil && !exists(f, dir) && !slices.Contains(s.Dirs, dir) {
			s.Dirs = append(s.Dirs, dir)
		}
	}
	slices.Sort(s.Dirs)
}

// removeFiles takes accel's generated files away, and the directories it made
// for them if nothing else is in them now.
func removeFiles(f files.FS, dirs []string) (changed []string, err error) {
	for _, name := range generatedFiles {
		have, ours, rerr := ourFile(f, name)
		if rerr == nil && !ours {
			continue
		}
		// Also where there is none: a crash may have left its unfinished copy.
		if rerr = f.Remove(name); rerr != nil {
			err = errors.Join(err, problem(ExitFailed, rerr, text.T("removing %s", name), FileHint(rerr, name)))
			continue
		}
		if have != nil {
			changed = append(changed, name)
		}
	}
	return changed, errors.Join(err, removeEmpty(f, dirs))
}
