package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// onDemand is a configuration in which calls may add packages: a list to python, all
// of the package set to sh, none to node. A call waits for a build and then runs within
// the time that tests wait for an answer.
const onDemand = `
[environments.python]
preset = "python"
packages_on_demand = ["ffmpeg", "psutil", "python-docx", "tabulate"]
timeout_seconds = 25
[environments.sh]
preset = "shell"
packages_on_demand = "all"
timeout_seconds = 25
[environments.node]
preset = "node"
`

// onDemandServer is where servers run whose environments calls may add packages to.
type onDemandServer struct {
	t         *testing.T
	nix       *heldNix
	cache     string
	variables []string
}

// withOnDemand writes a configuration with further lines, for servers of this test.
func withOnDemand(t *testing.T, text string) *onDemandServer {
	t.Helper()
	s := &onDemandServer{t: t, nix: nix(t), cache: t.TempDir()}
	undertest.Packages(t)
	config := filepath.Join(t.TempDir(), "config.toml")
	must.Write(t, config, text, 0o644)
	s.variables = s.nix.variables("XDG_CACHE_HOME="+s.cache, "NIX_SANDBOX_CONFIG="+config)
	return s
}

// start starts a server and waits until its environments are there.
func (s *onDemandServer) start(variables ...string) *mcptest.Client {
	s.t.Helper()
	c := start(s.t, append(slices.Clone(s.variables), variables...)...)
	offered(s.t, c, "python", true)
	return c
}

// command runs a command of the server's program, which must succeed.
func (s *onDemandServer) command(words ...string) string {
	s.t.Helper()
	cmd := command(s.t, s.variables...)
	cmd.Args = append(cmd.Args[:1], words...)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		s.t.Fatalf("%v: %v\n%s", words, err, failed.Stderr)
	}
	return string(out)
}

// packages are the folders of environments with packages.
func (s *onDemandServer) packages() []string {
	s.t.Helper()
	return must.Get(filepath.Glob(filepath.Join(s.cache, "nix-sandbox-mcp", "packages", "*")))(s.t)
}

// built makes a call whose environment may have to be built, again as often as the
// answer says that it is being built.
func built(t testing.TB, c *mcptest.Client, arguments any) mcptest.Answer {
	t.Helper()
	var answer mcptest.Answer
	patience.Wait(t, building, func() string { return answer.Text() + "\n" + c.Log() }, func() bool {
		answer = c.Run(arguments)
		return !strings.Contains(answer.Text(), "is being built: call again in a minute")
	})
	return answer
}

// environmentOf finds the environment that a hint names.
var environmentOf = regexp.MustCompile(`(?m)^\[hint: env "([^"]+)" has [^ ]+\]$`)

// follow is a client that runs code as often as a hint says where, and returns the
// answers.
func follow(t testing.TB, c *mcptest.Client, session, env, code string) []mcptest.Answer {
	t.Helper()
	var answers []mcptest.Answer
	for range 10 {
		answer := built(t, c, mcptest.Arguments{Code: code, Env: env, Session: session})
		answers = append(answers, answer)
		hint := environmentOf.FindStringSubmatch(answer.Text())
		if hint == nil {
			break
		}
		env = hint[1]
	}
	return answers
}

