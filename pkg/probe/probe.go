// Package probe downloads over a real socket and gives the kernel's own account
// of the sending end. Server and client are both inside accel and talk over
// loopback, so that no other host is needed. It proves that the machinery works:
// that connections have the algorithm, that the kernel paces and delivers. It
// is no benchmark: over loopback there is neither delay nor loss, so no
// algorithm can gain anything there, and BBR is often slower than CUBIC.
package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"accel/pkg/socket"
)

// DefaultSize is how much Run downloads where Options name nothing, in bytes.
const DefaultSize = 256 << 20

// Schema names the layout of Result.
const Schema = "accel.probe/1"

const (
	// bufferSize is one write of the server and one read of the client. Both
	// are reused, so this and the kernel's socket buffers are all the memory
	// that a download of any size takes.
	bufferSize = 128 << 10
	// drainTime is how long the sender's account may wait for the receiver to
	// acknowledge the last bytes; the kernel delays an acknowledgement by at
	// most 200 ms (TCP_DELACK_MAX of net/tcp.h).
	drainTime = time.Second
	// grace is what both ends get to stop by themselves once the context has
	// ended, before the connection is cut. They do so after the next write,
	// which on a host that is busy with other things can take a while.
	grace = 2 * time.Second
)

// Options of a download.
type Options struct {
	Size      int64  // bytes; 0 = DefaultSize
	Algorithm string // of the sending socket; "" = what the host gives it
	// Progress is called about ten times a second and at the end, with the
	// bytes that arrived, from the goroutine that called Run. nil = never.
	Progress func(done, total int64)
}

// Result is the account of a download. Pointers are nil where the kernel does
// not say. Rates are in bits per second.
type Result struct {
	Schema     string   `json:"schema"` // "accel.probe/1"
	Size       int64    `json:"size"`   // bytes asked for
	Bytes      int64    `json:"bytes"`  // bytes that arrived
	Complete   bool     `json:"complete"`
	Seconds    float64  `json:"seconds"`    // from the request to the last byte
	Throughput uint64   `json:"throughput"` // bit/s as the receiver saw it
	Family     string   `json:"family"`     // "inet" or "inet6"
	Algorithm  string   `json:"algorithm"`  // read from the sending socket at the end
	BBRVersion *int     `json:"bbr_version"`
	Sender     Sender   `json:"sender"`
	Samples    []Sample `json:"samples"` // of the sending socket, at most 64, evenly over the time
}

// Sender is the kernel's account of the sending socket at the end.
type Sender struct {
	Retransmits   int     `json:"retransmits"`     // segments
	BytesRetrans  *uint64 `json:"bytes_retrans"`   // Linux 4.19
	SegmentsOut   *int    `json:"segments_out"`    // with data, retransmissions included; Linux 4.6
	MinRTT        *int64  `json:"min_rtt_us"`      // microseconds; Linux 4.6
	RTT           int64   `json:"rtt_us"`          // microseconds, smoothed, median of the samples
	MaxRTT        int64   `json:"max_rtt_us"`      // microseconds, the largest smoothed one of the samples
	Cwnd          int     `json:"cwnd"`            // segments
	MaxCwnd       int     `json:"max_cwnd"`        // segments, of the samples
	MSS           int     `json:"mss"`             // bytes
	PacingRate    *uint64 `json:"pacing_rate"`     // bit/s; nil: not paced, or not known
	DeliveryRate  *uint64 `json:"delivery_rate"`   // bit/s, the kernel's latest; Linux 4.9
	RwndLimited   *int64  `json:"rwnd_limited_us"` // microseconds held back by the receiver; Linux 4.10
	SndbufLimited *int64  `json:"sndbuf_limited_us"`
}

