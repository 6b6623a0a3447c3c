package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/browser"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// The user's page opens a web server that code started, as long as the page is open.
func TestPage_OpensAPort(t *testing.T) {
	text := must.Get(os.ReadFile(filepath.Join(filepath.Dir(undertest.Server(t)), "..", "share", "nix-sandbox-mcp", "metadata.json")))(t)
	var metadata map[string]any
	must.Do(t, json.Unmarshal(text, &metadata))
	metadata["session"].(map[string]any)["forward"] = true
	c, b, link := start(t, "NIX_SANDBOX_METADATA="+string(must.Get(json.Marshal(metadata))(t)))
	answer := c.Run(mcptest.Arguments{Env: "python", Session: "web", Code: `
import http.server, threading
open('index.html', 'w').write('<!doctype html><title>of the sandbox</title>')
threading.Thread(target=http.server.HTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler).serve_forever, daemon=True).start()`})
	if !strings.Contains(answer.Text(), "the user opens port 8000") {
		t.Fatalf("the answer is %q", answer.Text())
	}
	b.Open(link)
	b.Await(`!!document.querySelector(".opener button")`)
	b.Eval(`document.querySelector(".opener button").click()`)
	b.Await(`!!document.querySelector(".opener a")`)
	for _, width := range []int{390, 1440} {
		b.Look(width, 900, width == 390)
		if problems := b.Eval(unfit); problems != "" {
			t.Errorf("%d px wide: %s", width, problems)
		}
		if *pictures != "" {
			must.Do(t, os.WriteFile(filepath.Join(*pictures, fmt.Sprintf("port-%d.png", width)), b.Screenshot(), 0o644))
		}
	}
	address := b.Eval(`document.querySelector(".opener a").href`)
	visitor := browser.Start(t)
	visitor.Open(address)
	visitor.Await(`document.title == "of the sandbox"`)
	b.Open("about:blank")
	patience.Until(t, "the port is closed with the page", func() bool {
		_, err := http.Get(address)
		return err != nil
	})
}

