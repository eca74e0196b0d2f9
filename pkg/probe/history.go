package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"accel/pkg/files"
)

// HistorySchema names the layout of the file and of Kept.
const HistorySchema = "accel.probe-history/1"

const (
	// HistoryFile is where earlier probes are kept, in the directory of accel's
	// state.
	HistoryFile = "/var/lib/accel/probes.json"
	// MaxHistory is how many are kept; the oldest go first.
	MaxHistory = 200
	// maxHistoryBytes is more than MaxHistory entries need. A longer file is not
	// ours.
	maxHistoryBytes = 1 << 20
	// maxDamaged is how many damaged files are set aside before accel asks for
	// somebody to look at them.
	maxDamaged = 9
	// lockTime is how long another probe may take to write what it keeps.
	lockTime = 5 * time.Second
)

// Entry is one earlier probe.
type Entry struct {
	At         time.Time `json:"at"`  // when it began, UTC
	URL        string    `json:"url"` // as Shown; "" = over loopback
	Bytes      int64     `json:"bytes"`
	Complete   bool      `json:"complete"`
	Seconds    float64   `json:"seconds"`
	Throughput uint64    `json:"throughput"` // bit/s
	FirstByte  *float64  `json:"first_byte_seconds"`
	MinRTT     *int64    `json:"min_rtt_us"` // of the sending socket over loopback, else of the receiving one
	// Algorithm is that of the sending socket, "" where it is elsewhere.
	Algorithm string `json:"algorithm"`
	Host      Mark   `json:"host"`
}

// Mark is what this host was like at the time.
type Mark struct {
	Algorithm string `json:"algorithm"` // that new connections had; "" = not known
	Profile   string `json:"profile"`   // that was enabled; "" = none
	Verdict   string `json:"verdict"`   // as of status; "" = not known
	Kernel    string `json:"kernel"`    // release
}

// Kept is the file of earlier probes, the oldest first.
type Kept struct {
	Schema  string  `json:"schema"` // "accel.probe-history/1"
	Entries []Entry `json:"entries"`
}

// Errors of History.
var (
	// ErrDamaged: the file of earlier probes cannot be understood.
	ErrDamaged = errors.New("not readable as accel's earlier probes")
	// ErrNewer: a newer accel wrote it.
	ErrNewer = errors.New("written by a newer accel")
	// ErrTooManyDamaged: there are so many damaged files already that no more is
	// set aside.
	ErrTooManyDamaged = errors.New("too many damaged files have been set aside")
)

// History is the file of earlier probes on a host.
type History struct {
	Files files.OS
}

// Read returns the earlier probes; none, and no error, where nothing was kept
// yet. Errors: ErrDamaged, ErrNewer, and those of pkg/files.
func (h History) Read() (Kept, error) {
	k := Kept{Schema: HistorySchema, Entries: []Entry{}}
	data, err := h.Files.ReadFile(HistoryFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return k, nil
	case errors.Is(err, files.ErrTooLarge):
		return Kept{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	case err != nil:
		return Kept{}, err
	}
	return parseKept(data)
}

func parseKept(data []byte) (Kept, error) {
	bad := func(err error) (Kept, error) {
		return Kept{}, fmt.Errorf("reading %s: %w: %w", HistoryFile, ErrDamaged, err)
	}
	if len(data) > maxHistoryBytes {
		return bad(fmt.Errorf("it has more than %d bytes", maxHistoryBytes))
	}
	var version struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return bad(err)
	}
	if n := 0; version.Schema != HistorySchema {
		if _, err := fmt.Sscanf(version.Schema, "accel.probe-history/%d", &n); err == nil && n > 1 {
			return Kept{}, fmt.Errorf("reading %s: %w", HistoryFile, ErrNewer)
		}
		return bad(fmt.Errorf("its schema is %q", version.Schema))
	}
	var k Kept
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&k); err != nil {
		return bad(err)
	}
	for i, e := range k.Entries {
		if e.Bytes < 0 || e.Seconds < 0 || e.At.IsZero() {
			return bad(fmt.Errorf("entry %d makes no sense", i+1))
		}
	}
	if k.Entries == nil {
		k.Entries = []Entry{}
	}
	return k, nil
}

// Keep appends a probe, and drops the oldest where there are more than
// MaxHistory. A damaged file is set aside under another name, which is
// returned, and a new one begun; nothing of it is lost.
//
// Errors: ErrNewer, ErrTooManyDamaged, and those of pkg/files: only root may
// write there.
func (h History) Keep(ctx context.Context, e Entry) (aside string, err error) {
	dir := filepath.Dir(HistoryFile)
	if err := h.makeDir(dir); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	unlock, err := h.Files.Lock(ctx, dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	k, err := h.Read()
	if errors.Is(err, ErrDamaged) {
		if aside, err = h.setAside(); err != nil {
			return "", err
		}
		k = Kept{Schema: HistorySchema}
	} else if err != nil {
		return "", err
	}
	k.Entries = append(k.Entries, e)
	k.Entries = slices.Clone(k.Entries[max(len(k.Entries)-MaxHistory, 0):])
	data, err := json.MarshalIndent(k, "", " ")
	if err != nil {
		return aside, err
	}
	return aside, h.Files.WriteFile(HistoryFile, append(data, '\n'), 0o644)
}

// makeDir makes the directory with its parents where it is missing.
func (h History) makeDir(dir string) error {
	if _, err := h.Files.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return nil // there, or the next step says what is wrong
	}
	if err := h.makeDir(filepath.Dir(dir)); err != nil {
		return err
	}
	return h.Files.Mkdir(dir, 0o755)
}

// setAside renames the damaged file to the first name that is free.
func (h History) setAside() (string, error) {
	for n := range maxDamaged {
		to := fmt.Sprintf("%s.damaged-%d", HistoryFile, n+1)
		err := h.Files.Rename(HistoryFile, to)
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return to, err
		}
	}
	return "", fmt.Errorf("setting %s aside: %w", HistoryFile, ErrTooManyDamaged)
}

// Entry is what is kept of a download over loopback.
func (r Result) Entry(at time.Time, host Mark) Entry {
	return Entry{
		At: at.UTC().Truncate(time.Second), Bytes: r.Bytes, Complete: r.Complete, Seconds: r.Seconds, Throughput: r.Throughput,
		MinRTT: r.Sender.MinRTT, Algorithm: r.Algorithm, Host: host,
	}
}

// Entry is what is kept of a download from elsewhere.
func (f Fetched) Entry(at time.Time, host Mark) Entry {
	return Entry{
		At: at.UTC().Truncate(time.Second), URL: f.URL, Bytes: f.Bytes, Complete: f.Complete, Seconds: f.Seconds, Throughput: f.Throughput,
		FirstByte: &f.FirstByte, MinRTT: f.Receiver.MinRTT, Host: host,
	}
}
