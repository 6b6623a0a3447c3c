package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/browser"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// shown is what a card of the page says of a call, and what the server's status does.
type shown struct {
	Outcome, Env, Session, Facts  string
	Code, Stdout, Stderr, Remarks string // Remarks has a line for each
	Files                         string
	Images                        int

	status struct {
		Number   int
		Outcome  string
		Reason   string
		ExitCode int `json:"exit_code"`
		Remarks  []string
	}
}

// readCard reads a card out of the page.
const readCard = `((card) => {
  const text = (name) => card.querySelector(name)?.textContent ?? "";
  const lines = (name) => [...card.querySelectorAll(name)].map((line) => line.textContent).join("\n");
  return JSON.stringify({
    Outcome: card.className.replace("call ", "") === text(".outcome") ? text(".outcome") : "the badge says " + text(".outcome") + ", the card " + card.className,
    Env: text(".env"), Session: text(".session"), Facts: text("h3 .facts"), Code: text("pre.code"), Stdout: text("pre.stdout"), Stderr: text("pre.stderr"),
    Remarks: lines(".remark"), Files: lines(".file"), Images: [...card.querySelectorAll("img")].filter((image) => image.naturalWidth > 0).length,
  });
})(document.getElementById("call-0-%d"))`

// watched is a server on the page in a browser.
type watched struct {
	t    *testing.T
	b    *browser.Browser
	url  string // of the status
	made int    // calls
}

var pageAddress = regexp.MustCompile(`(?:msg=metrics address=|"msg":"metrics","address":")([0-9.:]+)`)

// watch opens the page for a server whose socket is in a folder.
func watch(t *testing.T, log func() string, runtime string) *watched {
	t.Helper()
	b := browser.Start(t)
	patience.Wait(t, patience.Long, log, func() bool { return pageAddress.MatchString(log()) })
	w := &watched{t: t, b: b, url: "http://" + pageAddress.FindStringSubmatch(log())[1]}
	b.Open(browser.Link(t, undertest.Server(t), []string{"HOME=" + t.TempDir(), "XDG_RUNTIME_DIR=" + runtime}))
	b.Await(`document.getElementById("link")?.textContent == "live"`)
	return w
}

// next returns what the page says of the call that was answered last.
func (w *watched) next() (s shown) {
	w.t.Helper()
	w.made++
	w.b.Await(fmt.Sprintf(`((card) => card && !card.classList.contains("live") && [...card.querySelectorAll("img")].every((image) => image.src && image.complete))(document.getElementById("call-0-%d"))`, w.made))
	must.Do(w.t, json.Unmarshal([]byte(w.b.Eval(fmt.Sprintf(readCard, w.made))), &s))
	response := must.Get(http.Get(w.url + "/live.json"))(w.t)
	defer response.Body.Close()
	var status struct{ Recent []json.RawMessage }
	must.Do(w.t, json.NewDecoder(response.Body).Decode(&status))
	for _, text := range status.Recent {
		if must.Do(w.t, json.Unmarshal(text, &s.status)); s.status.Number == w.made {
			return s
		}
		s.status.Remarks, s.status.Reason, s.status.ExitCode = nil, "", 0
	}
	w.t.Fatalf("the status lacks call %d", w.made)
	return s
}

