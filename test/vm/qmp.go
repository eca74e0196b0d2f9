package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// qmp talks to an emulator over its control socket (QEMU Machine Protocol).
type qmp struct {
	conn net.Conn
	in   *bufio.Reader
}

// dialQMP connects to the socket, which appears a moment after the emulator's
// start.
func dialQMP(ctx context.Context, q *qemu, path string) (*qmp, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			c := &qmp{conn, bufio.NewReader(conn)}
			if deadline, ok := ctx.Deadline(); ok {
				conn.SetDeadline(deadline)
			}
			return c, c.do("qmp_capabilities", nil, nil)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (last try: %w)", ctx.Err(), err)
		case <-q.exited:
			return nil, fmt.Errorf("%w: %w", errDied, q.err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// do runs a command and, if result is not nil, stores what it returned.
func (c *qmp) do(command string, arguments map[string]any, result any) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(c.conn).Encode(request); err != nil {
		return fmt.Errorf("qemu: %s: %w", command, err)
	}
	for {
		line, err := c.in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("qemu: %s: %w", command, err)
		}
		// Besides the answer there are a greeting and events, which are of no
		// interest.
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			return fmt.Errorf("qemu: %s: %w", command, err)
		}
		switch {
		case answer.Error != nil:
			return fmt.Errorf("qemu: %s: %s", command, answer.Error.Desc)
		case answer.Return != nil && result != nil:
			return json.Unmarshal(answer.Return, result)
		case answer.Return != nil:
			return nil
		}
	}
}

// save stops the machine and writes its memory and devices to a file.
func (c *qmp) save(file string) error {
	if err := c.do("stop", nil, nil); err != nil {
		return err
	}
	// Nothing else is to be spared.
	if err := c.do("migrate-set-parameters", map[string]any{"max-bandwidth": int64(1) << 40}, nil); err != nil {
		return err
	}
	if err := c.do("migrate", map[string]any{"uri": "exec:cat > " + Quote(file)}, nil); err != nil {
		return err
	}
	for {
		var state struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err := c.do("query-migrate", nil, &state); err != nil {
			return err
		}
		switch state.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("qemu: saving the machine: %s %s", state.Status, state.Error)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// resume waits until a machine that was saved is there again, and lets it go
// on.
func (c *qmp) resume() error {
	for {
		var state struct {
			Status string `json:"status"`
		}
		if err := c.do("query-status", nil, &state); err != nil {
			return err
		}
		if state.Status != "inmigrate" {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return c.do("cont", nil, nil)
}
