package network

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// forms is a client's capability to show its user forms.
var forms = map[string]any{"elicitation": map[string]any{"form": map[string]any{}}}

// form is what a client shows its user.
type form struct {
	Message         string `json:"message"`
	RequestedSchema struct {
		Properties struct {
			Choice struct {
				Enum []string `json:"enum"`
			} `json:"choice"`
		} `json:"properties"`
	} `json:"requestedSchema"`
}

// person is a client's user, who gives the answers in their order.
type person struct {
	mu      sync.Mutex
	answers []any
	shown   []form
	times   []time.Time // of the answers
}

func accept(choice string) any {
	return map[string]any{"action": "accept", "content": map[string]any{"choice": choice}}
}

func (p *person) answer(params json.RawMessage) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	var shown form
	_ = json.Unmarshal(params, &shown)
	p.shown = append(p.shown, shown)
	if len(p.answers) == 0 {
		return nil
	}
	next := p.answers[0]
	p.answers = p.answers[1:]
	p.times = append(p.times, time.Now())
	return next
}

func (p *person) texts() (texts []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.shown {
		texts = append(texts, one.Message)
	}
	return texts
}

// asked starts a server whose client asks a person.
func asked(t *testing.T, w *networld.World, version string, p *person) *mcptest.Client {
	c := start(t, w, "world-ask")
	c.Capabilities = forms
	c.OnRequest = func(m mcptest.Message) {
		if m.Method != "elicitation/create" {
			t.Errorf("the server asks %s", m.Method)
			return
		}
		if next := p.answer(m.Params); next != nil {
			must.Do(t, c.Reply(m.ID, next))
		}
	}
	c.Initialize(version)
	return c
}

// run calls the tool, and repeats the call as long as it requires input.
func (p *person) run(t *testing.T, c *mcptest.Client, args map[string]any) mcptest.Answer {
	t.Helper()
	params := map[string]any{"name": "run", "arguments": args}
	for {
		message := must.Get(c.Client.Call(t.Context(), "tools/call", params))(t)
		var required struct {
			ResultType    string `json:"resultType"`
			InputRequests map[string]struct {
				Params json.RawMessage `json:"params"`
			} `json:"inputRequests"`
			RequestState string `json:"requestState"`
		}
		must.Do(t, json.Unmarshal(message.Result, &required))
		if required.ResultType != "input_required" {
			return must.Get(message.Answer())(t)
		}
		responses := map[string]any{}
		for key, request := range required.InputRequests {
			responses[key] = p.answer(request.Params)
		}
		params = map[string]any{"name": "run", "arguments": args, "inputResponses": responses, "requestState": required.RequestState}
	}
}

const fetch = `
import urllib.request, sys
for host in HOSTS:
    try:
        urllib.request.urlopen("http://" + host + "/", timeout=30).read()
        print(host, "yes")
    except Exception as e:
        print(host, "no")
`

func fetches(hosts ...string) string {
	return strings.Replace(fetch, "HOSTS", `"`+strings.Join(hosts, " ")+`".split()`, 1)
}

func TestAsk_HoldsConnectionsUntilTheUserAnswers(t *testing.T) {
	w := begin(t, networld.Options{})
	if w == nil {
		return
	}
	for _, version := range []string{mcptest.Newest, mcptest.Stateless} {
		t.Run(version, func(t *testing.T) {
			p := &person{answers: []any{accept("once"), map[string]any{"action": "decline"}, accept("session"), accept("always")}}
			c := asked(t, w, version, p)
			run := func(session, want string, hosts ...string) {
				t.Helper()
				args := map[string]any{"code": fetches(hosts...), "env": "world-ask"}
				if session != "" {
					args["session"] = session
				}
				if answer := p.run(t, c, args); answer.IsError || !strings.HasPrefix(answer.Text(), want) {
					t.Errorf("%q, want %q", answer.Text(), want)
				}
			}
			run("", "a.host.example yes\na.host.example yes\nb.host.example no\nfiles.example yes\n", "a.host.example", "a.host.example", "b.host.example", "files.example")
			run("s", "a.host.example yes\n", "a.host.example")
			run("s", "a.host.example yes\n", "a.host.example")
			run("t", "a.host.example yes\n", "a.host.example")
			run("", "a.host.example yes\n", "a.host.example")
			run("s", "other.test no\n", "other.test")
			texts := p.texts()
			if len(texts) != 4 {
				t.Fatalf("%d questions: %q", len(texts), texts)
			}
			want := "Code in a sandbox (environment world-ask, session s) connects to\n> a.host.example:80\n" +
				`To be asked no more, add to [environments.world-ask.network] of the configuration: domains = ["a.host.example"]`
			if texts[2] != want {
				t.Errorf("the question is %q, want %q", texts[2], want)
			}
			if choices := p.shown[0].RequestedSchema.Properties.Choice.Enum; !slices.Equal(choices, []string{"once", "always", "no"}) {
				t.Errorf("choices %q", choices)
			}
		})
	}
}

