package framed

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// networked is the role of an agent with a proxy beside it. What it is given as
// code are the proxy's events, which it writes before it answers; see
// useNetwork.
const networked = "has a network"

// Codes that useNetwork knows besides events.
const (
	endProxy    = "end the proxy"
	floodEvents = "flood"
	descriptors = "descriptors"
)

func useNetwork() {
	w, r := frame.NewWriter(os.Stdout), frame.NewReader(os.Stdin)
	var events *os.File
	if text := os.Getenv(handover.EventsVariable); text != "" {
		fd, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		events = os.NewFile(uintptr(fd), "events")
	}
	w.Write(frame.Reply{Type: frame.Ready, Protocol: frame.Protocol})
	for {
		var request frame.Request
		if r.Read(&request) != nil {
			return
		}
		if request.Type != frame.Execute {
			continue
		}
		output := ""
		switch request.Code {
		case endProxy:
			events.Close()
		case floodEvents:
			go func() {
				line := []byte(`{"event":"refused","name":"evil.example","reason":"name"}` + "\n")
				for {
					if _, err := events.Write(line); err != nil {
						return
					}
				}
			}()
		case descriptors:
			var variables []string
			for _, variable := range os.Environ() {
				if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "NIX_SANDBOX") {
					variables = append(variables, name)
				} else if strings.HasPrefix(name, "SECRET") {
					variables = append(variables, name+":"+value)
				}
			}
			entries, _ := os.ReadDir("/proc/self/fd")
			output = fmt.Sprint(variables)
			for _, entry := range entries {
				if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && strings.HasPrefix(target, "pipe:") {
					output += " " + entry.Name()
				}
			}
		default:
			io.WriteString(events, request.Code)
			if strings.Contains(request.Code, `"asked"`) {
				answer := make([]byte, event.MaxLine)
				n, err := events.Read(answer)
				output = fmt.Sprint(string(answer[:n]), err)
			}
		}
		if output != "" {
			w.Write(frame.Reply{Type: frame.Output, ID: request.ID, Stream: frame.Stdout, Data: output})
		}
		w.Write(frame.Reply{Type: frame.Result, ID: request.ID, Outcome: frame.OutcomeOK, State: frame.StateKept})
	}
}

// records are a log that a test reads while it is written.
type records struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *records) Write(data []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(data)
}

func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// withNetwork starts a sandbox of that role. Its run calls it with events.
func withNetwork(t *testing.T, on bool) (s *Sandbox, log *records, run func(code string) (sandbox.Result, error)) {
	t.Helper()
	log = &records{}
	l := New(slog.New(slog.NewTextHandler(log, nil)), Options{})
	t.Cleanup(func() { l.Close(10 * time.Second) })
	box := must.Get(l.Start(t.Context(), sandbox.Spec{Name: "data", Exec: program(t, networked), OutputBytes: 1000, Network: on}))(t)
	return box.(*Sandbox), log, func(code string) (sandbox.Result, error) {
		return box.Run(t.Context(), sandbox.Request{Code: code, Timeout: patience.Long, Keep: true})
	}
}

func TestNetwork_EventsOfACallAreInItsResult(t *testing.T) {
	_, log, run := withNetwork(t, true)
	result := must.Get(run(`{"event":"refused","name":"evil.example","reason":"name","option":"network.domains","value":"evil.example","count":2}
{"event":"refused","name":"evil.example","reason":"name","option":"network.domains","value":"evil.example","count":1}
{"event":"closed","name":"files.example","port":443,"address":"203.0.113.5","up":512,"down":10240,"milliseconds":35}
{"event":"failed","name":"slow.example","port":443,"problem":"connection refused","count":1}
{"event":"closed","name":"files.example","port":443,"address":"203.0.113.6","up":1,"down":2,"milliseconds":3}
`))(t)
	want := &sandbox.Network{
		Refused: []sandbox.Refusal{{Name: "evil.example", Reason: "name", Option: "network.domains", Value: "evil.example", Count: 3}},
		Failed:  []sandbox.Failure{{Name: "slow.example", Port: 443, Problem: "connection refused", Count: 1}},
		Reached: []sandbox.Reached{{Name: "files.example", Port: 443, Count: 2, Up: 513, Down: 10242}},
	}
	if diff := cmp.Diff(want, result.Network, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	// A second call has none of the first's, and one without events has nothing.
	if result := must.Get(run(""))(t); result.Network != nil {
		t.Errorf("a call without events: %+v", result.Network)
	}
	for _, line := range []string{
		`level=WARN msg="network refused" env=data sandbox=`,
		`name=evil.example port=0 reason=name option=network.domains value=evil.example count=2`,
		`level=INFO msg="network connection" env=data sandbox=`,
		`name=files.example port=443 address=203.0.113.5 up=512 down=10240 ms=35`,
		`level=INFO msg="network failed"`,
	} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log lacks %s:\n%s", line, log)
		}
	}
}

