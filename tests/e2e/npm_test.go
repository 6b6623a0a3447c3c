package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// Code in Node.js loads what a lock of npm names, and nothing else, however it asks for it. A
// server that starts again with another lock has the packages of that one.
func TestNpm_LoadsWhatTheLockNames(t *testing.T) {
	undertest.Packages(t)
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed")
	}
	g := nix(t)
	folder, cache := t.TempDir(), t.TempDir()
	config := filepath.Join(folder, "config.toml")
	must.Write(t, config, "[environments.web]\npreset = \"node\"\nnpm = \"web\"\n", 0o644)
	serve := func(dependencies string) *mcptest.Client {
		must.Write(t, filepath.Join(folder, "web", "package.json"), `{"name": "web", "private": true, "dependencies": {`+dependencies+`}}`, 0o644)
		lock := exec.Command(npm, "install", "--package-lock-only", "--ignore-scripts", "--omit-lockfile-registry-resolved=false")
		lock.Dir = filepath.Join(folder, "web")
		if out, err := lock.CombinedOutput(); err != nil {
			t.Skipf("npm reaches no registry: %v\n%s", err, out)
		}
		c := start(t, g.variables("NIX_SANDBOX_CONFIG="+config, "XDG_CACHE_HOME="+cache)...)
		offered(t, c, "web", true)
		return c
	}
	c := serve(`"semver": "7.7.2", "nanoid": "5.1.5"`)
	for code, want := range map[string]string{
		`require("semver").inc("1.2.3", "minor")`:                                                      "'1.3.0'\n",
		`import semver from "semver"; semver.inc("1.2.3", "minor")`:                                    "'1.3.0'\n",
		`(await import("nanoid")).nanoid().length`:                                                     "21\n",
		`import { nanoid } from "nanoid"; const n: number = 5; nanoid(n).length`:                       "5\n",
		`require("child_process").execSync("semver 1.2.3 -i major").toString()`:                        "'2.0.0\\n'\n",
		`require("fs").writeFileSync("a.mjs", 'import "nanoid"'); await import("/workspace/a.mjs"); 1`: "1\n",
	} {
		expect(t, run(c, "web", code), want)
		expect(t, in(c, "s", "web", code), want)
	}
	expectError(t, run(c, "web", `require("lodash")`), "Cannot find module 'lodash'")
	expectError(t, run(c, "web", `require("fs").writeFileSync("/node_modules/x", "")`), "EROFS")
	c = serve(`"semver": "7.7.1"`)
	expect(t, run(c, "web", `require("semver/package.json").version`), "'7.7.1'\n")
	expectError(t, run(c, "web", `await import("nanoid")`), "Cannot find package 'nanoid'")
}
