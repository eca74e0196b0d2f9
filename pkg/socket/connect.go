package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Evidence is which algorithm an established connection has.
type Evidence struct {
	Family     string `json:"family"`      // "inet" or "inet6"
	Client     string `json:"client"`      // the algorithm of the end that connected
	Server     string `json:"server"`      // the algorithm of the end that accepted
	BBRVersion int    `json:"bbr_version"` // of the client; 0 = not bbr, or unknown
}

// connectTimeout bounds each attempt where the context does not: a connection
// within the host takes well under a millisecond, unless a firewall drops it.
const connectTimeout = 3 * time.Second

// SelfConnect makes a TCP connection to ourselves and reads the algorithm of
// both its ends, which is what new connections get that no route speaks for.
// It uses 127.0.0.1, or ::1 on hosts that have only IPv6. Each attempt takes at
// most three seconds.
//
// Errors: ErrNoLoopback; the error of the context.
func SelfConnect(ctx context.Context) (Evidence, error) {
	var errs []error
	for _, try := range []struct{ family, network, address string }{
		{"inet", "tcp4", "127.0.0.1:0"},
		{"inet6", "tcp6", "[::1]:0"},
	} {
		e, err := selfConnect(ctx, try.network, try.address)
		if err == nil {
			e.Family = try.family
			return e, nil
		}
		if ctx.Err() != nil {
			return Evidence{}, fmt.Errorf("connecting to ourselves: %w", context.Cause(ctx))
		}
		errs = append(errs, err)
	}
	if noLoopback(errs[0]) && noLoopback(errs[1]) {
		return Evidence{}, fmt.Errorf("connecting to ourselves: %w (%w)", ErrNoLoopback, errs[0])
	}
	return Evidence{}, fmt.Errorf("connecting to ourselves: %w", errors.Join(errs...))
}

// noLoopback recognises the answers of a kernel without the family or without
// the address.
func noLoopback(err error) bool {
	for _, errno := range []error{unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EAFNOSUPPORT, unix.EHOSTUNREACH, unix.ENETDOWN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func selfConnect(ctx context.Context, network, address string) (Evidence, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()

	// Multipath TCP, Go's choice for listeners, would put a socket before the
	// one that we want to look at.
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(ctx, network, address)
	if err != nil {
		return Evidence{}, err
	}
	listener := ln.(*net.TCPListener)
	defer listener.Close()

	// The kernel completes the handshake before we accept.
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, network, listener.Addr().String())
	if err != nil {
		return Evidence{}, err
	}
	client := conn.(*net.TCPConn)
	defer hangUp(client)

	server, err := accept(ctx, listener, client.LocalAddr().String())
	if err != nil {
		return Evidence{}, err
	}
	defer hangUp(server)

	var e Evidence
	if e.Client, err = Congestion(client); err != nil {
		return Evidence{}, err
	}
	if e.Server, err = Congestion(server); err != nil {
		return Evidence{}, err
	}
	e.BBRVersion, err = BBRVersion(client)
	return e, err
}

// accept waits for the connection that comes from the given address. Any user
// of the host can connect to our port; such strangers are hung up on.
func accept(ctx context.Context, listener *net.TCPListener, from string) (*net.TCPConn, error) {
	stop := context.AfterFunc(ctx, func() { listener.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		conn, err := listener.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if conn.RemoteAddr().String() == from {
			return conn, nil
		}
		hangUp(conn)
	}
}

// hangUp closes without leaving a socket in TIME_WAIT.
func hangUp(c *net.TCPConn) {
	_ = c.SetLinger(0)
	c.Close()
}