// A client that follows each hint to the letter gets from an import that fails to a
// result, with one more call for each package that was missing.
func TestPackages_HintsLeadToAResult(t *testing.T) {
	s := withOnDemand(t, onDemand)
	c := s.start()
	offered(t, c, "sh", true)
	code := "import docx, psutil, tabulate\nprint(tabulate.tabulate([[docx.Document().add_paragraph('text').text]], tablefmt='plain'))"
	answers := follow(t, c, "", "python", code)
	if len(answers) != 4 {
		t.Fatalf("%d answers: %+v\n%s", len(answers), answers, c.Log())
	}
	expect(t, answers[3], "text\n")
	for i, env := range []string{"python+python-docx", "python+psutil+python-docx", "python+psutil+python-docx+tabulate"} {
		if !strings.Contains(answers[i].Text(), `[hint: env "`+env+`" has `) {
			t.Errorf("answer %d is %s", i, answers[i].Text())
		}
	}
	// Whatever the order, it is the same environment.
	expect(t, run(c, "python+tabulate+psutil+python-docx+psutil", code), "text\n")
	if folders := s.packages(); len(folders) != 3 {
		t.Errorf("%d environments built: %v\n%s", len(folders), folders, c.Log())
	}

	// A session goes on as it is: its interpreter, what that runs, and its files.
	expect(t, in(c, "s", "python", "import os, subprocess; n = open('kept', 'w').write('kept'); x = 1; job = subprocess.Popen(['sleep', '3600'])"), "[no output]")
	answers = follow(t, c, "s", "python", "import docx; print(open('kept').read(), x, job.poll())")
	if len(answers) != 2 {
		t.Fatalf("%d answers: %+v", len(answers), answers)
	}
	expect(t, answers[1], "kept 1 None\n")
	expect(t, in(c, "s", "python", "x = 2; import docx; print(open('kept').read())"), "kept\n")
	expect(t, in(c, "s", "python+tabulate+psutil", "import psutil, tabulate; print(x, psutil.pid_exists(job.pid))"), "2 True\n")
	expect(t, in(c, "s", "python", "print(subprocess.run(['python3', '-c', 'import docx, psutil, tabulate; print(1)'], capture_output=True, text=True).stdout, end='')"), "1\n")
	// An interpreter that is started anew has them too.
	in(c, "s", "python", "os._exit(3)")
	expect(t, in(c, "s", "python", "import docx, psutil, tabulate; print(open('kept').read())"), "kept\n")
	mount := in(c, "s", "python", "print([l for l in open('/proc/self/mountinfo') if ' /nix ' in l][-1]); open('/nix/store/x', 'w')").Text()
	if !strings.Contains(mount, "ro,nosuid,nodev") || !strings.Contains(mount, "Read-only file system") {
		t.Errorf("its store: %s", mount)
	}
	expect(t, in(c, "s", "python+python-docx", "print('x' in dir())"), "False\n")

	// Programs, by their names.
	answers = follow(t, c, "", "sh", "strace --version")
	if last := answers[len(answers)-1]; len(answers) != 2 || last.IsError || !strings.HasPrefix(last.Text(), "strace -- version ") {
		t.Errorf("answers %+v", answers)
	}
	expect(t, in(c, "b", "sh", "x=41; PATH=$PATH:/workspace; sleep 3600 & jobs -r | wc -l"), "1\n")
	answer := in(c, "b", "sh+strace", "strace --version | head -c 6; echo \" $x\"; jobs -r | wc -l; echo ${PATH##*:}; kill %1")
	expect(t, answer, "strace 41\n1\n/workspace\n")

	s.growsBesideOtherOptions()
	s.isThereAgain(code)
}

// growsBesideOtherOptions checks sessions to which calls add packages where files are
// kept, and where the project is an overlay.
func (s *onDemandServer) growsBesideOtherOptions() {
	t := s.t
	t.Helper()
	state := "XDG_STATE_HOME=" + t.TempDir()
	c := s.start(state, "SESSION_KEEP_FILES=1")
	expect(t, in(c, "k", "python", "n = open('first', 'w').write('1')"), "[no output]")
	in(c, "k", "python+python-docx", "import docx; n = open('second', 'w').write('2')")
	expect(t, in(c, "k", "python", "print(open('first').read(), open('second').read())"), "1 2\n")
	must.Do(t, must.Get(os.FindProcess(c.PID()))(t).Kill())
	<-c.Exited()
	for _, env := range []string{"python+python-docx", "python"} {
		c = s.start(state, "SESSION_KEEP_FILES=1")
		if answer := in(c, "k", env, "print(open('first').read(), open('second').read())"); answer.IsError || !strings.HasPrefix(answer.Text(), "1 2\n") {
			t.Errorf("%s: %+v", env, answer)
		}
		c.CloseInput()
		<-c.Exited()
	}

	// What a session changed in the project is in a layer of its sandbox.
	c = s.start("PROJECT_DIR="+t.TempDir(), "PROJECT_MODE=overlay", "XDG_STATE_HOME="+t.TempDir())
	in(c, "o", "python", "x = 1")
	expect(t, in(c, "o", "python+python-docx", "n = open('/project/new', 'w').write('text')"),
		"[changes to the project: the user takes them with: nix-sandbox-mcp changes o --apply]")
	expect(t, in(c, "o", "python+psutil+python-docx", "import docx, psutil; print(x, open('/project/new').read())"), "1 text\n")
}

