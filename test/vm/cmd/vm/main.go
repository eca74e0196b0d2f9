// Vm starts the tests' virtual machines for people who want to look around in
// one.
//
//	go run ./test/vm/cmd/vm shell bookworm        boots Debian 12, says how to ssh into it, until interrupted
//	go run ./test/vm/cmd/vm shell trixie FILE...  the same with Debian 13, with files copied to /root
//	go run ./test/vm/cmd/vm shell trixie:uefi      with GRUB on its disk (or bookworm, bios, secure-boot)
//	go run ./test/vm/cmd/vm run 6.12 'COMMAND'    one command under one of the kernels
//	go run ./test/vm/cmd/vm build                 downloads and builds all that tests need, for a first run
//	go run ./test/vm/cmd/vm packages              the Debian packages this needs
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"accel/test/vm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "packages":
		fmt.Println(strings.Join(vm.Packages(), " "))
		return nil
	case len(args) == 0:
	case vm.Missing() != nil:
		return vm.Missing()
	case len(args) >= 2 && args[0] == "shell":
		return shell(ctx, args[1], args[2:])
	case len(args) == 3 && args[0] == "run":
		return once(ctx, args[1], args[2])
	case len(args) == 1 && args[0] == "build":
		return vm.Build(ctx)
	}
	return fmt.Errorf("usage: vm shell bookworm|trixie[:bios|:uefi|:secure-boot] [FILE...] | vm run KERNEL COMMAND | vm build | vm packages")
}

// shell starts a whole machine and keeps it until it is interrupted.
func shell(ctx context.Context, system string, files []string) error {
	fmt.Fprintln(os.Stderr, "starting; the first time this takes some minutes")
	name, boot, _ := strings.Cut(system, ":")
	m, err := vm.StartWhole(ctx, vm.Release(name), vm.Options{Boot: vm.Boot(boot)})
	if err != nil {
		return err
	}
	defer m.Close()
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		to := vm.Quote("/root/" + filepath.Base(f))
		if _, err := m.ExecStdin(ctx, "cat > "+to+" && chmod 755 "+to, data); err != nil {
			return err
		}
	}
	line, err := m.SSH(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("kernel %s is up. To get in:\n\n  %s\n\nIt is gone when this ends (Ctrl-C), and after %v at the latest.\n", m.Release, line, vm.WholeLife)
	m.Wait(ctx)
	return nil
}

// once runs a command in a small machine.
func once(ctx context.Context, kernel, command string) error {
	for _, k := range vm.Kernels() {
		if k.String() != kernel {
			continue
		}
		m, err := vm.StartSmall(ctx, vm.Guest{Kernel: k})
		if err != nil {
			return err
		}
		defer m.Close()
		r, err := m.Exec(ctx, command)
		fmt.Print(r.Stdout)
		fmt.Fprint(os.Stderr, r.Stderr)
		if err == nil && r.Exit != 0 {
			err = fmt.Errorf("exit %d", r.Exit)
		}
		return err
	}
	return fmt.Errorf("no kernel %q, only %v", kernel, vm.Kernels())
}
