package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
)

const (
	// A machine comes up in 0.5 s under KVM and in 4 s under emulation on an
	// idle host.
	upLimitKVM = 10 * time.Second
	upLimitTCG = 90 * time.Second
	// How long QEMU may take to end by itself after the guest has reported its end.
	endLimit = 5 * time.Second
	// More than this from one command is an error.
	outputLimit = 16 << 20
	// What is kept of the kernel's messages.
	consoleLimit = 1 << 20
)

// errNotUp says that the kernel did not come so far as to run init.
var errNotUp = errors.New("the machine did not come up")

// testMachine is a virtual machine for QEMU to run.
type testMachine struct {
	kernel, initrd string
	store          string // image
	files, debian  string // images; both may be empty
	memory, cpus   int    // MB, count
	gpu            bool   // with a virtual graphics card
	accel          string
}

// run starts the machine and waits for its end. It writes the command's output to
// output and the kernel's messages to console. QEMU has exited when run returns,
// also after an error.
func (m *testMachine) run(ctx context.Context, console, output io.Writer, say func(string, ...any)) (guest.Ended, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arguments, err := m.arguments()
	if err != nil {
		return guest.Ended{}, err
	}
	port, portEnd, err := pair("port")
	if err != nil {
		return guest.Ended{}, err
	}
	defer port.Close()
	defer portEnd.Close()
	serial, serialEnd, err := pair("console")
	if err != nil {
		return guest.Ended{}, err
	}
	defer serial.Close()
	defer serialEnd.Close()

	var errs bytes.Buffer
	qemu := exec.CommandContext(ctx, "qemu-system-x86_64", arguments...)
	qemu.ExtraFiles = []*os.File{portEnd, serialEnd} // descriptors 3 and 4
	qemu.Stderr = &errs
	qemu.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	qemu.WaitDelay = time.Second
	started := time.Now()
	if err := qemu.Start(); err != nil {
		return guest.Ended{}, err
	}
	portEnd.Close()
	serialEnd.Close()

	logged := make(chan struct{})
	go func() { defer close(logged); log(console, serial) }()
	messages := make(chan guest.Message)
	said := make(chan error, 1)
	go func() { said <- listen(ctx, port, messages) }()
	// The end of QEMU ends both.
	finish := func() error {
		cancel()
		err := qemu.Wait()
		<-logged
		return err
	}

	limit := upLimitTCG
	if m.accel == kvm {
		limit = upLimitKVM
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	up := false
	for {
		select {
		case message := <-messages:
			switch {
			case message.Up:
				up = true
				late.Stop()
				say("%s, %d MB, %d processors: up after %s", m.accel, m.memory, m.cpus, took(started))
				started = time.Now()
			case message.Ended != nil:
				say("command: %s", took(started))
				return *message.Ended, m.end(qemu, port, logged, cancel)
			default:
				if _, err := output.Write(message.Output); err != nil {
					finish()
					return guest.Ended{}, err
				}
			}
		case <-late.C:
			finish()
			return guest.Ended{}, fmt.Errorf("%w within %s with %s", errNotUp, limit, m.accel)
		case err := <-said:
			ended := finish()
			if !up {
				return guest.Ended{}, fmt.Errorf("%w with %s: %v: %.1000s", errNotUp, m.accel, ended, bytes.TrimSpace(errs.Bytes()))
			}
			return guest.Ended{}, fmt.Errorf("the machine ended before its command: %w: %v", err, ended)
		case <-ctx.Done():
			finish()
			return guest.Ended{}, ctx.Err()
		}
	}
}

// end lets the machine switch itself off.
func (m *testMachine) end(qemu *exec.Cmd, port *os.File, logged <-chan struct{}, cancel func()) error {
	if _, err := port.Write([]byte{'\n'}); err != nil {
		cancel()
	}
	timer := time.AfterFunc(endLimit, cancel)
	defer timer.Stop()
	// The guest has reported its end: how QEMU ends does not matter.
	_ = qemu.Wait()
	<-logged
	return nil
}

// listen reads the machine's messages until there is an error, io.EOF at the end.
func listen(ctx context.Context, port io.Reader, messages chan<- guest.Message) error {
	// Output travels as base64, a third longer.
	limited := &io.LimitedReader{R: port, N: outputLimit / 3 * 4}
	decoder := json.NewDecoder(limited)
	for {
		var message guest.Message
		if err := decoder.Decode(&message); err != nil {
			if limited.N <= 0 {
				return fmt.Errorf("the command printed more than %d MB", outputLimit>>20)
			}
			return err
		}
		select {
		case messages <- message:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// log writes the beginning of the kernel's messages and reads the rest, since
// the machine would wait for its console.
func log(console io.Writer, serial io.Reader) {
	if _, err := io.CopyN(console, serial, consoleLimit); err == nil {
		io.Copy(io.Discard, serial)
	}
}

// pair returns the two ends of a stream: one for this process, which supports
// deadlines, and one for QEMU.
func pair(name string) (own, other *os.File, err error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making the machine's %s: %w", name, err)
	}
	if err := syscall.SetNonblock(ends[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(ends[0]), name), os.NewFile(uintptr(ends[1]), name), nil
}

// arguments are QEMU's: the smallest machine with two or three disks, one port and a
// console; no network, no BIOS to wait for, nothing from the user's settings.
func (m *testMachine) arguments() ([]string, error) {
	boot := "console=ttyS0 loglevel=4 reboot=t panic=-1 mitigations=off"
	cpu := "host"
	if m.accel == tcg {
		khz, err := machine.ClockRate()
		if err != nil {
			return nil, err
		}
		cpu = "max"
		boot += " tsc=reliable tsc_early_khz=" + strconv.Itoa(khz)
	}
	disk := func(id, file string) []string {
		return []string{
			"-drive", "if=none,format=raw,readonly=on,id=" + id + ",file=" + file,
			"-device", "virtio-blk-device,drive=" + id + ",serial=" + id,
		}
	}
	arguments := []string{
		"-M", "microvm,accel=" + m.accel, "-cpu", cpu,
		"-m", strconv.Itoa(m.memory), "-smp", strconv.Itoa(m.cpus),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-kernel", m.kernel, "-initrd", m.initrd, "-append", boot,
		"-chardev", "socket,id=port,fd=3", "-chardev", "socket,id=console,fd=4",
		"-serial", "chardev:console",
		"-device", "virtio-serial-device,max_ports=2",
		"-device", "virtserialport,chardev=port,name=" + guest.Port,
	}
	if m.gpu {
		// A graphics card speaks version 1 of virtio alone.
		arguments = append(arguments, "-global", "virtio-mmio.force-legacy=false", "-device", "virtio-gpu-device")
	}
	arguments = append(arguments, disk(guest.StoreDisk, m.store)...)
	if m.files != "" {
		arguments = append(arguments, disk(guest.FilesDisk, m.files)...)
	}
	if m.debian != "" {
		arguments = append(arguments, disk(guest.DebianDisk, m.debian)...)
	}
	return arguments, nil
}
