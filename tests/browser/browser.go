// Package browser drives a headless Chromium, for tests of pages. It speaks the DevTools
// protocol over a pipe, so that the browser listens at no port.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// Browser is a browser with one page.
type Browser struct {
	t       testing.TB
	in      *os.File
	out     *bufio.Reader
	session string
	next    int
	// Errors are what the page's console reported: exceptions, and what its policy
	// refused.
	Errors []string
}

// Start starts a browser. The test is skipped where there is none.
func Start(t testing.TB) *Browser {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("there is no Chromium here: apt-get install chromium")
	}
	toRead, in, err := os.Pipe()
	must.Do(t, err)
	out, toWrite, err := os.Pipe()
	must.Do(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience.For(patience.Long))
	home := t.TempDir()
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--remote-debugging-pipe", "--user-data-dir="+home, "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+home)
	cmd.ExtraFiles = []*os.File{toRead, toWrite}
	// All of its processes have stderr: Wait returns when the last one has ended, and
	// nothing writes to the profile any more.
	cmd.Stderr = &bytes.Buffer{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = patience.Long
	must.Do(t, cmd.Start())
	toRead.Close()
	toWrite.Close()
	t.Cleanup(func() {
		in.Close()
		cancel()
		_ = cmd.Wait()
		out.Close()
	})
	b := &Browser{t: t, in: in, out: bufio.NewReader(out)}
	target := b.ask("Target.createTarget", map[string]any{"url": "about:blank"})
	attached := b.ask("Target.attachToTarget", map[string]any{"targetId": target["targetId"], "flatten": true})
	b.session, _ = attached["sessionId"].(string)
	b.Look(1000, 1700, false)
	b.ask("Page.enable", nil)
	b.ask("Runtime.enable", nil)
	b.ask("Log.enable", nil)
	return b
}

// message is one of the DevTools protocol.
type message struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result map[string]any  `json:"result,omitempty"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// ask sends a command and waits for its result.
func (b *Browser) ask(method string, params any) map[string]any {
	b.t.Helper()
	b.next++
	command := map[string]any{"id": b.next, "method": method}
	if params != nil {
		command["params"] = params
	}
	if b.session != "" {
		command["sessionId"] = b.session
	}
	_, err := b.in.Write(append(must.Get(json.Marshal(command))(b.t), 0))
	must.Do(b.t, err)
	for {
		text, err := b.out.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("the browser ended in %s: %v", method, err)
		}
		var m message
		must.Do(b.t, json.Unmarshal(text[:len(text)-1], &m))
		switch {
		case m.ID == b.next && m.Error != nil:
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		case m.ID == b.next:
			return m.Result
		case m.Method == "Runtime.exceptionThrown", m.Method == "Log.entryAdded":
			b.Errors = append(b.Errors, string(m.Params))
		}
	}
}

// Open has the page load a URL.
func (b *Browser) Open(url string) { b.t.Helper(); b.ask("Page.navigate", map[string]any{"url": url}) }

// Eval returns the value of an expression of JavaScript in the page, as text.
func (b *Browser) Eval(expression string) string {
	b.t.Helper()
	result := b.ask("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")", "awaitPromise": true})
	if problem := result["exceptionDetails"]; problem != nil {
		b.t.Fatalf("%s: %v", expression, problem)
	}
	value, _ := result["result"].(map[string]any)
	return fmt.Sprint(value["value"])
}

// Await waits until an expression is true in the page.
func (b *Browser) Await(expression string) {
	b.t.Helper()
	patience.Wait(b.t, patience.Long, func() string { return expression + " is never true" }, func() bool { return b.Eval(expression) == "true" })
}

// Look gives the page a size in pixels, and light or dark colours.
func (b *Browser) Look(width, height int, dark bool) {
	b.t.Helper()
	// A full Chromium takes a size for a new target only if that has a window of its own.
	b.ask("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.ask("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": scheme}}})
}

// Screenshot returns an image of the page, as PNG.
func (b *Browser) Screenshot() []byte {
	b.t.Helper()
	result := b.ask("Page.captureScreenshot", map[string]any{"format": "png"})
	text, _ := result["data"].(string)
	return must.Get(base64.StdEncoding.DecodeString(text))(b.t)
}
