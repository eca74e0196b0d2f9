package report

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Every document that is written satisfies its schema: of whatever run, and of
// one that was read back from a file.
func TestDocumentsSatisfyTheSchema(t *testing.T) {
	const name = "accel.compare.1.json"
	data, err := os.ReadFile("../../docs/schema/" + name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	written := func(saved *Saved) []byte {
		out, err := json.Marshal(struct {
			*Saved
			Exit int `json:"exit"`
		}{Saved: saved})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for name, make := range runs {
		if name == "hostile" {
			continue // its keys are none, which cannot be written at all
		}
		out := written(Document(make()))
		run, err := Load(bytes.NewReader(out))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for what, data := range map[string][]byte{"measured": out, "read back": written(Document(run))} {
			doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(doc); err != nil {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
	// What somebody else saved, with as little in it as is accepted.
	run, err := Load(bytes.NewReader([]byte(`{"schema":"accel.compare/1","started":"2026-11-30T00:00:00Z","ended":"2026-11-30T00:00:00Z","plan":{"arms":[{"name":"a"},{"name":"b"}],"paths":[{}],"sizes":[9],"flows":1,"rounds":1,"limit_seconds":6},"transfers":null}`)))
	if err != nil {
		t.Fatal(err)
	}
	if doc, err = jsonschema.UnmarshalJSON(bytes.NewReader(written(Document(run)))); err == nil {
		err = schema.Validate(doc)
	}
	if err != nil {
		t.Error(err)
	}
}
