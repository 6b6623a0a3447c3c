// Package page tests the user's page in a browser.
package page

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/browser"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

var (
	update   = flag.Bool("update", false, "write the page's picture in docs from what the browser shows")
	pictures = flag.String("pictures", "", "write what the browser shows to a folder")
)

func TestMain(m *testing.M) { os.Exit(mcptest.Main(m)) }

// drawing writes an image of stripes, without a library.
const drawing = `import zlib, struct
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
rows = b"".join(b"\0" + bytes(v for x in range(240) for v in (x, 90 + y, 200 - x // 2)) for y in range(90))
png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 240, 90, 8, 2, 0, 0, 0))
png += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
open("outputs/colours.png", "wb").write(png)
print(len(rows), "bytes in 90 rows")`

// markup would run in a page that took it for markup. hostile is code that has it in its
// output, and in the name of an image.
const (
	markup  = `</pre><img src=x onerror="document.title=1"><script>document.title=2</script>`
	hostile = `folder='outputs/<img src=x onerror="document.title=3">'; mkdir "$folder"
base64 -d <<<iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg== >"$folder/x.png"
echo '` + markup + `' | tee /dev/stderr; exit 3`
)

// start starts a server, the page, and a browser.
func start(t *testing.T, more ...string) (c *mcptest.Client, b *browser.Browser, link string) {
	t.Helper()
	b = browser.Start(t)
	runtime := t.TempDir()
	c = serve(t, runtime, more...)
	return c, b, browser.Link(t, undertest.Server(t), []string{"HOME=" + t.TempDir(), "XDG_RUNTIME_DIR=" + runtime})
}

// serve starts a server whose sockets are in a folder.
func serve(t *testing.T, runtime string, more ...string) *mcptest.Client {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(undertest.Server(t), "--stdio")
	cmd.Env = append([]string{"HOME=" + home, "TMPDIR=" + home, "NIX_SANDBOX_DIR=" + filepath.Join(home, "sandboxes"),
		"XDG_RUNTIME_DIR=" + runtime, "NIX_SANDBOX_AUDIT=" + filepath.Join(home, "audit.jsonl")}, more...)
	c := mcptest.Start(t, cmd)
	c.Initialize(mcptest.Newest)
	return c
}

func TestPage_ShowsCallsAsTheyCome(t *testing.T) {
	c, b, link := start(t)
	c.Run(mcptest.Arguments{Code: drawing, Env: "python", Session: "report"})
	b.Open(link)
	b.Await(`document.getElementById("link")?.textContent == "live"`)
	b.Await(`document.querySelectorAll(".call").length == 1`)
	b.Await(`document.querySelector(".call img")?.naturalWidth == 240`)

	// What comes now is shown without loading the page again.
	c.Run(mcptest.Arguments{Code: hostile, Env: "bash"})
	c.Run(mcptest.Arguments{Code: "echo", Env: "nothing"})
	b.Await(`document.querySelectorAll(".call").length == 3`)
	if got := b.Eval(`document.querySelector(".call").className`); got != "call refused" {
		t.Errorf("the newest call is %q", got)
	}
	b.Await(`document.querySelector("#call-0-2 img")?.naturalWidth == 1`)
	for _, part := range []string{".code", ".stdout", ".stderr", "figcaption"} {
		if got := b.Eval(`document.querySelector("#call-0-2 ` + part + `").textContent`); !strings.Contains(got, "<img src=x onerror") {
			t.Errorf("%s of the hostile call is %q", part, got)
		}
	}
	if got := b.Eval(`document.querySelectorAll("#call-0-2 img, #call-0-2 script").length`); got != "1" {
		t.Errorf("the hostile call has %s elements that load something, not its image alone", got)
	}
	if got := b.Eval("document.title"); got != "nix-sandbox-mcp" {
		t.Errorf("code of a sandbox ran in the page: its title is %q", got)
	}
	b.Await(`document.getElementById("state").textContent.includes("report")`)
	b.Await(`document.getElementById("state").textContent.includes("3 records")`)
	if len(b.Errors) > 0 {
		t.Errorf("the browser reports %q", b.Errors)
	}
	// The controls: markup that the page's own script made would be refused, and so is what
	// the page would load from elsewhere.
	if got := b.Eval(`(() => { try { document.body.innerHTML = "x" } catch (error) { return error.name } })()`); got != "TypeError" {
		t.Errorf("the policy lets a script make markup: %q", got)
	}
	b.Eval(`void document.body.append(Object.assign(document.createElement("img"), {src: "https://elsewhere.example/x.png", id: "foreign"}))`)
	patience.Wait(t, patience.Long, func() string { return "the policy refuses nothing" }, func() bool {
		b.Eval("0")
		return strings.Contains(strings.Join(b.Errors, "\n"), "Content Security Policy")
	})
	b.Eval(`document.getElementById("foreign").remove()`)
}

