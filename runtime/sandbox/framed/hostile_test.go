package framed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// role is the variable that makes the test binary an agent that does one of the
// things that code could do which took over an agent.
const role = "HOSTILE_AGENT"

func TestMain(m *testing.M) {
	switch as := os.Getenv(role); as {
	case "":
	case starter:
		start()
		return
	case networked:
		useNetwork()
		return
	default:
		hostileAgent(as)
		return
	}
	os.Exit(patience.Main(m))
}

// starter is the role of a program that starts the sandbox that toStart names,
// prints its process id and is then killed.
const (
	starter = "starts another"
	toStart = "PROGRAM_TO_START"
)

func start() {
	s, err := New(silent(), Options{}).Start(context.Background(), sandbox.Spec{Exec: os.Getenv(toStart), OutputBytes: 1000})
	if err != nil {
		panic(err)
	}
	fmt.Println(s.(*Sandbox).pid())
	time.Sleep(time.Minute)
}

// hostile is an agent that breaks a rule.
func hostileAgent(as string) {
	w := frame.NewWriter(os.Stdout)
	r := frame.NewReader(os.Stdin)
	ready := frame.Reply{Type: frame.Ready, Protocol: frame.Protocol}
	header := func(size uint32) { os.Stdout.Write(binary.BigEndian.AppendUint32(nil, size)) }
	// execute waits for the call and returns its id.
	execute := func() uint64 {
		for {
			var request frame.Request
			if err := r.Read(&request); err != nil {
				os.Exit(0)
			}
			if request.Type == frame.Execute || request.Type == frame.Read {
				return request.ID
			}
		}
	}
	switch as {
	case "fails to start":
		fmt.Fprintln(os.Stderr, "error: no user namespaces")
		os.Exit(125)
	case "cannot start its poller":
		fmt.Fprint(os.Stderr, "runtime: epollctl failed with 28\nfatal error: runtime: epollctl failed\n\ngoroutine 1 gp=0x1 [running]:\n",
			strings.Repeat("runtime.throw({0x1?, 0x2?})\n\truntime/panic.go:1101 +0x48\n", 40))
		os.Exit(2)
	case neverReady:
		time.Sleep(time.Minute)
	case "speaks another protocol":
		w.Write(frame.Reply{Type: frame.Ready, Protocol: 7})
		time.Sleep(time.Minute)
	case "begins with a result":
		w.Write(frame.Reply{Type: frame.Result, ID: 1})
		time.Sleep(time.Minute)
	case "writes garbage":
		os.Stdout.Write(bytes.Repeat([]byte{0xff, 0, 'x', '\n'}, 100000))
		time.Sleep(time.Minute)
	}
	w.Write(ready)
	switch as {
	case "ends when idle":
		return
	case "writes when idle":
		w.Write(frame.Reply{Type: frame.Output, ID: 9, Stream: frame.Stdout, Data: "x"})
		time.Sleep(time.Minute)
	case "does not read":
		time.Sleep(time.Minute)
	}
	id := execute()
	forever := func(reply frame.Reply) {
		for w.Write(reply) == nil {
		}
	}
	switch as {
	case "announces 16 MiB":
		header(frame.MaxPayload)
		io.Copy(os.Stdout, bytes.NewReader(make([]byte, frame.MaxPayload)))
	case "breaks off in a frame":
		header(100)
		os.Stdout.WriteString("{")
		return
	case "sends no JSON":
		header(4)
		os.Stdout.WriteString("null}{")
	case "floods with output":
		forever(frame.Reply{Type: frame.Output, ID: id, Stream: frame.Stdout, Data: strings.Repeat("x", 1000)})
	case "floods with empty output":
		forever(frame.Reply{Type: frame.Output, ID: id, Stream: frame.Stderr})
	case "floods with samples":
		forever(frame.Reply{Type: frame.Output, ID: id, Stream: frame.Stderr, Sample: true, Data: "x"})
	case "floods the log":
		for {
			if _, err := fmt.Fprintln(os.Stderr, strings.Repeat("y", 1000)); err != nil {
				return
			}
		}
	case "answers after too much output":
		// Less than the frames that it may send, and more than the bytes.
		for range 1000 {
			w.Write(frame.Reply{Type: frame.Output, ID: id, Stream: frame.Stdout, Data: strings.Repeat("x", 1000)})
		}
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeOK})
	case "answers another call":
		w.Write(frame.Reply{Type: frame.Result, ID: id + 1, Outcome: frame.OutcomeOK})
	case "answers twice":
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeOK})
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeOK})
	case "answers with a pong":
		w.Write(frame.Reply{Type: frame.Pong, ID: id})
	case "names no limit":
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeMemory})
	case "invents a limit":
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeLimit, Limit: &frame.Limit{Name: "patience", Used: 7}})
	case "uses less than nothing":
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeMemory, Limit: &frame.Limit{Name: frame.Memory, Used: -1}})
	case "uses more than there is":
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeMemory, Limit: &frame.Limit{Name: frame.Memory, Used: 1 << 50}})
	case "invents an outcome":
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: "won"})
	case "invents a state":
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeOK, State: "solid"})
	case "invents a stream":
		w.Write(frame.Reply{Type: frame.Output, ID: id, Stream: "stdlog", Data: "x"})
	case "names files elsewhere":
		w.Write(frame.Reply{
			Type: frame.Result, ID: id, Outcome: frame.OutcomeOK,
			Files: []frame.File{
				{Path: "/etc/passwd"}, {Path: "/workspace/../etc/passwd"}, {Path: "relative"}, {Path: "/workspace/elsewhere"},
				{Path: "/workspace/outputs/a\x00"}, {Path: "/workspace/outputs/\xff"}, {Path: "/workspace/outputs/" + strings.Repeat("a", 1024)},
				{Path: "/workspace/outputs/good", Size: 1}, {Path: "/workspace/outputs/negative", Size: -1},
			},
			Truncated: []frame.Truncation{{Stream: frame.Stdout, Path: "/etc/shadow", Stored: 1}},
		})
	case "sends more of a file":
		w.Write(frame.Reply{Type: frame.Contents, ID: id, Contents: make([]byte, 100), Size: 100})
	case "claims a negative size":
		w.Write(frame.Reply{Type: frame.Contents, ID: id, Contents: make([]byte, 5), Size: -1})
	case "dies in a call":
		w.Write(frame.Reply{Type: frame.Output, ID: id, Stream: frame.Stdout, Data: "so far\n"})
		fmt.Fprintln(os.Stderr, "fatal: out of luck")
		os.Exit(2)
	case "leaves a child with its streams":
		child := exec.Command("/bin/sleep", "20")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
		fmt.Fprintln(os.Stderr, "child", child.Process.Pid)
		return
	case "prints controls alone":
		w.Write(frame.Reply{Type: frame.Output, ID: id, Stream: frame.Stdout, Data: strings.Repeat("\x01", mostOutput)})
		w.Write(frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeOK})
	case "answers an error":
		w.Write(frame.Reply{Type: frame.Error, ID: id, Message: "no\nsuch interpreter"})
	}
	time.Sleep(time.Minute)
}