func TestAsk_RefusesAtOnceIfNobodyCanAnswer(t *testing.T) {
	w := begin(t, networld.Options{})
	if w == nil {
		return
	}
	c := serve(t, w, "world-ask")
	began := time.Now()
	answer := c.Run(mcptest.Arguments{Code: fetches("a.host.example"), Env: "world-ask"})
	if want := "[environments.world-ask.network] domains = [\"a.host.example:80\"]"; !strings.Contains(answer.Text(), want) || time.Since(began) > 15*time.Second {
		t.Errorf("after %v %q", time.Since(began), answer.Text())
	}
}

// The call may run for 5 s, and the user takes 7.
func TestAsk_StopsTheClockOfTheCall(t *testing.T) {
	w := begin(t, networld.Options{})
	if w == nil {
		return
	}
	p := &person{}
	c := asked(t, w, mcptest.Newest, p)
	c.OnRequest = func(m mcptest.Message) {
		time.Sleep(7 * time.Second)
		must.Do(t, c.Reply(m.ID, accept("once")))
	}
	answer := c.Run(mcptest.Arguments{Code: fetches("a.host.example"), Env: "world-ask"})
	if answer.Text() != "a.host.example yes\n" {
		t.Errorf("%q", answer.Text())
	}
	answer = c.Run(mcptest.Arguments{Code: "import time\n" + fetches("b.host.example") + "time.sleep(60)", Env: "world-ask"})
	if !answer.IsError || answer.Fact("outcome") != "timeout" {
		t.Errorf("the control: %+v", answer)
	}
}

// What waiting costs, and how soon the code goes on.
func TestAsk_Figures(t *testing.T) {
	w := begin(t, networld.Options{})
	if w == nil {
		return
	}
	const waits = 3 * time.Second
	p := &person{}
	c := asked(t, w, mcptest.Newest, p)
	var used time.Duration
	var answered time.Time
	c.OnRequest = func(m mcptest.Message) {
		time.Sleep(time.Second) // what the start costs is not of the wait
		before := processorTime(t, c.PID())
		time.Sleep(waits)
		used = processorTime(t, c.PID()) - before
		answered = time.Now()
		must.Do(t, c.Reply(m.ID, accept("once")))
	}
	const code = `
import socket, time
s = socket.create_connection(("%s", 80))
s.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n")
s.recv(1)
print(time.time())
`
	c.Run(mcptest.Arguments{Code: "1", Env: "world-ask", Session: "s"})
	id := c.SendRun(mcptest.Arguments{Code: "import time; time.sleep(4.5)", Env: "world-ask", Session: "s"})
	time.Sleep(time.Second)
	before := processorTime(t, c.PID())
	time.Sleep(waits)
	t.Logf("code that sleeps takes %.2f %% of a processor", 100*(processorTime(t, c.PID())-before).Seconds()/waits.Seconds())
	c.AwaitRun(id)
	for _, host := range []string{"a.host.example", "b.host.example", "c.host.example"} {
		answer := c.Run(mcptest.Arguments{Code: fmt.Sprintf(code, host, host), Env: "world-ask", Session: "s"})
		seconds := must.Get(strconv.ParseFloat(strings.TrimSpace(answer.Text()), 64))(t)
		on := time.UnixMicro(int64(seconds * 1e6)).Sub(answered)
		t.Logf("waiting takes %.2f %% of a processor; the code has its first byte %v after the answer", 100*used.Seconds()/waits.Seconds(), on.Round(100*time.Microsecond))
	}
}

// processorTime is what a process and all below it have used.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	var sum time.Duration
	for _, one := range procfs.Tree(pid) {
		if p, err := procfs.Read(one); err == nil { // otherwise it has ended
			own, _ := p.Times()
			sum += own
		}
	}
	return sum
}
