package backends

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// server is a server whose environments are virtual machines, named by their types. It
// is one of those that share a folder for their state.
type server struct {
	*mcpclient.Client
	t       *testing.T
	log     *mcptest.Log
	environ []string
}

// serving says how a server of a test differs from others.
type serving struct {
	session map[string]any // fields of [session]
	project map[string]any // and of [project]
	cache   string         // the folder for caches; that of all tests where it is empty
	environ []string       // further variables
	user    uint32         // of the server's process, where the test is root
	jail    bool           // there is the server's own bash too, as the environment jail
	small   bool           // the folder for its state is a file system of 8 MB of its own
}

// serve starts one whose sessions of [session] are changed as given.
func serve(t *testing.T, state string, session map[string]any, kinds ...string) *server {
	t.Helper()
	return serveAs(t, state, serving{session: session}, kinds...)
}

func serveAs(t *testing.T, state string, as serving, kinds ...string) *server {
	t.Helper()
	if as.cache == "" {
		as.cache = shared(t)
	}
	environments := map[string]map[string]any{}
	for _, kind := range kinds {
		folder := artifact(t, kind)
		var fields map[string]any
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(folder, "metadata.json")))(t), &fields))
		fields["name"], fields["exec"], fields["session_exec"] = kind, filepath.Join(folder, "bin/run"), filepath.Join(folder, "bin/session-run")
		fields["prewarm"], fields["timeout_seconds"], fields["max_timeout_seconds"] = 0, machineTime.Seconds(), nil
		environments[kind] = fields
	}
	if as.jail {
		environments["jail"] = undertest.Environments(t)["bash"]
		environments["jail"]["name"], environments["jail"]["prewarm"] = "jail", 0
	}
	settings := mcptest.MetadataWith(t, environments, map[string]any{"session": mcptest.Session(as.session), "project": mcptest.Project(as.project)})
	s := &server{t: t, log: &mcptest.Log{}}
	cmd := exec.Command(undertest.Server(t), "--stdio")
	cmd.Stderr = s.log
	s.environ = []string{
		"PATH=" + os.Getenv("PATH"), "NIX_SANDBOX_METADATA=" + settings, "NIX_SANDBOX_START_SECONDS=60",
		"XDG_STATE_HOME=" + state, "XDG_CACHE_HOME=" + as.cache, "PROJECT_DIR=" + os.Getenv("PROJECT_DIR"),
	}
	if most := os.Getenv("SESSION_MAX"); most != "" {
		s.environ = append(s.environ, "SESSION_MAX="+most)
	}
	s.environ = append(s.environ, as.environ...)
	cmd.Env = s.environ
	if as.small {
		cmd.Args = append([]string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs -o size=8m,mode=0700 none "$XDG_STATE_HOME" && exec "$@"`, "sh"}, cmd.Args...)
		cmd.Path = must.Get(exec.LookPath("unshare"))(t)
	}
	if as.user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: as.user, Gid: as.user}}
	}
	s.Client = must.Get(mcpclient.Start(cmd, func(fault string) { t.Error(fault) }))(t)
	t.Cleanup(func() {
		_ = syscall.Kill(s.PID(), syscall.SIGKILL)
		<-s.Exited()
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.log)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), machineTime)
	defer cancel()
	must.Get(s.Initialize(ctx, mcpclient.Newest, "backends"))(t)
	return s
}

// call calls run and returns the answer.
func (s *server) call(kind, session, from, code string) mcpclient.Answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), machineTime)
	defer cancel()
	message := must.Get(s.Call(ctx, "tools/call", mcpclient.RunParams(mcpclient.Arguments{Code: code, Env: kind, Session: session, From: from})))(s.t)
	return must.Get(message.Answer())(s.t)
}

// in runs code in a session, which has to write want.
func (s *server) in(kind, session, code, want string) mcpclient.Answer {
	s.t.Helper()
	answer := s.call(kind, session, "", code)
	if texts := answer.Texts(); answer.IsError || len(texts) == 0 || texts[0] != want {
		s.t.Fatalf("%s: answer %q, want %q", code, texts, want)
	}
	return answer
}

// end ends the server as a client does, and waits for it.
func (s *server) end() {
	s.t.Helper()
	must.Do(s.t, s.CloseInput())
	select {
	case <-s.Exited():
	case <-time.After(machineTime):
		s.t.Fatalf("the server runs on; its log:\n%s", s.log)
	}
}

// asleep returns the sessions that sleep in a state folder.
func asleep(t *testing.T, state string) []store.Session {
	t.Helper()
	return must.Get(suspended.List(filepath.Join(state, "nix-sandbox-mcp/vm/sessions")))(t)
}

// A session goes on in a later server with everything that was in it, and the answer says
// how long it was suspended, and once that the project has changed, which it shows as it was.
func TestSession_WakesInALaterServer(t *testing.T) {
	state, folder := t.TempDir(), project(t)
	t.Setenv("PROJECT_DIR", folder)
	first := serve(t, state, nil, "python")
	first.in("python", "s", asBefore()+"'begun'", "'begun'\n")
	first.end()
	if sessions := asleep(t, state); len(sessions) != 1 || sessions[0].Key.Session != "s" || sessions[0].Head.Bytes == 0 {
		t.Fatalf("there sleep %+v; the log:\n%s", sessions, first.log)
	}
	// Nobody else can come near what the session held.
	must.Do(t, filepath.Walk(filepath.Join(state, "nix-sandbox-mcp"), func(path string, info os.FileInfo, err error) error {
		if err == nil && info.IsDir() && strings.Contains(path, "sessions") && info.Mode().Perm() != 0o700 {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		return err
	}))
	must.Write(t, filepath.Join(folder, "file"), "changed\n", 0o600)
	second := serve(t, state, nil, "python")
	answer := second.call("python", "s", "", isAsBefore)
	if text := answer.Text(); answer.IsError || !strings.HasPrefix(text, "as before ") || !strings.Contains(text, "[resumed: the session was suspended for ") ||
		!strings.HasSuffix(text, " and goes on as it was]\n[host files have changed: this session shows them as they were when it began, and a new session shows them as they are]") {
		t.Errorf("the answer is %q", text)
	}
	if slept, _ := answer.Fact("suspended_seconds").(float64); answer.Fact("resumed") != true || slept < 0 {
		t.Errorf("the facts are %+v", answer.Meta)
	}
	// The next call is one like any other, and nothing sleeps any more.
	if answer := second.in("python", "s", "handle.tell(), open('/project/file').read()", "(2, 'content\\n')\n"); answer.Fact("resumed") != nil || answer.Fact("project_changed") != nil {
		t.Errorf("the facts are %+v", answer.Meta)
	}
	if sessions := asleep(t, state); len(sessions) != 0 {
		t.Errorf("there sleep %+v", sessions)
	}
}

// A session that is idle sleeps, in the same server too, and no process is left of it.
func TestSession_SleepsWhenItIsIdle(t *testing.T) {
	state := t.TempDir()
	s := serve(t, state, map[string]any{"idle_timeout_seconds": 1}, "bash")
	s.in("bash", "s", "x=1; echo begun", "begun\n")
	patience.Wait(t, machineTime, func() string { return "the session does not sleep" }, func() bool {
		return len(asleep(t, state)) == 1 && len(procfs.Descendants(s.PID())) == 0
	})
	s.in("bash", "s", "echo $x", "1\n")
}

// A session that cannot be saved because the disk is full lives on, and the log says so in a
// sentence.
func TestSession_LivesOnWhereTheDiskIsFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts a small file system")
	}
	s := serveAs(t, t.TempDir(), serving{small: true, session: map[string]any{"idle_timeout_seconds": 1}}, "bash")
	s.in("bash", "s", "x=1; echo begun", "begun\n")
	patience.Wait(t, machineTime, func() string { return "the log says nothing of a full disk" }, func() bool {
		return strings.Contains(s.log.String(), "no space left on device")
	})
	if answer := s.in("bash", "s", "echo $x", "1\n"); answer.Fact("resumed") != nil {
		t.Errorf("the facts are %+v", answer.Meta)
	}
}

// Where the operator wants no session to sleep, nothing is written and nothing offered.
func TestSession_EndsWhereNoneSleeps(t *testing.T) {
	state := t.TempDir()
	s := serve(t, state, map[string]any{"idle_timeout_seconds": 1, "suspend": false}, "bash")
	s.in("bash", "s", "x=1; echo begun", "begun\n")
	patience.Wait(t, machineTime, func() string { return "the session does not end" }, func() bool {
		return len(procfs.Descendants(s.PID())) == 0
	})
	if answer := s.call("bash", "s", "", "echo none$x"); answer.IsError || !strings.HasPrefix(answer.Text(), "none\n[new session: the earlier one ended after 1 s idle") {
		t.Errorf("the answer is %q", answer.Text())
	}
	if answer := s.call("bash", "b", "s", "true"); !answer.IsError || !strings.Contains(answer.Text(), `unknown argument "from"`) {
		t.Errorf("a branch gets %q", answer.Text())
	}
	s.end()
	// But the folder for sockets.
	if left := must.Get(filepath.Glob(filepath.Join(state, "nix-sandbox-mcp", "*")))(t); len(left) > 1 || len(left) == 1 && filepath.Base(left[0]) != "run" {
		t.Errorf("%v was written", left)
	}
}

// A session begins as a copy of another one, and other wishes are refused, each with a
// sentence of its own.
func TestSession_Branches(t *testing.T) {
	state := t.TempDir()
	s := serveAs(t, state, serving{jail: true}, "bash")
	s.in("bash", "a", "x=1; echo 1 > f; echo begun", "begun\n")
	if answer := s.call("bash", "b", "a", "echo $x $(cat f); x=2; echo 2 > f"); answer.IsError || answer.Texts()[0] != "1 1\n" || answer.Fact("branched_from") != "a" {
		t.Errorf("the branch has %q, %+v", answer.Text(), answer.Meta)
	}
	s.in("bash", "a", "echo $x $(cat f); x=3", "1 1\n")
	s.in("bash", "b", "echo $x $(cat f)", "2 2\n")
	if answer := s.call("bash", "c", "b", "echo $x"); answer.IsError || answer.Texts()[0] != "2\n" {
		t.Errorf("the branch of a branch has %q", answer.Text())
	}

	s.in("bash", "busy", "x=4; echo begun", "begun\n")
	s.begin("bash", "busy", endless)
	s.in("jail", "jailed", "echo begun", "begun\n")
	for _, test := range []struct{ kind, session, from, says string }{
		{"bash", "d", "busy", `session "busy" is running a call`},
		{"bash", "d", "nobody", `there is no session "nobody" of env "bash"`},
		{"bash", "b", "a", `session "b" exists already`},
		{"bash", "", "a", `there is no session that could begin as its copy`},
		{"jail", "d", "jailed", `a session of env "jail" cannot begin as a copy of another one`},
	} {
		if answer := s.call(test.kind, test.session, test.from, "true"); !answer.IsError || !strings.Contains(answer.Text(), test.says) {
			t.Errorf("%+v gets %q", test, answer.Text())
		}
	}
}

// endless is code for bash that runs until it is interrupted.
const endless = "while true; do sleep 0.1; done"

// begin sends a call and does not wait for its answer.
func (s *server) begin(kind, session, code string) {
	s.t.Helper()
	_, line, err := s.Request("tools/call", mcpclient.RunParams(mcpclient.Arguments{Code: code, Env: kind, Session: session}))
	must.Do(s.t, err)
	must.Get(s.Write(line))(s.t)
}

// A call that runs when the server is ended politely is interrupted, and its session
// sleeps with what it had.
func TestSession_SleepsWhereACallRunsAtTheEnd(t *testing.T) {
	state := t.TempDir()
	s := serve(t, state, nil, "bash")
	s.in("bash", "s", "echo 4 > f; echo begun", "begun\n")
	s.begin("bash", "s", endless)
	must.Do(t, syscall.Kill(s.PID(), syscall.SIGTERM))
	select {
	case <-s.Exited():
	case <-time.After(machineTime):
		t.Fatal("the server runs on")
	}
	// A bash that takes longer for an interrupt than it has is started again, with its files.
	// It goes on in the next server, and sleeps again.
	s = serve(t, state, nil, "bash")
	s.in("bash", "s", "cat f", "4\n")
	must.Do(t, s.CloseInput())
	<-s.Exited()
	if sessions := asleep(t, state); len(sessions) != 1 || sessions[0].Holder != nil {
		t.Errorf("there sleep %+v", sessions)
	}
}
