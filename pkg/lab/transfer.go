package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"accel/pkg/socket"
)

// A transfer is what a download is: the receiver connects, asks with four bytes
// (the number of the flow), and the sender sends. Times are taken on the
// monotonic clock, which all processes of a host share.

const (
	// chunk is one read of the receiver.
	chunk = 256 << 10
	// The sender is sampled this often at first, where it is awake; when there
	// are too many samples every second one is dropped and the distance doubled.
	// While it waits for the path, it is woken after so many distances, in the
	// beginning after fewer.
	sampleEvery = time.Millisecond
	maxSamples  = 128
	fewSamples  = 16 // where none is kept
	patience    = 8
	maxArrivals = 2048
	// grace is what the sender waits longer than the receiver, which decides.
	grace = 5 * time.Second
	// rivalLook is how often it is looked whether a competing flow has begun.
	rivalLook = 5 * time.Millisecond
	// loadedAfter is after how many round trips a path counts as loaded.
	loadedAfter = 10
)

// now is the monotonic clock in nanoseconds.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every Linux has this clock
	}
	return ts.Nano()
}

type listenArgs struct {
	Algorithm string
	Flows     int
	Size      int64 // bytes per flow; < 0: until the receiver has enough
	Limit     time.Duration
	Samples   bool // keep the samples of flow 0
}

type listenReply struct {
	Server int
	Port   uint16
}

// account is what the sender says of one flow.
type account struct {
	Flow                    int
	Algorithm               string
	RetransShare            float64
	SRTT, MinRTT, LoadedRTT time.Duration
	Samples                 []Sample // At is the clock in seconds
	Err                     string
}

type server struct {
	listener *net.TCPListener
	done     chan struct{}
	accounts []account
}

// listen starts a server for so many flows.
func listen(a listenArgs) (*server, uint16, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // Go's choice, which would put a socket before ours
	l, err := lc.Listen(context.Background(), "tcp4", "0.0.0.0:0")
	if err != nil {
		return nil, 0, fmt.Errorf("listening: %w", err)
	}
	s := &server{listener: l.(*net.TCPListener), done: make(chan struct{}), accounts: make([]account, a.Flows)}
	// What a listener was told, the connections that it accepts have from
	// their first packet.
	if err := socket.SetCongestion(s.listener, a.Algorithm); err != nil {
		l.Close()
		if errors.Is(err, socket.ErrNoAlgorithm) {
			return nil, 0, &Missing{What: "algorithm", Name: a.Algorithm, Module: "tcp_" + a.Algorithm}
		}
		return nil, 0, err
	}
	s.listener.SetDeadline(time.Now().Add(a.Limit + grace))
	go s.serve(a)
	return s, netip.MustParseAddrPort(l.Addr().String()).Port(), nil
}

func (s *server) serve(a listenArgs) {
	defer close(s.done)
	defer s.listener.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	for range a.Flows {
		conn, err := s.listener.AcceptTCP()
		if err != nil {
			return // the accounts stay empty: nobody came
		}
		wg.Go(func() {
			flow, acc := serveFlow(conn, a)
			if flow >= 0 && flow < len(s.accounts) {
				s.accounts[flow] = acc
			}
		})
	}
}

func serveFlow(conn *net.TCPConn, a listenArgs) (int, account) {
	defer conn.Close()
	_ = conn.SetLinger(0) // nothing that goes on sending after the transfer
	deadline := time.Now().Add(a.Limit + grace)
	_ = conn.SetDeadline(deadline)
	var request [4]byte
	if _, err := io.ReadFull(conn, request[:]); err != nil {
		return -1, account{}
	}
	flow := int(binary.BigEndian.Uint32(request[:]))
	acc := account{Flow: flow}
	var err error
	if acc.Algorithm, err = socket.Congestion(conn); err != nil {
		acc.Err = err.Error()
		return flow, acc
	}
	w := watch(conn, a.Samples && flow == 0)
	err = send(conn, a.Size, deadline, w.pass)
	if err == nil {
		// The receiver closes when it has everything, which acknowledges it too.
		_, _ = io.Copy(io.Discard, conn)
	}
	w.finish(&acc)
	return flow, acc
}