// isThereAgain checks that a further server has what an earlier one built, that
// commands show it, and that it goes when it is removed.
func (s *onDemandServer) isThereAgain(code string) {
	t := s.t
	t.Helper()
	const env = "python+psutil+python-docx+tabulate"
	c := s.start()
	expect(t, run(c, env, code), "text\n")
	if log := c.Log(); strings.Contains(log, "environment asked for") {
		t.Errorf("it was built again:\n%s", log)
	}
	if got := listed(c); slices.Contains(got, env) {
		t.Errorf("the tool offers %v", got)
	}
	expect(t, in(c, "s", env, "n = open('kept', 'w').write('kept')"), "[no output]")

	if out := s.command("list"); !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(env) + ` +ready .* Python 3 with .*, pytest, psutil, python-docx, tabulate$`).MatchString(out) {
		t.Errorf("list: %s", out)
	}
	if out := s.command("run", env, "-c", code); out != "text\n" {
		t.Errorf("run: %s", out)
	}
	if out := s.command("doctor"); !strings.Contains(out, env) {
		t.Errorf("doctor: %s", out)
	}
	if out := s.command("packages", "python"); strings.Count(out, " ready ") != 3 || !strings.Contains(out, env+"  ready ") || strings.Contains(out, "sh+") {
		t.Errorf("packages: %s", out)
	}
	roots := must.Get(exec.Command("nix-store", "--gc", "--print-roots").Output())(t)
	if !strings.Contains(string(roots), filepath.Join(s.cache, "nix-sandbox-mcp", "packages")) {
		t.Error("Nix's garbage collection would take it")
	}
	if out := s.command("packages", "--remove", "python+tabulate+python-docx+psutil"); out != "removed "+env+"\n" {
		t.Errorf("packages --remove: %s", out)
	}
	if out := s.command("packages"); strings.Contains(out, env) {
		t.Errorf("packages after that: %s", out)
	}
	// A session goes on with what it began with.
	expect(t, in(c, "s", env, "print(open('kept').read())"), "kept\n")
}

// A call waits as long as it may, and says how far it came.
func TestPackages_CallsWhileItIsBuilt(t *testing.T) {
	s := withOnDemand(t, strings.ReplaceAll(onDemand, "timeout_seconds = 25", "timeout_seconds = 1\nmax_timeout_seconds = 600")+"[on_demand]\nkeep_mb = 1\n")
	c := s.start()
	s.nix.hold()
	within := func(seconds int, env, code string) map[string]any {
		return map[string]any{"env": env, "code": code, "timeout": seconds}
	}
	var ids []string
	for range 8 {
		ids = append(ids, c.SendRun(mcptest.Arguments{Code: "import psutil", Env: "python+psutil"}))
	}
	for _, id := range ids {
		expectError(t, c.AwaitRun(id), `env "python+psutil" is being built: call again in a minute`)
	}
	params := mcpclient.RunParams(within(600, "python+psutil", "import psutil; print('built')"))
	params["_meta"] = map[string]any{"progressToken": "p"}
	waiting := c.Send("tools/call", params)
	patience.Until(t, "a notification of progress", func() bool {
		return slices.ContainsFunc(c.Notes(), func(note mcptest.Message) bool {
			return strings.Contains(string(note.Params), "s: building python+psutil")
		})
	})
	s.nix.release()
	patience.Wait(t, building, c.Log, func() bool { return c.Answered(waiting) })
	expect(t, c.AwaitRun(waiting), "built\n")
	if folders := s.packages(); len(folders) != 1 {
		t.Errorf("nine calls of one environment: %v", folders)
	}

	// Both take more than may be kept: the one used last stays.
	expect(t, built(t, c, within(25, "python+tabulate", "import tabulate; print('built')")), "built\n")
	out := ""
	patience.Wait(t, building, func() string { return "the other one is not given up:\n" + out }, func() bool {
		out = s.command("packages")
		return strings.Contains(out, "python+tabulate  ready") && !strings.Contains(out, "python+psutil")
	})
	// What a call names again is built again.
	expect(t, built(t, c, within(25, "python+psutil", "import psutil; print('again')")), "again\n")
}