// program is a program that takes a role as an agent.
func program(t *testing.T, as string) string {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	path := filepath.Join(t.TempDir(), "session-run")
	text := fmt.Sprintf("#!/bin/sh\n%s='%s' GORACE=atexit_sleep_ms=0 exec '%s'\n", role, as, exe)
	must.Write(t, path, text, 0o755)
	return path
}

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

// neverReady is the role of an agent that sends nothing.
const neverReady = "is never ready"

// mostOutput is the most that an environment may answer, in bytes.
const mostOutput = 1 << 20

func launch(t *testing.T, as string) (*Starter, *Sandbox, error) {
	t.Helper()
	return launchWith(t, as, 1000)
}

func launchWith(t *testing.T, as string, output int64) (*Starter, *Sandbox, error) {
	t.Helper()
	timeout := patience.Long
	if as == neverReady {
		timeout = 200 * time.Millisecond
	}
	l := New(silent(), Options{StartTimeout: timeout})
	t.Cleanup(func() { l.Close(10 * time.Second) })
	box, err := l.Start(t.Context(), sandbox.Spec{Name: as, Exec: program(t, as), OutputBytes: output})
	s, _ := box.(*Sandbox)
	return l, s, err
}

// deadline fails a test that waits for something which never comes.
func deadline(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience.Long):
		t.Fatalf("%s: nothing after %v", what, patience.Long)
	}
}

