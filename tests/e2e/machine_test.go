package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/callfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// asMachine is the variable that makes the test binary a server over
// sandboxtest's machine: the transport, the tool, the sessions and the pool are
// the real ones, and nothing else is. Its value is the part of the starts that
// fail, from 0 to 1.
const asMachine = "NIX_SANDBOX_TEST_SERVE_MACHINE"

func TestMain(m *testing.M) {
	var err error
	if address, ok := os.LookupEnv(asClients); ok {
		err = runClients(address)
	} else if rate, ok := os.LookupEnv(asMachine); ok {
		err = serveMachine(rate)
	} else {
		runTests(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func serveMachine(rate string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	failureRate, err := strconv.ParseFloat(rate, 64)
	if err != nil {
		return err
	}
	settings, err := config.Read(os.Getenv)
	if err != nil {
		return err
	}
	base, err := registry.Read(settings.Metadata)
	if err != nil {
		return err
	}
	settings, err = settings.Complete(base.Session, base.Project)
	if err != nil {
		return err
	}
	watcher := registry.Watch(base, settings.Folders, log)
	seed, err := seed.Pick()
	if err != nil {
		return err
	}
	log.Info("machine", "seed", seed)
	kept := callfiles.New(callfiles.Limits{Idle: time.Hour, Lifetime: time.Hour, Calls: 256, Bytes: 256 << 20}, os.TempDir(), log)
	return service.Stdio(context.Background(), os.Stdin, os.Stdout, &service.Options{
		Starter: &sandboxtest.Machine{
			StartTime: 5 * time.Millisecond, Memory: 1 << 20,
			FailureRate: failureRate, Rand: rand.New(rand.NewPCG(seed, 0)),
		},
		Sessions:  session.Limits{Idle: settings.SessionIdle, Lifetime: settings.SessionLifetime, Max: settings.SessionMax},
		Host:      sandbox.HostFolders{Project: sandbox.Project{Dir: settings.ProjectDir, Mount: settings.ProjectMount, Mode: settings.ProjectMode}},
		Version:   "0",
		Log:       log,
		OneShots:  32,
		CallFiles: kept,
		Tool:      tool.Options{Environments: watcher.Registry(), Kept: kept, Log: log},
	})
}

// useMachine makes a server over the machine the one under test.
func useMachine(t *testing.T, failureRate float64) {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	root := t.TempDir()
	environments := map[string]map[string]any{}
	for name, description := range map[string]string{"bash": "Bash", "python": "Python 3", "node": "JavaScript in Node.js"} {
		environments[name] = map[string]any{
			"schema": 1, "name": name, "backend": "jail", "interpreter_type": name, "language": map[string]any{"sessions": true},
			"description": description, "exec": "/bin/true", "session_exec": "/bin/true", "timeout_seconds": 30,
		}
	}
	metadata := filepath.Join(root, "share", "nix-sandbox-mcp", "metadata.json")
	program := filepath.Join(root, "bin", "nix-sandbox-mcp")
	script := fmt.Sprintf("#!/bin/sh\n: \"${NIX_SANDBOX_METADATA=%s}\"\nexport NIX_SANDBOX_METADATA\n%s=%g %s='%s' GORACE=atexit_sleep_ms=0 exec '%s'\n",
		metadata, asMachine, failureRate, seed.Variable, os.Getenv(seed.Variable), exe)
	must.Write(t, metadata, mcptest.Metadata(t, environments), 0o644)
	must.Write(t, program, script, 0o755)
	t.Setenv("NIX_SANDBOX_MCP_SERVER", program)
}

// The tests of the protocol pass over a machine that is no jail: nothing above
// the starter knows how a sandbox is made.
func TestMachine_Protocol(t *testing.T) {
	useMachine(t, 0)
	for name, test := range map[string]func(*testing.T){
		"PipedHeredoc": TestPipedHeredoc, "ProtocolEras": TestProtocolEras, "StatelessFirstCall": TestStatelessFirstCall,
		"ContextCost": TestContextCost, "Errors": TestProtocol_ErrorCodes, "BadInput": TestProtocol_SurvivesBadInput,
		"OtherEnvironment": TestSession_RefusesOtherEnvironment, "TooManySessions": TestSessions_AreBounded, "ResourceTemplate": TestResources_HaveTemplate,
	} {
		t.Run(name, test)
	}
}

// Calls of a session run in the order in which they were sent; a cancelled one
// does not, or keeps the state.
func TestMachine_Sessions(t *testing.T) {
	useMachine(t, 0)
	c := start(t)
	var ids []string
	var want strings.Builder
	for i := range 100 {
		fmt.Fprintf(&want, ".%d", i)
		ids = append(ids, c.SendRun(mcptest.Arguments{Code: fmt.Sprintf("order=$order.%d", i), Env: "bash", Session: "s"}))
	}
	for _, id := range ids {
		if answer := c.AwaitRun(id); answer.IsError {
			t.Fatalf("answer %+v", answer)
		}
	}
	if answer := in(c, "s", "bash", "echo $order"); answer.Text() != want.String()+"\n" {
		t.Errorf("order %s", answer.Text())
	}
	running := c.SendRun(mcptest.Arguments{Code: "x=kept; sleep 99", Env: "bash", Session: "s"})
	waiting := c.SendRun(mcptest.Arguments{Code: "x=lost", Env: "bash", Session: "s"})
	c.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(waiting)})
	c.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(running)})
	if answer := in(c, "s", "bash", "echo x$x"); answer.Text() != "xkept\n" && answer.Text() != "x\n" { // the call may not have begun
		t.Errorf("after the cancelled calls: %+v", answer)
	}
	if answer := in(c, "s", "bash", "crash"); !answer.IsError || answer.Fact("outcome") != "died" {
		t.Errorf("the crash: %+v", answer)
	}
	if answer := in(c, "s", "bash", "echo none$x"); answer.Text() != "none\n[new session: the earlier one ended because its sandbox died]" {
		t.Errorf("afterwards: %+v", answer)
	}
}

