package page

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/browser"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// folderOf makes a project with a short path, as users have.
func folderOf(t *testing.T, name string) string {
	above := must.Get(os.MkdirTemp("", "home"))(t)
	t.Cleanup(func() { os.RemoveAll(above) })
	project := filepath.Join(above, name)
	must.Do(t, os.Mkdir(project, 0o755))
	return project
}

// The page shows several servers at once, one that starts later, and goes on when one is killed.
func TestPage_ShowsAllServers(t *testing.T) {
	b, runtime := browser.Start(t), t.TempDir()
	link := browser.Link(t, undertest.Server(t), []string{"HOME=" + t.TempDir(), "XDG_RUNTIME_DIR=" + runtime})
	b.Open(link)
	b.Await(`document.getElementById("servers")?.textContent.includes("No server of yours runs")`)
	var clients []*mcptest.Client
	for _, name := range []string{"garden", "kitchen"} {
		project := folderOf(t, name)
		c := serve(t, runtime, "PROJECT_DIR="+project)
		c.Run(mcptest.Arguments{Code: "echo of the " + name, Env: "bash", Session: "same"})
		b.Await(fmt.Sprintf(`[...document.querySelectorAll(".call pre.stdout")].some((one) => one.textContent == "of the %s\n")`, name))
		clients = append(clients, c)
	}
	b.Await(`document.querySelectorAll("#servers dl").length == 2 && document.querySelectorAll("#sessions button").length == 2`)
	b.Await(`document.getElementById("summary").textContent.includes("2 servers")`)
	// A session of that name is chosen with its server.
	b.Eval(`[...document.querySelectorAll("#sessions li")].find((one) => one.textContent.includes("garden")).querySelector("button").click()`)
	if got := b.Eval(`[...document.querySelectorAll(".call")].filter((card) => card.checkVisibility()).map((card) => card.querySelector("pre.stdout").textContent).join()`); got != "of the garden\n" {
		t.Errorf("the filter shows %q", got)
	}
	running := clients[0].SendRun(mcptest.Arguments{Code: "echo begun; sleep 60", Env: "bash"})
	b.Await(`document.querySelector(".call.running pre.stdout")?.textContent.includes("begun")`)
	for _, width := range []int{390, 1440} {
		b.Look(width, 1100, width == 390)
		if problems := b.Eval(unfit); problems != "" {
			t.Errorf("%d pixels wide: %s", width, problems)
		}
		if *pictures != "" {
			must.Do(t, os.WriteFile(filepath.Join(*pictures, fmt.Sprintf("servers-%d.png", width)), b.Screenshot(), 0o644))
		}
	}
	must.Do(t, syscall.Kill(clients[0].PID(), syscall.SIGKILL))
	_ = running // nobody answers it
	b.Await(`document.querySelectorAll("#servers dl").length == 1 && !document.querySelector(".call.live")`)
	clients[1].Run(mcptest.Arguments{Code: "echo still here", Env: "bash"})
	b.Await(`[...document.querySelectorAll(".call pre.stdout")].some((one) => one.textContent == "still here\n")`)
	if len(b.Errors) > 0 {
		t.Errorf("the browser reports %q", b.Errors)
	}
}