func TestHostileStart(t *testing.T) {
	t.Parallel()
	for as, want := range map[string]string{
		"fails to start":          "the agent ended; its log ends: error: no user namespaces",
		"cannot start its poller": "the agent ended; its log ends: the agent could not go on: epollctl failed with 28: this user's programs watch as many files as fs.epoll.max_user_watches allows; end those that do, or run the server as a user of its own",
		neverReady:                "it was not ready within 200ms",
		"speaks another protocol": `its first frame is "ready" with protocol 7, not ready with protocol 1`,
		"begins with a result":    `its first frame is "result" with protocol 0`,
		"writes garbage":          "the agent's stream broke: frame is too large: 4278",
	} {
		t.Run(as, func(t *testing.T) {
			t.Parallel()
			_, _, err := launch(t, as)
			var dead *sandbox.DeadError
			if !errors.As(err, &dead) || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		})
	}
}

func TestHostileCall(t *testing.T) {
	t.Parallel()
	for as, want := range map[string]string{
		"writes when idle":                "the agent sent \"output\" for a request that nobody made",
		"ends when idle":                  "", // found out while asking, or before
		"does not read":                   "it does not take requests",
		"announces 16 MiB":                "frame is too large: 16777216 bytes announced",
		"breaks off in a frame":           "the agent's stream broke: unexpected EOF",
		"sends no JSON":                   "",
		"floods with output":              "the agent sent more than it may",
		"floods with empty output":        "the agent sent more than it may",
		"floods with samples":             "the agent sent more than it may",
		"answers after too much output":   "the agent sent more than it may",
		"floods the log":                  "it logged more than 4 MiB",
		"answers another call":            "for a request that nobody made",
		"answers with a pong":             `the agent answered with "pong" instead of result`,
		"names no limit":                  `the agent named the outcome memory and no limit`,
		"invents a limit":                 `the agent named the limit "patience", of which 7 were used`,
		"uses less than nothing":          `the agent named the limit "memory_mb", of which -1 were used`,
		"uses more than there is":         `the agent named the limit "memory_mb", of which 1125899906842624 were used`,
		"invents an outcome":              `the agent named the outcome "won"`,
		"invents a state":                 `the agent named the state "solid"`,
		"invents a stream":                `the agent named the stream "stdlog"`,
		"dies in a call":                  "the agent ended; its log ends: fatal: out of luck",
		"leaves a child with its streams": "the agent did not end the call at its time limit",
		"answers nothing":                 "the agent did not end the call at its time limit",
	} {
		t.Run(as, func(t *testing.T) {
			t.Parallel()
			_, s, err := launch(t, as)
			var dead *sandbox.DeadError
			if as == "writes when idle" && errors.As(err, &dead) {
				return // so early that it did not even start
			}
			if err != nil {
				t.Fatal(err)
			}
			code := "1"
			if as == "does not read" {
				code = strings.Repeat("x", 1<<20) // more than a pipe takes
			}
			timeout := 5 * time.Minute // what it does ends it, however slowly it comes
			switch as {
			case "leaves a child with its streams", "answers nothing", "does not read":
				timeout = 200 * time.Millisecond
			}
			result, err := s.Run(t.Context(), sandbox.Request{Code: code, Timeout: timeout, Grace: 50 * time.Millisecond})
			if !errors.As(err, &dead) || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
			deadline(t, "reaping", s.reaped)
			if as == "dies in a call" {
				if result.Stdout.Head != "so far\n" {
					t.Errorf("stdout %+v", result.Stdout)
				}
			}
			if _, pid, ok := strings.Cut(err.Error(), "child "); ok {
				var child int
				if _, err := fmt.Sscan(pid, &child); err == nil {
					syscall.Kill(child, syscall.SIGKILL)
				}
			}
			// Nothing can be asked of it any more, and nothing hangs.
			if _, err := s.Run(t.Context(), sandbox.Request{Timeout: time.Second}); !errors.As(err, &dead) {
				t.Errorf("a call after the end: %v", err)
			}
		})
	}
}

