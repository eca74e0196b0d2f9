package doctor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"accel/pkg/files"
	"accel/pkg/sysctl"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Dir holds one directory for each clean-up: the copies, and the journal that
// says what belongs to them.
const Dir = tuning.StateDir + "/doctor"

const journalName = "journal.json"

// journalVersion is the layout of the journal. Another one is refused.
const journalVersion = 1

// journal is written before the first change of a clean-up, and again after the
// last.
type journal struct {
	Version int           `json:"version"`
	Done    bool          `json:"done"`  // false: it was interrupted
	Adopt   string        `json:"adopt"` // the algorithm that accel was enabled with on the way; "": it was not
	Files   []journalFile `json:"files"`
	Live    []journalLive `json:"live"`

	dir string // "20261130T204500Z"
}

type journalFile struct {
	Name   string      `json:"name"`
	Copy   string      `json:"copy"`   // name of the copy beside the journal
	Before string      `json:"before"` // SHA-256 of the content
	After  string      `json:"after"`  // "": the file was removed
	Mode   fs.FileMode `json:"mode"`
}

type journalLive struct {
	Key    string `json:"key"`
	Before string `json:"before"`
	After  string `json:"after"`
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

var (
	dirName  = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}Z(-[0-9]+)?$`)
	copyName = regexp.MustCompile(`^[0-9]{4}$`)
)

// valid keeps a journal that was tampered with from making accel write anything
// but what a clean-up touches.
func (j *journal) valid() error {
	if j.Version != journalVersion {
		return fmt.Errorf("version %d, this accel knows %d", j.Version, journalVersion)
	}
	for _, f := range j.Files {
		if path.Clean(f.Name) != f.Name || !strings.HasPrefix(f.Name, "/etc/") || !copyName.MatchString(f.Copy) || f.Mode&^fs.ModePerm != 0 {
			return fmt.Errorf("%q is not a file of a clean-up", f.Name)
		}
	}
	for _, l := range j.Live {
		k, err := sysctl.ParseKey(l.Key)
		if err != nil || string(k) != l.Key || !slices.ContainsFunc([]string{"net/", "vm/", "kernel/", "fs/"}, func(p string) bool { return strings.HasPrefix(l.Key, p) }) {
			return fmt.Errorf("%q is not a setting of a clean-up", l.Key)
		}
	}
	return nil
}

// journals reads all clean-ups, oldest first. A directory without a journal is
// one that never began, or was put back wholly, and is passed over.
func journals(f files.FS) ([]*journal, error) {
	entries, err := f.ReadDir(Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*journal
	for _, d := range entries {
		if !d.IsDir() || !dirName.MatchString(d.Name()) {
			continue
		}
		name := path.Join(Dir, d.Name(), journalName)
		data, err := f.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		j := &journal{dir: d.Name()}
		if err := json.Unmarshal(data, j); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := j.valid(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, j)
	}
	slices.SortFunc(out, func(a, b *journal) int { return compareDirs(a.dir, b.dir) })
	return out, nil
}

// compareDirs: "...Z-10" comes after "...Z-9".
func compareDirs(a, b string) int {
	x, nx, _ := strings.Cut(a, "-")
	y, ny, _ := strings.Cut(b, "-")
	if c := strings.Compare(x, y); c != 0 {
		return c
	}
	if len(nx) != len(ny) {
		return len(nx) - len(ny)
	}
	return strings.Compare(nx, ny)
}

func (j *journal) path(name string) string { return path.Join(Dir, j.dir, name) }

func (j *journal) save(f files.FS) error {
	data, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return err
	}
	return f.WriteFile(j.path(journalName), append(data, '\n'), 0o644)
}

// forget removes a clean-up that was put back: the journal first, for with it
// goes the meaning of the rest.
func (j *journal) forget(f files.FS) error {
	err := f.Remove(j.path(journalName))
	if err != nil {
		return err
	}
	return sweep(f, j.dir)
}

// sweep removes what is left of a directory without a journal.
func sweep(f files.FS, dir string) error {
	full := path.Join(Dir, dir)
	entries, err := f.ReadDir(full)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range entries {
		base := strings.TrimPrefix(d.Name(), ".") // an unfinished copy is ".0001<number>"
		if len(base) >= 4 && (copyName.MatchString(base[:4]) || strings.HasPrefix(base, journalName)) && d.Type().IsRegular() {
			if err := f.Remove(path.Join(full, d.Name())); err != nil {
				return err
			}
		}
	}
	if entries, err = f.ReadDir(full); err == nil && len(entries) == 0 {
		if err := f.Remove(full); err != nil {
			return err
		}
		if rest, err := f.ReadDir(Dir); err == nil && len(rest) == 0 {
			return f.Remove(Dir)
		}
	}
	return nil
}

// sweepAll removes what crashes left: directories without a journal.
func sweepAll(f files.FS) error {
	entries, err := f.ReadDir(Dir)
	if err != nil {
		return nil // nothing there
	}
	for _, d := range entries {
		if !d.IsDir() || !dirName.MatchString(d.Name()) {
			continue
		}
		if _, err := f.Lstat(path.Join(Dir, d.Name(), journalName)); errors.Is(err, fs.ErrNotExist) {
			if err := sweep(f, d.Name()); err != nil {
				return err
			}
		}
	}
	if rest, err := f.ReadDir(Dir); err == nil && len(rest) == 0 {
		return f.Remove(Dir)
	}
	return nil
}

// fixed lists the clean-ups that can be undone.
func (e *examination) fixed() {
	list, err := journals(e.h.Files)
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		e.note(text.T("what --fix did before cannot be read: %s", err))
	}
	for _, j := range list {
		x := Fixed{Time: j.dir, Directory: path.Join(Dir, j.dir), Files: []string{}, Interrupted: !j.Done}
		for _, f := range j.Files {
			x.Files = append(x.Files, sysctl.Printable(f.Name))
		}
		e.r.Fixed = append(e.r.Fixed, x)
	}
}
