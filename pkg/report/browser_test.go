package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser gives the name of a Chromium, which only the long tests need.
func browser(t *testing.T) string {
	t.Helper()
	if os.Getenv("ACCEL_LONG") == "" {
		t.Skip("opens pages in a browser; ACCEL_LONG=1 asks for it")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("no chromium here")
	}
	t.Skip("no chromium here")
	return ""
}

// looks is what the measuring page finds in a report at one width.
type looks struct {
	Width, Scroll int
	Cut           []string // texts that reach beyond the edge
	Tiny          []string // texts of less than 10 pixels
	Overlap       []string // texts of a picture that cover each other
	Plots         int
}

// measure is a page that opens a report in frames of several widths. The report
// itself may run no script.
const measure = `<!DOCTYPE html><meta charset="utf-8"><link rel="icon" href="data:,"><body><script>
const out = [];
const open = w => new Promise(done => {
  const f = document.createElement('iframe');
  f.width = w; f.height = 800; f.style.border = 0; f.src = '/report';
  f.onload = () => {
    const d = f.contentDocument, r = {Width: w, Scroll: d.documentElement.scrollWidth, Cut: [], Tiny: [], Overlap: [], Plots: 0};
    d.querySelectorAll('details').forEach(e => e.open = true);
    d.querySelectorAll('svg.plot').forEach(svg => {
      if (!svg.getBoundingClientRect().width) return;
      r.Plots++;
      const boxes = [];
      svg.querySelectorAll('text').forEach(t => {
        const b = t.getBoundingClientRect();
        if (b.left < -1 || b.right > w + 1) r.Cut.push(t.textContent);
        if (b.height < 10) r.Tiny.push(t.textContent);
        for (const [o, s] of boxes)
          if (b.left < o.right - 1 && o.left < b.right - 1 && b.top < o.bottom - 4 && o.top < b.bottom - 4) r.Overlap.push(s + ' / ' + t.textContent);
        boxes.push([b, t.textContent]);
      });
    });
    out.push(r); f.remove(); done();
  };
  document.body.append(f);
});
(async () => {
  for (const w of [320, 390, 600, 768, 1200]) await open(w);
  const p = document.createElement('pre');
  p.id = 'out'; p.textContent = JSON.stringify(out);
  document.body.append(p);
})();
</script>`

// TestBrowser opens the pages in Chromium at the widths of phones and desks, in
// light and dark: no complaint on its console, no request but for the page, no
// scrolling sideways, and no text that is cut off, tiny or under another one.
func TestBrowser(t *testing.T) {
	chromium := browser(t)
	for name, make := range runs {
		for _, dark := range []bool{false, true} {
			if dark && name != "small" {
				continue
			}
			page := htmlOf(t, make())
			var mu sync.Mutex
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				asked = append(asked, r.URL.Path)
				mu.Unlock()
				w.Header().Set("Content-Type", "text/html; charset=utf-8")
				switch r.URL.Path {
				case "/":
					fmt.Fprint(w, measure)
				case "/report":
					fmt.Fprint(w, page)
				default:
					http.NotFound(w, r)
				}
			}))
			found, console := visit(t, chromium, server.URL, dark)
			server.Close()
			if console != "" {
				t.Errorf("%s: the console says\n%s", name, console)
			}
			slices.Sort(asked)
			if got := slices.Compact(asked); !slices.Equal(got, []string{"/", "/report"}) {
				t.Errorf("%s: asked for %q", name, got)
			}
			if len(found) != 5 {
				t.Errorf("%s: measured at %d widths", name, len(found))
			}
			for _, l := range found {
				if l.Scroll > l.Width {
					t.Errorf("%s, %d wide: scrolls sideways to %d", name, l.Width, l.Scroll)
				}
				if len(l.Cut)+len(l.Tiny)+len(l.Overlap) > 0 {
					t.Errorf("%s, %d wide: cut off %q, tiny %q, covering each other %q", name, l.Width, l.Cut, l.Tiny, l.Overlap)
				}
				if l.Plots == 0 && name != "empty" {
					t.Errorf("%s, %d wide: no plots", name, l.Width)
				}
			}
		}
	}
}

func visit(t *testing.T, chromium, address string, dark bool) (found []looks, console string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	scheme := "--blink-settings=preferredColorScheme=1"
	if dark {
		scheme = "--blink-settings=preferredColorScheme=0"
	}
	// Whatever name something asks for is nobody's.
	cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(), "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"--enable-logging=stderr", "--virtual-time-budget=20000", scheme, "--dump-dom", address)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("chromium: %v\n%s", err, stderr.String())
	}
	for _, l := range strings.Split(stderr.String(), "\n") {
		if strings.Contains(l, "CONSOLE") {
			console += l + "\n"
		}
	}
	_, rest, ok := strings.Cut(string(out), `<pre id="out">`)
	data, _, closed := strings.Cut(rest, "</pre>")
	if !ok || !closed {
		t.Fatalf("the measuring page did not finish:\n%.2000s\n%s", out, stderr.String())
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(data)), &found); err != nil {
		t.Fatal(err)
	}
	return found, console
}
