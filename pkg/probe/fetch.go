package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"accel/pkg/socket"
	"accel/pkg/text"
)

// FetchSchema names the layout of Fetched.
const FetchSchema = "accel.probe-to/1"

const (
	// maxRedirects is how often a server may send us elsewhere, as browsers and
	// Go's own client have it.
	maxRedirects = 10
	// maxHeader is the longest head of an answer, in bytes.
	maxHeader = 64 << 10
	// maxShown is the longest address of a page that is shown or kept, in bytes.
	maxShown = 200
	// closeTime is how long the last look at the connection may take to arrive
	// once the answer has been read.
	closeTime = time.Second
)

// Errors of Fetch besides those of package net, crypto/tls and the context.
var (
	// ErrURL: not an address that can be downloaded from.
	ErrURL = errors.New("not a URL to download from")
	// ErrStatus: the server answered, but not with the file.
	ErrStatus = errors.New("the server refused")
	// ErrRedirect: the server sent us elsewhere too often, or to something that
	// is neither http nor https.
	ErrRedirect = errors.New("a redirection that leads nowhere")
	// ErrEmpty: the answer has not one byte.
	ErrEmpty = errors.New("the answer is empty")
	// ErrBroken: the connection ended before the answer did.
	ErrBroken = errors.New("the connection broke")
)

// said is an error whose sentence is for people; it is matched by its kind.
type said struct {
	kind     error
	sentence string
}

func (e *said) Error() string { return e.sentence }
func (e *said) Unwrap() error { return e.kind }

// ParseURL understands the address of a file to download. Errors satisfy
// errors.Is with ErrURL.
func ParseURL(s string) (*url.URL, error) {
	bad := func(sentence string) (*url.URL, error) { return nil, &said{ErrURL, sentence} }
	u, err := url.Parse(s)
	if err != nil {
		if e := (*url.Error)(nil); errors.As(err, &e) {
			err = e.Err
		}
		return bad(text.T("%q is no URL: %s", s, err))
	}
	if !strings.Contains(s, "://") {
		return bad(text.T("%q is no URL: it does not begin with http:// or https://", s))
	}
	if !downloads(u) {
		return bad(text.T("%q is neither http nor https, and accel speaks nothing else", u.Scheme))
	}
	if u.Hostname() == "" {
		return bad(text.T("%q names no host", s))
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return bad(text.T("%q is no port", port))
		}
	}
	return u, nil
}

func downloads(u *url.URL) bool { return u.Scheme == "http" || u.Scheme == "https" }

// Shown is a URL as it may be printed and kept: without a password and without
// the query, which may hold one, and not longer than 200 bytes.
func Shown(u *url.URL) string {
	c := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	s := c.String()
	if u.RawQuery != "" {
		s += "?..."
	}
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown-3], "") + "..."
	}
	return s
}

// FetchOptions of a download from elsewhere.
type FetchOptions struct {
	Size int64 // bytes at which it stops, if the answer is longer; 0 = DefaultSize
	// Progress is called about ten times a second and at the end, with the bytes
	// that arrived, from the goroutine that called Fetch. total is -1 where the
	// server does not say it. nil = never.
	Progress func(done, total int64)

	roots *x509.CertPool // for tests; nil = the host's
}

