package sysctl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxValue bounds what Read takes from a file, in bytes. The kernel's own
// longest values (lists of reserved ports) stay below a tenth of it.
const maxValue = 1 << 20

// The causes of a failure, for errors.Is. Each has its own remedy, so an error
// matches one of them, with one exception: a setting that is missing because
// this is not the initial network namespace matches ErrNamespace and ErrMissing.
var (
	// ErrMissing: the kernel has no such setting (ENOENT when opening).
	ErrMissing = errors.New("this kernel has no such setting")
	// ErrValue: the kernel refused the value or took another one. For an
	// algorithm or a qdisc (ENOENT when writing) it is not available.
	ErrValue = errors.New("the value was refused")
	// ErrReadOnly: /proc/sys is mounted read-only (EROFS), or the setting can
	// only be read.
	ErrReadOnly = errors.New("it is read-only here")
	// ErrPermission: the process lacks root or CAP_NET_ADMIN (EACCES, EPERM).
	ErrPermission = errors.New("permission denied")
	// ErrNamespace: the setting does not exist, or the value is not allowed,
	// in a network namespace other than the initial one.
	ErrNamespace = errors.New("not possible in this network namespace")
)

// Error is what Read and Write return on failure.
type Error struct {
	Key   Key
	Op    string // "read" or "write"
	Value string // what was to be written
	Got   string // what the kernel holds after a write that it took otherwise
	Err   error  // wraps one or two of the causes above, and the errno if there is one
}

func (e *Error) Error() string {
	if e.Op == "write" {
		return fmt.Sprintf("setting %s to %s: %v", Printable(e.Key.String()), Printable(e.Value), e.Err)
	}
	return fmt.Sprintf("reading %s: %v", Printable(e.Key.String()), e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// A Tree is /proc/sys or a recorded copy of it.
type Tree struct {
	Root string // "/proc/sys"; the zero Tree is that too
}

func (t Tree) path(k Key) string {
	if t.Root == "" {
		return filepath.Join("/proc/sys", string(k))
	}
	return filepath.Join(t.Root, string(k))
}

// Read returns the value of a setting without its final newline.
func (t Tree) Read(k Key) (string, error) {
	v, err := t.read(k)
	if err != nil {
		return "", &Error{Key: k, Op: "read", Err: err}
	}
	return v, nil
}

func (t Tree) read(k Key) (string, error) {
	f, err := t.open(k, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxValue+1))
	if err != nil {
		return "", cause(err, nil)
	}
	if len(data) > maxValue {
		return "", fmt.Errorf("value is longer than %d bytes", maxValue)
	}
	return strings.TrimSuffix(string(data), "\n"), nil
}

// Exists reports whether the kernel has this setting here. A directory is none.
func (t Tree) Exists(k Key) bool {
	if k.check() != nil {
		return false
	}
	st, err := os.Stat(t.path(k))
	return err == nil && !st.IsDir()
}

// Write sets a setting and reads it back: what the kernel did not take as it was
// given is an error that matches ErrValue, however much of it was written. A
// value that is already there (see Equal) is not written again.
//
// The value is written as it is, in one piece: one with blanks at either end,
// with a newline or with a NUL byte is refused unwritten, since the kernel would
// look for an algorithm of that padded name, or take the first line only.
func (t Tree) Write(k Key, value string) error {
	fail := func(got string, err error) error {
		return &Error{Key: k, Op: "write", Value: value, Got: got, Err: err}
	}
	if strings.TrimSpace(value) != value || strings.ContainsAny(value, "\n\r\x00") {
		return fail("", fmt.Errorf("%w: it has blanks around it or more than one line", ErrValue))
	}
	before, err := t.read(k)
	if err != nil {
		return fail("", err)
	}
	if Equal(before, value) {
		return nil
	}
	// O_TRUNC means nothing to the kernel, but a recorded or fake tree made of
	// plain files needs it.
	f, err := t.open(k, os.O_WRONLY|os.O_TRUNC)
	if err != nil {
		return fail(before, err)
	}
	n, err := f.WriteString(value + "\n")
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fail(before, t.refused(k, err))
	}
	after, err := t.read(k)
	if err != nil {
		return fail("", err)
	}
	if n != len(value)+1 || !Equal(after, value) {
		return fail(after, fmt.Errorf("%w: it now holds %s", ErrValue, Printable(after)))
	}
	return nil
}

// open opens the file of a setting, never creating one, and explains why it
// cannot.
func (t Tree) open(k Key, flag int) (*os.File, error) {
	if err := k.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMissing, err)
	}
	// A recorded tree may hold anything: nothing here may wait for a pipe.
	f, err := os.OpenFile(t.path(k), flag|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err == nil {
		st, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if !st.Mode().IsRegular() {
			f.Close()
			return nil, fmt.Errorf("%w: it is not a file", ErrMissing)
		}
		return f, nil
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		if onlyInitial(k) && t.foreignNetns() {
			return nil, fmt.Errorf("%w: %w (%w)", ErrNamespace, ErrMissing, errno(err))
		}
		return nil, cause(err, ErrMissing)
	case errors.Is(err, unix.EISDIR):
		return nil, cause(err, ErrMissing)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		// The kernel gives settings that cannot be written here no write bits.
		if st, statErr := os.Stat(t.path(k)); statErr == nil && flag&os.O_WRONLY != 0 && st.Mode()&0o222 == 0 {
			if onlyInitial(k) && t.foreignNetns() {
				return nil, cause(err, ErrNamespace)
			}
			return nil, cause(err, ErrReadOnly)
		}
	}
	return nil, cause(err, nil)
}

