package desk

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// serving serves verbs until the test ends, and returns the server as clients find it.
func serving(t *testing.T, folder string, verbs ...Verb) Server {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Serve(ctx, []string{folder}, nil, verbs, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if left := sockets(folder); len(left) > 0 {
			t.Errorf("sockets are left: %v", left)
		}
	})
	for end := time.Now().Add(patience.Long); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if found := Find([]string{folder}); len(found) == 1 {
			return found[0]
		}
	}
	t.Fatal("the server is not found")
	return Server{}
}

// echo answers each frame with itself, until the client goes.
var echo = Verb{"echo", func(_ context.Context, c *Conn) error {
	for {
		var text string
		if err := c.Read(&text); err != nil {
			return nil
		}
		if err := c.Write(text); err != nil {
			return err
		}
	}
}}

func TestServe_AnswersVerbs(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	server := serving(t, folder, echo,
		Answer("seven", func() any { return 7 }),
		Verb{"no", func(context.Context, *Conn) error { return &config.Error{Problem: "not today", Hint: "ask tomorrow"} }},
		Verb{"args", func(_ context.Context, c *Conn) error {
			var args struct{ Name string }
			if err := c.Args(&args); err != nil {
				return err
			}
			return c.Write("hello " + args.Name)
		}})
	if server.PID != os.Getpid() {
		t.Errorf("process %d", server.PID)
	}
	for path, want := range map[string]os.FileMode{folder: 0o700, server.Path: 0o600} {
		if mode := must.Get(os.Stat(path))(t).Mode().Perm(); mode != want {
			t.Errorf("%s has mode %o", path, mode)
		}
	}
	var seven int
	must.Do(t, server.Ask(t.Context(), "seven", nil, &seven))
	var hello string
	must.Do(t, server.Ask(t.Context(), "args", map[string]string{"Name": "you"}, &hello))
	if seven != 7 || hello != "hello you" {
		t.Errorf("%d, %q", seven, hello)
	}
	var wrong *config.Error
	if err := server.Ask(t.Context(), "no", nil, &seven); !errors.As(err, &wrong) || wrong.Hint != "ask tomorrow" || !strings.Contains(err.Error(), "not today") {
		t.Errorf("error %v", err)
	}
	if err := server.Ask(t.Context(), "fly", nil, &seven); err == nil || !strings.Contains(err.Error(), `no answer to "fly"`) {
		t.Errorf("error %v", err)
	}
	client := must.Get(server.Dial(t.Context(), "echo", nil))(t)
	defer client.Close()
	for _, text := range []string{"a", "", strings.Repeat("x", 1<<19)} {
		must.Do(t, client.Write(text))
		got := "?"
		if must.Do(t, client.Read(&got)); got != text {
			t.Errorf("%d bytes came back as %d", len(text), len(got))
		}
	}
}

// Whatever a client sends, the server answers the next one.
func TestServe_OutlivesClients(t *testing.T) {
	server := serving(t, filepath.Join(t.TempDir(), "run"), echo)
	for _, bytes := range []string{"", "x", "\x00\x00\x00\x00", "\xff\xff\xff\xff", "\x00\x00\x00\x02{}", "\x00\x00\x00\x05null!", "\x00\x20\x00\x00" + strings.Repeat("[", 1<<21)} {
		conn := must.Get(net.Dial("unix", server.Path))(t)
		go func() {
			defer conn.Close()
			_, _ = io.WriteString(conn, bytes)
		}()
		_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<10))
	}
	var open []net.Conn
	for range maxConns + 10 {
		open = append(open, must.Get(net.Dial("unix", server.Path))(t))
	}
	for _, conn := range open {
		conn.Close()
	}
	for end := time.Now().Add(patience.Long); ; {
		client := must.Get(server.Dial(t.Context(), "echo", nil))(t)
		var text string
		err := client.Write("still here")
		if err == nil {
			err = client.Read(&text)
		}
		client.Close()
		if err == nil && text == "still here" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q, %v", text, err)
		}
	}
}

// A folder that others can write to has no sockets, in which they could wait for this user's
// commands, and the next folder is taken. The control is a folder of this user alone.
func TestListen_RefusesFoldersOfOthers(t *testing.T) {
	open, link, own := t.TempDir(), filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "own")
	must.Do(t, os.Chmod(open, 0o770))
	must.Do(t, os.Mkdir(own, 0o700))
	must.Do(t, os.Symlink(own, link))
	for _, folder := range []string{open, link, "/proc/none", filepath.Join(own, strings.Repeat("x", 200))} {
		if listener, err := listen([]string{folder}, nil); err == nil {
			t.Errorf("%s was taken", folder)
			listener.Close()
		}
		listener := must.Get(listen([]string{folder, own}, nil))(t)
		if filepath.Dir(listener.Addr().String()) != own {
			t.Errorf("it listens at %s", listener.Addr())
		}
		listener.Close()
	}
	if _, err := listen(nil, nil); !errors.Is(err, errNoFolder) {
		t.Errorf("error %v", err)
	}
	must.Do(t, os.WriteFile(filepath.Join(open, "1.desk"), nil, 0o600))
	if found := Find([]string{open}); found != nil {
		t.Errorf("found %v", found)
	}
}

