package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// operator has a configuration file, and a folder of sandboxes that a server serves.
type operator struct {
	t *testing.T
	// networks are the options of each environment's network, by the environment's
	// name.
	networks map[string]map[string]any
	tables   string // of the configuration, after the environments
	folder   string // of the sandboxes
	world    *networld.World
}

// inWorld makes a world, and returns an operator on its host side whose environments
// have these hosts. It returns nil where the test runs in another
// process, whose result is this test's.
func inWorld(t *testing.T, domains map[string][]string) *operator {
	t.Helper()
	if !networld.Again(t) {
		return nil
	}
	undertest.Packages(t)
	o := &operator{t: t, networks: map[string]map[string]any{}, folder: t.TempDir()}
	for name, hosts := range domains {
		o.networks[name] = map[string]any{"domains": hosts}
		o.build(name)
	}
	world, err := networld.New(networld.Options{})
	if errors.Is(err, networld.ErrImpossible) {
		t.Skip(err)
	}
	must.Do(t, err)
	t.Cleanup(world.Close)
	t.Cleanup(func() {
		for _, violation := range world.Violations() {
			t.Errorf("the world saw: %v", violation)
		}
	})
	o.world = world
	return o
}

// build builds an environment of the configuration file, as an operator does, and
// puts it into the folder.
func (o *operator) build(name string) {
	o.t.Helper()
	var text strings.Builder
	for env, options := range o.networks {
		fmt.Fprintf(&text, "[environments.%[1]s]\npreset = \"shell\"\n[environments.%[1]s.network]\nmode = \"allow\"\n", env)
		for option, value := range options {
			fmt.Fprintf(&text, "%s = %s\n", option, must.Get(json.Marshal(value))(o.t)) // is TOML too
		}
	}
	config := filepath.Join(o.t.TempDir(), "config.toml")
	must.Write(o.t, config, text.String()+o.tables, 0o644)
	checkout := must.Get(filepath.Abs("../.."))(o.t)
	link := filepath.Join(o.t.TempDir(), name)
	nixCommand(o.t, "build", "--impure", "--out-link", link, "--expr", fmt.Sprintf(
		`((import %s/nix { pkgs = import %s { system = builtins.currentSystem; }; }).mkServer { config = %s; }).environments.%s`,
		checkout, undertest.Packages(o.t), config, name))
	must.Do(o.t, os.Rename(link, filepath.Join(o.folder, name)))
}

// serve starts the server, with these variables.
func (o *operator) serve(variables ...string) *mcptest.Client {
	o.t.Helper()
	cmd := command(o.t, append(variables, "NIX_SANDBOX_DIR="+o.folder)...)
	var c *mcptest.Client
	must.Do(o.t, o.world.Do(func() error {
		c = mcptest.Start(o.t, cmd)
		return nil
	}))
	c.Initialize(mcptest.Newest)
	for name := range o.networks {
		offered(o.t, c, name, true)
	}
	return c
}

// advice is the line that a denial asks an operator to add.
var advice = regexp.MustCompile(`ask the user to add \[environments\.(\S+)\.network\] (\w+) = (\[[^]]*\]|\d+)`)

// follow adds to the configuration exactly what an answer says, and nothing else.
func (o *operator) follow(answer string) {
	o.t.Helper()
	words := advice.FindStringSubmatch(answer)
	if words == nil || o.networks[words[1]] == nil {
		o.t.Fatalf("no line for an operator in %q", answer)
	}
	var value any
	must.Do(o.t, json.Unmarshal([]byte(words[3]), &value))
	options := o.networks[words[1]]
	if entries, isList := value.([]any); isList {
		have, _ := options[words[2]].([]string)
		have = slices.Clone(have)
		for _, entry := range entries {
			have = append(have, entry.(string))
		}
		value = have
	}
	options[words[2]] = value
	o.build(words[1])
}

// described waits until the description of the tool has a text.
func described(t *testing.T, c *mcptest.Client, text string) {
	t.Helper()
	var list []byte
	patience.Wait(t, building, func() string { return fmt.Sprintf("%q is not in %s\n%s", text, list, c.Log()) }, func() bool {
		list = c.Request("tools/list", map[string]any{}).Result
		return strings.Contains(string(list), text)
	})
}