// refused explains an error of the write itself, where the key is there and
// could be opened.
func (t Tree) refused(k Key, err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return cause(err, ErrReadOnly)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		// Outside of the initial network namespace only the algorithms listed
		// in tcp_allowed_congestion_control may become the default: EPERM with
		// every capability.
		if (k == CongestionControl || onlyInitial(k)) && t.foreignNetns() {
			return cause(err, ErrNamespace)
		}
		return cause(err, ErrPermission)
	default:
		// ENOENT: no such algorithm or qdisc. EINVAL, ERANGE and others: not
		// a value for this setting.
		return cause(err, ErrValue)
	}
}

// cause joins an errno to what it means here; with a nil meaning, to what it
// means anywhere.
func cause(err, meaning error) error {
	if meaning == nil {
		switch {
		case errors.Is(err, unix.EROFS):
			meaning = ErrReadOnly
		case errors.Is(err, fs.ErrPermission):
			meaning = ErrPermission
		default:
			return errno(err)
		}
	}
	return fmt.Errorf("%w (%w)", meaning, errno(err))
}

// errno strips the wrappers of package os: the key is named already.
func errno(err error) error {
	var no unix.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}

// foreignNetns reports whether the tree is that of a network namespace other
// than the initial one. There, net/core/default_qdisc is missing although TCP's
// settings are there, and the limits of net/core are missing too or cannot be
// written (kernel 3.12 and later; before it, default_qdisc existed nowhere, but
// the limits could be written).
func (t Tree) foreignNetns() bool {
	if t.Exists(DefaultQdisc) || !t.Exists(CongestionControl) {
		return false
	}
	st, err := os.Stat(t.path("net/core/rmem_max"))
	return err != nil || st.Mode()&0o222 == 0
}

// onlyInitial reports whether k is one of the settings that the kernel keeps
// once for the host and shows, or lets change, only in the initial network
// namespace.
func onlyInitial(k Key) bool {
	switch k {
	case "net/core/somaxconn", "net/core/optmem_max", "net/core/txrehash", "net/core/xfrm_aevent_etime":
		return false // these belong to each namespace
	case "net/ipv4/tcp_mem", "net/ipv4/udp_mem", "net/ipv4/tcp_max_orphans", AllowedCongestionControl:
		return true
	}
	return strings.HasPrefix(string(k), "net/core/")
}

// Equal reports whether two values are the same to the kernel as far as white
// space goes: it separates numbers with tabs where people write blanks.
func Equal(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if x[i] != y[i] {
			return false
		}
	}
	return true
}

// Taken says what a setting will hold after a text is written to it that now
// holds current, as far as that can be told without the kernel: of a number, or
// a row of numbers, the kernel takes as many as there are and overlooks what
// follows them after a blank, and it reads 0x10 and 010 as other bases. So
// "9 # more" makes 9, where a name with something behind it is refused. False if
// the kernel will refuse it whatever the setting's limits are. For a setting
// that holds no number, it is the text itself.
func Taken(current, written string) (string, bool) {
	now := strings.Fields(current)
	for _, f := range now {
		if _, err := strconv.ParseInt(f, 10, 64); err != nil {
			now = nil
			break
		}
	}
	if len(now) == 0 {
		return written, true
	}
	rest := written
	for i := range now {
		for rest != "" && kernelSpace(rest[0]) {
			rest = rest[1:]
		}
		if rest == "" {
			if i == 0 {
				return "", false
			}
			break // the others stay
		}
		end := strings.IndexAny(rest, " \t\n")
		if end < 0 {
			end = len(rest)
		}
		n, ok := number(rest[:end])
		if !ok {
			return "", false
		}
		now[i], rest = n, rest[end:]
	}
	return strings.Join(now, "\t"), true
}

// kernelSpace is the kernel's isspace, which takes the no-break space of Latin-1
// for one too.
func kernelSpace(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' || c == 0xa0 }

// number reads a number as proc_dointvec and its kin do.
func number(s string) (string, bool) {
	// The kernel refuses longer ones, of which it could see a part only.
	const longest = 20
	digits, minus := strings.CutPrefix(s, "-")
	if len(digits) > longest || digits == "" || digits[0] < '0' || digits[0] > '9' || strings.Contains(digits, "_") {
		return "", false
	}
	base := 10
	switch {
	case len(digits) > 2 && (digits[:2] == "0x" || digits[:2] == "0X"):
		digits, base = digits[2:], 16
	case len(digits) > 1 && digits[0] == '0':
		digits, base = digits[1:], 8
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return "", false
	}
	text := strconv.FormatUint(n, 10)
	if minus && n != 0 {
		text = "-" + text
	}
	return text, true
}