// What Nix or the bounds refuse is a sentence. TestPackages_Mistakes of package tool
// has those that need no Nix.
func TestPackages_Refusals(t *testing.T) {
	s := withOnDemand(t, onDemand+"[on_demand]\nbuild_seconds = 1\n")
	c := s.start()
	s.nix.hold()
	expectError(t, built(t, c, mcptest.Arguments{Env: "python+psutil+tabulate", Code: "1"}),
		`env "python+psutil+tabulate" was not built within build_seconds of [on_demand]: do without, or ask the user to raise it`)
	s.nix.release()

	s = withOnDemand(t, onDemand+"[on_demand]\nmax_closure_mb = 1\n")
	c = s.start()
	offered(t, c, "sh", true)
	// It is among the names of the package set, and is no package.
	expectError(t, built(t, c, mcptest.Arguments{Env: "sh+release", Code: "true"}), `there is no package "release"`)
	expectError(t, built(t, c, mcptest.Arguments{Env: "python+ffmpeg", Code: "1"}),
		"env \"python+ffmpeg\" could not be built: tell the user what Nix said, or do without\nerror: debpkgs: ffmpeg is not one of the packages of Debian")
	answer := built(t, c, mcptest.Arguments{Env: "python+psutil", Code: "1"})
	expectError(t, answer, "more than max_closure_mb of [on_demand] allows: name fewer or smaller packages, or ask the user to raise it")
	if !regexp.MustCompile(`^env "python\+psutil" would take [0-9.]+ MB, more`).MatchString(answer.Text()) {
		t.Errorf("answer %s", answer.Text())
	}
	if out := s.command("packages"); !strings.Contains(out, "python+psutil  failed") {
		t.Errorf("packages: %s", out)
	}
}

// Without Nix a server whose environments allow packages serves them as they are, and says so in
// its log.
func TestPackages_NeedNix(t *testing.T) {
	s := withOnDemand(t, onDemand)
	s.start()
	c := mcptest.Start(t, command(t, "XDG_CACHE_HOME="+s.cache, s.variables[len(s.variables)-1], "PATH="+t.TempDir()))
	c.Initialize(mcptest.Newest)
	if list := c.Request("tools/list", nil).Result; bytes.Contains(list, []byte("adds packages")) || !bytes.Contains(list, []byte(`"enum":["node","python","sh"]`)) {
		t.Errorf("the tool: %s", list)
	}
	expect(t, run(c, "python", "6 * 7"), "42\n")
	expectError(t, run(c, "python+psutil", "1"), `there is no env "python+psutil"`)
	expectError(t, run(c, "python", "import psutil"), "[hint: it cannot be installed")
	if log := c.Log(); !strings.Contains(log, "calls can add no packages") {
		t.Errorf("the log: %s", log)
	}
}

