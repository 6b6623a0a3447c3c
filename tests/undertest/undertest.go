// Package undertest finds what the tests are about: a built server, and built
// sandboxes. Without them a test is skipped.
package undertest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const (
	// ServerVariable names bin/nix-sandbox-mcp of what Nix built from
	// config.example.toml.
	ServerVariable = "NIX_SANDBOX_MCP_SERVER"
	// ArtifactsVariable names the folders of built sandboxes, separated by
	// colons. A test takes the ones that it is about.
	ArtifactsVariable = "NIX_SANDBOX_TEST_ARTIFACTS"
	// PackagesVariable names a package set to build with.
	PackagesVariable = "NIX_SANDBOX_TEST_NIXPKGS"
	// ClientsVariable names the folder that tests/clients/install filled.
	ClientsVariable = "NIX_SANDBOX_TEST_CLIENTS"
	// MachinesVariable names a folder for what virtual machines keep in a user's cache.
	// Tests have homes of their own, and without it each of them finds out whether KVM
	// works and saves machines to copy.
	MachinesVariable = "NIX_SANDBOX_TEST_MACHINES"
)

// Server returns the path of the server under test, without links.
func Server(t testing.TB) string {
	t.Helper()
	path := os.Getenv(ServerVariable)
	if path == "" {
		t.Skip(ServerVariable + " does not name a built server")
	}
	return resolve(t, path)
}

// Version returns the version of the sources under test.
func Version(t testing.TB) string {
	t.Helper()
	folder, err := os.Getwd()
	for ; err == nil && folder != "/"; folder = filepath.Dir(folder) {
		if text, err := os.ReadFile(filepath.Join(folder, "VERSION")); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatal("no folder above the test has a file VERSION")
	return ""
}

// Environments returns the environments of the server under test, as its metadata has
// them, by name.
func Environments(t testing.TB) map[string]map[string]any {
	t.Helper()
	file := filepath.Join(filepath.Dir(Server(t)), "..", "share", "nix-sandbox-mcp", "metadata.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var metadata struct {
		Environments map[string]map[string]any
	}
	if err := json.Unmarshal(text, &metadata); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return metadata.Environments
}

// Packages returns the folder of the package set to build with.
func Packages(t testing.TB) string {
	t.Helper()
	path := os.Getenv(PackagesVariable)
	if path == "" {
		t.Skip(PackagesVariable + " does not name a package set")
	}
	return resolve(t, path)
}

// Machines returns the variables with which a sandbox that a test starts itself uses the
// folder of [MachinesVariable]; none where there is no such folder.
func Machines() []string {
	if folder := os.Getenv(MachinesVariable); folder != "" {
		return []string{"XDG_CACHE_HOME=" + folder}
	}
	return nil
}

// ShareMachines has the sandboxes of a server whose home is this folder use the folder of
// [MachinesVariable], and nothing else of its cache.
func ShareMachines(t testing.TB, home string) {
	t.Helper()
	folder := os.Getenv(MachinesVariable)
	if folder == "" {
		return
	}
	const below = "nix-sandbox-mcp"
	shared, cache := filepath.Join(folder, below, "vm"), filepath.Join(home, ".cache", below)
	for _, each := range []string{shared, cache} {
		if err := os.MkdirAll(each, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(shared, filepath.Join(cache, "vm")); err != nil {
		t.Fatal(err)
	}
}

// Clients are programs of MCP clients, as their makers publish them.
type Clients struct {
	Folder string // holds node_modules
	Node   string // the node that runs those in JavaScript
	Claude string // Claude Code, a program of its own
	Codex  string // so is Codex
	Gemini string // Gemini CLI, in JavaScript
	// OpenCode is a program of its own, which the lock file has for x86-64 alone.
	OpenCode string
}

// InstalledClients returns the clients under test, and whether there are any.
func InstalledClients(t testing.TB) (clients Clients, ok bool) {
	t.Helper()
	folder := os.Getenv(ClientsVariable)
	if folder == "" {
		return Clients{}, false
	}
	architecture, machine := "x64", "x86_64" // what npm and Rust call it
	if runtime.GOARCH == "arm64" {
		architecture, machine = "arm64", "aarch64"
	}
	folder = resolve(t, folder)
	return Clients{
		Folder: folder,
		Node:   filepath.Join(folder, "node_modules/node-linux-"+architecture, "bin/node"),
		Claude: filepath.Join(folder, "node_modules/@anthropic-ai/claude-code-linux-"+architecture, "claude"),
		Codex:  filepath.Join(folder, "node_modules/@openai/codex-linux-"+architecture, "vendor", machine+"-unknown-linux-musl", "bin/codex"),
		Gemini: filepath.Join(folder, "node_modules/@google/gemini-cli/bundle/gemini.js"),

		OpenCode: filepath.Join(folder, "node_modules/opencode-linux-x64/bin/opencode"),
	}, true
}

// Artifacts returns the folders of all sandboxes under test, at least one.
func Artifacts(t testing.TB) []string {
	t.Helper()
	var folders []string
	for _, folder := range filepath.SplitList(os.Getenv(ArtifactsVariable)) {
		folders = append(folders, resolve(t, folder))
	}
	if len(folders) == 0 {
		t.Skip(ArtifactsVariable + " does not name a built sandbox")
	}
	return folders
}

// Artifact returns the folder of the sandbox under test that has this name.
func Artifact(t testing.TB, name string) string {
	t.Helper()
	return find(t, "called "+name, func(m metadata) bool { return m.Name == name })
}

// ArtifactOfType returns the folder of the first sandbox under test that has this
// type of interpreter.
func ArtifactOfType(t testing.TB, kind string) string {
	t.Helper()
	return find(t, "of type "+kind, func(m metadata) bool { return m.Type == kind })
}

// metadata is what tests choose an artifact by.
type metadata struct {
	Name string `json:"name"`
	Type string `json:"interpreter_type"`
}

func find(t testing.TB, description string, wanted func(metadata) bool) string {
	t.Helper()
	for _, folder := range Artifacts(t) {
		file := filepath.Join(folder, "metadata.json")
		var m metadata
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		if err != nil {
			t.Fatalf("%s: %s: %v", ArtifactsVariable, file, err)
		}
		if wanted(m) {
			return folder
		}
	}
	t.Skipf("%s names no sandbox %s", ArtifactsVariable, description)
	return ""
}

func resolve(t testing.TB, path string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
