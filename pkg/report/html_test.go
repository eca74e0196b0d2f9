package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"

	"accel/pkg/lab"
	"accel/pkg/text"
)

func htmlOf(t *testing.T, run *lab.Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, run); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestHTMLGolden(t *testing.T) {
	for name, make := range runs {
		if name == "matrix" || name == "hostile" { // large, or nothing to look at
			continue
		}
		page := htmlOf(t, make())
		style, err := pageFiles.ReadFile("page.css")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name+".html", []byte(strings.Replace(page, string(style), "/* page.css */", 1)))
	}
}

// noNumber finds what a division by zero leaves in a picture.
var noNumber = regexp.MustCompile(`\b(NaN|Inf|Infinity|[+-]Inf)\b|ZgotmplZ|%!`)

// outside finds whatever would make a browser ask somebody else. Text may name
// an address; an attribute may not.
var outside = regexp.MustCompile(`(?i)\b(src|href|srcset|action|data|xlink:href|poster)\s*=\s*"([^"]*)"|url\(|@import|<script|<iframe|<object|<embed|<img|\bon[a-z]+\s*=\s*["']`)

func TestHTMLIsSelfContained(t *testing.T) {
	for name, make := range runs {
		got := htmlOf(t, make())
		if s := noNumber.FindString(got); s != "" {
			t.Errorf("%s: %q in the page", name, s)
		}
		for _, m := range outside.FindAllStringSubmatch(got, -1) {
			if m[0] != `href="data:,"` {
				t.Errorf("%s: %q in the page", name, m[0])
			}
		}
		if !strings.Contains(got, `http-equiv="Content-Security-Policy" content="default-src 'none'`) {
			t.Errorf("%s: no content security policy", name)
		}
	}
}

// TestHTMLEscapes reads the pages with a strict parser: a name that broke out of
// its place would leave tags that do not match.
func TestHTMLEscapes(t *testing.T) {
	void := regexp.MustCompile(`<(meta|link)\b[^>]*[^/]>`)
	for name, make := range runs {
		got := htmlOf(t, make())
		body := strings.TrimPrefix(got, "<!DOCTYPE html>")
		body = void.ReplaceAllString(body, "")
		elements := map[string]int{}
		d := xml.NewDecoder(strings.NewReader(body))
		d.Entity = xml.HTMLEntity
		for {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
			if e, ok := tok.(xml.StartElement); ok {
				elements[e.Name.Local]++
			}
		}
		if elements["script"] > 0 || elements["html"] != 1 || elements["style"] != 1 {
			t.Errorf("%s: elements %v", name, elements)
		}
		if strings.ContainsAny(got, "\x1b\x00\u202e") {
			t.Errorf("%s: control characters in the page", name)
		}
	}
}

// TestHTMLInsideItsPictures makes sure that nothing is drawn outside of a
// picture, where a phone would cut it off.
func TestHTMLInsideItsPictures(t *testing.T) {
	for name, make := range runs {
		run := make()
		p := newPage(run, Judge(run))
		for _, figures := range [][]figure{p.First, p.Transfers, p.Times} {
			for _, f := range figures {
				for _, d := range []*drawing{f.Wide, f.Narrow} {
					for _, i := range d.Items {
						if i.D != "" {
							for _, n := range regexp.MustCompile(`[ML]([-0-9.]+) ([-0-9.]+)`).FindAllStringSubmatch(i.D, -1) {
								x, y := number(t, n[1]), number(t, n[2])
								if x < -8 || x > float64(d.Width)+8 || y < -8 || y > float64(d.Height)+8 {
									t.Errorf("%s: %s: a path at %g, %g in a picture of %d x %d", name, f.Title, x, y, d.Width, d.Height)
								}
							}
							continue
						}
						x := number(t, i.X)
						w := labelWidth(i.Text)
						low, high := x, x+w
						switch {
						case strings.Contains(i.Class, "ta-e"):
							low, high = x-w, x
						case strings.Contains(i.Class, "ta-m"):
							low, high = x-w/2, x+w/2
						}
						if low < -12 || high > float64(d.Width)+12 {
							t.Errorf("%s: %s: the text %q from %g to %g in a picture %d wide", name, f.Title, i.Text, low, high, d.Width)
						}
					}
				}
			}
		}
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	f := 0.0
	if _, err := fmt.Sscan(s, &f); err != nil || math.IsNaN(f) {
		t.Fatalf("%q is no number", s)
	}
	return f
}

// TestArmsDiffer makes sure that the marks, colours and dashes of as many arms as
// the issue asks for are all different.
func TestArmsDiffer(t *testing.T) {
	seen := map[string]int{}
	for a := range 11 {
		for _, key := range []string{markPath(a, 0, 0, 5), series(a) + dash(a)} {
			if b, ok := seen[key]; ok {
				t.Errorf("arms %d and %d look alike", a, b)
			}
			seen[key] = a
		}
	}
}

func TestChinese(t *testing.T) {
	text.SetLanguage("zh")
	defer text.SetLanguage("")
	for _, name := range []string{"small", "sweep", "alike"} {
		var b bytes.Buffer
		if err := Text(&b, runs[name](), 80); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".zh.txt", b.Bytes())
		got := htmlOf(t, runs[name]())
		if !strings.Contains(got, `<html lang="zh-Hans">`) {
			t.Errorf("%s: the page does not say that it is Chinese", name)
		}
	}
}