// A question of the proxy is one to whoever the call names, and nobody's is refused.
func TestNetwork_AsksForAHost(t *testing.T) {
	l := New(silent(), Options{})
	t.Cleanup(func() { l.Close(10 * time.Second) })
	box := must.Get(l.Start(t.Context(), sandbox.Spec{Name: "data", Exec: program(t, networked), OutputBytes: 1000, Network: true, Asks: true}))(t)
	code := `{"event":"asked","name":"files.example","port":443,"ask":7}` + "\n"
	for _, c := range []struct {
		host func(context.Context, string, int) event.Reason
		want string
	}{
		{nil, `{"ask":7,"refused":"nobody"}<nil>`},
		{func(_ context.Context, name string, port int) event.Reason {
			if name != "files.example" || port != 443 {
				t.Errorf("asked for %s:%d", name, port)
			}
			return ""
		}, `{"ask":7}<nil>`},
		{func(context.Context, string, int) event.Reason { return event.ByUser }, `{"ask":7,"refused":"user"}<nil>`},
	} {
		result := must.Get(box.Run(t.Context(), sandbox.Request{Code: code, Timeout: patience.Long, Keep: true, Host: c.host}))(t)
		if got := result.Stdout.Head; got != c.want {
			t.Errorf("answer %s, want %s", got, c.want)
		}
	}
}

// What a background process does between two calls is in the log and in no
// result.
func TestNetwork_EventsBetweenCallsAreLogged(t *testing.T) {
	s, log, run := withNetwork(t, true)
	must.Get(run(""))(t)
	// The agent is idle, so the test writes in its place.
	events := must.Get(os.OpenFile(fmt.Sprintf("/proc/%d/fd/3", s.pid()), os.O_WRONLY, 0))(t)
	defer events.Close()
	must.Get(io.WriteString(events, `{"event":"refused","name":"between.example","reason":"name"}`+"\n"))(t)
	if result := must.Get(run(""))(t); result.Network != nil {
		t.Errorf("the next call's result: %+v", result.Network)
	}
	if !strings.Contains(log.String(), "name=between.example") {
		t.Errorf("it is not in the log:\n%s", log)
	}
	if s.Idle() {
		t.Error("a sandbox whose code used the network unasked counts as idle")
	}
}

func TestNetwork_ResultIsBounded(t *testing.T) {
	_, log, run := withNetwork(t, true)
	var lines strings.Builder
	const events = 400
	for i := range events {
		fmt.Fprintf(&lines, `{"event":"refused","name":"n%d.example","reason":"name","count":1}`+"\n", i)
	}
	result := must.Get(run(lines.String()))(t)
	if n := result.Network; len(n.Refused) != sandbox.MaxNetwork || n.Omitted != events-sandbox.MaxNetwork {
		t.Errorf("%d are kept and %d omitted, of %d", len(n.Refused), n.Omitted, events)
	}
	for range 2 {
		must.Get(run(lines.String()))(t)
	}
	if n := strings.Count(log.String(), "network refused"); n != maxEventLines {
		t.Errorf("%d lines in the log", n)
	}
}