// watcher samples a sending socket.
type watcher struct {
	conn          *net.TCPConn
	stop, stopped chan struct{}
	keep          bool
	began         int64

	mu        sync.Mutex
	every     time.Duration // between samples
	previous  int64         // when the last one was taken
	n         int
	last      socket.Info
	samples   []Sample
	loaded    float64 // of RTT over time, in ns * ns
	loadedFor float64
}

func watch(conn *net.TCPConn, keep bool) *watcher {
	at := now()
	w := &watcher{conn: conn, stop: make(chan struct{}), stopped: make(chan struct{}), keep: keep, began: at, previous: at, every: sampleEvery}
	go w.run()
	return w
}

// pass is where the sender comes by, who is awake anyway.
func (w *watcher) pass() { _, _ = w.look(1) }

// look takes a sample if the last one is so many distances old, and says when to
// come again. false: the connection is gone.
func (w *watcher) look(distances int) (next time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := now()
	if wait := time.Duration(distances)*w.every - time.Duration(at-w.previous); wait > 0 && w.n > 0 {
		return wait, true
	}
	i, err := socket.TCPInfo(w.conn)
	if err != nil || !alive(i.State) {
		return 0, false
	}
	w.last = i
	if rtt := i.MinRTT; i.RTT > 0 {
		if rtt == 0 {
			rtt = i.RTT
		}
		if at-w.began > loadedAfter*int64(rtt) {
			w.loaded += float64(i.RTT) * float64(at-w.previous)
			w.loadedFor += float64(at - w.previous)
		}
	}
	w.previous = at
	if w.keep {
		w.samples = append(w.samples, sample(i, at))
	}
	most := fewSamples
	if w.keep {
		most = maxSamples
	}
	if w.n++; w.n == most {
		w.n /= 2
		w.every *= 2
		if w.keep {
			for k := range w.n {
				w.samples[k] = w.samples[2*k]
			}
			w.samples = w.samples[:w.n]
		}
	}
	return time.Duration(distances) * w.every, true
}