// compare compares a card, and the status, with the answer that the client has.
func (w *watched) compare(name string, s shown, answer mcptest.Answer) {
	t := w.t
	t.Helper()
	wrong := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: %s\nthe answer is %q\nthe card is %+v", name, fmt.Sprintf(format, args...), answer.Texts(), s)
	}
	outcome, _ := answer.Fact("outcome").(string)
	status, _ := answer.Fact("exit_code").(float64)
	if outcome == "" {
		outcome = "refused"
	}
	if s.Outcome != outcome || s.status.Outcome != outcome || (s.Outcome == "ok") == answer.IsError {
		wrong("its outcome is not %s", outcome)
	}
	if said := regexp.MustCompile(`status \d+`).FindString(s.Facts); s.status.ExitCode != int(status) || said != map[bool]string{true: fmt.Sprintf("status %.0f", status)}[status != 0] {
		wrong("its status is not %.0f", status)
	}
	texts := map[string]string{}
	kinds, _ := answer.Fact("content").([]any)
	for i, text := range answer.Texts() {
		kind := "remarks" // of a call that did not run
		if i < len(kinds) {
			kind, _ = kinds[i].(string)
		}
		texts[kind] = text
	}
	said := strings.Join(s.status.Remarks, "]\n[")
	if said != "" {
		said = "[" + said + "]"
	}
	if outcome == "refused" || s.status.Reason != "" {
		said = s.status.Reason
	}
	if want := strings.TrimPrefix(texts["remarks"], "[no output]"); said != want {
		wrong("the status says %q, and the model was told %q", said, want)
	}
	// The page has each remark's opening in bold, without its colon.
	plain := regexp.MustCompile(`(?m)^\[?(?:(hint|network|tools): )?(.*?)\]?$`).ReplaceAllString(said, "$1 $2")
	if want := strings.ReplaceAll(strings.TrimPrefix(plain, " "), "\n ", "\n"); s.Remarks != want {
		wrong("its remarks are %q, not %q", s.Remarks, want)
	}
	for stream, got := range map[string]string{"stdout": s.Stdout, "stderr": s.Stderr} {
		want := strings.TrimPrefix(texts[stream], "--- stderr ---\n")
		isPlain := len(want) < 8<<10 && !strings.Contains(want, "[...") && !strings.Contains(want, stream+": ") && regexp.MustCompile(`^[ -~\n\t]*$`).MatchString(want)
		if isPlain && strings.TrimRight(got, "\n") != strings.TrimRight(want, "\n") || (got == "") != (want == "") {
			wrong("its %s is not the answer's", stream)
		}
	}
	images := 0
	for _, content := range answer.Content {
		if content.Type == "image" {
			images++
		} else if content.Type == "resource_link" && !strings.Contains(s.Files, filepath.Base(content.Name)) && !strings.Contains(content.Name, `"`) {
			wrong("it has no file %s", content.Name)
		}
	}
	if s.Images != images {
		wrong("it shows %d images of %d", s.Images, images)
	}
}

// picture is code for an image of one pixel.
const picture = "base64 -d <<<iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg== >outputs/"