// A client reads a denial and passes its line to an operator, who adds exactly what it
// says: the next call works. A session keeps the network that it began with.
func TestNetwork_DenialsLineMakesTheNextCallWork(t *testing.T) {
	o := inWorld(t, map[string][]string{"data": {"files.example"}})
	if o == nil {
		return
	}
	c := o.serve()
	described(t, c, "; network: files.example")
	const fetch = "curl -sS --max-time 20 http://a.host.example/small"
	expect(t, run(c, "data", "curl -sS --max-time 20 http://files.example/small"), "hello files.example\n")
	expectError(t, in(c, "kept", "data", fetch), "[network: refused a.host.example; this env reaches files.example on ports 443 and 80. ")
	denial := run(c, "data", fetch)
	expectError(t, denial, "Could not resolve host: a.host.example", `[environments.data.network] domains = ["a.host.example"]]`)

	o.follow(denial.Text())
	described(t, c, "; network: files.example, a.host.example")
	expect(t, run(c, "data", fetch), "hello a.host.example\n")
	expect(t, in(c, "new", "data", fetch), "hello a.host.example\n")
	expectError(t, in(c, "kept", "data", fetch), "[network: refused a.host.example")

	// At other ports no socket listens, so that no proxy knows of it.
	expectError(t, run(c, "data", "curl -sS --max-time 20 http://files.example:7007/small"),
		"[hint: this env reaches files.example, a.host.example on ports 443 and 80, and at other ports only what domains of [environments.data.network] has as \"HOST:PORT\"")
}

// The log and the facts say what was refused and what was reached.
func TestNetwork_LogAndFacts(t *testing.T) {
	o := inWorld(t, map[string][]string{"data": {"files.example"}})
	if o == nil {
		return
	}
	c := o.serve()
	// A refusal is reported before the code sees it. A connection is reported when it has
	// ended, which may be after the answer of the call that made it: then a later one tries.
	text := ""
	patience.Until(t, "a call's facts have a connection", func() bool {
		answer := run(c, "data", "curl -sS --max-time 20 http://evil.example; curl -sS --max-time 20 http://files.example/small")
		facts, _ := answer.Meta["nix-sandbox-mcp/network"].(map[string]any)
		text = string(must.Get(json.Marshal(facts))(t))
		for _, fact := range []string{`"refused":[{"count":`, `"name":"evil.example","reason":"name"`} {
			if !strings.Contains(text, fact) {
				t.Fatalf("the facts lack %s: %s", fact, text)
			}
		}
		return strings.Contains(text, `"reached":[{"bytes_down":`)
	})
	if fact := `"name":"files.example","port":80`; !strings.Contains(text, fact) {
		t.Errorf("the facts lack %s: %s", fact, text)
	}
	for _, line := range []string{
		`level=WARN msg="network refused" env=data sandbox=`, "name=evil.example port=0 reason=name option=network.domains value=evil.example",
		`level=INFO msg="network connection" env=data sandbox=`, "name=files.example port=80 address=93.184.216.34",
	} {
		patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("the log lacks %s:\n%s", line, c.Log()) }, func() bool { return strings.Contains(c.Log(), line) })
	}
}

// An allowed host that does not answer is no denial, and no line for an operator is
// shown.
func TestNetwork_FailureIsNoDenial(t *testing.T) {
	o := inWorld(t, map[string][]string{"data": {"*.led.example"}})
	if o == nil {
		return
	}
	c := o.serve()
	answer := run(c, "data", "curl -sS --max-time 20 http://down.led.example/small")
	if text := answer.Text(); !strings.Contains(text, "[network: down.led.example:80 (no route to host) is allowed, and did not answer]") {
		t.Errorf("answer %q", text)
	}
	if strings.Contains(answer.Text(), "refused") || advice.MatchString(answer.Text()) {
		t.Errorf("it reads like a denial: %q", answer.Text())
	}
}

