package report

import (
	"bytes"
	"testing"
)

func TestHTMLGolden(t *testing.T) {
	for name, make := range runs {
		var b bytes.Buffer
		if err := HTML(&b, make()); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".html", b.Bytes())
	}
}