// What a card says is what happened: in a run of calls with every outcome, each is compared with the
// answer that the client had, and with what the call was made for.
func TestPage_TellsWhatHappened(t *testing.T) {
	all := environments(t)
	for _, fields := range all {
		fields["timeout_seconds"], fields["max_timeout_seconds"] = 600, nil
	}
	quick := maps.Clone(all["bash"])
	quick["name"], quick["timeout_seconds"], quick["prewarm"] = "quick", 2, 0
	all["quick"], all["small"] = quick, withLimits(t)["python"]
	all["small"]["name"], all["small"]["prewarm"] = "small", 0
	runtime := t.TempDir()
	c := start(t, "NIX_SANDBOX_METADATA="+mcptest.Metadata(t, all), "NIX_SANDBOX_METRICS=127.0.0.1:0", "XDG_RUNTIME_DIR="+runtime, "SESSION_MAX=6", "NIX_SANDBOX_START_SECONDS=120")
	w := watch(t, c.Log, runtime)
	const ok, failed, refused = "ok", "failed", "refused"
	for i, step := range []struct {
		session, env, code string
		outcome            string
		has                string // each word of it, in the card
	}{
		{"", "bash", "echo hello", ok, "hello"},
		{"", "python", "1+1", ok, "2"},
		{"", "node", "[1,2].map(x => x*2)", ok, "4"},
		{"", "bash", "echo warning >&2", ok, "warning"},
		{"", "bash", ":", ok, ""},
		{"", "bash", "", ok, ""},
		{"", "bash", "echo é 日本 😀", ok, "日本 😀"},
		{"", "bash", "exit 1", failed, "status 1"},
		{"", "bash", "echo so far; exit 255", failed, "far 255"},
		{"", "bash", "false; echo after", ok, "after"},
		{"", "python", "raise ValueError('wrong value')", failed, "ValueError wrong value"},
		{"", "python", "print('half'); import nothing_of_that_name", failed, "half ModuleNotFoundError"},
		{"", "python", "import sys; sys.exit(7)", failed, "status 7"},
		{"", "python", "import os; os.kill(os.getpid(), 11)", "", "139"},
		{"", "node", "throw new Error('no')", failed, "Error"},
		{"", "node", "process.exit(3)", failed, "status 3"},
		{"", "bash", "kill -9 $$", "", "137"},
		{"", "bash", "ls -la /nothing", failed, "No such file"},
		{"", "bash", "import os\nprint(1)", failed, "hint python"},
		{"", "bash", "curl -sS http://example.org", failed, "hint network"},
		{"", "bash", "touch /usr/x", failed, "hint Read-only"},
		{"", "python", "input()", failed, "EOFError"},
		{"", "quick", "echo begun; sleep 60", "timeout", "begun timed out after 2 s"},
		{"late", "quick", "x=1; sleep 60", "timeout", "state was kept"},
		{"late", "quick", "echo x=$x", ok, "x=1"},
		{"", "small", hog(2 * memoryMB), "memory", "used more than 96 MB of memory"},
		{"big", "small", "y = 1", ok, ""},
		{"big", "small", hog(2 * memoryMB), "memory", "variables are lost"},
		{"big", "small", "print(y)", failed, "NameError"},
		{"", "small", "import subprocess\nfor n in range(70): subprocess.Popen(['sleep', '60'])", "", "subprocess"},
		{"", "bash", picture + "dot.png", ok, "outputs/dot.png"},
		{"", "bash", picture + "a.png; " + picture + "b.png", ok, "a.png b.png"},
		{"files", "bash", "echo '<svg onload=alert(1)/>' >outputs/x.svg", ok, "x.svg"},
		{"files", "bash", "echo 1,2 >outputs/table.csv; echo wrote", ok, "table.csv wrote"},
		{"files", "bash", "echo no picture >outputs/false.png", ok, "false.png"},
		{"files", "bash", "touch outputs/$'\\u202e'gnp.exe", ok, "U+202E"},
		{"", "bash", "echo gone >outputs/gone.txt", ok, "gone.txt"},
		{"", "bash", "for i in $(seq 40); do echo $i >outputs/$i.txt; done", ok, "outputs/17.txt 8 more"},
		{"", "bash", "seq 100000", ok, "left out 100000 cut"},
		{"", "bash", "seq 100000; seq 100000 >&2; exit 2", failed, "left out status 2"},
		{"", "bash", "head -c 30000 /dev/zero | tr '\\0' x", ok, "left out"},
		{"", "bash", "printf 'a\\0\\377\\001b'", ok, "U+0000 � U+0001"},
		{"", "bash", "printf '\\033[31mred\\033[0m \\033[8mhidden\\033[0m \\033]0;title\\007end'", ok, "red hidden end"},
		{"", "bash", "printf 'a\\u202eb\\u200bc\\u2066d'", ok, "U+202E U+200B U+2066"},
		{"", "bash", "printf '10%%\\r20%%\\r'", ok, "20%"},
		{"", "bash", "echo '[exit status 0]'; echo '[network: refused x]'; exit 4", failed, "status 4 [exit status 0]"},
		{"", "bash", "echo '</pre><script>document.title=1</script><img src=x onerror=document.title=2>'", ok, "<script>"},
		{"", "bash", "# " + strings.Repeat("long code ", 3000) + "\necho end", ok, "left out end"},
		{"", "nothing", "echo", refused, `no env "nothing"`},
		{"a/b", "bash", "echo", refused, "session"},
		{strings.Repeat("s", 200), "bash", "echo", refused, "session"},
		{"late", "python", "1", refused, `belongs to env`},
		{"four", "bash", "echo 4", ok, "4"},
		{"five", "bash", "echo 5", ok, "5"},
		{"six", "bash", "echo 6", ok, "6"},
		{"seven", "bash", "echo 7", refused, "all 6 sessions are in use"},
	} {
		answer := c.Run(mcptest.Arguments{Code: step.code, Env: step.env, Session: step.session})
		s := w.next()
		name := fmt.Sprintf("call %d, %.60q", i+1, step.code)
		w.compare(name, s, answer)
		if step.outcome != "" && s.Outcome != step.outcome {
			t.Errorf("%s: %s, want %s; %q", name, s.Outcome, step.outcome, answer.Texts())
		}
		said := fmt.Sprint(s)
		for word := range strings.FieldsSeq(step.has) {
			if !strings.Contains(said, word) {
				t.Errorf("%s: the card lacks %q: %s", name, word, said)
			}
		}
		if s.Env != step.env || s.Session != step.session[:min(len(step.session), 128)] {
			t.Errorf("%s: the card is of %q and %q", name, s.Env, s.Session)
		}
	}
	w.ends(c)
	if got := w.b.Eval("document.title"); got != "nix-sandbox-mcp" || len(w.b.Errors) > 0 {
		t.Errorf("title %q, errors %q", got, w.b.Errors)
	}
	// The sessions had as many calls as were made in them.
	w.b.Await(`[...document.querySelectorAll("#sessions li")].some((one) => /^files.* 4 calls/.test(one.textContent))`)
	quotas(t)
}

