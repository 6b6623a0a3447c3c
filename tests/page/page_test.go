// Package page tests the server's page in a browser.
package page

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/browser"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

var update = flag.Bool("update", false, "write the page's picture in docs from what the browser shows")

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

func TestPage_ShowsCallsAsTheyCome(t *testing.T) {
	server := undertest.Server(t)
	b := browser.Start(t)
	home := t.TempDir()
	cmd := exec.Command(server, "--stdio")
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "NIX_SANDBOX_DIR=" + filepath.Join(home, "sandboxes"),
		"NIX_SANDBOX_METRICS=127.0.0.1:0", "NIX_SANDBOX_PAGE=1", "NIX_SANDBOX_AUDIT=" + filepath.Join(home, "audit.jsonl")}
	c := mcptest.Start(t, cmd)
	c.Initialize(mcptest.Newest)
	var found []string
	patience.Wait(t, patience.Long, c.Log, func() bool {
		found = regexp.MustCompile(`msg=metrics address=(\S+) page=true`).FindStringSubmatch(c.Log())
		return found != nil
	})
	c.Run(mcptest.Arguments{Code: drawing, Env: "python", Session: "report"})
	b.Open("http://" + found[1] + "/")
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
	b.Await(`document.querySelector("#call-2 img")?.naturalWidth == 1`)
	for _, part := range []string{".code", ".stdout", ".stderr", "figcaption"} {
		if got := b.Eval(`document.querySelector("#call-2 ` + part + `").textContent`); !strings.Contains(got, "<img src=x onerror") {
			t.Errorf("%s of the hostile call is %q", part, got)
		}
	}
	if got := b.Eval(`document.querySelectorAll("#call-2 img, #call-2 script").length`); got != "1" {
		t.Errorf("the hostile call has %s elements that load something, not its image alone", got)
	}
	if got := b.Eval("document.title"); got != "nix-sandbox-mcp" {
		t.Errorf("code of a sandbox ran in the page: its title is %q", got)
	}
	b.Await(`document.getElementById("state").textContent.includes("report")`)
	b.Await(`document.getElementById("state").textContent.includes("record 3")`)
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
	picture := b.Screenshot()
	if len(picture) < 10_000 {
		t.Errorf("the picture has %d bytes", len(picture))
	}
	if *update {
		must.Do(t, os.WriteFile("../../docs/page.png", picture, 0o644))
	}
}
