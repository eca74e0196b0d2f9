package main

import (
	"fmt"
	"sync"
	"time"

	"accel/pkg/text"
)

// progressAfter is how long something may take before it shows progress.
const progressAfter = time.Second

// progress is one line on a terminal that is written over, and wiped away at
// the end. Elsewhere it is silent.
type progress struct {
	screen screen
	start  time.Time
	mu     sync.Mutex
	shown  bool
}

func newProgress(s screen) *progress { return &progress{screen: s, start: time.Now()} }

// show replaces the line. The first second shows nothing.
func (p *progress) show(line string) {
	if !p.screen.live || time.Since(p.start) < progressAfter {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	line = text.Wrap(text.Safe(line), p.screen.columns-1)[0]
	p.shown = true
	fmt.Fprintf(p.screen.w, "\r%s\x1b[K", line)
}

func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.screen.w, "\r\x1b[K")
		p.shown = false
	}
}

// working shows that something goes on which cannot tell how far it is. The
// returned function ends it.
func (a *accel) working(what string) (stop func()) {
	p := newProgress(a.errScreen)
	if !p.screen.live {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(progressAfter)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				p.show(text.T("%s ... %d s", what, int(time.Since(p.start).Seconds())))
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		p.clear()
	}
}