// A stream that breaks a rule is not read any more, and the sandbox works on.
func TestNetwork_BrokenStreamCostsTheEvents(t *testing.T) {
	for name, stream := range map[string]string{
		"no JSON":           "hello\n",
		"a name of words":   `{"event":"refused","name":"ignore what was before"}` + "\n",
		"a line of 5,000":   strings.Repeat("x", 5000),
		"a line of 100,000": strings.Repeat("x", 100000), // more than the pipe takes
	} {
		t.Run(name, func(t *testing.T) {
			s, log, run := withNetwork(t, true)
			must.Get(run(stream))(t)
			result := must.Get(run("more\n"))(t)
			if result.Network != nil {
				t.Errorf("%+v", result.Network)
			}
			if n := strings.Count(log.String(), "events are not read any more"); n != 1 {
				t.Errorf("%d lines about it:\n%s", n, log)
			}
			if s.Idle() {
				t.Error("it counts as idle")
			}
		})
	}
}

// A proxy that never stops to write does not keep a call from its result.
func TestNetwork_FloodDoesNotDelayResults(t *testing.T) {
	_, _, run := withNetwork(t, true)
	must.Get(run(floodEvents))(t)
	for range 20 {
		result := must.Get(run(""))(t)
		if n := result.Network; n != nil && len(n.Refused) != 1 {
			t.Errorf("%+v", n)
		}
	}
}

// A proxy that outlives its sandbox and never stops to write does not keep the
// sandbox from its end.
func TestNetwork_FloodDoesNotDelayTheEnd(t *testing.T) {
	s, _, run := withNetwork(t, true)
	must.Get(run(""))(t)
	events := must.Get(os.OpenFile(fmt.Sprintf("/proc/%d/fd/3", s.pid()), os.O_WRONLY, 0))(t)
	defer events.Close()
	var flood sync.WaitGroup
	for range 8 { // so that the pipe is never empty
		flood.Go(func() {
			lines := []byte(strings.Repeat(`{"event":"dropped","count":1}`+"\n", 100))
			for {
				if _, err := events.Write(lines); err != nil {
					return // nobody reads any more
				}
			}
		})
	}
	s.Kill()
	deadline(t, "reaping", s.reaped)
	flood.Wait()
}

func TestNetwork_EndOfTheProxyIsToldOfEachCall(t *testing.T) {
	s, log, run := withNetwork(t, true)
	if !s.Idle() {
		t.Error("a new sandbox is not idle")
	}
	must.Get(run(`{"event":"ended","problem":"it used more memory than it may"}` + "\n"))(t)
	for range 2 {
		result := must.Get(run(endProxy))(t)
		want := &sandbox.Network{Ended: true, Problem: "it used more memory than it may"}
		if diff := cmp.Diff(want, result.Network, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Error(diff)
		}
	}
	if s.Idle() {
		t.Error("a sandbox whose proxy ended counts as idle")
	}
	for end := time.Now().Add(patience.Long); !strings.Contains(log.String(), `msg="network ended"`); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the log lacks it:\n%s", log)
		}
	}
}

// Without a network there is no pipe and no variable. With one there is one of
// each.
func TestNetwork_NoneCostsNothing(t *testing.T) {
	_, _, without := withNetwork(t, false)
	s, _, with := withNetwork(t, true)
	before := must.Get(without(descriptors))(t).Stdout.Head
	if !strings.HasPrefix(before, "[] 0 1 2") || s.network == nil {
		t.Errorf("without a network: variables and pipes %q", before)
	}
	after := must.Get(with(descriptors))(t).Stdout.Head
	if want := "[" + handover.EventsVariable + "]" + strings.TrimPrefix(before, "[]") + " 3"; after != want {
		t.Errorf("with a network: variables and pipes %q, want %q", after, want)
	}
}

// The launcher has the variables that its environment names, those that there are
// and no others. A server's own environment is not inherited.
func TestNetwork_LauncherHasTheNamedSecrets(t *testing.T) {
	t.Setenv("SECRET_TOKEN", "of the server")
	t.Setenv("SECRET_OTHER", "not for this sandbox")
	l := New(silent(), Options{})
	t.Cleanup(func() { l.Close(10 * time.Second) })
	box := must.Get(l.Start(t.Context(), sandbox.Spec{Exec: program(t, networked), OutputBytes: 1000, Secrets: []string{"SECRET_TOKEN", "SECRET_NONE"}}))(t)
	result := must.Get(box.Run(t.Context(), sandbox.Request{Code: descriptors, Timeout: patience.Long}))(t)
	if got := result.Stdout.Head; !strings.HasPrefix(got, "[SECRET_TOKEN:of the server] ") {
		t.Errorf("it has %q", got)
	}
}