// Fetched is the account of a download from elsewhere, by the end that received
// it. Pointers are nil where nothing is known. Rates are in bits per second.
// Times of the phases are of the last request, after any redirection. What
// algorithm the sender has cannot be seen from here, and is not guessed.
type Fetched struct {
	Schema    string   `json:"schema"`    // "accel.probe-to/1"
	URL       string   `json:"url"`       // as Shown
	Redirects []string `json:"redirects"` // where the server sent us, in order
	Family    string   `json:"family"`    // "inet" or "inet6"
	Address   string   `json:"address"`   // of the other end, with the port
	TLS       string   `json:"tls"`       // "TLS 1.3"; "" = http
	Size      int64    `json:"size"`      // bytes at which it was to stop
	Length    *int64   `json:"length"`    // bytes of the whole answer, as the server says
	Bytes     int64    `json:"bytes"`     // that arrived, without the head
	// Complete: the whole answer arrived, or Size bytes of it. False: the time
	// was up first.
	Complete   bool    `json:"complete"`
	Seconds    float64 `json:"seconds"`    // from the beginning of the request, name and connection included, to the last byte
	Throughput uint64  `json:"throughput"` // bit/s: Bytes by Seconds
	// BodyRate is the rate after the first bytes of the answer: without name,
	// connection, TLS and the wait for the server. Nil if it all came at once.
	BodyRate  *uint64     `json:"body_rate"`
	Lookup    *float64    `json:"lookup_seconds"`  // of the name; nil: the URL has an address
	Connect   *float64    `json:"connect_seconds"` // the TCP handshake
	Handshake *float64    `json:"tls_seconds"`     // nil: http
	FirstByte float64     `json:"first_byte_seconds"`
	Receiver  Receiver    `json:"receiver"`
	Samples   []Reception `json:"samples"` // at most 64, evenly over the time
}

// Receiver is the kernel's account of the receiving socket at the end.
type Receiver struct {
	MinRTT *int64 `json:"min_rtt_us"` // microseconds, of what this end sent: handshake and request; Linux 4.6
	RTT    *int64 `json:"rtt_us"`     // microseconds, smoothed, of the same
	// DataRTT is the kernel's estimate from the data that arrived, queues on the
	// way included, in microseconds. It is no shorter than the true one, and
	// longer where the sender had nothing to send.
	DataRTT    *int64 `json:"data_rtt_us"`
	MSS        int    `json:"mss"`          // bytes
	Segments   *int   `json:"segments"`     // with data; Linux 4.6
	OutOfOrder *int   `json:"out_of_order"` // segments that came before others sent earlier; Linux 5.4
}

// Reception is what had arrived by one moment.
type Reception struct {
	Seconds    float64 `json:"seconds"` // since the beginning of the request
	Bytes      int64   `json:"bytes"`
	DataRTT    *int64  `json:"data_rtt_us"`
	OutOfOrder *int    `json:"out_of_order"`
}

// Fetch downloads from a URL that ParseURL understood, and measures what
// arrives. It speaks HTTP/1.1, whose body is nothing but the bytes of the TCP
// connection (HTTP/2 has windows of its own), asks for no compression and uses
// no proxy. A deadline of the context that comes after the first bytes is no
// failure; Complete is false then. A cancelled context is an error.
//
// Errors: ErrStatus, ErrRedirect, ErrEmpty, ErrBroken, ErrNothingArrived,
// context.Canceled, and those of net and crypto/tls.
func Fetch(ctx context.Context, u *url.URL, o FetchOptions) (Fetched, error) {
	if o.Size <= 0 {
		o.Size = DefaultSize
	}
	f := fetcher{}
	transport := &http.Transport{
		DialContext:            f.dial,
		TLSClientConfig:        &tls.Config{RootCAs: o.roots},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: f.redirect}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // frees the connection where the answer was not read to its end
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, f.trace()), http.MethodGet, u.String(), nil)
	if err != nil {
		return Fetched{}, &said{ErrURL, err.Error()}
	}
	request.Header.Set("User-Agent", "accel")
	request.Header.Set("Accept-Encoding", "identity")
	f.begin()
	response, err := client.Do(request)
	if err != nil {
		return Fetched{}, failed(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Fetched{}, &said{ErrStatus, text.T("the server answered %s", strconv.Itoa(response.StatusCode)+" "+http.StatusText(response.StatusCode))}
	}

	r := Fetched{Schema: FetchSchema, URL: Shown(u), Redirects: f.redirects, Size: o.Size, Samples: []Reception{}}
	if r.Redirects == nil {
		r.Redirects = []string{}
	}
	total := int64(-1)
	if n := response.ContentLength; n >= 0 {
		r.Length, total = &n, min(n, o.Size)
	}
	if response.TLS != nil {
		r.TLS = tls.VersionName(response.TLS.Version)
	}
	err = f.read(&r, response.Body, func(done int64) {
		if o.Progress != nil {
			o.Progress(done, total)
		}
	})
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return Fetched{}, fmt.Errorf("downloading: %w", context.Cause(ctx))
	case ctx.Err() != nil && r.Bytes == 0:
		return Fetched{}, fmt.Errorf("downloading: %w", ErrNothingArrived)
	case ctx.Err() == nil && err != nil && r.Length != nil:
		return Fetched{}, &said{ErrBroken, text.T("the connection broke after %d of %d bytes: %s", r.Bytes, *r.Length, plain(err))}
	case ctx.Err() == nil && err != nil:
		return Fetched{}, &said{ErrBroken, text.T("the connection broke after %d bytes: %s", r.Bytes, plain(err))}
	case r.Bytes == 0:
		return Fetched{}, ErrEmpty
	}
	// The last look at the connection is taken when it is closed; by now that
	// happens by itself, or with this.
	response.Body.Close()
	f.account(&r)
	return r, nil
}

