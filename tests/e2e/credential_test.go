package e2e

import (
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// searchInside is code that searches what code can read.
//
//go:embed testdata/search.py
var searchInside string

// useCredentials is code that asks the hosts of both credentials, and follows redirects
// to elsewhere. Then it puts a text where code can put one.
const useCredentials = `
import os, subprocess, urllib.request
def get(url):
    print(urllib.request.urlopen(url, timeout=20).read().decode(), end="")
get("https://files.example/small")
get("https://a.host.example/small")
for where in "https://b.host.example/redirected", "http://b.host.example/redirected", "http://files.example/redirected":
    get("https://files.example/redirect?to=" + where)
marker = bytes(b ^ 0x55 for b in bytes.fromhex("%s")).decode()
open("/workspace/marker", "w").write(marker[::-1])
child = subprocess.Popen(["python3", "-c", "import time; time.sleep(600)", marker], env={**os.environ, "MARKER": marker.encode().hex()},
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
`

// masked returns a text in a form for which no search looks.
func masked(text string) string {
	bytes := []byte(text)
	for i := range bytes {
		bytes[i] ^= 0x55
	}
	return hex.EncodeToString(bytes)
}

// everyForm masks the forms of a text for which code searches.
func everyForm(text string) map[string]string {
	forms := map[string]string{}
	for name, form := range procfs.NewSearch(text).Forms() {
		forms[name] = masked(string(form))
	}
	return forms
}

// random returns a text that is nowhere on this machine.
func random() string {
	bytes := make([]byte, 24)
	rand.Read(bytes) // never fails
	return hex.EncodeToString(bytes)
}

// trustWorld has the calling thread and what it starts find the world's authority in the
// file of public authorities that proxies have.
func trustWorld(t *testing.T, artifact string) error {
	closure := commandIn(t, ".", nil, "nix-store", "-qR", artifact)
	authority, err := networld.Authority()
	if err != nil {
		return err
	}
	file := filepath.Join(t.TempDir(), "authorities")
	if err := os.WriteFile(file, authority, 0o644); err != nil {
		return err
	}
	for path := range strings.Lines(closure) {
		bundle, err := filepath.EvalSymlinks(filepath.Join(strings.TrimSpace(path), "etc/ssl/certs/ca-bundle.crt"))
		if err == nil {
			return unix.Mount(file, bundle, "", unix.MS_BIND, "")
		}
	}
	return fmt.Errorf("%s has no public authorities", artifact)
}

// The allowed host receives a secret, and it is nowhere else: in no file, argument,
// variable or page of the sandbox or of what starts it, not in the store, in no answer and
// not in the log. A search finds a text that code has put there.
func TestCredential_IsInTheProxysMemoryAlone(t *testing.T) {
	o := inWorld(t, nil)
	if o == nil {
		return
	}
	inFile, inVariable, marker := random(), random(), random()
	file := filepath.Join(t.TempDir(), "token")
	must.Write(t, file, inFile+"\n", 0o600)
	o.tables = fmt.Sprintf(`
[environments.vault]
packages = ["python3"]
interpreter = "python3 -c"
timeout_seconds = 60
prewarm = 0
[environments.vault.network]
mode = "allow"
domains = ["files.example", "a.host.example", "b.host.example"]
[environments.vault.network.credentials.IN_FILE]
domain = "files.example"
header = "X-Key: {}"
file = %q
[environments.vault.network.credentials.IN_VARIABLE]
domain = "a.host.example"
header = "Authorization: Bearer {}"
variable = "API_TOKEN"
`, file)
	o.build("vault")
	artifact := must.Get(filepath.EvalSymlinks(filepath.Join(o.folder, "vault")))(t)
	home := t.TempDir()
	cmd := command(t, "NIX_SANDBOX_DIR="+o.folder, "API_TOKEN="+inVariable, "HOME="+home, "TMPDIR="+home, "LOG_LEVEL=debug")
	var c *mcptest.Client
	must.Do(t, o.world.Do(func() error {
		if err := trustWorld(t, artifact); err != nil {
			return err
		}
		c = mcptest.Start(t, cmd)
		return nil
	}))
	c.Initialize(mcptest.Newest)
	offered(t, c, "vault", true)

	answers := []mcptest.Answer{in(c, "s", "vault", fmt.Sprintf(useCredentials, masked(marker)))}
	expect(t, answers[0], "hello files.example\nhello a.host.example\nhello b.host.example\nhello b.host.example\nhello files.example\n")

	// The control: exactly these requests had the secrets.
	got := map[string]int{}
	for _, request := range o.world.Requests() {
		headers := string(must.Get(json.Marshal(request.Header))(t))
		secret := strings.Contains(headers, inFile) || strings.Contains(headers, inVariable)
		got[fmt.Sprint(request.Name, request.Path, " ", secret)]++
		if request.Name == "files.example" && request.Header.Get("X-Key") != inFile ||
			request.Name == "a.host.example" && request.Header.Get("Authorization") != "Bearer "+inVariable {
			t.Errorf("%s received %s", request.Name, headers)
		}
	}
	if want := map[string]int{
		"files.example/small true": 1, "files.example/redirect true": 3, "a.host.example/small true": 1,
		"b.host.example/redirected false": 1, "/redirected false": 2,
	}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the hosts received the secrets with %v, want %v", got, want)
	}

	var code, others, known []int // the sandbox's code, other processes, and the proxy
	for _, pid := range procfs.Descendants(c.PID()) {
		p, err := procfs.Read(pid)
		switch {
		case err != nil:
		case p.Name() == "nix-sandbox-net":
			known = append(known, pid)
		case strings.HasPrefix(p.Name(), "python3"):
			code = append(code, pid)
		default:
			others = append(others, pid)
		}
	}
	if len(code) < 2 || len(others) == 0 || len(known) != 1 {
		t.Fatalf("the server has the processes %v of code, %v and %v of proxies", code, others, known)
	}
	// Other sandboxes may wait with a loaded Python; only this one has certificates.
	vault := slices.IndexFunc(code, func(pid int) bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/certificates.crt", pid))
		return err == nil
	})
	if vault < 0 {
		t.Fatalf("none of the processes %v sees the certificates", code)
	}
	root := fmt.Sprintf("/proc/%d/root", code[vault])
	outside := func(text string) *procfs.Search {
		s := procfs.NewSearch(text)
		for _, pid := range slices.Concat(code, others) {
			s.Process(pid)
			s.Memory(pid)
		}
		s.Process(known[0])
		s.Files(root)
		s.Files(home)
		return s
	}

	control := outside(marker)
	found := strings.Join(control.Found, "\n")
	for _, where := range []string{
		`/proc/\d+/mem: plain`, `/proc/\d+/cmdline: plain`, `/proc/\d+/environ: hexadecimal`, `/proc/\d+/root/workspace/marker: reversed`,
	} {
		if !regexp.MustCompile(`(?m)^` + where + `$`).MatchString(found) {
			t.Errorf("a text of the code is not found in %s, but in\n%s", where, found)
		}
	}
	certificates := root + "/certificates.crt"
	for name, secret := range map[string]string{"file": inFile, "variable": inVariable} {
		s := outside(secret)
		if name == "file" {
			// The server's own variables have the other.
			s.Process(c.PID())
			s.Memory(c.PID())
		}
		for path := range strings.Lines(commandIn(t, ".", nil, "nix-store", "-qR", artifact)) {
			s.Files(strings.TrimSpace(path))
		}
		s.Bytes("the log", []byte(c.Log()))
		s.Bytes("an answer", must.Get(json.Marshal(answers))(t))
		s.Bytes("the list of tools", c.Request("tools/list", map[string]any{}).Line)
		if s.Found != nil {
			t.Errorf("the secret of a %s is in %q", name, s.Found)
		}
		if s.Read[certificates] == 0 || len(s.Unread) > 0 && os.Geteuid() == 0 {
			t.Errorf("the certificates have %d bytes; not read: %v", s.Read[certificates], s.Unread)
		}
		files, size := len(s.Read), int64(0)
		for _, n := range s.Read {
			size += n
		}
		proxy := procfs.NewSearch(secret)
		proxy.Memory(known[0])
		t.Logf("%s: %d files and %d MiB searched, %d not read; the proxy's memory: %q", name, files, size>>20, len(s.Unread), proxy.Found)
		if proxy.Unread == nil && proxy.Found == nil {
			t.Errorf("the search does not find the secret of a %s where it is: in the proxy's memory", name)
		}
	}

	inside := func(text string) string {
		answer := in(c, "s", "vault", "TEXTS = "+string(must.Get(json.Marshal(everyForm(text)))(t))+"\n"+searchInside)
		answers = append(answers, answer)
		return answer.Text()
	}
	for _, secret := range []string{inFile, inVariable} {
		if text := inside(secret); text != "read /certificates.crt\nfiles True\n" {
			t.Errorf("code searched for a secret and printed %q", text)
		}
	}
	text := inside(marker)
	for _, where := range []string{"/workspace/marker reversed", `/proc/\d+/cmdline plain`, `/proc/\d+/environ hexadecimal`, `/proc/\d+/mem plain`} {
		if !regexp.MustCompile(`(?m)^found ` + where + `$`).MatchString(text) {
			t.Errorf("code does not find its text in %s: %q", where, text)
		}
	}
	for _, secret := range []string{inFile, inVariable} {
		s := procfs.NewSearch(secret)
		s.Bytes("the log", []byte(c.Log()))
		s.Bytes("an answer", must.Get(json.Marshal(answers))(t))
		if s.Found != nil {
			t.Errorf("after the code's search: %q", s.Found)
		}
	}
}