// The user answers on the page that has the key, and nothing else on this machine or in the browser
// answers. No host can be reached here, so one that was allowed does not answer.
func TestPage_AnswersQuestions(t *testing.T) {
	artifact := undertest.Artifact(t, "world-ask")
	folder := t.TempDir()
	must.Do(t, os.Symlink(artifact, filepath.Join(folder, "world-ask")))
	c, b, link := start(t, "NIX_SANDBOX_DIR="+folder)
	url, key, isLink := strings.Cut(link, "#key=")
	if !isLink || len(key) < 26 {
		t.Fatalf("the link is %q", link)
	}
	fetch := func(host string) string {
		return c.SendRun(mcptest.Arguments{Env: "world-ask", Session: "s", Code: "import urllib.request\ntry: urllib.request.urlopen('http://" + host + "/')\nexcept OSError as e: pass"})
	}
	answers := func(id, want string) {
		t.Helper()
		if text := c.AwaitRun(id).Text(); !strings.Contains(text, want) {
			t.Errorf("%q, want %q", text, want)
		}
	}
	b.Open(url)
	b.Await(`document.getElementById("none")?.textContent.includes("open the link that nix-sandbox-mcp page printed")`)
	answers(fetch("nobody.host.example"), "a user has to allow it, and none answered")
	b.Open(url + "#key=WRONG")
	b.Await(`document.getElementById("none")?.textContent.includes("another key")`)
	answers(fetch("wrong.host.example"), "a user has to allow it, and none answered")

	b.Open(link)
	b.Await(`document.getElementById("link")?.textContent == "live"`)
	if got := b.Eval(`location.href`); got != url {
		t.Errorf("the address is %s", got)
	}
	id := fetch("page.host.example")
	b.Await(`document.querySelector("#question pre")?.textContent.includes("> page.host.example:80\n")`)
	b.Look(390, 1100, true)
	if problems := b.Eval(unfit); problems != "" {
		t.Error(problems)
	}
	b.Await(`!document.querySelector("#question button").disabled`)

	// The list comes with its ids only to the key.
	ctx, cancel := context.WithCancel(t.Context())
	request := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, url+"events", nil))(t)
	request.Header.Set("Nix-Sandbox-Key", key)
	response := must.Get(http.DefaultClient.Do(request))(t)
	var asked struct {
		Server int
		Is     []struct{ ID string }
	}
	for lines := bufio.NewScanner(response.Body); len(asked.Is) == 0 && lines.Scan(); {
		if lines.Text() == "event: questions" && lines.Scan() {
			must.Do(t, json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "data: ")), &asked))
		}
	}
	cancel()
	response.Body.Close()
	reply := fmt.Sprintf(`{"server":%d,"id":%q,"choice":"always"}`, asked.Server, asked.Is[0].ID)
	post := func(body string, change func(*http.Request)) int {
		request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, url+"answer", strings.NewReader(body)))(t)
		request.Header = http.Header{"Nix-Sandbox-Key": {key}, "Content-Type": {"application/json"}, "Origin": {strings.TrimSuffix(url, "/")}}
		if change != nil {
			change(request)
		}
		response := must.Get(http.DefaultClient.Do(request))(t)
		response.Body.Close()
		return response.StatusCode
	}
	for name, one := range map[string]struct {
		want   int
		body   string
		change func(*http.Request)
	}{
		"no key":         {403, reply, func(r *http.Request) { r.Header.Del("Nix-Sandbox-Key") }},
		"a wrong key":    {403, reply, func(r *http.Request) { r.Header.Set("Nix-Sandbox-Key", strings.Repeat("A", 26)) }},
		"in a query":     {403, reply, func(r *http.Request) { r.Header.Del("Nix-Sandbox-Key"); r.URL.RawQuery = "key=" + key }},
		"another origin": {403, reply, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }},
		"another host":   {403, reply, func(r *http.Request) { r.Host = "evil.example" }},
		"GET":            {405, reply, func(r *http.Request) { r.Method = http.MethodGet }},
		"oversized":      {400, reply + strings.Repeat(" ", 64<<10), nil},
		"a foreign id":   {409, `{"id":"AAAAAAAAAAAAAAAAAAAAAAAAAA","choice":"always"}`, nil},
	} {
		if got := post(one.body, one.change); got != one.want {
			t.Errorf("%s: status %d, want %d", name, got, one.want)
		}
	}
	// A page of another origin, in a browser, that knows all of it.
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><title>evil</title>")
	}))
	defer evil.Close()
	stranger := browser.Start(t)
	stranger.Open(evil.URL)
	stranger.Await(`document.title == "evil"`)
	for _, options := range []string{
		`{method: "POST", body, headers: {"Content-Type": "application/json", "Nix-Sandbox-Key": key}}`,
		`{method: "POST", body, mode: "no-cors", headers: {"Nix-Sandbox-Key": key}}`,
		`{method: "POST", body, mode: "no-cors", credentials: "include"}`,
	} {
		stranger.Eval(`document.title = "asking"`)
		stranger.Eval(fmt.Sprintf(`void ((key, body) => fetch(%q, %s).then((answer) => answer.type, (error) => error.name).then((got) => { document.title = got }))(%q, %q)`, url+"answer", options, key, reply))
		stranger.Await(`document.title != "asking"`)
		if got := stranger.Eval(`document.title`); got != "TypeError" && got != "opaque" {
			t.Errorf("a page of another origin with %s: %s", options, got)
		}
	}
	// Nothing answered: the question is still there. The control is the user's click.
	if got := b.Eval(`document.querySelector("#question pre")?.textContent.includes("> page.host.example:80\n")`); got != "true" {
		t.Error("something else answered the question")
	}
	b.Eval(`document.querySelector("#question button[value=once]").click()`)
	answers(id, "is allowed, and did not answer")
	b.Await(`document.getElementById("question").hidden && !document.querySelector("#question button")`)
	if got := post(reply, nil); got != http.StatusConflict {
		t.Errorf("an answer to a question that is over: status %d", got)
	}
	id = fetch("page.host.example")
	b.Await(`document.querySelector("#question pre")?.textContent.includes("> page.host.example:80\n")`) // once was for one call
	b.Await(`!document.querySelector("#question button[value=no]").disabled`)
	b.Eval(`document.querySelector("#question button[value=no]").click()`)
	answers(id, "the user said no")
	// What the client withdraws is gone here.
	id = fetch("late.host.example")
	b.Await(`document.querySelector("#question button") != null`)
	c.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(id)})
	b.Await(`document.getElementById("question").hidden && !document.querySelector("#question button")`)
	if strings.Contains(c.Log(), key) {
		t.Error("the log has the key")
	}
}