func TestHostileResult(t *testing.T) {
	t.Parallel()
	_, s, err := launch(t, "names files elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	result := must.Get(s.Run(t.Context(), sandbox.Request{Timeout: time.Hour, Keep: true}))(t)
	if len(result.Files) != 1 || result.Files[0].Path != "/workspace/outputs/good" {
		t.Errorf("files %+v", result.Files)
	}
	if len(result.Stored) != 0 {
		t.Errorf("stored %v", result.Stored)
	}
}

// The largest honest frame is taken: all of a stream's output, each byte of
// which JSON writes as six.
func TestLargestOutput(t *testing.T) {
	t.Parallel()
	_, s, err := launchWith(t, "prints controls alone", mostOutput)
	if err != nil {
		t.Fatal(err)
	}
	result := must.Get(s.Run(t.Context(), sandbox.Request{Timeout: time.Hour}))(t)
	if len(result.Stdout.Head) != mostOutput {
		t.Errorf("%d bytes of output, %d cut", len(result.Stdout.Head), result.Stdout.Cut)
	}
}

func TestErrorReplyKeepsTheSandbox(t *testing.T) {
	t.Parallel()
	_, s, err := launch(t, "answers an error")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Run(t.Context(), sandbox.Request{Timeout: patience.Long})
	if err == nil || err.Error() != "the sandbox refused the call: no such interpreter" {
		t.Errorf("error %v", err)
	}
	select {
	case <-s.Done():
		t.Error("the sandbox ended")
	default:
	}
}

func TestReadMoreThanAsked(t *testing.T) {
	t.Parallel()
	for _, as := range []string{"sends more of a file", "claims a negative size"} {
		_, s, err := launch(t, as)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.readPart(t.Context(), "/workspace/a", 0, 10); err == nil || !strings.Contains(err.Error(), "more of a file than was asked for") {
			t.Errorf("%s: error %v", as, err)
		}
	}
}

func TestReadErrorIsOneLine(t *testing.T) {
	t.Parallel()
	_, s, err := launch(t, "answers an error")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.readPart(t.Context(), "/workspace/a", 0, 10); err == nil || err.Error() != "no such interpreter" {
		t.Errorf("error %q", err)
	}
}

// A second answer is one to a request that nobody made, whoever takes the
// first.
func TestAnswerTwice(t *testing.T) {
	t.Parallel()
	_, s, err := launch(t, "answers twice")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = s.Run(t.Context(), sandbox.Request{Timeout: patience.Long})
	deadline(t, "the end", s.reaped)
	if err := s.death(); !strings.Contains(err.Error(), `the agent sent "result" for a request that nobody made`) {
		t.Errorf("death %v", err)
	}
}

// An interrupt that is not heeded ends the sandbox when its grace is over.
func TestCancelUnheeded(t *testing.T) {
	t.Parallel()
	_, s, err := launch(t, "answers nothing")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = s.Run(ctx, sandbox.Request{Timeout: time.Hour, Grace: 50 * time.Millisecond})
	// This agent ends by itself, later.
	var dead *sandbox.DeadError
	if want := "the agent did not end the call at its time limit"; !errors.As(err, &dead) || dead.Reason != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// Questions that nobody waits for any more are unanswered all the same, and
// count.
func TestUnansweredAreBounded(t *testing.T) {
	t.Parallel()
	_, s, err := launch(t, "answers nothing")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range maxPending {
		if _, _, err := s.readPart(ctx, "/workspace/a", 0, 1); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v, want a cancelled question", err)
		}
	}
	if _, _, err := s.readPart(ctx, "/workspace/a", 0, 1); err == nil || !strings.Contains(err.Error(), "64 requests to one sandbox wait already") {
		t.Errorf("error %v", err)
	}
}

// A sandbox that is slow to describe itself goes on; one that is slow to give a file does not.
func TestSlowLooksEndNothing(t *testing.T) {
	t.Parallel()
	_, s, err := launch(t, "answers nothing")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Look(t.Context()); err == nil {
		t.Error("a look without an answer")
	}
	if _, _, err := s.Examine(t.Context()); err == nil {
		t.Error("an examination without an answer")
	}
	select {
	case <-s.Done():
		t.Errorf("the sandbox has ended: %v", s.death())
	default:
	}
	if _, _, err := s.readPart(t.Context(), "/workspace/a", 0, 1); !errors.As(err, new(*sandbox.DeadError)) {
		t.Errorf("the control: error %v", err)
	}
}

func TestCancelledBeforeIsNotRun(t *testing.T) {
	t.Parallel()
	_, s, err := launch(t, "answers another call") // which ends it, if it gets one
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Run(ctx, sandbox.Request{Timeout: time.Second}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	select {
	case <-s.Done():
		t.Error("the call reached the sandbox")
	case <-time.After(100 * time.Millisecond):
	}
}

func TestStartThatCannot(t *testing.T) {
	l := New(silent(), Options{})
	defer l.Close(time.Second)
	path := filepath.Join(t.TempDir(), "none")
	_, err := l.Start(t.Context(), sandbox.Spec{Exec: path})
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
}

func TestStartAfterClose(t *testing.T) {
	l := New(silent(), Options{})
	l.Close(time.Second)
	if _, err := l.Start(t.Context(), sandbox.Spec{Exec: "/bin/true"}); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestStartCancelled(t *testing.T) {
	l := New(silent(), Options{})
	defer l.Close(10 * time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := l.Start(ctx, sandbox.Spec{Exec: program(t, neverReady)}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if left := procfs.Descendants(os.Getpid()); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// Whatever an agent does, nothing of it is left: no process, no descriptor.
func TestNothingIsLeft(t *testing.T) {
	before := must.Get(procfs.Descriptors(os.Getpid()))(t)
	roles := []string{"fails to start", "writes garbage", "answers twice", "floods the log", "dies in a call", "answers nothing", "ends when idle"}
	t.Run("end", func(t *testing.T) {
		for range 3 {
			for _, as := range roles {
				t.Run(as, func(t *testing.T) {
					t.Parallel()
					l, s, err := launch(t, as)
					if err == nil {
						s.Run(t.Context(), sandbox.Request{Timeout: 10 * time.Millisecond, Grace: time.Millisecond})
					}
					l.Close(10 * time.Second)
				})
			}
		}
	})
	if left := procfs.Descendants(os.Getpid()); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	if after := must.Get(procfs.Descriptors(os.Getpid()))(t); after > before+2 { // the runtime's own poller
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// Nothing of a sandbox outlives a program that was killed, even where the agent
// does not mind the end of its input.
func TestEndsWithItsStarter(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	// The end of its input does not end this agent.
	cmd.Env = []string{role + "=" + starter, toStart + "=" + program(t, "does not read")}
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	var pid int
	_, err := fmt.Fscan(out, &pid)
	alive := err == nil && syscall.Kill(pid, 0) == nil
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !alive {
		t.Fatalf("the sandbox %d did not live: %v", pid, err)
	}
	patience.Gone(t, pid)
}

// A sandbox gets what it is meant to get of its parent, and no more.
func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "1")
	script := filepath.Join(t.TempDir(), "session-run")
	text := "#!/bin/sh\n/usr/bin/env >&2\n/bin/grep SigIgn /proc/self/status >&2\n"
	must.Write(t, script, text, 0o755)
	l := New(silent(), Options{})
	defer l.Close(time.Second)
	_, failure := l.Start(t.Context(), sandbox.Spec{Exec: script, Host: sandbox.HostFolders{Project: sandbox.Project{Dir: "/p"}}})
	if failure == nil {
		t.Fatal("it started")
	}
	// What these tests were started to ignore, as by nohup, the launched ignore.
	status := must.Get(os.ReadFile("/proc/self/status"))(t)
	_, ignored, _ := strings.Cut(string(status), "SigIgn:")
	for _, want := range []string{"PROJECT_DIR=/p", "SigIgn: " + strings.Fields(ignored)[0]} {
		if !strings.Contains(failure.Error(), want) {
			t.Errorf("log %v lacks %q", failure, want)
		}
	}
	if strings.Contains(failure.Error(), "SECRET") {
		t.Errorf("the host's environment reached the sandbox: %v", failure)
	}
}
