package tuning

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzParseState: whatever stands in the state file is understood whole or
// refused, and what is understood says the same when written again.
func FuzzParseState(f *testing.F) {
	host := newFakeHost()
	if _, err := Enable(f.Context(), host.host(), Request{Links: []string{"eth0"}}); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(host.files[StateFile]))
	for _, s := range []string{"", "{}", "null", `{"version":1}`, `{"version":2}`, `{"version":1,"phase":"settled","enabled":{"algorithm":"bbr"},"records":[{"kind":"qdisc","name":"a/b"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseState(data)
		if err != nil {
			if !errors.Is(err, ErrDamagedState) && !errors.Is(err, ErrNewerState) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		twin, err := parseState(again)
		if err != nil {
			t.Fatalf("what was written is refused: %v", err)
		}
		if d := cmp.Diff(s, twin); d != "" {
			t.Error(d)
		}
		persisted(s) // and it can be made into files
	})
}
