package network

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/background"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
)

// An agent's own shell commands reach the hosts of their environment, as package managers and git do
// with a project, and no others.
func TestExec_ReachesNamedHosts(t *testing.T) {
	w := begin(t, networld.Options{})
	if w == nil {
		return
	}
	server := commandWith(t, withPrograms, "world-tools")
	runtime := t.TempDir()
	project := must.Get(os.MkdirTemp("/var/tmp", "exec"))(t)
	t.Cleanup(func() { os.RemoveAll(project) })
	background.EndServers(t, runtime)
	must.Do(t, exec.Command("git", "init", "-q", project).Run())
	must.Write(t, filepath.Join(project, "ca.pem"), string(must.Get(networld.Authority())(t)), 0o644)
	must.Write(t, filepath.Join(project, "package.json"), fmt.Sprintf(`{"dependencies": {%q: "1.0.0"}}`, networld.Package), 0o644)
	run := func(text string) (string, error) {
		cmd := exec.Command(server.Path, "exec", "--env", "world-tools", "-c", text)
		cmd.Dir, cmd.Env = project, append(server.Env, "XDG_RUNTIME_DIR="+runtime, "SESSION_IDLE_TIMEOUT=")
		var out []byte
		err := w.Do(func() (err error) {
			out, err = cmd.CombinedOutput()
			return err
		})
		return string(out), err
	}
	if out, err := run(`for one in SSL_CERT_FILE CURL_CA_BUNDLE GIT_SSL_CAINFO PIP_CERT NODE_EXTRA_CA_CERTS NPM_CONFIG_CAFILE; do export $one=$PWD/ca.pem; done
export NPM_CONFIG_REGISTRY=https://npm.host.example/ PIP_INDEX_URL=https://pypi.host.example/simple`); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, test := range []struct{ needs, text, want string }{
		{"git", "git remote add origin https://git.host.example/hello.git && git fetch -q && git checkout -q -b work origin/main && cat greeting", networld.Greeting},
		{"git", "echo more > more && git add more && git -c user.name=x -c user.email=x@host.example commit -q -m more && git push -q origin work 2>&1 && git ls-remote origin work", "refs/heads/work"},
		{"npm", "npm install --silent --package-lock-only --no-audit --no-fund && npm ci --silent --no-audit --no-fund && node -e 'console.log(require(\"" + networld.Package + "\").hello())'", networld.Greeting},
		{"python3 -m pip", "python3 -m pip download -q --no-cache-dir --disable-pip-version-check -d wheels " + networld.Package + " && ls wheels", ".whl"},
		{"curl", "curl -sS https://files.example/small", "hello files.example"},
	} {
		if _, err := run(test.needs + " --version"); err != nil {
			t.Logf("without %s", test.needs)
			continue
		}
		if out, err := run(test.text); err != nil || !strings.Contains(out, test.want) {
			t.Errorf("%s: %v: %s; want %q", test.text, err, out, test.want)
		}
	}
	if out, err := run("curl -sS --max-time 20 https://evil.example/small"); err == nil {
		t.Errorf("another host is reached: %s", out)
	}
	if _, err := os.Lstat(filepath.Join(project, "node_modules")); err == nil {
		t.Error("packages are in the project itself")
	}
}
