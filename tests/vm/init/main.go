// Command init is the first process of the test machine. It makes the machine
// look to an ordinary user like a small Linux system (mounts, devices, accounts,
// cgroups), runs the one command of its request as that user, sends what the
// command prints and how it ended to the host, and switches the machine off.
//
// In a machine with systemd it prepares Debian's files and becomes systemd, which
// starts it again as a service that runs the command.
//
// Everything that it waits for is bounded by the host, which ends the machine.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/system"
)

func main() {
	run := serve
	if len(os.Args) == 2 && os.Args[1] == service {
		run = serveAgain
	} else if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: error: this is the first process of a test machine, started by tests/vm/run")
		os.Exit(1)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "init: error:", err)
	}
	// With -no-reboot a restart ends QEMU; the microvm machine has no power
	// switch.
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

// serve carries out the request. Its error is for the console: the host has not
// been told.
func serve() error {
	request, devices, err := prepare()
	if err != nil {
		return err
	}
	port, err := openPort(devices.port)
	if err != nil {
		return err
	}
	defer port.Close()
	messages := json.NewEncoder(port)
	if err := messages.Encode(guest.Message{Up: true}); err != nil {
		return err
	}
	if request.Mode == guest.Systemd {
		return finish(port, messages, guest.Ended{}, becomeSystemd(request, devices))
	}
	var ended guest.Ended
	group, err := setUp(request, devices)
	if err == nil {
		ended, err = run(request, group, messages)
	}
	return finish(port, messages, ended, err)
}

func openPort(path string) (*os.File, error) {
	// Without O_NONBLOCK, so that a write waits for the host.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the port %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// finish tells the host how the command ended.
func finish(port *os.File, messages *json.Encoder, ended guest.Ended, failure error) error {
	if failure != nil {
		ended.Error = failure.Error()
	}
	if err := messages.Encode(guest.Message{Ended: &ended}); err != nil {
		return err
	}
	// The host answers with one byte when it has read everything.
	_, err := io.ReadFull(port, make([]byte, 1))
	return err
}

// prepare reads the request, loads the kernel modules and finds the devices, all
// from the initial RAM disk, which nothing sees after this.
func prepare() (guest.Request, devices, error) {
	var request guest.Request
	if err := system.Mount("dev", "/dev", "devtmpfs", 0, "mode=0755"); err != nil {
		return request, devices{}, err
	}
	data, err := os.ReadFile(guest.RequestFile)
	if err != nil {
		return request, devices{}, err
	}
	if err := json.Unmarshal(data, &request); err != nil {
		return request, devices{}, fmt.Errorf("%s: %w", guest.RequestFile, err)
	}
	for _, module := range request.Modules {
		if err := system.LoadModule(guest.ModuleDir + "/" + module); err != nil {
			return request, devices{}, err
		}
	}
	now := unix.Timeval{Sec: request.Time}
	if err := unix.Settimeofday(&now); err != nil {
		return request, devices{}, fmt.Errorf("setting the clock to %d: %w", request.Time, err)
	}
	found, err := find(request.Files, request.Mode == guest.Systemd)
	if err != nil || request.Mode == guest.Systemd {
		return request, found, err
	}
	return request, found, newRoot()
}