// Two sandboxes with different hosts run at the same time: each reaches its own ones
// and none of the other's.
func TestNetwork_TwoPoliciesAtOnce(t *testing.T) {
	o := inWorld(t, map[string][]string{"one": {"files.example"}, "two": {"a.host.example"}})
	if o == nil {
		return
	}
	c := o.serve()
	hosts := map[string][2]string{"one": {"files.example", "a.host.example"}, "two": {"a.host.example", "files.example"}}
	for round := range 5 {
		var both sync.WaitGroup
		for env, names := range hosts {
			both.Go(func() {
				code := fmt.Sprintf("curl -sS --max-time 20 http://%s/small\ncurl -sS --max-time 20 http://%s/small\ntrue", names[0], names[1])
				answer := in(c, env, env, code).Text()
				if !strings.HasPrefix(answer, "hello "+names[0]+"\n") || strings.Contains(answer, "hello "+names[1]) || !strings.Contains(answer, "[network: refused "+names[1]+";") {
					t.Errorf("round %d of %s: %q", round, env, answer)
				}
			})
		}
		both.Wait()
	}
	// The address that one proxy gave to a name means nothing to the other.
	address := strings.Fields(in(c, "one", "one", "getent ahostsv4 files.example").Text())[0]
	answer := in(c, "two", "two", "curl -sS --max-time 20 http://"+address+"/small -H 'Host: files.example'")
	if strings.Contains(answer.Text(), "hello files.example") {
		t.Errorf("%s in the other sandbox: %q", address, answer.Text())
	}
}

// proxies are the processes of proxies below the server.
func proxies(c *mcptest.Client) []int {
	var found []int
	for _, pid := range procfs.Descendants(c.PID()) {
		if p, err := procfs.Read(pid); err == nil && strings.Contains(p.Command(), "nix-sandbox-net") && p.Name() == "nix-sandbox-net" {
			found = append(found, pid)
		}
	}
	return found
}

