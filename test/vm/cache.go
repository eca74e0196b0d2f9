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

// errLocked says that somebody else has the lock.
var errLocked = errors.New("locked")

// tryLock takes the named lock of the cache, shared by all test processes of
// this computer, or fails with errLocked.
func tryLock(name string) (unlock func(), err error) {
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
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case err == nil:
		return func() { f.Close() }, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		f.Close()
		return nil, errLocked
	default:
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
}

// lock is tryLock that waits until ctx ends.
func lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		unlock, err := tryLock(name)
		if !errors.Is(err, errLocked) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the lock %s: %w", name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// slot waits for one of the places for a running machine, and returns an empty
// directory for the machine's files. All test processes of this computer share
// the places, so that `go test ./...` does not start more emulated machines
// than there are CPUs to run them. What a killed process left in its directory
// goes when the place is taken again.
func slot(ctx context.Context) (dir string, release func(), err error) {
	root, err := CacheDir()
	if err != nil {
		return "", nil, err
	}
	n := min(runtime.NumCPU(), 4)
	if s := os.Getenv("ACCEL_VM_SLOTS"); s != "" {
		if n, err = strconv.Atoi(s); err != nil || n < 1 {
			return "", nil, fmt.Errorf("ACCEL_VM_SLOTS=%q is not a number above zero", s)
		}
	}
	for {
		for i := range n {
			unlock, err := tryLock("slot-" + strconv.Itoa(i))
			if errors.Is(err, errLocked) {
				continue
			}
			if err != nil {
				return "", nil, err
			}
			dir := filepath.Join(root, "run", strconv.Itoa(i))
			if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
				unlock()
				return "", nil, err
			}
			return dir, func() { os.RemoveAll(dir); unlock() }, nil
		}
		select {
		case <-ctx.Done():
			return "", nil, fmt.Errorf("waiting for one of %d places for a machine: %w", n, ctx.Err())
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