// hostileNames are names that mean harm or none at all, and some that are right but
// for one thing.
func hostileNames(random *rand.Rand, count int) []string {
	parts := []string{
		"../../x", "../../../etc/passwd", "lib", "writeShellScript", "runCommand", "python3Packages", "pkgs", "$(id)", "`id`", "; id", "\x00", "\n", "--option", "-rf", "${builtins.currentTime}", "''${x}",
		"раndas", "pandas\u200b", "ｐandas", "pandas ", " ", "", "+", "%s%n", "é", "a.b", "a/b", "..", ".", strings.Repeat("a", 70), strings.Repeat("A", 10<<10), "<nixpkgs>", `"`, "'", `\`, "pkgs.hello",
	}
	var names []string
	for len(names) < count {
		var name strings.Builder
		name.WriteString([]string{"python", "sh"}[random.IntN(2)])
		for range 1 + random.IntN(3) {
			part := parts[random.IntN(len(parts))]
			if random.IntN(3) == 0 {
				letters := make([]rune, 1+random.IntN(40))
				for i := range letters {
					letters[i] = rune(1 + random.IntN(0x2fff))
				}
				part = string(letters)
			}
			name.WriteString("+" + part)
		}
		names = append(names, name.String())
	}
	many := "sh"
	for i := range 200 {
		many += fmt.Sprintf("+jq%d", i)
	}
	return append(names, many, "sh+"+strings.Repeat("jq", 5000))
}

// Names that are none change nothing, and are answered at once.
func TestPackages_HostileNames(t *testing.T) {
	s := withOnDemand(t, onDemand)
	c := s.start()
	offered(t, c, "sh", true)
	run(c, "sh+x", "true") // reads the table
	before := c.PeakMemory()
	var slowest time.Duration
	for _, name := range hostileNames(seed.New(t), 300) {
		began := time.Now()
		answer := run(c, name, "echo harm")
		slowest = max(slowest, time.Since(began))
		if !answer.IsError || strings.Contains(answer.Text(), "harm\n") || len(answer.Text()) > 1000 {
			t.Errorf("%q: %+v", name, answer)
		}
	}
	t.Logf("the slowest took %v, memory grew by %d KiB", slowest, (c.PeakMemory()-before)>>10)
	if folders := s.packages(); len(folders) != 0 || strings.Contains(c.Log(), "environment asked for") {
		t.Errorf("they reached the builder: %v", folders)
	}
	expect(t, run(c, "sh", "echo 1"), "1\n")
}

// A server that is killed while it builds leaves nothing that builds, and the next
// server builds it.
func TestPackages_ServerKilledWhileItBuilds(t *testing.T) {
	s := withOnDemand(t, onDemand)
	c := s.start()
	s.nix.hold()
	id := c.SendRun(mcptest.Arguments{Code: "1", Env: "python+psutil"})
	patience.Until(t, "the build has begun", func() bool { return len(s.packages()) == 1 && strings.Contains(c.Log(), "environment asked for") })
	_ = id
	must.Do(t, must.Get(os.FindProcess(c.PID()))(t).Kill())
	<-c.Exited()
	s.nix.release()
	c = s.start()
	expect(t, built(t, c, mcptest.Arguments{Env: "python+psutil", Code: "import psutil; print('built')"}), "built\n")
}

// What calls may add costs the model's context little, and nothing where they may not.
func TestPackages_ContextCost(t *testing.T) {
	cost := func(config string) int {
		s := withOnDemand(t, config)
		c := mcptest.Start(t, command(t, s.variables...))
		var about struct{ Instructions string }
		must.Do(t, json.Unmarshal(c.Initialize(mcptest.Newest).Result, &about))
		for _, env := range []string{"node", "python", "sh"} {
			offered(t, c, env, true)
		}
		return len(c.Request("tools/list", nil).Result) + len(c.Request("initialize", map[string]any{
			"protocolVersion": mcptest.Newest, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "t", "version": "1"},
		}).Result)
	}
	with := cost(onDemand)
	without := cost(regexp.MustCompile(`(?m)^packages_on_demand.*\n`).ReplaceAllString(onDemand, ""))
	t.Logf("%d bytes with packages, %d without", with, without)
	if with-without > 110 || with <= without {
		t.Errorf("%d bytes with packages, %d without", with, without)
	}
}