// unfit lists what a reader would stumble over: text that is wider than its place, a word broken
// where it would have room, and text without the contrast of 4.5 to 1 that WCAG 2.2 asks for (1.4.3).
const unfit = `(() => {
  const problems = [], root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) problems.push("the page is " + root.scrollWidth + " wide");
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const light = (...colours) => {
    const key = colours.join();
    if (!known.has(key)) known.set(key, measure(colours));
    return known.get(key);
  };
  const measure = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode, element = text.parentElement, style = getComputedStyle(element);
    if (!text.data.trim() || !element.checkVisibility() || element.closest("noscript, option")) continue;
    const backs = [];
    for (let up = element; up; up = up.parentElement) backs.unshift(getComputedStyle(up).backgroundColor);
    const [back, front] = [light(...backs), light(...backs, style.color)].sort((a, b) => a - b);
    if ((front + .05) / (back + .05) < 4.5) problems.push("contrast " + ((front + .05) / (back + .05)).toFixed(1) + " of " + text.data.slice(0, 40) + " in " + element.className);
    if (element.closest("pre, figure, .remark")) continue;
    for (const { index, 0: word } of text.data.matchAll(/(?<![\p{L}\p{N}])[\p{L}\p{N}]{1,24}(?![\p{L}\p{N}])/gu)) {
      const range = new Range();
      range.setStart(text, index);
      range.setEnd(text, index + word.length);
      if (new Set([...range.getClientRects()].filter((r) => r.width).map((r) => Math.round(r.top))).size > 1) problems.push("broken: " + word);
    }
  }
  return problems.join("\n");
})()`

// The page fits a telephone and a wide screen, in light and in dark colours, while it is empty, and
// with many sessions, long output and calls that run.
func TestPage_FitsEveryScreen(t *testing.T) {
	c, b, link := start(t)
	look := func(state string) {
		t.Helper()
		for _, width := range []int{390, 1440} {
			for _, dark := range []bool{false, true} {
				b.Look(width, 1100, dark)
				if problems := b.Eval(unfit); problems != "" {
					t.Errorf("%s, %d pixels wide, dark %v:\n%s", state, width, dark, problems)
				}
				if *pictures != "" {
					must.Do(t, os.WriteFile(filepath.Join(*pictures, fmt.Sprintf("%s-%d-%v.png", state, width, dark)), b.Screenshot(), 0o644))
				}
			}
		}
	}
	b.Open(link)
	b.Await(`document.getElementById("link")?.textContent == "live" && document.getElementById("servers").textContent.includes("bash")`)
	look("empty")
	c.Run(mcptest.Arguments{Code: "curl https://example.org", Env: "bash", Session: strings.Repeat("wide", 16)})
	for i := range 12 {
		c.Run(mcptest.Arguments{Code: fmt.Sprintf("x=%d", i), Env: "bash", Session: fmt.Sprintf("analysis-of-the-%d-th-quarter", i)})
	}
	c.Run(mcptest.Arguments{Code: "for i in range(20000): print('line', i, 'of a long output')", Env: "python"})
	c.Run(mcptest.Arguments{Code: "import pandas_of_another_world as pd\nprint(pd)", Env: "python", Session: "report"})
	c.Run(mcptest.Arguments{Code: `printf '\033[32m✔ 12 tests passed\033[0m\n\033[1;31m✘ 1 failed\033[0m: \u202eevil\u202c\n'; exit 1`, Env: "bash"})
	c.Run(mcptest.Arguments{Code: drawing, Env: "python", Session: "report"})
	running := c.SendRun(mcptest.Arguments{Code: "for i in range(1, 13):\n    print(f'epoch {i:2}/40  loss {1/i:.4f}', flush=True)\nimport time; time.sleep(25)  # the next epoch", Env: "python", Session: "training"})
	b.Await(`document.querySelector(".call.running .stdout")?.textContent.includes("epoch 12/40")`)
	look("busy")
	if *update {
		b.Look(1200, 900, false)
		must.Do(t, os.WriteFile("../../docs/page.png", b.Screenshot(), 0o644))
	}
	c.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(running)})
	b.Await(`document.querySelector(".call.cancelled .stdout")?.textContent.includes("epoch 12/40") && !document.querySelector(".call.live")`)
	b.Eval(`(() => { const text = document.querySelector("#filter [name=text]"); text.value = "nothing has this"; text.dispatchEvent(new Event("input", { bubbles: true })) })()`)
	b.Await(`!document.getElementById("none").hidden`)
	look("filtered")
	if len(b.Errors) > 0 {
		t.Errorf("the browser reports %q", b.Errors)
	}
}

