package docs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// Environment variables of these tests.
const (
	nixpkgsVariable = "NIX_SANDBOX_TEST_NIXPKGS" // a package set in place of the flake's own; optional
	blockPatience   = 8 * time.Minute            // what one block may take, builds included
	flakeName       = "github:nix-sandbox-mcp/nix-sandbox-mcp"
	project         = "../../examples/data-analysis" // PROJECT_DIR of the transcripts' server
)

// root returns the path of the checkout.
func root(t *testing.T) string {
	t.Helper()
	path := must.Get(filepath.Abs("../.."))(t)
	return path
}

// files returns the paths of the checkout's files whose names have a suffix,
// relative to the checkout. It skips hidden folders, such as .cache.
func files(t *testing.T, suffix string) []string {
	t.Helper()
	var names []string
	err := fs.WalkDir(os.DirFS(root(t)), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case !entry.IsDir() && strings.HasSuffix(name, suffix):
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// pages returns the pages of the checkout by their path in it.
func pages(t *testing.T) map[string]page {
	t.Helper()
	all := map[string]page{}
	for _, name := range files(t, ".md") {
		text := must.Get(os.ReadFile(filepath.Join(root(t), name)))(t)
		p, err := parse(string(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		all[name] = p
	}
	if len(all) < 5 {
		t.Fatalf("found only these pages: %v", slices.Collect(maps.Keys(all)))
	}
	return all
}

// Every link to a file of the checkout, or to a heading in one, has a target.
func TestPages_LinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	for name, p := range all {
		for _, l := range p.links {
			if strings.Contains(l.target, "://") {
				continue
			}
			path, anchor, _ := strings.Cut(l.target, "#")
			target := name
			if path != "" {
				target = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(filepath.Join(root(t), target)); err != nil {
				t.Errorf("%s:%d: %s: there is no such file", name, l.line, l.target)
			} else if other, isPage := all[target]; anchor != "" && (!isPage || !other.anchors[anchor]) {
				t.Errorf("%s:%d: %s: there is no such heading", name, l.line, l.target)
			}
		}
	}
}

var (
	codePath = regexp.MustCompile(`^(agent|deploy|docs|examples|jail|modules|network|nix|runtime|setup|templates|tests)/[a-zA-Z0-9_./-]*$`)
	codeTest = regexp.MustCompile(`^((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)(…?)$`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]*)\(`)
	// testsOf is a folder with tests of its packages, in a table: `FOLDER` (`TestOne`, `TestTwo…`).
	testsOf = regexp.MustCompile("`([a-z0-9/-]+)` \\(([^()]*)\\)")
)

// declared returns the names of the checkout's tests by their files.
func declared(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	for _, name := range files(t, "_test.go") {
		text := must.Get(os.ReadFile(filepath.Join(root(t), name)))(t)
		for _, match := range testFunc.FindAllSubmatch(text, -1) {
			tests[name] = append(tests[name], string(match[1]))
		}
	}
	return tests
}

// isDeclared reports whether a file below the folder has the test, or one whose name
// begins so where the name ends with "…".
func isDeclared(tests map[string][]string, folder, name string) bool {
	start, isStart := strings.CutSuffix(name, "…")
	for file, names := range tests {
		if strings.HasPrefix(file, folder) && slices.ContainsFunc(names, func(test string) bool {
			return test == start || isStart && strings.HasPrefix(test, start)
		}) {
			return true
		}
	}
	return false
}

// Each promise of SECURITY.md names a test, and those in parentheses are in the folder
// before them.
func TestSecurity_NamesTheTestsOfItsPromises(t *testing.T) {
	tests := declared(t)
	text := must.Get(os.ReadFile(filepath.Join(root(t), "SECURITY.md")))(t)
	promises, named, inTable := 0, 0, false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if isHead := strings.HasPrefix(cells[0], "promise"); isHead || !strings.HasPrefix(line, "|") {
			inTable = isHead
			continue
		}
		if !inTable || strings.HasPrefix(cells[0], "---") {
			continue
		}
		promises++
		if len(cells) != 3 || !strings.Contains(cells[2], "`") {
			t.Errorf("no test is named for %q", cells[0])
			continue
		}
		for _, match := range testsOf.FindAllStringSubmatch(cells[2], -1) {
			for _, name := range strings.Split(match[2], ", ") {
				if name = strings.Trim(name, "`"); codeTest.MatchString(name) {
					named++
					if !isDeclared(tests, match[1], name) {
						t.Errorf("%q: %s has no %s", cells[0], match[1], name)
					}
				}
			}
		}
	}
	if promises < 40 || named < 40 {
		t.Errorf("%d promises with %d tests by name were found", promises, named)
	}
}

// Every path of the checkout and every test that a page names exists.
func TestPages_NameWhatExists(t *testing.T) {
	tests := declared(t)
	checked := 0
	for name, p := range pages(t) {
		for _, span := range p.code {
			if codePath.MatchString(span.text) {
				checked++
				if _, err := os.Stat(filepath.Join(root(t), span.text)); err != nil {
					t.Errorf("%s:%d: `%s`: there is no such file or folder", name, span.line, span.text)
				}
			}
			if codeTest.MatchString(span.text) {
				checked++
				if !isDeclared(tests, "", span.text) {
					t.Errorf("%s:%d: `%s`: there is no such test", name, span.line, span.text)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no page names a path or a test")
	}
}

// What needs a program that there is not is skipped with its output.
func TestStage_SkipsWhatLacksAProgram(t *testing.T) {
	s := newStage(t)
	s.test("page", []block{
		{verb: "run", text: "echo first"},
		{verb: "run", text: "echo second", needs: "sh,no-such-program"},
		{verb: "output", text: "second\n"},
	})
	if s.printed != "first\n" {
		t.Errorf("printed %q", s.printed)
	}
	s.test("page", []block{{verb: "run", text: "echo third", needs: "sh,bash"}, {verb: "output", text: "third\n"}})
	if s.printed != "third\n" {
		t.Errorf("printed %q", s.printed)
	}
}

// needServer skips a test where no server was built for it.
func needServer(t *testing.T) {
	t.Helper()
	undertest.Server(t)
}

// Every block of every page does what its info string says.
func TestPages(t *testing.T) {
	needServer(t)
	all := pages(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		// The commands of these pages take long or change the machine.
		if strings.HasPrefix(name, "tests/") || name == "CONTRIBUTING.md" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			if folder := filepath.Dir(name); strings.HasPrefix(folder, "examples/") {
				must.Do(t, os.CopyFS(s.folder, os.DirFS(filepath.Join(root(t), folder)))) // what the page is about
			}
			s.test(name, all[name].blocks)
			if name == "examples/data-analysis/README.md" && !t.Failed() {
				s.picture(filepath.Join(root(t), "examples/data-analysis/revenue.png"))
			}
			if name == "docs/getting-started.md" && !t.Failed() {
				s.newcomer(all[name])
			}
		})
	}
}

// stage is the state that the blocks of one page share.
type stage struct {
	t        *testing.T
	location string // page:line of the block
	folder   string // the working directory of the commands
	home     string
	environ  []string
	user     uint32 // whose processes the commands are; 0 is whoever runs the tests
	clients  bool   // whether there are clients to test with
	printed  string // by the last run
	client   *mcptest.Client
	server   string   // of the client, as the page names it
	images   [][]byte // of all answers
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t: t, folder: t.TempDir(), home: t.TempDir()}
	path := s.tools() + ":" + os.Getenv("PATH")
	if clients, ok := undertest.InstalledClients(t); ok {
		path = filepath.Dir(clients.Node) + ":" + path
	}
	// A page that fails would leave what it started for the next one to meet.
	t.Cleanup(func() {
		for _, pid := range procfs.WithVariable("HOME", s.home) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	s.environ = append(s.environ, "HOME="+s.home, "XDG_RUNTIME_DIR="+t.TempDir(), "PATH="+path, "TMPDIR="+s.home, "LANG=C.UTF-8", "NIX_CONFIG="+os.Getenv("NIX_CONFIG"),
		"npm_config_omit_lockfile_registry_resolved=false") // as npm has it by itself
	// What makes npm trust this machine's way to its registry.
	if certificates, ok := os.LookupEnv("NODE_EXTRA_CA_CERTS"); ok {
		s.environ = append(s.environ, "NODE_EXTRA_CA_CERTS="+certificates)
	}
	return s
}

// tools makes a folder of programs for the PATH of the commands: a nix that
// uses this checkout in place of the published flake, and the clients.
func (s *stage) tools() string {
	folder := s.t.TempDir()
	nix, err := exec.LookPath("nix")
	if err != nil {
		s.t.Skip("nix is not installed")
	}
	checkout := "git+file://" + root(s.t)
	if _, err := os.Stat(filepath.Join(root(s.t), ".git")); err != nil {
		checkout = "path:" + root(s.t)
	}
	overrides := "--override-input nix-sandbox-mcp " + checkout
	if packages := os.Getenv(nixpkgsVariable); packages != "" {
		overrides += " --override-input nixpkgs path:" + packages + " --override-input nix-sandbox-mcp/nixpkgs path:" + packages + " --no-write-lock-file"
	}
	script := fmt.Sprintf(`#!/usr/bin/env bash
words=()
for word; do words+=("${word/#%s/%s}"); done
verb=("${words[@]:0:1}")
rest=("${words[@]:1}")
case ${words[0]-} in
  build | run | eval | shell | print-dev-env) verb+=(%s) ;;
  flake)
    case ${words[1]-} in
      show | check | lock | metadata) verb+=("${words[1]}" %s) rest=("${words[@]:2}") ;;
    esac
    ;;
esac
exec %s "${verb[@]}" "${rest[@]}"
`, strings.ReplaceAll(flakeName, "/", `\/`), checkout, overrides, overrides, nix)
	must.Do(s.t, os.WriteFile(filepath.Join(folder, "nix"), []byte(script), 0o755))
	if clients, ok := undertest.InstalledClients(s.t); ok {
		s.clients = true
		must.Do(s.t, os.Symlink(clients.Claude, filepath.Join(folder, "claude")))
		must.Do(s.t, os.Symlink(clients.Codex, filepath.Join(folder, "codex")))
	}
	return folder
}

// has reports whether the commands of the page have these programs, which commas separate.
func (s *stage) has(programs string) bool {
	s.t.Helper()
	if programs == "" {
		return true
	}
	if strings.HasPrefix(programs, "NIX_SANDBOX_TEST_") {
		return os.Getenv(programs) != ""
	}
	_, err := s.output(exec.Command("bash", "-c", `IFS=,; for program in $1; do type -P "$program" || exit 1; [ "$program" != npm ] || timeout 20 npm ping || exit 1; done`, "has", programs))
	return err == nil
}

func (s *stage) fail(format string, values ...any) {
	s.t.Helper()
	s.t.Errorf("%s: %s", s.location, fmt.Sprintf(format, values...))
}

// test tests the blocks of a page, in order.
func (s *stage) test(name string, blocks []block) {
	s.t.Helper()
	lacking := "" // what the last run needs
	for _, b := range blocks {
		s.location = fmt.Sprintf("%s:%d", name, b.line)
		if b.verb != "output" {
			lacking = ""
			if !s.has(b.needs) {
				lacking = b.needs
			}
		}
		if lacking != "" {
			s.t.Logf("%s: skipped: it needs %s", s.location, lacking)
			continue
		}
		s.block(b)
	}
}

// block tests a block by its verb.
func (s *stage) block(b block) {
	s.t.Helper()
	switch b.verb {
	case "nothing":
		s.fail("the block has no info string that says how it is tested: see tests/docs/page.go")
	case "run":
		if b.value == "user" && os.Geteuid() == 0 {
			s.printed = s.runAsUser(b.text)
			return
		}
		s.printed = s.run(b.text)
	case "output":
		if !matches(b.text, s.printed) {
			s.fail("the page shows\n%s\nbut it printed\n%s", b.text, s.printed)
		}
	case "file":
		path := filepath.Join(s.folder, b.value)
		must.Do(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(s.t, os.WriteFile(path, []byte(b.text), 0o644))
	case "config":
		if b.value == "" {
			s.config(b.text)
		}
	case "call":
		s.calls(b.value, b.text)
	case "client":
		s.configured(b)
	}
}

// run runs commands and returns their output.
func (s *stage) run(commands string) string {
	s.t.Helper()
	// The next block starts in the working directory in which this one ended.
	folderFile := filepath.Join(s.home, "folder")
	out, err := s.output(exec.Command("bash", "-euo", "pipefail", "-c", commands+"\npwd >"+folderFile))
	if err != nil {
		s.fail("%v\n%s\n%s", err, commands, out)
		return out
	}
	folder := must.Get(os.ReadFile(folderFile))(s.t)
	s.folder = strings.TrimSpace(string(folder))
	return out
}

// ordinary is a user and a group that own nothing of this machine.
const ordinary = 54321

// runAsUser runs commands as an ordinary user with a home of its own, and returns their output.
func (s *stage) runAsUser(commands string) string {
	s.t.Helper()
	home := s.t.TempDir()
	must.Do(s.t, os.Chown(home, ordinary, ordinary))
	must.Do(s.t, os.Chmod(filepath.Dir(home), 0o711)) // of all folders of this test
	other := *s
	other.user, other.home = ordinary, home
	other.environ = append(slices.Clone(s.environ), "HOME="+home, "XDG_RUNTIME_DIR="+home, "TMPDIR="+home)
	s.t.Cleanup(func() {
		for _, pid := range procfs.WithVariable("HOME", home) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	if out, err := other.output(exec.Command("unshare", "--user", "--map-root-user", "--mount", "true")); err != nil {
		s.t.Skipf("%s: an ordinary user may not make namespaces here: %v: %s", s.location, err, out)
	}
	return other.run(commands)
}

// output runs a command and returns its stdout and stderr together.
func (s *stage) output(cmd *exec.Cmd) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), blockPatience)
	defer cancel()
	bounded := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	bounded.Dir, bounded.Env = s.folder, s.environ
	bounded.WaitDelay = 5 * time.Second
	// The processes that the command started are killed with it.
	bounded.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.user != 0 {
		bounded.SysProcAttr.Credential = &syscall.Credential{Uid: s.user, Gid: s.user}
	}
	bounded.Cancel = func() error { return syscall.Kill(-bounded.Process.Pid, syscall.SIGKILL) }
	out, err := bounded.CombinedOutput()
	return string(out), err
}

// nix runs nix and returns its standard output.
func (s *stage) nix(words ...string) ([]byte, error) {
	cmd := exec.CommandContext(s.t.Context(), "bash", append([]string{"-c", `exec nix "$@"`, "nix"}, words...)...)
	cmd.Dir, cmd.Env = s.folder, s.environ
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

// config evaluates the metadata of a server with a configuration file.
func (s *stage) config(text string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "config.toml")
	must.Do(s.t, os.WriteFile(file, []byte(text), 0o644))
	packages := os.Getenv(nixpkgsVariable)
	if packages == "" {
		s.t.Logf("%s: skipped: %s is not set", s.location, nixpkgsVariable)
		return
	}
	out, err := s.nix("eval", "--impure", "--json", "--expr", fmt.Sprintf(
		`builtins.attrNames ((import %s/nix { pkgs = import %s { system = builtins.currentSystem; }; }).mkServer { config = %s; }).environments`, root(s.t), packages, file))
	var names []string
	if err == nil {
		err = json.Unmarshal(out, &names)
	}
	if err != nil || len(names) == 0 {
		s.fail("the configuration makes the environments %v: %v", names, err)
	}
}

// connect starts the server for the page's calls, unless it is running: one that
// the page built, or else the tests' own. The one before ends first. It has the example as its
// project.
func (s *stage) connect(server string) {
	s.t.Helper()
	if s.client != nil && s.server == server {
		return
	}
	if s.client != nil {
		s.client.CloseInput()
		s.client.Wait(patience.For(10 * time.Second))
	}
	s.server = server
	if server == "" {
		server = undertest.Server(s.t)
	} else {
		server = filepath.Join(s.folder, server)
	}
	// A copy, which a page may change.
	directory := filepath.Join(s.t.TempDir(), filepath.Base(project))
	must.Do(s.t, os.CopyFS(directory, os.DirFS(project)))
	cmd := exec.Command(server, "--stdio")
	cmd.Env = append(s.environ, "NIX_SANDBOX_DIR="+s.t.TempDir(), "PROJECT_DIR="+directory)
	s.client = mcptest.Start(s.t, cmd)
	s.client.Initialize(mcptest.Newest)
}

// calls makes the calls of a transcript and compares the answers with it. The
// server is that of connect.
func (s *stage) calls(server, text string) {
	s.t.Helper()
	transcript, err := calls(text)
	if err != nil {
		s.fail("%v", err)
		return
	}
	s.connect(server)
	for _, c := range transcript {
		answer := s.client.Run(c.args)
		got := answer.Text()
		for _, content := range answer.Content {
			if content.Type == "text" {
				continue
			}
			got = strings.TrimRight(got, "\n") + "\n" + "(" + content.MIMEType + ")\n"
			if content.Type == "image" {
				s.images = append(s.images, content.Data)
			}
		}
		if !matches(c.answer, got) {
			s.fail("run(%v): the page shows\n%s\nbut the answer is\n%s", c.args, c.answer, got)
		}
	}
}
