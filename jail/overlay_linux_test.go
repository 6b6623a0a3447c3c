package jail_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/jailtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestReadRequest_OfTheUpperLayer(t *testing.T) {
	spec := &jail.Spec{ProjectMount: "/project", Overlay: &jail.Overlay{}}
	ends := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0))(t)
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	read := func(value, mode string) (jail.Request, error) {
		return spec.ReadRequest(func(name string) string {
			return map[string]string{"PROJECT_DIR": t.TempDir(), "PROJECT_MODE": mode, "NIX_SANDBOX_UPPER": value}[name]
		})
	}
	socket := strconv.Itoa(ends[1])
	for _, test := range []struct {
		value, mode string
		want        int
	}{{"", jail.ModeOverlay, 0}, {socket, jail.ModeOverlay, ends[1]}, {socket, jail.ModeReadOnly, 0}} {
		if request, err := read(test.value, test.mode); err != nil || request.Upper != test.want {
			t.Errorf("%q in the mode %s: %d, error %v, want %d", test.value, test.mode, request.Upper, err, test.want)
		}
	}
	for _, value := range []string{"x", "0", "-1", "999999"} {
		if request, err := read(value, jail.ModeOverlay); err == nil || jail.HintOf(err) == "" {
			t.Errorf("%q: %d, error %v", value, request.Upper, err)
		}
	}
}

// The step sends the folder, and what it becomes has neither folder nor socket.
func TestStep_SendsTheUpperLayer(t *testing.T) {
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "inside"), nil, 0o644))
	ends := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(ends[0])
	theirs := os.NewFile(uintptr(ends[1]), "socket")
	defer theirs.Close()
	cmd := exec.Command(jailtest.Launcher(t), jail.Step, fmt.Sprintf(`{"upper":{"fd":3,"path":%q}}`, folder), "/bin/sh", "-c", "readlink /proc/self/fd/* || true")
	cmd.ExtraFiles = []*os.File{theirs}
	out := must.Get(cmd.Output())(t)
	if !strings.Contains(string(out), "pipe:") || strings.Contains(string(out), "socket:") || strings.Contains(string(out), folder) {
		t.Errorf("the program has the descriptors %q", out)
	}
	message, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(ends[0], message, rights, unix.MSG_DONTWAIT)
	must.Do(t, err)
	messages := must.Get(unix.ParseSocketControlMessage(rights[:n]))(t)
	descriptors := must.Get(unix.ParseUnixRights(&messages[0]))(t)
	upper := os.NewFile(uintptr(descriptors[0]), "upper")
	defer upper.Close()
	if names, err := upper.Readdirnames(-1); err != nil || len(names) != 1 || names[0] != "inside" {
		t.Errorf("the descriptor is of a folder with %q, error %v", names, err)
	}
}