// Whatever code prints and clients name: the page stays small and quick, and shows a reader each
// character that would deceive. The control is text of the same size.
func TestPage_ShowsWhatWouldDeceive(t *testing.T) {
	c, b, link := start(t)
	b.Open(link)
	b.Await(`document.getElementById("link")?.textContent == "live"`)
	show := func(arguments mcptest.Arguments, number int) {
		c.Run(arguments)
		b.Await(fmt.Sprintf(`document.querySelector("#call-0-%d .outcome") && !document.querySelector("#call-0-%d.live")`, number, number))
	}
	for i, test := range []struct{ code, has, lacks string }{
		{`print('plain ' * 2000)`, "plain", ""},
		{`print('a\u202e' * 4000)`, "U+202E", "\u202e"},
		{`print('a\u200b\u2066\U000e0041\u00ad' * 800)`, "U+E0041", "\U000e0041"},
		{`print('a' + '\u0301' * 4000)`, "a\u0301", ""},
		{`print('\x1b]0;' + 'title' * 2000)`, "title", "\x1b"},
		{`print('\x1b[31m' * 3000 + 'red\x1b[8mhidden\x1b[2T\x1b[1A')`, "hidden", "\x1b"},
		{`print('safe\rrm -rf\b\b\b\b\b\bls')`, "U+0008", "\b"},
		{`print('👩‍👩‍👧 ❤️ \u200b')`, "👩‍👩‍👧 ❤️ U+200B", "\u200b"},
	} {
		show(mcptest.Arguments{Code: test.code, Env: "python"}, i+1)
		pre := fmt.Sprintf(`document.querySelector("#call-0-%d pre.stdout")`, i+1)
		if got := b.Eval(pre + ".textContent"); !strings.Contains(got, test.has) || test.lacks != "" && strings.Contains(got, test.lacks) {
			t.Errorf("%s: %.300q", test.code, got)
		}
		// Nothing leaves its place, and there are few elements.
		if got := b.Eval(pre + `.scrollHeight >= ` + pre + `.clientHeight && ` + pre + `.getBoundingClientRect().height < 400 && ` + pre + `.querySelectorAll("*").length < 500`); got != "true" {
			t.Errorf("%s: its output is too large", test.code)
		}
	}
	show(mcptest.Arguments{Code: "1", Env: "\u202e<b>env</b>\x1b[31m", Session: "\u2066s<script>"}, 9)
	for _, place := range []string{`document.querySelector("#call-0-9 h3").textContent`, `[...document.querySelectorAll("option")].map((one) => one.textContent).join()`} {
		if got := b.Eval(place); !strings.Contains(got, "U+202E<b>env</b>") || !strings.Contains(got, "U+2066s<script>") || strings.ContainsAny(got, "\u202e\u2066\x1b") {
			t.Errorf("%s is %.300q", place, got)
		}
	}
	// The filter finds a call by a part of its output alone.
	b.Eval(`(() => { const text = document.querySelector("#filter [name=text]"); text.value = "RM -RF"; text.dispatchEvent(new Event("input", { bubbles: true })) })()`)
	if got := b.Eval(`[...document.querySelectorAll(".call")].filter((card) => card.checkVisibility()).map((card) => card.id).join()`); got != "call-0-7" {
		t.Errorf("the filter shows %s", got)
	}
	if len(b.Errors) > 0 {
		t.Errorf("the browser reports %q", b.Errors)
	}
}