// ends are calls that are cancelled, and sandboxes that are killed.
func (w *watched) ends(c *mcptest.Client) {
	t := w.t
	t.Helper()
	running := func(session, code string) (id string) {
		id = c.SendRun(mcptest.Arguments{Code: code, Env: "bash", Session: session})
		w.b.Await(fmt.Sprintf(`document.querySelector("#call-0-%d.running pre.stdout")?.textContent.includes("begun")`, w.made+1))
		return id
	}
	for _, session := range []string{"", "four"} {
		id := running(session, "echo begun; sleep "+seconds())
		c.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(id)})
		if s := w.next(); s.Outcome != "cancelled" || s.status.Outcome != "cancelled" || !strings.Contains(s.Stdout, "begun") {
			t.Errorf("cancelled in session %q: %+v", session, s)
		}
	}
	// Nobody is told of a cancelled call, so that the next one counts its place.
	for _, session := range []string{"", "five"} {
		time := seconds()
		id := running(session, "echo begun; sleep "+time)
		// The process above the code's, and so on, up to the server's own child.
		found := procfs.WithCommand("sleep\x00" + time)
		if len(found) != 1 {
			t.Fatalf("%d programs sleep", len(found))
		}
		top := found[0]
		for _, pid := range procfs.Descendants(c.PID()) {
			if below := procfs.Descendants(pid); slices.Contains(below, found[0]) && len(below) > len(procfs.Descendants(top)) {
				top = pid
			}
		}
		must.Do(t, syscall.Kill(top, syscall.SIGKILL))
		answer := c.AwaitRun(id)
		s := w.next()
		w.compare("a killed sandbox", s, answer)
		if s.Outcome != "died" || !strings.Contains(s.Stdout, "begun") || !strings.Contains(s.Remarks, "the sandbox ended") {
			t.Errorf("a killed sandbox in session %q: %+v", session, s)
		}
	}
	answer := in(c, "five", "bash", "echo again")
	s := w.next()
	w.compare("a lost session", s, answer)
	if s.Outcome != "ok" || !strings.Contains(s.Remarks, "new session") {
		t.Errorf("after it: %+v", s)
	}
}

