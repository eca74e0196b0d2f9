// Command slowreaders is a server with too many customers of the kind that
// costs memory: each asks for a file without end and reads it a little at a
// time. It is run in a virtual machine, once on each side of the path.
//
//	slowreaders serve ADDRESS            until it is killed
//	slowreaders read ADDRESS N SECONDS   says how many of N lived to the end
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "slowreaders:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "serve" {
		return serve(args[1])
	}
	if len(args) == 4 && args[0] == "read" {
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		seconds, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return read(args[1], n, time.Duration(seconds)*time.Second)
	}
	return fmt.Errorf("not understood: %q", args)
}

func serve(address string) error {
	l, err := net.Listen("tcp4", address)
	if err != nil {
		return err
	}
	file := make([]byte, 1<<20) // the same for all: only the kernel's copies cost
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			for {
				if _, err := c.Write(file); err != nil {
					return
				}
			}
		}()
	}
}

func read(address string, n int, during time.Duration) error {
	// A small window, so that what is sent waits in the sender's memory and not
	// in the reader's, which is the same machine's here.
	d := net.Dialer{Timeout: during, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		cerr := raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
		if cerr != nil {
			return cerr
		}
		return err
	}}
	var lived, connected atomic.Int64
	var first atomic.Value
	var all sync.WaitGroup
	end := time.Now().Add(during)
	for range n {
		all.Go(func() {
			fail := func(err error) { first.CompareAndSwap(nil, err.Error()) }
			c, err := d.Dial("tcp4", address)
			if err != nil {
				fail(err)
				return
			}
			defer c.Close()
			connected.Add(1)
			buf := make([]byte, 512)
			c.SetReadDeadline(end.Add(during))
			for time.Now().Before(end) {
				if _, err := c.Read(buf); err != nil {
					fail(err)
					return
				}
				time.Sleep(500 * time.Millisecond)
			}
			lived.Add(1)
		})
	}
	all.Wait()
	fmt.Printf("connected %d lived %d\n", connected.Load(), lived.Load())
	if e := first.Load(); e != nil {
		return fmt.Errorf("%v", e)
	}
	return nil
}
