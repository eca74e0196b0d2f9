package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CacheDir returns the directory that holds everything downloaded or built:
// $ACCEL_CACHE, or accel-test in the user's cache directory. It is made if it
// does not exist.
func CacheDir() (string, error) {
	dir := os.Getenv("ACCEL_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("finding a cache directory: %w", err)
		}
		dir = filepath.Join(base, "accel-test")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// lock takes the named lock of the cache, shared by all test processes of this
// machine, waiting for it until ctx ends.
func lock(ctx context.Context, name string) (unlock func(), err error) {
	dir, err := CacheDir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "locks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for the lock %s: %w", f.Name(), ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// slot waits for one of the places for a running machine. All test processes
// of this machine share them, so that `go test ./...` does not start more
// emulated machines than there are CPUs to run them.
func slot(ctx context.Context) (release func(), err error) {
	n := min(runtime.NumCPU(), 4)
	if s := os.Getenv("ACCEL_VM_SLOTS"); s != "" {
		if n, err = strconv.Atoi(s); err != nil || n < 1 {
			return nil, fmt.Errorf("ACCEL_VM_SLOTS=%q is not a number above zero", s)
		}
	}
	for {
		for i := range n {
			// An ended context means "do not wait" to lock.
			now, cancel := context.WithCancel(ctx)
			cancel()
			if release, err := lock(now, "slot-"+strconv.Itoa(i)); err == nil {
				return release, nil
			} else if !errors.Is(err, context.Canceled) {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for one of %d places for a machine: %w", n, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// cached returns the directory kind/key of the cache, built by build if it is
// not there yet. It is built under another name and renamed when it is whole,
// so that an interrupted build leaves nothing that looks finished; two
// processes never build the same thing.
func cached(ctx context.Context, kind, key string, build func(ctx context.Context, dir string) error) (string, error) {
	root, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, kind, key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unlock, err := lock(ctx, strings.ReplaceAll(kind+"-"+key, "/", "-"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return "", err
	}
	if err := build(ctx, part); err != nil {
		os.RemoveAll(part)
		return "", fmt.Errorf("building %s/%s: %w", kind, key, err)
	}
	return dir, os.Rename(part, dir)
}

// hash is a short name for the given contents.
func hash(contents ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(contents, "\x00")))
	return hex.EncodeToString(sum[:8])
}
