package tuning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/socket"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// Recorded is the host whose recording, or whose mounted image, lies in dir.
// It can be judged and not changed. The error is that of reading dir.
func Recorded(dir string) (*Host, error) {
	rec, _, err := kernel.ReadRecording(dir)
	if err != nil {
		return nil, problem(ExitFailed, err, text.T("reading the recorded host"), text.T("Name a directory that accel detect --record wrote, or a mounted image."))
	}
	h := &Host{
		Root:     dir,
		Recorded: true,
		Files:    files.OS{Root: dir},
		Sysctl:   sysctl.Tree{Root: filepath.Join(dir, "proc/sys")},
		Detect:   func() (*kernel.Facts, error) { return kernel.Detect(dir) },
		Now:      time.Now,
		Lock: func(context.Context) (func(), error) {
			return nil, fmt.Errorf("a recorded host: %w", fs.ErrPermission)
		},
	}
	var r recorded
	if rec != nil {
		r.connections = rec.Connections
		err = errors.Join(decode(rec.Qdiscs, &r.trees), decode(rec.Routes, &r.routes))
	}
	if err != nil {
		return nil, problem(ExitFailed, err, text.T("reading the recorded host"), text.T("The recording is damaged: make it anew with accel detect --record."))
	}
	h.Qdiscs, h.Routes, h.Sockets = r, r, r
	return h, nil
}

func decode[T any](data json.RawMessage, into *T) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, into)
}

// errNotRecorded says that a recording does not hold something.
var errNotRecorded = errors.New("not recorded")

// recorded answers from a recording. What was not recorded is an error, never
// an empty answer.
type recorded struct {
	trees       []qdisc.Tree
	routes      []route.Route
	connections map[string]int
}

func (r recorded) Trees() ([]qdisc.Tree, error) {
	if r.trees == nil {
		return nil, errNotRecorded
	}
	return r.trees, nil
}

func (r recorded) Rebuild(string) error { return errNotRecorded }

func (r recorded) Defaults() ([]route.Route, error) {
	if r.routes == nil {
		return nil, errNotRecorded
	}
	return r.routes, nil
}

func (r recorded) Set(string, route.Metric, int) error { return errNotRecorded }

func (r recorded) SelfConnect(context.Context) (socket.Evidence, error) {
	return socket.Evidence{}, errNotRecorded
}

func (r recorded) Connections() (map[string]int, error) {
	if r.connections == nil {
		return nil, errNotRecorded
	}
	return r.connections, nil
}

func (r recorded) BBRVersionOf(string) (int, error) { return 0, errNotRecorded }

// WriteRecording writes a recording of this host into dir, for bug reports and tests,
// without addresses or host names.
func WriteRecording(h *Host, dir string) error {
	trees, err := h.Qdiscs.Trees()
	if err != nil {
		return fmt.Errorf("reading the qdiscs: %w", err)
	}
	routes, err := h.Routes.Defaults()
	if err != nil {
		return fmt.Errorf("reading the default routes: %w", err)
	}
	connections, err := h.Sockets.Connections()
	if err != nil {
		connections = nil // the kernel may not tell; a recording without is still of use
	}
	rec := kernel.Recording{Connections: connections}
	if rec.Qdiscs, err = json.Marshal(append([]qdisc.Tree{}, trees...)); err != nil {
		return err
	}
	if rec.Routes, err = json.Marshal(append([]route.Route{}, routes...)); err != nil {
		return err
	}
	return kernel.Record(dir, rec)
}
