package probe

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/files"
)

func entry(n int) Entry {
	return Entry{At: time.Unix(int64(1000+n), 0).UTC(), URL: strings.Repeat("x", maxShown), Bytes: int64(n), Complete: true, Seconds: 1,
		Host: Mark{Algorithm: "bbr", Profile: "basic", Verdict: "good", Kernel: "6.1.0-1"}}
}

func TestHistory(t *testing.T) {
	dir := t.TempDir()
	h := History{files.OS{Root: dir}}
	if k, err := h.Read(); err != nil || len(k.Entries) != 0 {
		t.Fatal(k, err)
	}
	for n := range MaxHistory + 3 {
		if aside, err := h.Keep(t.Context(), entry(n)); err != nil || aside != "" {
			t.Fatal(aside, err)
		}
	}
	k, err := h.Read()
	if err != nil || len(k.Entries) != MaxHistory {
		t.Fatal(len(k.Entries), err)
	}
	if diff := cmp.Diff(entry(3), k.Entries[0]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(entry(MaxHistory+2), k.Entries[MaxHistory-1]); diff != "" {
		t.Error(diff)
	}
	st, err := os.Stat(filepath.Join(dir, HistoryFile))
	if err != nil || st.Size() > maxHistoryBytes/2 || st.Mode().Perm() != 0o644 {
		t.Error(st, err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, filepath.Dir(HistoryFile)))
	if err != nil || len(entries) != 1 {
		t.Error("something is left beside it:", entries, err)
	}
}

// Several probes at once lose nothing.
func TestHistoryAtOnce(t *testing.T) {
	h := History{files.OS{Root: t.TempDir()}}
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			if _, err := h.Keep(context.Background(), entry(n)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	k, err := h.Read()
	seen := map[int64]bool{}
	for _, e := range k.Entries {
		seen[e.Bytes] = true
	}
	if err != nil || len(seen) != 20 {
		t.Error(len(seen), err)
	}
}

// What cannot be understood is set aside, as it is.
func TestHistoryDamaged(t *testing.T) {
	good, err := json.Marshal(Kept{Schema: HistorySchema, Entries: []Entry{entry(1)}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	h := History{files.OS{Root: dir}}
	if _, err := h.Keep(t.Context(), entry(0)); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, HistoryFile)
	damaged := []string{"", "{", string(good[:len(good)/2]), "\x00\x00\x00", "[]", `{"schema":"accel.status/1"}`, `{"schema":"accel.probe-history/1","entries":[{}]}`, strings.Repeat(" ", maxHistoryBytes+1) + "{}"}
	for n, data := range damaged {
		if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Read(); !errors.Is(err, ErrDamaged) {
			t.Errorf("%.40q: %v", data, err)
		}
		aside, err := h.Keep(t.Context(), entry(n))
		if err != nil {
			t.Fatal(err)
		}
		if kept, err := os.ReadFile(filepath.Join(dir, aside)); err != nil || string(kept) != data {
			t.Errorf("%.40q became %.40q in %s: %v", data, kept, aside, err)
		}
		if k, err := h.Read(); err != nil || len(k.Entries) != 1 {
			t.Errorf("a new one: %+v, %v", k, err)
		}
	}
	// One more may be set aside, then a person has to look.
	for n := len(damaged); n <= maxDamaged; n++ {
		if err := os.WriteFile(name, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := h.Keep(t.Context(), entry(1))
		if (n == maxDamaged) != errors.Is(err, ErrTooManyDamaged) {
			t.Errorf("%d: %v", n, err)
		}
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "x" {
		t.Errorf("the last one is %q, %v", data, err)
	}

	// A newer accel's is left alone.
	newer := `{"schema":"accel.probe-history/2","things":[]}`
	if err := os.WriteFile(name, []byte(newer), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Keep(t.Context(), entry(1)); !errors.Is(err, ErrNewer) {
		t.Error(err)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != newer {
		t.Errorf("%q, %v", data, err)
	}
}

func TestHistoryCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	h := History{files.OS{Root: dir}}
	if err := os.MkdirAll(filepath.Join(dir, "var/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A file where the directory belongs.
	if err := os.WriteFile(filepath.Join(dir, "var/lib/accel"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Keep(t.Context(), entry(1)); err == nil {
		t.Error("kept in a file")
	}
	// Somebody else holds the lock and does not let go.
	dir = t.TempDir()
	h = History{files.OS{Root: dir}}
	if _, err := h.Keep(t.Context(), entry(1)); err != nil {
		t.Fatal(err)
	}
	unlock, err := h.Files.Lock(t.Context(), filepath.Dir(HistoryFile))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.Keep(ctx, entry(2)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	unlock()
	if _, err := h.Keep(t.Context(), entry(2)); err != nil {
		t.Error(err)
	}
}

func FuzzParseKept(f *testing.F) {
	f.Add([]byte(`{"schema":"accel.probe-history/1","entries":[{"at":"2026-11-30T00:00:00Z"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := parseKept(data)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
				t.Error(err)
			}
			return
		}
		again, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseKept(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}