// A folder that sandboxes show has no socket, also behind a link, and the next folder is taken. The
// control is a shown folder beside it.
func TestListen_RefusesShownFolders(t *testing.T) {
	shown, own := t.TempDir(), filepath.Join(t.TempDir(), "own")
	link := filepath.Join(t.TempDir(), "link")
	must.Do(t, os.Symlink(shown, link))
	folder := filepath.Join(shown, "state", "desk")
	for _, root := range []string{shown, link, folder, "/"} {
		if _, err := Usable([]string{folder}, []string{root}); err == nil || !strings.Contains(err.Error(), "which sandboxes show") {
			t.Errorf("%s with %s shown: %v", folder, root, err)
		}
	}
	listener := must.Get(listen([]string{filepath.Join(link, "state", "desk"), own}, []string{shown}))(t)
	defer listener.Close()
	if filepath.Dir(listener.Addr().String()) != own {
		t.Errorf("it listens at %s", listener.Addr())
	}
	must.Get(Usable([]string{folder}, []string{own, shown + "-other", filepath.Join(folder, "none")}))(t)
}

// The socket of a server that was killed goes, and other files stay.
func TestListen_RemovesOldSockets(t *testing.T) {
	folder := t.TempDir()
	must.Do(t, os.Chmod(folder, 0o700))
	name := func(pid string) string { return filepath.Join(folder, pid+suffix) }
	for _, pid := range []string{"1", "2", "3"} {
		listener := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: name(pid), Net: "unix"}))(t)
		if listener.SetUnlinkOnClose(false); pid != "2" {
			listener.Close() // 2 lives
		} else {
			defer listener.Close()
		}
	}
	old := time.Now().Add(-time.Hour)
	must.Do(t, os.Chtimes(name("1"), old, old))
	must.Do(t, os.Chtimes(name("2"), old, old))
	must.Do(t, os.WriteFile(name("4"), nil, 0o600))
	must.Do(t, os.Chtimes(name("4"), old, old))
	must.Get(listen([]string{folder}, nil))(t).Close()
	for pid, want := range map[string]bool{"1": false, "2": true, "3": true, "4": true} { // 3 may be about to listen
		if _, err := os.Lstat(name(pid)); (err == nil) != want {
			t.Errorf("%s: %v", pid, err)
		}
	}
}

// A process of another user gets no answer, even if the file lets it connect; its own user gets one.
func TestServe_AnswersItsUserAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	folder := must.Get(os.MkdirTemp("/tmp", "desk"))(t)
	defer os.RemoveAll(folder)
	server := serving(t, folder, echo)
	must.Do(t, os.Chmod(folder, 0o755))
	must.Do(t, os.Chmod(server.Path, 0o666))
	defer os.Chmod(folder, 0o700)
	if err := asks(server.Path); err != nil {
		t.Errorf("its own user: %v", err)
	}
	if err := asOther(t, func() error { return asks(server.Path) }); err == nil {
		t.Error("another user got an answer")
	}
}

// asks asks the echo verb of a server at a path.
func asks(path string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = frame.NewWriter(conn).Write(question{Verb: "echo"}, "x")
	var got answer
	return frame.NewReader(conn).Read(&got)
}

// askVariable names the socket that a copy of this test asks.
const askVariable = "DESK_TEST_ASK"

// Code in a sandbox has the server's user, and may see the socket in a folder that is shown. A
// process in another PID namespace connects and gets no answer. The control is the same program in
// this one.
func TestServe_AnswersItsNamespaceAlone(t *testing.T) {
	if path := os.Getenv(askVariable); path != "" {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Skip("it cannot connect") // told from a refusal below
		}
		conn.Close()
		must.Do(t, asks(path))
		return
	}
	server := serving(t, must.Get(os.MkdirTemp(t.TempDir(), "desk"))(t), echo)
	run := func(flags uintptr) (string, error) {
		command := exec.Command("/proc/self/exe", "-test.run=^TestServe_AnswersItsNamespaceAlone$", "-test.v")
		command.Env = append(os.Environ(), askVariable+"="+server.Path)
		command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if flags&syscall.CLONE_NEWUSER != 0 {
			command.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
			command.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
		}
		output, err := command.CombinedOutput()
		return string(output), err
	}
	if output, err := run(0); err != nil || !strings.Contains(output, "--- PASS") {
		t.Errorf("a process beside the server: %v, %s", err, output)
	}
	output, err := run(syscall.CLONE_NEWPID | syscall.CLONE_NEWUSER)
	if err == nil || !strings.Contains(output, "--- FAIL") {
		t.Errorf("a process in another PID namespace: %v, %s", err, output)
	}
}