// The answer says that a proxy was killed, and nothing is reached without it. Other
// sandboxes have theirs.
func TestNetwork_AnswerSaysThatTheProxyEnded(t *testing.T) {
	o := inWorld(t, map[string][]string{"data": {"files.example"}})
	if o == nil {
		return
	}
	c := o.serve()
	const fetch = "curl -sS --max-time 20 http://files.example/small"
	expect(t, in(c, "s", "data", "kept=yes; "+fetch), "hello files.example\n")
	killed := proxies(c)
	if len(killed) == 0 {
		t.Fatal("the server has no proxy")
	}
	for _, pid := range killed {
		must.Do(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	answer := in(c, "s", "data", fetch+"; echo $kept")
	if text := answer.Text(); !strings.Contains(text, "yes\n") || strings.Contains(text, "hello") || !strings.Contains(text, "[network: the proxy of this sandbox ended") {
		t.Errorf("without its proxy: %q", text)
	}
	// The proxies of sandboxes that waited were killed too, and the server may hand one out
	// before it hears of that.
	session := 0
	patience.Until(t, "another session reaches the host", func() bool {
		session++
		return in(c, fmt.Sprint(session), "data", fetch).Text() == "hello files.example\n"
	})
	patience.Until(t, "a call without a session reaches the host", func() bool {
		return run(c, "data", fetch).Text() == "hello files.example\n"
	})
}

// A launcher gets a credential from a variable of the server's own environment, and code
// does not. Without the variable the answer says what is missing.
func TestNetwork_CredentialComesFromTheServersVariable(t *testing.T) {
	o := inWorld(t, map[string][]string{"data": {"files.example"}})
	if o == nil {
		return
	}
	o.tables = "[environments.data.network.credentials.API]\ndomain = \"files.example\"\nheader = \"X-Key: {}\"\nvariable = \"API_TOKEN\"\n"
	o.build("data")
	const secret = "only-for-the-proxy"
	c := o.serve("API_TOKEN=" + secret)
	answer := run(c, "data", "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; echo done")
	if text := answer.Text(); answer.IsError || !strings.Contains(text, "done\n") || strings.Contains(text, secret) || strings.Contains(text, "API_TOKEN") {
		t.Errorf("with the variable: %q", text)
	}
	c = o.serve()
	expectError(t, run(c, "data", "echo done"), "the network's credential API is in the variable API_TOKEN, which is empty or not set")
}

// A program that insists on a password finds a placeholder in the variable of its name. The
// credential's host gets the secret in its place, and another host is not reached.
func TestNetwork_PlaceholderBecomesTheSecretAtItsHostAlone(t *testing.T) { placeholders(t, "jail") }

// The same in a virtual machine, cold and as a copy, whose programs find the certificate of their own proxy.
func TestNetwork_PlaceholderBecomesTheSecretInAMachine(t *testing.T) { placeholders(t, "vm") }

func placeholders(t *testing.T, backend string) {
	o := inWorld(t, map[string][]string{"data": {"files.example", "a.host.example"}})
	if o == nil {
		return
	}
	o.tables = "[defaults]\nbackend = \"" + backend + "\"\n[environments.data.network.credentials.API]\ndomain = \"files.example\"\nheader = \"Authorization: Bearer {}\"\nvariable = \"API_TOKEN\"\n"
	o.build("data")
	artifact := must.Get(filepath.EvalSymlinks(filepath.Join(o.folder, "data")))(t)
	cmd := command(t, "NIX_SANDBOX_DIR="+o.folder, "API_TOKEN=the-secret")
	var c *mcptest.Client
	must.Do(t, o.world.Do(func() error {
		if err := trustWorld(t, artifact); err != nil {
			return err
		}
		c = mcptest.Start(t, cmd)
		return nil
	}))
	c.Initialize(mcptest.Newest)
	offered(t, c, "data", true)

	const curl = "curl -sS --max-time 20 "
	expect(t, run(c, "data", "echo $API"), "credential-API-placeholder\n")
	expect(t, run(c, "data", curl+`-H "Authorization: Bearer $API" https://files.example/small`), "hello files.example\n")
	expect(t, run(c, "data", curl+`-u "user:$API" https://files.example/small`), "hello files.example\n")
	// The control: the other host is in reach, and so is this one without TLS.
	for _, host := range []string{"a.host.example", "files.example"} {
		address := "http://" + host + "/small"
		expect(t, run(c, "data", curl+address), "hello "+host+"\n")
		for _, option := range []string{`-H "Authorization: Bearer $API"`, `-H "X-Key: $API"`, `-u "user:$API"`, `-G -d "key=$API"`} {
			expectError(t, run(c, "data", curl+"-f "+option+" "+address), "[network: ", host, "a credential of another host")
		}
	}
	var got []string
	for _, request := range o.world.Requests() {
		got = append(got, request.Host+" "+strings.Join(request.Header["Authorization"], ","))
	}
	want := []string{"files.example Bearer the-secret", "files.example Bearer the-secret", "a.host.example ", "files.example "}
	if !slices.Equal(got, want) {
		t.Errorf("the hosts received %q, want %q", got, want)
	}
}

// By hand, refusals are on standard error as they happen, and list names the hosts.
func TestNetwork_CommandLineShowsIt(t *testing.T) {
	o := inWorld(t, map[string][]string{"data": {"files.example", "b.host.example:7007"}})
	if o == nil {
		return
	}
	cli := func(args ...string) (stdout, stderr string) {
		cmd := exec.Command(undertest.Server(t), args...)
		var out, errors strings.Builder
		cmd.Env, cmd.Stdout, cmd.Stderr = append(command(t).Env, "NIX_SANDBOX_DIR="+o.folder), &out, &errors
		must.Do(t, o.world.Do(cmd.Run))
		return out.String(), errors.String()
	}
	if out, _ := cli("list"); !regexp.MustCompile(`(?m)^NAME.* NETWORK .*\n(.*\n)*data .* files\.example, b\.host\.example:7007 `).MatchString(out) {
		t.Errorf("the list is\n%s", out)
	}
	out, errors := cli("run", "data", "-c", "curl -sS --max-time 20 http://files.example/small; curl -sS --max-time 20 http://evil.example || true")
	if out != "hello files.example\n" || !strings.Contains(errors, "nix-sandbox-net: ") || !strings.Contains(errors, strconv.Quote("evil.example")) {
		t.Errorf("run printed %q and %q", out, errors)
	}
}