// fetcher follows one download.
type fetcher struct {
	redirects []string

	mu    sync.Mutex // the trace comes from other goroutines
	conn  *watched
	start time.Time // of the last request
	phase struct{ lookupStart, lookup, connect, tlsStart, tls, firstByte time.Time }
	dials map[string]time.Time // begun connections
	took  time.Duration        // of the one that was made
}

// begin starts the clock of a request.
func (f *fetcher) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.start, f.dials = time.Now(), map[string]time.Time{}
	f.phase = struct{ lookupStart, lookup, connect, tlsStart, tls, firstByte time.Time }{}
}

// dial connects so that the connection can be looked at.
func (f *fetcher) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w := &watched{TCPConn: c.(*net.TCPConn), closed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn = w
	return w, nil
}

// redirect decides whether the server is followed elsewhere.
func (f *fetcher) redirect(r *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return &said{ErrRedirect, text.T("the server redirects more than %d times", maxRedirects)}
	case !downloads(r.URL):
		return &said{ErrRedirect, text.T("the server redirects to %q, which is neither http nor https", Shown(r.URL))}
	}
	r.Header.Del("Referer") // it would hold the query of the first address
	f.redirects = append(f.redirects, Shown(r.URL))
	f.begin()
	return nil
}

func (f *fetcher) trace() *httptrace.ClientTrace {
	at := func(t *time.Time) {
		f.mu.Lock()
		defer f.mu.Unlock()
		*t = time.Now()
	}
	return &httptrace.ClientTrace{
		DNSStart: func(httptrace.DNSStartInfo) { at(&f.phase.lookupStart) },
		DNSDone:  func(httptrace.DNSDoneInfo) { at(&f.phase.lookup) },
		ConnectStart: func(_, address string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.dials[address] = time.Now()
		},
		ConnectDone: func(_, address string, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if err == nil && f.phase.connect.IsZero() {
				f.phase.connect = time.Now()
				f.took = f.phase.connect.Sub(f.dials[address])
			}
		},
		TLSHandshakeStart:    func() { at(&f.phase.tlsStart) },
		TLSHandshakeDone:     func(tls.ConnectionState, error) { at(&f.phase.tls) },
		GotFirstResponseByte: func() { at(&f.phase.firstByte) },
	}
}