// quotas are calls of two principals beyond what they may have.
func quotas(t *testing.T) {
	runtime := t.TempDir()
	server := startHTTP(t, []string{"alice", "bob"}, map[string]any{
		"metrics_listen": "127.0.0.1:0", "lame_duck_seconds": 0,
		"quotas": map[string]any{"default": map[string]any{"calls": 1, "sessions": 1, "streams": 4, "memory_mb": 600}},
	}, map[string]any{"prewarm": 0}, "XDG_RUNTIME_DIR="+runtime)
	alice, bob := server.client("alice", mcptest.Newest), server.client("bob", mcptest.Newest)
	// The page finds a server that has answered.
	inHTTP(t, alice, "", "bash", "echo 0")
	p := watch(t, server.log.String, runtime)
	p.next()
	time := seconds()
	done := make(chan mcptest.Answer, 1)
	go func() {
		answer, _ := alice.Run(t.Context(), mcptest.Arguments{Env: "bash", Session: "s", Code: "echo begun; sleep " + time})
		done <- answer
	}()
	p.b.Await(`document.querySelector("#call-0-2.running pre.stdout")?.textContent.includes("begun")`)
	p.made++
	answer := inHTTP(t, alice, "", "bash", "echo 1")
	s := p.next()
	p.compare("a second call of alice", s, answer)
	if s.Outcome != "refused" || !strings.Contains(s.Facts, "alice") {
		t.Errorf("a second call of alice: %+v", s)
	}
	answer = inHTTP(t, bob, "s", "bash", "echo of bob")
	s = p.next()
	p.compare("a call of bob", s, answer)
	if s.Outcome != "ok" || !strings.Contains(s.Facts, "bob") || s.Session != "s" {
		t.Errorf("a call of bob: %+v", s)
	}
	answer = inHTTP(t, bob, "another", "bash", "echo of bob")
	s = p.next()
	p.compare("a second session of bob", s, answer)
	if s.Outcome != "refused" {
		t.Errorf("a second session of bob: %+v", s)
	}
	answer = inHTTP(t, bob, "", "bash", "echo of bob")
	s = p.next()
	p.compare("a sandbox beyond the memory of bob", s, answer)
	if s.Outcome != "refused" || !strings.Contains(s.Remarks, "600 MB") {
		t.Errorf("a sandbox beyond the memory of bob: %+v", s)
	}
	// A call that began first and ends last.
	together(t, 1, time)
	p.made = 1
	p.compare("the first call of alice", p.next(), <-done)
}

// The same for what needs Nix: packages that are built for a call, and refusals of a network.
func TestPage_TellsOfBuildsAndNetworks(t *testing.T) {
	s := withOnDemand(t, onDemand+`
[environments.web]
preset = "shell"
timeout_seconds = 60
[environments.web.network]
mode = "allow"
domains = ["allowed.example"]
`)
	runtime := t.TempDir()
	c := s.start("NIX_SANDBOX_METRICS=127.0.0.1:0", "XDG_RUNTIME_DIR="+runtime)
	offered(t, c, "web", true)
	w := watch(t, c.Log, runtime)
	s.nix.hold()
	id := c.SendRun(mcptest.Arguments{Env: "python+tabulate", Code: "import tabulate; print('built')"})
	w.b.Await(`document.querySelector("#call-0-1.waiting .remark")?.textContent.includes("building python+tabulate")`)
	s.nix.release()
	answer := c.AwaitRun(id)
	card := w.next()
	w.compare("a build", card, answer)
	for strings.Contains(answer.Text(), "is being built") {
		answer = run(c, "python+tabulate", "import tabulate; print('built')")
		card = w.next()
		w.compare("a build", card, answer)
	}
	if card.Outcome != "ok" || card.Env != "python+tabulate" || card.Stdout != "built\n" {
		t.Errorf("a build: %+v", card)
	}
	answer = run(c, "python+no-such-package", "1")
	if card = w.next(); card.Outcome != "refused" {
		t.Errorf("a package that does not exist: %+v", card)
	}
	w.compare("a package that does not exist", card, answer)
	for _, session := range []string{"", "s"} {
		answer = in(c, session, "web", "curl -sS --max-time 20 https://refused.example/ || wget -q -T 20 -t 1 https://refused.example/")
		if card = w.next(); card.Outcome != "failed" || !strings.Contains(card.Remarks, "network refused refused.example") {
			t.Errorf("a host that is not allowed: %+v", card)
		}
		w.compare("a host that is not allowed", card, answer)
	}
}