// Sample is the state of the sending socket at one moment.
type Sample struct {
	Seconds      float64 `json:"seconds"` // since the request
	BytesAcked   *uint64 `json:"bytes_acked"`
	RTT          int64   `json:"rtt_us"`
	Cwnd         int     `json:"cwnd"`
	PacingRate   *uint64 `json:"pacing_rate"`
	DeliveryRate *uint64 `json:"delivery_rate"`
	Retransmits  int     `json:"retransmits"`
}

// ErrNothingArrived is returned where the context's deadline came before the
// first byte.
var ErrNothingArrived = errors.New("not one byte arrived in time")

// Run downloads once. A deadline of the context is not a failure: Run then
// returns what was measured until that moment, with Complete false, since a
// slow host is a finding and no error. A cancelled context is an error. Nothing
// is left behind in either case, no socket in TIME_WAIT either.
//
// Errors: socket.ErrNoLoopback, socket.ErrNoAlgorithm, socket.ErrPermission,
// ErrNothingArrived, context.Canceled.
func Run(ctx context.Context, o Options) (Result, error) {
	if o.Size == 0 {
		o.Size = DefaultSize
	}
	if o.Size < 0 {
		return Result{}, fmt.Errorf("downloading %d bytes: the size is negative", o.Size)
	}
	// Which of the two loopback addresses can be used, if any?
	evidence, err := socket.SelfConnect(ctx)
	if err != nil {
		return Result{}, err
	}
	network, address := "tcp4", "127.0.0.1:0"
	if evidence.Family == "inet6" {
		network, address = "tcp6", "[::1]:0"
	}
	// Multipath TCP, Go's choice for listeners, would put a socket before the
	// one that we want to look at.
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	listener, err := lc.Listen(ctx, network, address)
	if err != nil {
		return Result{}, fmt.Errorf("opening a port for the download: %w", err)
	}
	s := &server{ctx: ctx, size: o.Size, algorithm: o.Algorithm, path: "/" + rand.Text(), report: make(chan report, 1)}
	stop := s.serve(listener)
	defer stop()

	start := time.Now()
	bytes, elapsed, clientErr := s.download(network, listener.Addr().String(), o.Progress)
	var r report
	if s.claimed.CompareAndSwap(false, true) {
		r.err = errors.New("the request did not arrive") // and from now on none will be served
	} else {
		r = <-s.report
	}

	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return Result{}, fmt.Errorf("downloading: %w", context.Cause(ctx))
	case r.setup != nil:
		return Result{}, r.setup
	case ctx.Err() != nil && (bytes == 0 || r.info == nil):
		return Result{}, fmt.Errorf("downloading: %w (%w)", ErrNothingArrived, context.Cause(ctx))
	case ctx.Err() == nil && clientErr != nil:
		return Result{}, fmt.Errorf("downloading: %w", errors.Join(clientErr, r.err))
	case r.info == nil:
		return Result{}, fmt.Errorf("downloading: %w", r.err)
	}
	result := account(r, start)
	result.Size, result.Bytes, result.Complete = o.Size, bytes, bytes == o.Size
	result.Seconds = elapsed.Seconds()
	result.Throughput = uint64(float64(bytes) * 8 / max(elapsed.Seconds(), 1e-9))
	result.Family = evidence.Family
	return result, nil
}

// server sends one download and keeps the kernel's account of it.
type server struct {
	ctx       context.Context
	size      int64
	algorithm string
	path      string // secret, so that another user of the host cannot take the download
	claimed   atomic.Bool
	report    chan report // gets exactly one value once claimed is true
}

// report is what the sending end saw.
type report struct {
	samples    series[timed]
	info       *socket.Info // at the end; nil if it could not be read
	algorithm  string
	bbrVersion int
	setup      error // before the first byte: the algorithm cannot be set
	err        error
}

type timed struct {
	at   time.Time
	info socket.Info
}

type connKey struct{}