// "Always" can be a line of the user's configuration, which the user sees before it is written.
func TestPage_WritesTheConfiguration(t *testing.T) {
	folder, home, runtime := t.TempDir(), t.TempDir(), t.TempDir()
	must.Do(t, os.Symlink(undertest.Artifact(t, "world-ask"), filepath.Join(folder, "world-ask")))
	file := filepath.Join(home, ".config", "nix-sandbox-mcp", "config.toml")
	must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
	const before, after = "[environments.world-ask.network]\nmode = \"allow\"\ndomains = [\"files.example\"]\n", "[environments.world-ask.network]\nmode = \"allow\"\ndomains = [\"files.example\", \"page.host.example\"]\n"
	must.Do(t, os.WriteFile(file, []byte(before), 0o644))
	b, c := browser.Start(t), serve(t, runtime, "NIX_SANDBOX_DIR="+folder)
	b.Open(browser.Link(t, undertest.Server(t), []string{"HOME=" + home, "XDG_RUNTIME_DIR=" + runtime}))
	b.Await(`document.getElementById("link")?.textContent == "live"`)
	id := c.SendRun(mcptest.Arguments{Env: "world-ask", Session: "s", Code: "import urllib.request\ntry: urllib.request.urlopen('http://page.host.example/')\nexcept OSError as e: pass"})
	b.Await(`document.querySelector("#question button[value=always]")?.disabled === false`)
	b.Eval(`document.querySelector("#question button[value=always]").click()`)
	b.Await(`document.querySelector("#question .edit .added")?.textContent == 'domains = ["files.example", "page.host.example"]'`)
	for _, width := range []int{390, 1440} {
		b.Look(width, 1100, width == 390)
		if problems := b.Eval(unfit); problems != "" {
			t.Errorf("%d pixels wide: %s", width, problems)
		}
		if *pictures != "" {
			must.Do(t, os.WriteFile(filepath.Join(*pictures, fmt.Sprintf("always-%d.png", width)), b.Screenshot(), 0o644))
		}
	}
	if got := string(must.Get(os.ReadFile(file))(t)); got != before {
		t.Errorf("before the user has seen it: %q", got)
	}
	b.Eval(`document.querySelector("#question .edit button").click()`)
	if text := c.AwaitRun(id).Text(); !strings.Contains(text, "is allowed, and did not answer") {
		t.Errorf("%q", text)
	}
	if got := string(must.Get(os.ReadFile(file))(t)); got != after {
		t.Errorf("%q", got)
	}
}

// The user saves files of a session, but not those that a program would obey.
func TestPage_SavesFiles(t *testing.T) {
	c, b, link := start(t)
	c.Run(mcptest.Arguments{Env: "bash", Session: "made", Code: "echo 1,2 >outputs/table.csv; echo '[Desktop Entry]' >outputs/run.desktop"})
	b.Open(link)
	b.Await(`document.querySelectorAll(".file button").length == 2`)
	b.Eval(`document.querySelectorAll(".file button").forEach((one) => one.click())`)
	b.Await(`[...document.querySelectorAll(".file")].filter((one) => one.textContent.includes("not saved, because")).length == 1`)
	// A card that is made anew, as when the page has lost its stream, says it still.
	b.Eval(`[...cards.values()].forEach(({ call }) => showCall(call, call.server))`)
	b.Await(`[...document.querySelectorAll(".file")].filter((one) => one.textContent.includes("not saved, because")).length == 1`)
	url, key, _ := strings.Cut(link, "#key=")
	get := func(path, key string) (int, string, http.Header) {
		request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url+"files/0?session=made&env=bash&path="+path, nil))(t)
		request.Header.Set("Nix-Sandbox-Key", key)
		response := must.Get(http.DefaultClient.Do(request))(t)
		defer response.Body.Close()
		return response.StatusCode, string(must.Get(io.ReadAll(response.Body))(t)), response.Header
	}
	status, text, header := get("/workspace/outputs/table.csv", key)
	if status != http.StatusOK || text != "1,2\n" || header.Get("Content-Disposition") != "attachment; filename=table.csv" || header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%d %q %v", status, text, header)
	}
	for path, want := range map[string]int{"/workspace/outputs/run.desktop": 409, "/etc/passwd": 409, "/workspace/outputs/none.csv": 409} {
		if status, text, _ := get(path, key); status != want {
			t.Errorf("%s: %d %q", path, status, text)
		}
	}
	if status, _, _ := get("/workspace/outputs/table.csv", "WRONG"); status != http.StatusForbidden {
		t.Errorf("without the key: %d", status)
	}
}