// read takes the body, Size bytes of it at most.
func (f *fetcher) read(r *Fetched, body io.Reader, progress func(done int64)) error {
	f.mu.Lock()
	conn, start := f.conn, f.start
	f.mu.Unlock()
	var samples series[Reception]
	buf := make([]byte, bufferSize)
	var first, last, told time.Time
	var firstBytes int64
	var failure error
	for !r.Complete && failure == nil {
		n, err := body.Read(buf[:min(int64(len(buf)), r.Size-r.Bytes)])
		r.Bytes += int64(n)
		if n > 0 {
			last = time.Now()
			if first.IsZero() {
				first, firstBytes = last, r.Bytes
			}
			if samples.due(last) {
				s := Reception{Seconds: last.Sub(start).Seconds(), Bytes: r.Bytes}
				if info, err := socket.TCPInfo(conn.TCPConn); err == nil {
					s.DataRTT, s.OutOfOrder = dataRTT(info), outOfOrder(info)
				}
				samples.add(last, s)
			}
			if last.Sub(told) >= 100*time.Millisecond {
				told = last
				progress(r.Bytes)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			r.Complete = true
		case r.Bytes == r.Size:
			r.Complete = true
		default:
			failure = err
		}
	}
	progress(r.Bytes)
	r.Samples = append(r.Samples, samples.values...)
	if r.Bytes > 0 {
		r.Seconds = last.Sub(start).Seconds()
		r.Throughput = uint64(float64(r.Bytes) * 8 / max(r.Seconds, 1e-9))
		if rest := last.Sub(first).Seconds(); rest > 0 && r.Bytes > firstBytes {
			rate := uint64(float64(r.Bytes-firstBytes) * 8 / rest)
			r.BodyRate = &rate
		}
	}
	return failure
}

// account tells what the connection was like.
func (f *fetcher) account(r *Fetched) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if remote, ok := f.conn.RemoteAddr().(*net.TCPAddr); ok {
		r.Address, r.Family = remote.String(), "inet6"
		if remote.IP.To4() != nil {
			r.Family = "inet"
		}
	}
	between := func(from, to time.Time) *float64 {
		if from.IsZero() || to.IsZero() {
			return nil
		}
		s := to.Sub(from).Seconds()
		return &s
	}
	p := f.phase
	r.Lookup, r.Handshake = between(p.lookupStart, p.lookup), between(p.tlsStart, p.tls)
	if !p.connect.IsZero() {
		took := f.took.Seconds()
		r.Connect = &took
	}
	r.FirstByte = max(p.firstByte.Sub(f.start).Seconds(), 0)
	select {
	case <-f.conn.closed:
	case <-time.After(closeTime):
		return
	}
	i := f.conn.info
	if i == nil {
		return
	}
	r.Receiver = Receiver{MSS: i.ReceiveMSS, DataRTT: dataRTT(*i), OutOfOrder: outOfOrder(*i)}
	if i.RTT > 0 {
		us := i.RTT.Microseconds()
		r.Receiver.RTT = &us
	}
	if i.Knows(socket.FieldMinRTT) {
		r.Receiver.Segments = &i.DataSegsIn
		if i.MinRTT > 0 {
			us := i.MinRTT.Microseconds()
			r.Receiver.MinRTT = &us
		}
	}
}

func dataRTT(i socket.Info) *int64 {
	if i.ReceiveRTT == 0 {
		return nil
	}
	us := i.ReceiveRTT.Microseconds()
	return &us
}

func outOfOrder(i socket.Info) *int {
	if !i.Knows(socket.FieldSendWindow) {
		return nil
	}
	return &i.OutOfOrder
}

// watched is a connection whose state is read before it is closed.
type watched struct {
	*net.TCPConn
	once   sync.Once
	info   *socket.Info // valid once closed is
	closed chan struct{}
}

// Close implements net.Conn.
func (w *watched) Close() error {
	w.once.Do(func() {
		if info, err := socket.TCPInfo(w.TCPConn); err == nil {
			w.info = &info
		}
		close(w.closed)
	})
	return w.TCPConn.Close()
}

// failed is the error of a request that was not answered.
func failed(ctx context.Context, err error) error {
	if s := (*said)(nil); errors.As(err, &s) {
		return s
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("downloading: %w", context.Cause(ctx))
	case ctx.Err() != nil:
		return fmt.Errorf("downloading: %w", ErrNothingArrived)
	}
	return fmt.Errorf("downloading: %w", plain(err))
}

// plain takes off what net/http puts around an error: the method and the whole
// URL, with its query.
func plain(err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
