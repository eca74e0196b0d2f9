package vm

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// sshKey returns the key by which whole machines let us in, as the path of its
// private file, a signer, and a line for authorized_keys. It is made once for
// each cache.
func sshKey(ctx context.Context) (file string, signer ssh.Signer, public string, err error) {
	dir, err := cached(ctx, "ssh", "key", func(_ context.Context, dir string) error {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		block, err := ssh.MarshalPrivateKey(key, "accel-test")
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "id_ed25519"), pem.EncodeToMemory(block), 0o600)
	})
	if err != nil {
		return "", nil, "", err
	}
	file = filepath.Join(dir, "id_ed25519")
	data, err := os.ReadFile(file)
	if err != nil {
		return "", nil, "", err
	}
	signer, err = ssh.ParsePrivateKey(data)
	if err != nil {
		return "", nil, "", fmt.Errorf("reading %s: %w", file, err)
	}
	return file, signer, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))), nil
}

// remote runs commands over one ssh connection.
type remote struct {
	mu     sync.Mutex
	client *ssh.Client
}

// dialSSH connects to the ssh server on a port of this host, trying until ctx
// ends or the emulator exits.
func dialSSH(ctx context.Context, q *qemu, port int, signer ssh.Signer) (*remote, error) {
	config := &ssh.ClientConfig{
		User: "root",
		Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		// The machine is behind a port of this host that we have just opened.
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	for {
		client, err := tryDial(ctx, addr, config)
		if err == nil {
			return &remote{client: client}, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (last try: %w)", ctx.Err(), err)
		case <-q.exited:
			return nil, fmt.Errorf("%w: %w", errDied, q.err)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

func tryDial(ctx context.Context, addr string, config *ssh.ClientConfig) (*ssh.Client, error) {
	var d net.Dialer
	// User mode networking takes every connection at once, whether the machine
	// answers or not, so it is the handshake that needs the limit. It costs
	// a machine that is busy booting some seconds.
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	c, channels, requests, err := ssh.NewClientConn(conn, addr, config)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return ssh.NewClient(c, channels, requests), nil
}

func (r *remote) run(ctx context.Context, command string, stdin []byte) (Result, error) {
	var result Result
	r.mu.Lock()
	client := r.client
	r.mu.Unlock()
	// A machine that was killed leaves the connection hanging, so every step
	// ends with ctx.
	done := make(chan error, 1)
	var stdout, stderr bytes.Buffer
	var session *ssh.Session
	opened := make(chan struct{})
	go func() {
		var err error
		session, err = client.NewSession()
		close(opened)
		if err != nil {
			done <- err
			return
		}
		defer session.Close()
		session.Stdin, session.Stdout, session.Stderr = bytes.NewReader(stdin), &stdout, &stderr
		done <- session.Run(command)
	}()
	select {
	case err := <-done:
		result.Stdout, result.Stderr = stdout.String(), stderr.String()
		var exit *ssh.ExitError
		switch {
		case errors.As(err, &exit):
			result.Exit = exit.ExitStatus()
			if exit.Signal() != "" {
				return result, fmt.Errorf("killed by signal %s", exit.Signal())
			}
		case err != nil:
			return result, err
		}
		return result, nil
	case <-ctx.Done():
		select {
		case <-opened:
			if session != nil {
				session.Close()
			}
		default:
		}
		return result, ctx.Err()
	}
}

func (r *remote) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.client.Close()
}