// run samples while the sender sleeps. To wake up for that costs more processor
// time than all else of a sample, so it has patience.
func (w *watcher) run() {
	defer close(w.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for woken := 1; ; woken++ {
		select {
		case <-w.stop:
			if i, err := socket.TCPInfo(w.conn); err == nil && alive(i.State) {
				w.last = i
			}
			return
		case <-timer.C:
		}
		next, ok := w.look(min(1<<min(woken/16, 8), patience))
		if !ok {
			<-w.stop
			return
		}
		timer.Reset(next)
	}
}

// alive: a connection that was reset has forgotten parts of its account.
func alive(s socket.State) bool {
	const closed, listening = 7, 10 // linux/tcp_states.h
	return s != closed && s != listening && s != 0
}

func sample(i socket.Info, at int64) Sample {
	s := Sample{
		At: float64(at) / 1e9, Cwnd: i.Cwnd, RTT: milliseconds(i.RTT),
		DeliveryRate: float64(i.DeliveryRate) * 8, Bytes: int64(i.BytesAcked), Retrans: i.Retransmits,
	}
	if i.PacingRate < 1<<60 { // all ones: no limit
		s.PacingRate = float64(i.PacingRate) * 8
	}
	return s
}

func (w *watcher) finish(acc *account) {
	close(w.stop)
	<-w.stopped
	i := w.last
	acc.SRTT, acc.MinRTT = i.RTT, i.MinRTT
	switch {
	case i.Knows(socket.FieldBytesSent) && i.BytesSent > 0:
		acc.RetransShare = float64(i.BytesRetrans) / float64(i.BytesSent)
	case i.DataSegsOut > 0:
		acc.RetransShare = float64(i.Retransmits) / float64(i.DataSegsOut)
	}
	if w.loadedFor > 0 {
		acc.LoadedRTT = time.Duration(w.loaded / w.loadedFor)
	}
	acc.Samples = w.samples
}

type fetchArgs struct {
	Address netip.AddrPort
	Flows   int
	Size    int64
	Limit   time.Duration
	// Rival is where a competing flow is to be had, which is to run for Head
	// before the transfer begins. Zero: none.
	Rival netip.AddrPort
	Head  time.Duration
}

// arrival is how much had arrived when.
type arrival struct {
	At    int64 // ns since the transfer began
	Bytes int64
}

// fetched is what the receiver says of one flow.
type fetched struct {
	Began    int64 // the clock in ns
	First    int64 // ns since then; 0 = nothing came
	Last     int64 // of the last byte, or of the limit
	Bytes    int64
	Finished bool
	Arrivals []arrival
	Err      string // not the limit
}

type fetchReply struct {
	Flows      []fetched
	RivalBytes int64 // while the transfer ran
}

func fetch(a fetchArgs) (fetchReply, error) {
	var competing atomic.Int64
	if a.Rival.IsValid() {
		rival, err := dial(a.Rival, 0, time.Now().Add(a.Limit))
		if err != nil {
			return fetchReply{}, fmt.Errorf("starting the competing flow: %w", err)
		}
		_ = rival.SetLinger(0)
		var wg sync.WaitGroup
		wg.Go(func() {
			buf := getBuffer()
			defer putBuffer(buf)
			for {
				n, err := rival.Read(buf)
				competing.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
		defer wg.Wait()
		defer rival.Close()
		// On a busy machine it takes its time to begin.
		for began := now(); competing.Load() == 0 && now()-began < int64(a.Limit); {
			time.Sleep(rivalLook)
		}
		time.Sleep(a.Head)
		if competing.Load() == 0 {
			return fetchReply{}, errors.New("the competing flow did not get going")
		}
	}
	before := competing.Load()
	reply := fetchReply{Flows: make([]fetched, a.Flows)}
	var wg sync.WaitGroup
	for n := range a.Flows {
		wg.Go(func() { reply.Flows[n] = fetchFlow(a, n) })
	}
	wg.Wait()
	reply.RivalBytes = competing.Load() - before
	return reply, nil
}

func dial(to netip.AddrPort, flow int, deadline time.Time) (*net.TCPConn, error) {
	d := net.Dialer{Deadline: deadline, KeepAlive: -1}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp4", to.String())
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(binary.BigEndian.AppendUint32(nil, uint32(flow))); err != nil {
		c.Close()
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func fetchFlow(a fetchArgs, n int) (f fetched) {
	f.Began = now()
	deadline := time.Now().Add(a.Limit)
	defer func() {
		if !f.Finished {
			f.Last = now() - f.Began
		}
	}()
	conn, err := dial(a.Address, n, deadline)
	if err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) && !timedOut(err) {
			f.Err = err.Error()
		}
		return f
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline)
	buf := getBuffer()
	defer putBuffer(buf)
	step := max(a.Size/maxArrivals, 1)
	next := step
	for f.Bytes < a.Size {
		k, err := conn.Read(buf)
		at := now() - f.Began
		f.Bytes += int64(k)
		if k > 0 {
			f.Last = at
			if f.First == 0 {
				f.First = at
			}
			if f.Bytes >= next || f.Bytes == a.Size {
				f.Arrivals = append(f.Arrivals, arrival{at, f.Bytes})
				next = f.Bytes + step
			}
		}
		if err != nil && f.Bytes < a.Size {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				f.Err = err.Error()
			}
			return f
		}
	}
	f.Finished = true
	return f
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// buffers are what was read into before.
var buffers sync.Pool

func getBuffer() []byte {
	if b, ok := buffers.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, chunk)
}

func putBuffer(b []byte) { buffers.Put(&b) }

// to90 is the time until a flow first had 90 % of its final rate, which is that
// of the second half of its time: both over windows of one round trip, or of a
// fiftieth of the whole. 0: too short to say, or never.
func to90(arrivals []arrival, rtt time.Duration) time.Duration {
	if len(arrivals) < 10 {
		return 0
	}
	last := arrivals[len(arrivals)-1]
	window := max(int64(rtt), last.At/50)
	if last.At < 6*window {
		return 0
	}
	half := bytesAt(arrivals, last.At/2)
	final := float64(last.Bytes-half) / float64(last.At-last.At/2)
	for _, a := range arrivals {
		if a.At < window {
			continue
		}
		if float64(a.Bytes-bytesAt(arrivals, a.At-window))/float64(window) >= 0.9*final {
			return time.Duration(a.At)
		}
	}
	return 0
}

// bytesAt is how much had arrived at a time.
func bytesAt(arrivals []arrival, at int64) int64 {
	var bytes int64
	for _, a := range arrivals {
		if a.At > at {
			break
		}
		bytes = a.Bytes
	}
	return bytes
}