// serve starts the server; the returned function ends it and waits.
func (s *server) serve(l net.Listener) func() {
	h := &http.Server{
		Handler:           http.HandlerFunc(s.send),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: 5 * time.Second,
		MaxHeaderBytes:    4 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // strangers' mistakes
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Serve(l) // ends with ErrServerClosed
	}()
	return func() {
		h.Close()
		<-done
	}
}

// send answers the one request that is ours.
func (s *server) send(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != s.path || !s.claimed.CompareAndSwap(false, true) {
		http.NotFound(w, r)
		return
	}
	var rep report
	defer func() { s.report <- rep }()
	conn := r.Context().Value(connKey{}).(*net.TCPConn)
	if s.algorithm != "" {
		if rep.setup = socket.SetCongestion(conn, s.algorithm); rep.setup != nil {
			http.Error(w, "", http.StatusInternalServerError)
			return
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	buf := make([]byte, bufferSize)
	rep.sample(conn) // so that there is one, however early the connection is cut
	for sent := int64(0); sent < s.size && s.ctx.Err() == nil && rep.err == nil; {
		n, err := w.Write(buf[:min(int64(len(buf)), s.size-sent)])
		sent += int64(n)
		rep.err = err
		rep.sample(conn)
	}
	if rep.err == nil {
		rep.err = http.NewResponseController(w).Flush()
	}
	if rep.err == nil && s.ctx.Err() == nil {
		s.drain(conn)
	}
	rep.finish(conn)
	if s.ctx.Err() != nil || rep.err != nil {
		// The body is cut short; the receiver must see that. The report goes
		// out first: deferred functions run while panicking, too.
		panic(http.ErrAbortHandler)
	}
}

// drain waits until the receiver has acknowledged everything. The end of the
// body is sent only afterwards, so that the connection still stands.
func (s *server) drain(conn *net.TCPConn) {
	for end := time.Now().Add(drainTime); time.Now().Before(end) && s.ctx.Err() == nil; time.Sleep(time.Millisecond) {
		info, err := socket.TCPInfo(conn)
		if err != nil || info.Unacked == 0 && info.NotSent == 0 {
			return
		}
	}
}

// sample reads the state of the connection, if it is time to.
func (r *report) sample(conn *net.TCPConn) {
	now := time.Now()
	if !r.samples.due(now) {
		return
	}
	if info, err := socket.TCPInfo(conn); err == nil && info.State == socket.Established {
		r.samples.add(now, timed{now, info})
	}
}

// finish reads the account at the end. A connection that was cut has none any
// more; then the last sample stands for it.
func (r *report) finish(conn *net.TCPConn) {
	info, err := socket.TCPInfo(conn)
	if err == nil && info.State == socket.Established {
		r.info = &info
	} else if n := len(r.samples.values); n > 0 {
		r.info = &r.samples.values[n-1].info
	}
	var algorithmErr, versionErr error
	r.algorithm, algorithmErr = socket.Congestion(conn)
	r.bbrVersion, versionErr = socket.BBRVersion(conn)
	if r.err == nil && r.info == nil {
		r.err = errors.Join(err, algorithmErr, versionErr)
	}
}

// download is the receiving end. It returns the bytes that arrived and the time
// from the request to the last of them.
func (s *server) download(network, address string, progress func(done, total int64)) (int64, time.Duration, error) {
	// The sender stops by itself when the context ends; only if it does not is
	// the connection cut.
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.ctx))
	defer cancel()
	defer context.AfterFunc(s.ctx, func() {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-ctx.Done():
		}
	})()

	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			d.SetMultipathTCP(false)
			c, err := d.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			// Close with a reset: no end stays in TIME_WAIT.
			return c, c.(*net.TCPConn).SetLinger(0)
		},
		DisableKeepAlives:  true,
		DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+s.path, nil)
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, time.Since(start), err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, time.Since(start), fmt.Errorf("the server answered %s", response.Status)
	}

	buf := make([]byte, bufferSize)
	var got int64
	last, told := start, start
	for {
		n, err := response.Body.Read(buf)
		got += int64(n)
		if n > 0 {
			last = time.Now()
			if progress != nil && last.Sub(told) >= 100*time.Millisecond {
				told = last
				progress(got, s.size)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			continue
		}
		if progress != nil {
			progress(got, s.size)
		}
		return got, last.Sub(start), err
	}
}

