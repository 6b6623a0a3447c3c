package cgroup

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// manager is one end of a connection, at whose other end this process answers as
// systemd does on its private socket: the one call of a client as a test wants it. A real
// one is in tests/vm.
func manager(t *testing.T, answer func(call *dbus.Message, send func(*dbus.Message))) net.Conn {
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		manage(t, server, answer)
	}()
	t.Cleanup(func() {
		client.Close()
		<-done
	})
	return client
}

func manage(t *testing.T, conn net.Conn, answer func(call *dbus.Message, send func(*dbus.Message))) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Errorf("read a command: %v", err)
			return
		}
		switch command := strings.TrimLeft(strings.TrimSpace(line), "\x00"); {
		case command == "AUTH":
			fmt.Fprint(conn, "REJECTED EXTERNAL\r\n")
			continue
		case strings.HasPrefix(command, "AUTH EXTERNAL"):
			fmt.Fprint(conn, "OK 0123456789abcdef0123456789abcdef\r\n")
			continue
		case command != "BEGIN":
			fmt.Fprint(conn, "ERROR\r\n")
			continue
		}
		break
	}
	call, err := dbus.DecodeMessage(in)
	if err != nil {
		t.Errorf("read the call: %v", err)
		return
	}
	answer(call, func(m *dbus.Message) {
		if err := m.EncodeTo(conn, binary.LittleEndian); err != nil {
			t.Errorf("answer: %v", err)
		}
	})
	in.Peek(1) // until the client ends the connection
}

const jobPath = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")

// inBubble runs a subtest in which time passes only while everything waits for it.
func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// reply is the answer to a call: a job, or an error with a name.
func reply(call *dbus.Message, kind dbus.Type, name string, body any) *dbus.Message {
	headers := map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
		dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf(body)),
	}
	if name != "" {
		headers[dbus.FieldErrorName] = dbus.MakeVariant(name)
	}
	return &dbus.Message{Type: kind, Headers: headers, Body: []any{body}}
}

// removed is the signal at the end of a job.
func removed(job dbus.ObjectPath, result string) *dbus.Message {
	body := []any{uint32(7), job, "nix-sandbox-mcp.scope", result}
	return &dbus.Message{Type: dbus.TypeSignal, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/systemd1")),
		dbus.FieldInterface: dbus.MakeVariant("org.freedesktop.systemd1.Manager"),
		dbus.FieldMember:    dbus.MakeVariant("JobRemoved"),
		dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(body...)),
	}}
}

func TestAskForScope_AsksForADelegatedScope(t *testing.T) { synctest.Test(t, asksForADelegatedScope) }

func asksForADelegatedScope(t *testing.T) {
	asked := make(chan *dbus.Message, 1)
	stream := manager(t, func(call *dbus.Message, send func(*dbus.Message)) {
		asked <- call
		send(removed("/another/job", "failed"))
		send(reply(call, dbus.TypeMethodReply, "", jobPath))
		send(removed(jobPath, "done"))
	})
	must.Do(t, askForScope(t.Context(), stream))
	call := <-asked
	if member := call.Headers[dbus.FieldMember].Value(); member != "StartTransientUnit" {
		t.Errorf("the call is %v", member)
	}
	var (
		name, mode string
		properties []property
		others     []auxiliary
	)
	must.Do(t, dbus.Store(call.Body, &name, &mode, &properties, &others))
	got := map[string]any{}
	for _, p := range properties {
		got[p.Name] = p.Value.Value()
	}
	want := map[string]any{
		"Description": "sandboxes of nix-sandbox-mcp", "CollectMode": "inactive-or-failed",
		"PIDs": []uint32{0}, "Delegate": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !strings.HasSuffix(name, ".scope") || mode != "fail" || len(others) != 0 {
		t.Errorf("name %q, mode %q, %d other units", name, mode, len(others))
	}
}

func TestAskForScope_SaysWhatWentWrong(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(call *dbus.Message, send func(*dbus.Message))
		want   string
	}{
		"refused": {func(call *dbus.Message, send func(*dbus.Message)) {
			send(reply(call, dbus.TypeError, "org.freedesktop.DBus.Error.AccessDenied", "no scopes today"))
		}, "no scopes today"},
		"failed": {func(call *dbus.Message, send func(*dbus.Message)) {
			send(reply(call, dbus.TypeMethodReply, "", jobPath))
			send(removed(jobPath, "timeout"))
		}, "was not made: timeout"},
	} {
		inBubble(t, name, func(t *testing.T) {
			err := askForScope(t.Context(), manager(t, test.answer))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

// A manager that says nothing is given up, before its answer and after it.
func TestAskForScope_IsBounded(t *testing.T) {
	for name, answer := range map[string]func(call *dbus.Message, send func(*dbus.Message)){
		"no reply": func(*dbus.Message, func(*dbus.Message)) {},
		"no end": func(call *dbus.Message, send func(*dbus.Message)) {
			send(reply(call, dbus.TypeMethodReply, "", jobPath))
		},
		"no accept": nil,
	} {
		inBubble(t, name, func(t *testing.T) {
			var stream net.Conn
			if answer != nil {
				stream = manager(t, answer)
			} else {
				client, server := net.Pipe()
				defer server.Close()
				stream = client
			}
			began := time.Now()
			if err := askForScope(t.Context(), stream); err == nil {
				t.Error("a scope without an answer")
			}
			if took := time.Since(began); took != managerTime {
				t.Errorf("it was given up after %v, want %v", took, managerTime)
			}
		})
	}
}

// Where no manager listens, and where groups cannot be had anyway, there is nobody
// to ask; an error of the manager is part of the reason.
func TestFind_AsksOnlyWhereItHelps(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root needs no delegation in these groups")
	}
	paths := layout(t, "0::/session\n", merge(group("", "memory pids"), group("session", "memory pids")))
	must.Do(t, os.Chmod(filepath.Join(paths.Groups, "session/cgroup.procs"), 0o444))
	if _, err := Find(t.Context(), paths); err == nil || strings.Contains(err.Error(), "systemd") {
		t.Errorf("without a manager: %v", err)
	}
	paths.Manager = filepath.Join(t.TempDir(), "none")
	if _, err := Find(t.Context(), paths); err == nil || strings.Contains(err.Error(), "systemd") {
		t.Errorf("with a manager that is not there: %v", err)
	}
	paths.Manager = filepath.Join(t.TempDir(), "private")
	listener := must.Get(net.Listen("unix", paths.Manager))(t)
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			manage(t, conn, func(call *dbus.Message, send func(*dbus.Message)) {
				send(reply(call, dbus.TypeError, "org.freedesktop.DBus.Error.AccessDenied", "no scopes today"))
			})
		}
	}()
	if err := Check(paths); err != nil {
		t.Errorf("with a manager to ask: %v", err)
	}
	_, err := Find(t.Context(), paths)
	if err == nil || !strings.Contains(err.Error(), "no scopes today") || !strings.Contains(err.Error(), "session") {
		t.Errorf("with a manager that refuses: %v", err)
	}
}
