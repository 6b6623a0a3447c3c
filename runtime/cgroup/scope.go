package cgroup

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/godbus/dbus/v5"
)

// managerTime bounds how long a service manager may take to make a scope. A running manager answers
// within some 20 ms.
const managerTime = 5 * time.Second

// managerSocket returns the socket on which the systemd that manages this user's
// services answers without a message bus. Clients of MCP pass
// few variables on, and XDG_RUNTIME_DIR is often not among them.
func managerSocket() string {
	if os.Geteuid() == 0 {
		return "/run/systemd/private"
	}
	runtimeDir := os.Getenv("XDG_RUNTIME_DIR")
	if runtimeDir == "" {
		runtimeDir = filepath.Join("/run/user", strconv.Itoa(os.Geteuid()))
	}
	return filepath.Join(runtimeDir, "systemd/private")
}

// property is a property of a unit, for StartTransientUnit.
type property struct {
	Name  string
	Value dbus.Variant
}

// auxiliary is a further unit, for StartTransientUnit; it is never used.
type auxiliary struct {
	Name       string
	Properties []property
}

// joinScope has the service manager behind a socket move this process to a scope of
// its own that is delegated to it: see org.freedesktop.systemd1(5) and
// https://systemd.io/CONTROL_GROUP_INTERFACE. The manager removes the scope when this
// process has ended.
func joinScope(ctx context.Context, socket string) error {
	stream, err := (&net.Dialer{Timeout: managerTime}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return askForScope(ctx, stream)
}

// askForScope does the same over a connection to the manager, and ends the connection.
func askForScope(ctx context.Context, stream net.Conn) error {
	defer stream.Close()
	ctx, cancel := context.WithTimeout(ctx, managerTime)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if err := stream.SetDeadline(deadline); err != nil {
		return err
	}
	conn, err := dbus.NewConn(stream, dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer conn.Close()
	// The kernel's credentials of this socket suffice; no cookies are needed.
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))}); err != nil {
		return err
	}
	// A manager announces the end of a job to every connection.
	signals := make(chan *dbus.Signal, 64)
	conn.Signal(signals)
	var job dbus.ObjectPath
	err = conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").CallWithContext(ctx,
		"org.freedesktop.systemd1.Manager.StartTransientUnit", 0,
		fmt.Sprintf("nix-sandbox-mcp-%d-%08x.scope", os.Getpid(), rand.Uint32()), "fail",
		[]property{
			{"Description", dbus.MakeVariant("sandboxes of nix-sandbox-mcp")},
			// 0 is the sender. In a container its number is not this one.
			{"PIDs", dbus.MakeVariant([]uint32{0})},
			{"Delegate", dbus.MakeVariant(true)},
			{"CollectMode", dbus.MakeVariant("inactive-or-failed")},
		}, []auxiliary{}).Store(&job)
	if err != nil {
		return err
	}
	for {
		select {
		case signal, ok := <-signals:
			if !ok {
				return fmt.Errorf("the connection ended before the scope was made")
			}
			var (
				id           uint32
				path         dbus.ObjectPath
				unit, result string
			)
			if signal.Name != "org.freedesktop.systemd1.Manager.JobRemoved" ||
				dbus.Store(signal.Body, &id, &path, &unit, &result) != nil || path != job {
				continue
			}
			if result != "done" {
				return fmt.Errorf("the scope %s was not made: %s", unit, result)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("the scope was not made within %v", managerTime)
		}
	}
}