// The user looks at what a session changed in the project, file by file, and applies it. What code wrote
// is text.
func TestPage_AppliesPatches(t *testing.T) {
	b, runtime, state := browser.Start(t), t.TempDir(), t.TempDir()
	project := folderOf(t, "garden")
	must.Do(t, os.WriteFile(filepath.Join(project, "plan.txt"), []byte("beans\n"), 0o644))
	var rows []string
	for i := range 40 {
		rows = append(rows, fmt.Sprintf("row %d\n", i))
	}
	must.Do(t, os.WriteFile(filepath.Join(project, "rows.txt"), []byte(strings.Join(rows, "")), 0o644))
	c := serve(t, runtime, "PROJECT_DIR="+project, "PROJECT_MODE=overlay", "XDG_STATE_HOME="+state)
	c.Run(mcptest.Arguments{Env: "bash", Session: "work", Code: "cd /project && sed -i '1s/.*/first/; 40s/.*/last/' rows.txt && echo peas >>plan.txt && echo '" + markup + "' >new.md && echo 'all: ; touch /tmp/x' >Makefile"})
	b.Open(browser.Link(t, undertest.Server(t), []string{"HOME=" + t.TempDir(), "XDG_RUNTIME_DIR=" + runtime, "XDG_STATE_HOME=" + state}))
	b.Await(`document.querySelector("#patches li")?.textContent.includes("4 files")`)
	b.Eval(`document.querySelector("#patches button").click()`)
	b.Await(`document.querySelectorAll("#patch details").length == 4`)
	file := func(name, what string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#patch details")].find((one) => one.textContent.includes(%q)).%s`, name, what)
	}
	if got := b.Eval(file("new.md", `querySelector("pre").textContent`)); !strings.Contains(got, "+"+markup+"\n") {
		t.Errorf("the new file is shown as %q", got)
	}
	if got := b.Eval(`document.querySelectorAll("#patch img, #patch script").length + document.title`); got != "0nix-sandbox-mcp" {
		t.Errorf("what code wrote became markup: %s", got)
	}
	for _, width := range []int{390, 1440} {
		b.Look(width, 1100, width == 390)
		if problems := b.Eval(unfit); problems != "" {
			t.Errorf("%d pixels wide: %s", width, problems)
		}
		if *pictures != "" {
			must.Do(t, os.WriteFile(filepath.Join(*pictures, fmt.Sprintf("patch-%d.png", width)), b.Screenshot(), 0o644))
		}
	}
	has := func(name, want string) {
		t.Helper()
		if got, _ := os.ReadFile(filepath.Join(project, name)); string(got) != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	has("plan.txt", "beans\n")
	b.Eval(file("plan.txt", `querySelector("button").click()`))
	b.Await(file("plan.txt", `textContent.includes("applied: 1 written")`))
	has("plan.txt", "beans\npeas\n")
	has("new.md", "")
	// A hunk by itself, and the rest of its file later.
	b.Eval(file("rows.txt", `querySelectorAll("pre button")[1].click()`))
	b.Await(file("rows.txt", `textContent.includes("applied: 1 written")`))
	rows[39] = "last\n"
	has("rows.txt", strings.Join(rows, ""))
	rows[0] = "first\n"
	// All but what builds or configures.
	b.Eval(`document.querySelector("#patch > button").click()`)
	b.Await(`document.getElementById("patch").textContent.includes("apply these by themselves: Makefile")`)
	has("new.md", markup+"\n")
	has("Makefile", "")
	has("rows.txt", strings.Join(rows, ""))
	// A file that has changed here meanwhile is refused, and says so.
	must.Do(t, os.WriteFile(filepath.Join(project, "Makefile"), []byte("own\n"), 0o644))
	b.Eval(file("Makefile", `querySelector("button").click()`))
	b.Await(file("Makefile", `textContent.includes("nothing was applied")`))
	has("Makefile", "own\n")
	must.Do(t, os.Remove(filepath.Join(project, "Makefile")))
	// What the session changes now is shown, and the patch that was seen is applied no more.
	c.Run(mcptest.Arguments{Env: "bash", Session: "work", Code: "rm -f /project/Makefile; echo more >>/project/plan.txt"})
	b.Await(`document.querySelectorAll("#patch details").length == 1`) // the other files are here already
	b.Await(file("plan.txt", `textContent.includes("+more")`))
	// One that is not wanted leaves the list.
	b.Eval(`[...document.querySelectorAll("#patch > button")].find((one) => one.textContent == "Discard").click()`)
	b.Await(`document.getElementById("patch").hidden && document.getElementById("patches").textContent.includes("No session has changed")`)
	has("plan.txt", "beans\npeas\n")
	if len(b.Errors) > 0 {
		// A refusal is a response with status 409, which the browser reports.
		for _, problem := range b.Errors {
			if !strings.Contains(problem, "409") {
				t.Errorf("the browser reports %q", problem)
			}
		}
	}
}