// account turns what the sending end saw into a Result.
func account(r report, start time.Time) Result {
	end := *r.info
	result := Result{Schema: Schema, Algorithm: r.algorithm, Samples: []Sample{}}
	if r.bbrVersion > 0 {
		result.BBRVersion = &r.bbrVersion
	}
	s := Sender{
		Retransmits:  end.Retransmits,
		Cwnd:         end.Cwnd,
		MaxCwnd:      end.Cwnd,
		MSS:          end.SendMSS,
		RTT:          end.RTT.Microseconds(),
		MaxRTT:       end.RTT.Microseconds(),
		PacingRate:   pacing(end),
		DeliveryRate: delivery(end),
	}
	if end.Knows(socket.FieldBytesSent) {
		s.BytesRetrans = &end.BytesRetrans
	}
	if end.Knows(socket.FieldMinRTT) {
		s.SegmentsOut = &end.DataSegsOut
		if end.MinRTT > 0 {
			us := end.MinRTT.Microseconds()
			s.MinRTT = &us
		}
	}
	if end.Knows(socket.FieldBusy) {
		rwnd, sndbuf := end.RwndLimited.Microseconds(), end.SndbufLimited.Microseconds()
		s.RwndLimited, s.SndbufLimited = &rwnd, &sndbuf
	}
	var rtts []int64
	for _, t := range r.samples.values {
		i := t.info
		sample := Sample{
			Seconds:      t.at.Sub(start).Seconds(),
			RTT:          i.RTT.Microseconds(),
			Cwnd:         i.Cwnd,
			PacingRate:   pacing(i),
			DeliveryRate: delivery(i),
			Retransmits:  i.Retransmits,
		}
		if i.Knows(socket.FieldBytesAcked) {
			sample.BytesAcked = &i.BytesAcked
		}
		result.Samples = append(result.Samples, sample)
		rtts = append(rtts, sample.RTT)
		s.MaxRTT = max(s.MaxRTT, sample.RTT)
		s.MaxCwnd = max(s.MaxCwnd, sample.Cwnd)
	}
	if len(rtts) > 0 {
		s.RTT = median(rtts)
	}
	result.Sender = s
	return result
}

// median of at least one value; of the two middle ones the lower.
func median(values []int64) int64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

func pacing(i socket.Info) *uint64 {
	if !i.Knows(socket.FieldPacingRate) || i.PacingRate > math.MaxUint64/8 { // all ones: no limit
		return nil
	}
	bits := i.PacingRate * 8
	return &bits
}

func delivery(i socket.Info) *uint64 {
	if !i.Knows(socket.FieldDeliveryRate) || i.DeliveryRate == 0 {
		return nil
	}
	bits := i.DeliveryRate * 8
	return &bits
}

// ErrSize is returned by ParseSize.
var ErrSize = errors.New("a size is a whole number of bytes, or one with K, M or G: 16M")

// ParseSize reads a size: a whole number, at least 1, with an optional unit K, M
// or G in powers of 1024 (also KiB, MiB, GiB). Errors satisfy errors.Is with
// ErrSize.
func ParseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "KMGkmgiBb")
	unit := strings.ToUpper(s[len(digits):])
	shift, ok := map[string]int{"": 0, "K": 10, "KIB": 10, "M": 20, "MIB": 20, "G": 30, "GIB": 30}[unit]
	n, err := strconv.ParseUint(digits, 10, 63)
	if !ok || err != nil || n == 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q: %w", s, ErrSize)
	}
	return int64(n) << shift, nil
}
