package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeModprobe writes a shell script in modprobe's place.
func fakeModprobe(t *testing.T, script string) []string {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, "modprobe")
	if err := os.WriteFile(at, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return []string{filepath.Join(dir, "missing"), dir, at}
}

func TestLoadModule(t *testing.T) {
	t.Setenv("MODPROBE_OPTIONS", "-C /nowhere")
	t.Setenv("LANG", "zh_CN.UTF-8")
	log := filepath.Join(t.TempDir(), "log")
	inserted := ""
	insert := func(err error) func(string) error {
		return func(name string) error {
			inserted = name
			return err
		}
	}
	refused := errors.New("kernel refused")
	notFound := "echo 'modprobe: FATAL: Module '$2' not found in directory /lib/modules/6.1.0' >&2; exit 1\n"
	for _, c := range []struct {
		name     string
		script   string // "" for no modprobe
		module   string
		insert   error
		want     []error // all matched; none for success
		says     string
		inserted bool
	}{
		{name: "good", script: "echo \"$*|$LC_ALL|$LANG|$MODPROBE_OPTIONS|$PWD\" > " + log + "\n", module: "tcp_bbr"},
		{name: "refused", script: "echo \"modprobe: ERROR: could not insert 'tcp_bbr': Key was rejected by service\" >&2; exit 1\n", module: "tcp_bbr",
			want: []error{ErrModule}, says: "cannot load module tcp_bbr: modprobe: could not insert 'tcp_bbr': Key was rejected by service"},
		{name: "forbidden", script: "echo \"modprobe: ERROR: ../libkmod/libkmod-module.c:1047 command_do() Error running install command '/bin/false' for module tcp_bbr: retcode 1\" >&2; echo \"modprobe: ERROR: could not insert 'tcp_bbr': Invalid argument\" >&2; exit 1\n", module: "tcp_bbr",
			want: []error{ErrModule}, says: "cannot load module tcp_bbr: modprobe: Error running install command '/bin/false' for module tcp_bbr: retcode 1; could not insert 'tcp_bbr': Invalid argument"},
		{name: "silent", script: "exit 3\n", module: "tcp_bbr", want: []error{ErrModule}, says: "cannot load module tcp_bbr: modprobe: exit status 3"},
		{name: "not listed", script: notFound, module: "tcp_bbr", inserted: true},
		{name: "not there", script: notFound, module: "tcp_bbr", insert: refused, inserted: true, want: []error{ErrModule, refused},
			says: "cannot load module tcp_bbr: modprobe: Module tcp_bbr not found in directory /lib/modules/6.1.0; without it: kernel refused"},
		{name: "no modprobe", module: "tcp_bbr", inserted: true},
		{name: "no modprobe and refused", module: "tcp_bbr", insert: refused, inserted: true, want: []error{ErrNoModprobe, refused},
			says: "modprobe is not installed (package kmod); without it: kernel refused"},
		{name: "no name", script: "exit 0\n", module: "-r", want: []error{ErrModule}, says: "modprobe: "},
		{name: "empty", script: "exit 0\n", module: "", want: []error{ErrModule}},
		{name: "path", script: "exit 0\n", module: "../x", want: []error{ErrModule}},
		{name: "two", script: "exit 0\n", module: "a b", want: []error{ErrModule}},
	} {
		places := []string{"/nonexistent/modprobe"}
		if c.script != "" {
			places = fakeModprobe(t, c.script)
		}
		inserted = ""
		err := loadModule(context.Background(), c.module, places, insert(c.insert))
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v is not %v", c.name, err, want)
			}
		}
		if c.module != "-r" && c.says != "" && err.Error() != c.says {
			t.Errorf("%s: %q, want %q", c.name, err, c.says)
		}
		if (inserted != "") != c.inserted {
			t.Errorf("%s: inserted %q", c.name, inserted)
		}
	}
	data, err := os.ReadFile(log)
	if got := strings.TrimSpace(string(data)); err != nil || got != "-- tcp_bbr|C|||/" {
		t.Errorf("modprobe saw %q, %v", got, err)
	}
}

func TestLoadModuleCancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := loadModule(ctx, "tcp_bbr", fakeModprobe(t, "exec sleep 60\n"), func(string) error { return nil })
	if !errors.Is(err, ErrModule) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// The real one, with a name that exists nowhere.
func TestLoadModuleAbsent(t *testing.T) {
	err := LoadModule(context.Background(), "accel_no_such_module")
	if !errors.Is(err, ErrModule) {
		t.Errorf("%v, want ErrModule", err)
	}
}