func TestMachine_Files(t *testing.T) {
	useMachine(t, 0)
	c := start(t)
	answer := in(c, "s", "bash", "echo a,b >outputs/table.csv; png outputs/dot.png")
	if len(answer.Content) != 2 || answer.Content[0].Type != "resource_link" || answer.Content[1].MIMEType != "image/png" {
		t.Fatalf("answer %+v", answer)
	}
	var read struct{ Contents []struct{ Text string } }
	must.Do(t, json.Unmarshal(c.Request("resources/read", map[string]any{"uri": answer.Content[0].URI}).Result, &read))
	if len(read.Contents) != 1 || read.Contents[0].Text != "a,b\n" {
		t.Errorf("read %+v", read)
	}
}

// Of a machine on which many starts fail, every call is answered, and those
// that got a sandbox rightly.
func TestMachine_Failures(t *testing.T) {
	useMachine(t, 0.4)
	c := start(t)
	var ids []string
	for i := range 300 {
		call := mcptest.Arguments{Code: fmt.Sprintf("echo %d", i), Env: []string{"bash", "python", "node"}[i%3]}
		if i%4 == 0 {
			call.Session = strconv.Itoa(i % 20)
			call.Env = "bash"
		}
		ids = append(ids, c.SendRun(call))
	}
	ran := 0
	for i, id := range ids {
		answer := c.AwaitRun(id)
		switch text := answer.Text(); {
		case text == fmt.Sprintln(i):
			ran++
		case !answer.IsError || !strings.Contains(text, "did not start: the machine failed"):
			t.Errorf("call %d: %+v", i, answer)
		}
	}
	if ran == 0 || ran == len(ids) {
		t.Errorf("%d of %d calls ran", ran, len(ids))
	}
	c.CloseInput()
	if status := c.Wait(10 * time.Second); status != 0 {
		t.Errorf("status %d", status)
	}
}
