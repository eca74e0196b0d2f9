package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// site is a server with what the tests need.
func site(t *testing.T, size int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		if r.Proto != "HTTP/1.1" || r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("Referer") != "" {
			t.Errorf("asked with %s %v", r.Proto, r.Header)
		}
		w.Header().Set("Content-Length", strconv.Itoa(size))
		w.Write(make([]byte, size))
	})
	mux.HandleFunc("/chunked", func(w http.ResponseWriter, _ *http.Request) {
		for range 10 {
			w.Write(make([]byte, size/10))
			http.NewResponseController(w).Flush()
		}
	})
	mux.HandleFunc("/empty", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000000")
		for {
			if _, err := w.Write(make([]byte, 1000)); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	mux.HandleFunc("/silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000000")
		w.Write(make([]byte, 5000))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/file?secret=1", http.StatusFound) })
	mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	mux.HandleFunc("/local", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "file:///etc/passwd")
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/locked", func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		io.WriteString(w, "welcome")
	})
	return mux
}

func parsed(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := ParseURL(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestFetch(t *testing.T) {
	const size = 6<<20 + 13
	s := httptest.NewServer(site(t, size))
	defer s.Close()
	var last, total int64
	f, err := Fetch(t.Context(), parsed(t, s.URL+"/file?key=1"), FetchOptions{Progress: func(done, of int64) {
		if done < last {
			t.Errorf("progress goes back from %d to %d", last, done)
		}
		last, total = done, of
	}})
	if err != nil {
		t.Fatal(err)
	}
	if last != size || total != size {
		t.Errorf("progress ended at %d of %d", last, total)
	}
	if f.Bytes != size || f.Length == nil || *f.Length != size || !f.Complete || f.Size != DefaultSize || f.URL != s.URL+"/file?..." || len(f.Redirects) != 0 {
		t.Errorf("%+v", f)
	}
	if ratio := float64(f.Throughput) * f.Seconds / 8 / size; ratio < 0.99 || ratio > 1.01 {
		t.Errorf("%d bit/s in %v s is not %d bytes", f.Throughput, f.Seconds, size)
	}
	if f.Family != "inet" || "http://"+f.Address != s.URL || f.TLS != "" || f.Handshake != nil || f.Lookup != nil {
		t.Errorf("%+v", f)
	}
	if f.Connect == nil || *f.Connect <= 0 || f.FirstByte < *f.Connect || f.FirstByte > f.Seconds || f.BodyRate == nil || *f.BodyRate < f.Throughput {
		t.Errorf("the phases do not fit: %+v", f)
	}
	if r := f.Receiver; r.MinRTT == nil || *r.MinRTT < 1 || r.RTT == nil || r.MSS < 500 || r.Segments == nil || *r.Segments < size/(1<<20) || r.OutOfOrder == nil {
		t.Errorf("%+v", r)
	}
	if n := len(f.Samples); n < 2 || n > maxSamples {
		t.Errorf("%d samples", n)
	}
	for i := 1; i < len(f.Samples); i++ {
		if f.Samples[i].Bytes <= f.Samples[i-1].Bytes || f.Samples[i].Seconds < f.Samples[i-1].Seconds {
			t.Errorf("sample %d: %+v", i, f.Samples[i-1:i+1])
		}
	}
}

func TestFetchStopsAtTheSize(t *testing.T) {
	s := httptest.NewServer(site(t, 3<<20))
	defer s.Close()
	for path, length := range map[string]bool{"/file": true, "/chunked": false} {
		f, err := Fetch(t.Context(), parsed(t, s.URL+path), FetchOptions{Size: 100_000})
		if err != nil || f.Bytes != 100_000 || !f.Complete || (f.Length != nil) != length {
			t.Errorf("%s: %+v, %v", path, f, err)
		}
	}
	f, err := Fetch(t.Context(), parsed(t, s.URL+"/chunked"), FetchOptions{})
	if err != nil || f.Bytes != 3<<20/10*10 || !f.Complete || f.Length != nil {
		t.Errorf("to the end: %+v, %v", f, err)
	}
}

func TestFetchRedirects(t *testing.T) {
	s := httptest.NewServer(site(t, 1<<20))
	defer s.Close()
	f, err := Fetch(t.Context(), parsed(t, s.URL+"/elsewhere"), FetchOptions{})
	if err != nil || f.Bytes != 1<<20 {
		t.Fatal(f, err)
	}
	if diff := cmp.Diff([]string{s.URL + "/file?..."}, f.Redirects); diff != "" {
		t.Error(diff)
	}
	for path, want := range map[string]string{"/round": "more than 10 times", "/local": `"file:///etc/passwd"`} {
		if _, err := Fetch(t.Context(), parsed(t, s.URL+path), FetchOptions{}); !errors.Is(err, ErrRedirect) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestFetchTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(site(t, 1<<20))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	f, err := Fetch(t.Context(), parsed(t, s.URL+"/file"), FetchOptions{roots: pool})
	if err != nil || f.TLS != "TLS 1.3" || f.Handshake == nil || *f.Handshake <= 0 || f.Receiver.Segments == nil {
		t.Errorf("%+v, %v", f, err)
	}
	var certificate *tls.CertificateVerificationError
	if _, err := Fetch(t.Context(), parsed(t, s.URL+"/file"), FetchOptions{}); !errors.As(err, &certificate) {
		t.Errorf("a certificate that nobody vouches for: %v", err)
	}
	plainServer := httptest.NewServer(site(t, 1))
	defer plainServer.Close()
	if _, err := Fetch(t.Context(), parsed(t, strings.Replace(plainServer.URL, "http:", "https:", 1)), FetchOptions{}); !errors.Is(err, http.ErrSchemeMismatch) {
		t.Errorf("TLS to a server without: %v", err)
	}
}

func TestFetchIPv6(t *testing.T) {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 loopback here:", err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: site(t, 1<<20)}}
	s.Start()
	defer s.Close()
	f, err := Fetch(t.Context(), parsed(t, s.URL+"/file"), FetchOptions{})
	if err != nil || f.Family != "inet6" || !strings.HasPrefix(f.Address, "[::1]:") {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestFetchErrors(t *testing.T) {
	s := httptest.NewServer(site(t, 1<<20))
	defer s.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, test := range []struct {
		url  string
		want error
		says string
	}{
		{s.URL + "/nothing", ErrStatus, "404 Not Found"},
		{s.URL + "/locked", ErrStatus, "401"},
		{s.URL + "/empty", ErrEmpty, "empty"},
		{s.URL + "/cut", ErrBroken, "after 5000 of 1000000 bytes"},
		{"http://" + closed.Addr().String() + "/?key=secret", syscall.ECONNREFUSED, "refused"},
	} {
		_, err := Fetch(t.Context(), parsed(t, test.url), FetchOptions{})
		if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", test.url, err)
		}
	}
	f, err := Fetch(t.Context(), parsed(t, strings.Replace(s.URL, "://", "://me:secret@", 1)+"/locked"), FetchOptions{})
	if err != nil || f.Bytes != 7 || strings.Contains(f.URL, "me") {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestFetchTime(t *testing.T) {
	s := httptest.NewServer(site(t, 1))
	defer s.Close()
	before := leftovers(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	f, err := Fetch(ctx, parsed(t, s.URL+"/slow"), FetchOptions{})
	if err != nil || f.Complete || f.Bytes == 0 || f.Bytes >= 1000000 || f.Receiver.Segments == nil {
		t.Errorf("%+v, %v", f, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Fetch(ctx, parsed(t, s.URL+"/silent"), FetchOptions{}); !errors.Is(err, ErrNothingArrived) {
		t.Errorf("a server that says nothing: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	_, err = Fetch(ctx, parsed(t, s.URL+"/slow"), FetchOptions{Progress: func(int64, int64) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	noneLeft(t, before)
}

func TestParseURL(t *testing.T) {
	for _, in := range []string{"http://example.org", "https://example.org:8443/a/b?c=d", "HTTP://[2001:db8::1]:80/x", "http://[fe80::1%25eth0]/", "http://me:pw@h/"} {
		if _, err := ParseURL(in); err != nil {
			t.Errorf("%q: %v", in, err)
		}
	}
	for _, in := range []string{"", "example.org", "example.org:80/x", "/etc/passwd", "ftp://h/f", "file:///etc/passwd", "javascript://x", "http://", "http:///x", "http://h:0/", "http://h:65536/", "http://h:x/", "http://[::1/", "http://a b/", "http://h/\x00", "http:opaque"} {
		if u, err := ParseURL(in); !errors.Is(err, ErrURL) {
			t.Errorf("%q: %v, %v", in, u, err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("https://me:secret@example.org:1/a?b=secret#c")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			if !errors.Is(err, ErrURL) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		shown := Shown(u)
		if len(shown) > maxShown {
			t.Errorf("%q is shown with %d bytes", s, len(shown))
		}
		if again, err := url.Parse(shown); len(shown) < maxShown && (err != nil || again.User != nil) {
			t.Errorf("%q is shown as %q: %v", s, shown, err)
		}
	})
}

func TestShown(t *testing.T) {
	for in, want := range map[string]string{
		"http://me:pw@h/f?k=v#x":                  "http://h/f?...",
		"https://h":                               "https://h",
		"http://h/a%2Fb":                          "http://h/a%2Fb",
		"http://h/" + strings.Repeat("x", 300):    "http://h/" + strings.Repeat("x", 188) + "...",
		"http://h/\u00e4":                         "http://h/%C3%A4",
		fmt.Sprintf("http://h/%s", "a?b=c&d=%00"): "http://h/a?...",
	} {
		if got := Shown(parsed(t, in)); got != want {
			t.Errorf("%q is shown as %q", in, got)
		}
	}
}
