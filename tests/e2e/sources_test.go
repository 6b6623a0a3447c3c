package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// heldNix is a Nix for servers of a test that the test can hold: what they ask of
// it then waits until the test releases it, so that the test decides what happens
// while something is built.
type heldNix struct {
	t      testing.TB
	folder string
}

// nix returns a Nix that is not held. It skips the test where there is none.
func nix(t testing.TB) *heldNix {
	t.Helper()
	real, err := exec.LookPath("nix")
	if err != nil {
		t.Skip("there is no nix on the PATH")
	}
	g := &heldNix{t, t.TempDir()}
	script := fmt.Sprintf("#!/bin/sh\nwhile [ -e %s/held ]; do sleep 0.05; done\nexec %s \"$@\"\n", g.folder, real)
	must.Do(t, os.WriteFile(filepath.Join(g.folder, "nix"), []byte(script), 0o755))
	return g
}

func (g *heldNix) hold() { must.Write(g.t, filepath.Join(g.folder, "held"), "", 0o644) }

func (g *heldNix) release() {
	must.Do(g.t, os.Remove(filepath.Join(g.folder, "held")))
}

// variables make a server use this Nix.
func (g *heldNix) variables(more ...string) []string {
	return append([]string{"PATH=" + g.folder + ":" + os.Getenv("PATH"), "NIX_CONFIG=" + os.Getenv("NIX_CONFIG")}, more...)
}

func link(t testing.TB, target, path string) {
	t.Helper()
	must.Do(t, os.Symlink(target, path))
}

// flake writes a flake as an operator has one, of this checkout and of the
// package set of the tests.
func flake(t testing.TB) string {
	t.Helper()
	packages := undertest.Packages(t)
	checkout := must.Get(filepath.Abs("../.."))(t)
	scheme := "path:"
	if _, err := os.Stat(filepath.Join(checkout, ".git")); err == nil {
		scheme = "git+file://" // without what is not among its files
	}
	folder := t.TempDir()
	must.Write(t, filepath.Join(folder, "flake.nix"), fmt.Sprintf(`{
  inputs.nixpkgs.url = "path:%s";
  inputs.nix-sandbox-mcp.url = "%s%s";
  inputs.nix-sandbox-mcp.inputs.nixpkgs.follows = "nixpkgs";
  outputs = { self, nixpkgs, nix-sandbox-mcp }: {
    packages = builtins.mapAttrs (system: pkgs:
      let
        shell = name: nix-sandbox-mcp.lib.mkSandbox {
          inherit pkgs name;
          packages = [ pkgs.bash pkgs.coreutils ];
          interpreter_type = "bash";
        };
      in {
        default = shell "one";
        data = nix-sandbox-mcp.lib.mkSandbox {
          inherit pkgs;
          name = "data";
          packages = [ (pkgs.python3.withPackages (ps: [ ps.matplotlib ps.numpy ps.pandas ps.pyyaml ])) ];
          interpreter = "python3 -c";
          timeout_seconds = 120;
          memory_mb = 1024;
          description = "Python with NumPy, pandas and matplotlib";
        };
        one = shell "one";
        two = shell "two";
        nothing = pkgs.bash;
        perl = pkgs.perl;
      }) nixpkgs.legacyPackages;
    devShells = builtins.mapAttrs (system: pkgs: {
      default = pkgs.mkShell { packages = [ pkgs.perl ]; GREETING = "from the shell"; };
    }) nixpkgs.legacyPackages;
  };
}
`, packages, scheme, checkout), 0o644)
	return folder
}

// nixCommand runs Nix as operators do.
func nixCommand(t testing.TB, args ...string) {
	t.Helper()
	cmd := exec.Command("nix", append([]string{"--extra-experimental-features", "nix-command flakes"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
}

// build builds an output of a flake as an operator does, with a link to it.
func build(t testing.TB, reference, link string) string {
	t.Helper()
	nixCommand(t, "build", "--no-write-lock-file", reference, "--out-link", link)
	return link
}

// lock writes a flake's lock file, as projects have one.
func lock(t testing.TB, folder string) {
	t.Helper()
	nixCommand(t, "flake", "lock", folder)
}

// listed returns the environments that the list offers, without those that are being built.
func listed(c *mcptest.Client) []string {
	var list struct {
		Tools []struct {
			Description string
			Schema      struct {
				Properties struct {
					Env struct {
						Enum    []string
						Pattern string
					}
				}
			} `json:"inputSchema"`
		}
	}
	if err := json.Unmarshal(c.Request("tools/list", map[string]any{}).Result, &list); err != nil || len(list.Tools) != 1 {
		return nil
	}
	env := list.Tools[0].Schema.Properties.Env
	all := env.Enum
	if names, found := strings.CutPrefix(env.Pattern, "^("); found {
		names, _, _ = strings.Cut(names, ")") // calls may add packages
		all = strings.Split(names, "|")
	}
	return slices.DeleteFunc(all, func(name string) bool {
		return strings.Contains(list.Tools[0].Description, "\n- "+name+": being built; a call waits for it")
	})
}

// offered waits until the list offers an environment, or does not any more.
func offered(t testing.TB, c *mcptest.Client, env string, want bool) {
	t.Helper()
	var got []string
	patience.Wait(t, building, func() string { return fmt.Sprintf("%s among %v should be %v\n%s", env, got, want, c.Log()) }, func() bool {
		got = listed(c)
		found := false
		for _, name := range got {
			found = found || name == env
		}
		return found == want
	})
}

// told counts the notifications of a changed list.
func told(c *mcptest.Client) int {
	count := 0
	for _, note := range c.Notes() {
		if note.Method == "notifications/tools/list_changed" {
			count++
		}
	}
	return count
}

// A sandbox of another flake is served from a folder, through a link that is
// made while the server runs, by its reference, and from a configuration file
// that the server reads when it starts.
func TestSandboxOfAnotherFlake(t *testing.T) {
	g := nix(t)
	own := flake(t)
	artifact := build(t, own+"#data", filepath.Join(t.TempDir(), "result"))
	pandas := func(t *testing.T, c *mcptest.Client) {
		t.Helper()
		offered(t, c, "data", true)
		answer := run(c, "data", "import pandas as pd; print(pd.__version__)")
		if answer.IsError || !strings.Contains(answer.Text(), ".") {
			t.Errorf("answer %+v", answer)
		}
	}
	t.Run("folder", func(t *testing.T) {
		folder := t.TempDir()
		link(t, artifact, filepath.Join(folder, "data"))
		pandas(t, start(t, "NIX_SANDBOX_DIR="+folder))
	})
	t.Run("link made while it runs", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "not there yet")
		c := start(t, "NIX_SANDBOX_DIR="+folder)
		offered(t, c, "data", false)
		must.Do(t, os.Mkdir(folder, 0o755))
		link(t, artifact, filepath.Join(folder, "data"))
		pandas(t, c)
		if told(c) != 1 {
			t.Errorf("the client was told %d times of one change", told(c))
		}
	})
	t.Run("reference", func(t *testing.T) {
		pandas(t, start(t, g.variables("NIX_SANDBOX_ENVS="+own+"#data")...))
	})
	t.Run("configuration with another time limit", func(t *testing.T) {
		// What is made of a reference has to be locked, as with flake.
		commandIn(t, strings.TrimPrefix(own, "path:"), nil, "nix", "--extra-experimental-features", "nix-command flakes", "flake", "lock")
		config := filepath.Join(t.TempDir(), "config.toml")
		must.Write(t, config, fmt.Sprintf("[environments.mine]\nsandbox = %q\ntimeout_seconds = 2\n", own+"#one"), 0o644)
		c := start(t, g.variables("NIX_SANDBOX_CONFIG="+config)...)
		var answer mcptest.Answer
		patience.Wait(t, building, func() string { return answer.Text() + c.Log() }, func() bool {
			answer = run(c, "mine", "echo begun; sleep 900")
			return !strings.Contains(answer.Text(), "is still being built")
		})
		if text := answer.Text(); !strings.Contains(text, "begun") || !strings.Contains(text, "2 s") {
			t.Errorf("the answer is %s", text)
		}
	})
	// It is announced as default until its name is known; a call that waited runs in it.
	t.Run("default", func(t *testing.T) {
		c := start(t, g.variables("NIX_SANDBOX_ENVS="+own+"#default")...)
		var answer mcptest.Answer
		patience.Wait(t, building, func() string { return answer.Text() + c.Log() }, func() bool {
			answer = run(c, "default", "echo it runs")
			return !strings.Contains(answer.Text(), "is still being built")
		})
		expect(t, answer, "it runs\n")
		expect(t, run(c, "one", "echo by its name"), "by its name\n")
	})
	for name, value := range map[string]string{"path": artifact, "reference": own + "#data"} {
		t.Run("configuration with a "+name, func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "config.toml")
			must.Write(t, config, fmt.Sprintf("[environments.data]\nsandbox = %q\n", value), 0o644)
			pandas(t, start(t, g.variables("NIX_SANDBOX_CONFIG="+config)...))
		})
	}
}

// The server answers while references are built; each environment appears by
// itself, and what cannot be built says why and hinders none.
func TestReferencesAreBuiltBesideTheServer(t *testing.T) {
	g := nix(t)
	own := flake(t)
	wrong := t.TempDir()
	must.Write(t, filepath.Join(wrong, "flake.nix"), "{ outputs = { self }: {\n", 0o644)
	g.hold()
	cmd := command(t, g.variables("NIX_SANDBOX_ENVS="+strings.Join([]string{own + "#one", " " + own + "#two", wrong + "#wrong", own + "#nothing"}, ","))...)
	runtimeDir := t.TempDir()
	cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+runtimeDir)
	c := mcptest.Start(t, cmd)
	began := time.Now()
	c.Initialize(mcptest.Newest)
	t.Logf("initialize was answered after %v", time.Since(began))
	for _, env := range []string{"one", "two", "wrong", "nothing"} {
		if text := string(c.Request("tools/list", map[string]any{}).Result); !strings.Contains(text, `\n- `+env+": being built; a call waits for it") {
			t.Errorf("%s is not in the list: %s", env, text)
		}
	}
	expect(t, run(c, "bash", "echo works"), "works\n")
	waits := make(chan mcptest.Answer, 1)
	go func() { waits <- run(c, "one", "echo waited") }()
	select {
	case answer := <-waits:
		t.Errorf("a call did not wait: %+v", answer)
	case <-time.After(time.Second):
	}
	g.release()
	// A slow machine may take longer than a call waits.
	if answer := <-waits; answer.IsError && !strings.Contains(answer.Text(), "is still being built") {
		t.Errorf("the call that waited: %+v", answer)
	}
	for _, env := range []string{"one", "two"} {
		offered(t, c, env, true)
		expect(t, run(c, env, "echo $((6*7))"), "42\n")
	}
	for env, want := range map[string]string{"wrong": "error: syntax error", "nothing": "is no sandbox: name an attribute that nix-sandbox-mcp.lib.mkSandbox made"} {
		var answer mcptest.Answer
		patience.Wait(t, building, func() string { return answer.Text() }, func() bool {
			answer = run(c, env, "echo 1")
			return answer.IsError && strings.HasPrefix(answer.Text(), fmt.Sprintf("env %q could not be built: ", env)) && strings.Contains(answer.Text(), want)
		})
		if !strings.Contains(c.Log(), want) {
			t.Errorf("the log does not say %q:\n%s", want, c.Log())
		}
	}
	c.CloseInput()
	if status := c.Wait(10 * time.Second); status != 0 {
		t.Errorf("status %d", status)
	}
	patience.Until(t, "the folder of builds is gone", func() bool { return holdsNoBuild(t, runtimeDir) })
}

// holdsNoBuild reports whether a folder for the session's files has no others than sockets.
func holdsNoBuild(t *testing.T, runtimeDir string) bool {
	left := must.Get(os.ReadDir(runtimeDir))(t)
	return !slices.ContainsFunc(left, func(entry os.DirEntry) bool { return entry.Name() != "nix-sandbox-mcp" })
}

// SIGHUP has references built again: what had failed comes, what leads elsewhere
// now is replaced, and what cannot be built any more stays as it was.
func TestReferences_AreBuiltAgainAtSIGHUP(t *testing.T) {
	g := nix(t)
	own := flake(t)
	path := filepath.Join(own, "flake.nix")
	right := must.Get(os.ReadFile(path))(t)
	write := func(text string) {
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("{ outputs = { self }: {\n")
	c := start(t, g.variables("NIX_SANDBOX_ENVS="+own+"#one")...)
	logged := func(want string) {
		t.Helper()
		patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("the log does not say %q:\n%s", want, c.Log()) },
			func() bool { return strings.Contains(c.Log(), want) })
	}
	works := func() {
		t.Helper()
		expect(t, run(c, "one", "echo $((6*7))"), "42\n")
	}
	logged(`msg="environment not built" env=one`)
	write(string(right))
	c.Signal(syscall.SIGHUP)
	offered(t, c, "one", true)
	works()
	write(strings.ReplaceAll(string(right), "[ pkgs.bash pkgs.coreutils ]", "[ pkgs.bash pkgs.coreutils pkgs.jq ]"))
	c.Signal(syscall.SIGHUP)
	logged(`msg="environment replaced" env=one`)
	works()
	expect(t, run(c, "one", "jq -n 6*7"), "42\n")
	write("{ outputs = { self }: {\n")
	c.Signal(syscall.SIGHUP)
	logged("one: the sandbox that was built before stays")
	works()
}

// What builds ends with the server, however that ends, and keeps nobody
// waiting.
func TestBuilderEndsWithTheServer(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*mcptest.Client){
		"end of input": (*mcptest.Client).CloseInput,
		"killed":       func(c *mcptest.Client) { c.Signal(syscall.SIGKILL) },
		"interrupted":  func(c *mcptest.Client) { c.Signal(syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := nix(t)
			g.hold() // and it stays so
			cmd := command(t, g.variables("NIX_SANDBOX_ENVS="+g.folder+"#never")...)
			runtimeDir := t.TempDir()
			cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+runtimeDir)
			c := mcptest.Start(t, cmd)
			c.Initialize(mcptest.Newest)
			mark := g.folder + "/nix"
			patience.Until(t, "something is built", func() bool { return len(procfs.WithCommand(mark)) > 0 })
			for _, pid := range procfs.WithCommand(mark) {
				if slices.Contains(procfs.Descendants(c.PID()), pid) {
					t.Error("what builds is a process of the server's")
				}
			}
			end(c)
			c.Wait(10 * time.Second) // also for the end of its output
			patience.Until(t, "nothing is built any more", func() bool { return len(procfs.WithCommand(mark)) == 0 })
			patience.Until(t, "its folder is gone", func() bool { return holdsNoBuild(t, runtimeDir) })
		})
	}
}

// A command waits for what it needs to be built, and says what is built meanwhile.
func TestCommands_WaitForBuilds(t *testing.T) {
	g := nix(t)
	folder := t.TempDir()
	config := filepath.Join(folder, "config.toml")
	must.Write(t, config, "[environments.sh]\npreset = \"shell\"\n[environments.wrong]\nsandbox = \"/nowhere\"\n", 0o644)
	command := func(status int, words ...string) string {
		t.Helper()
		cmd := exec.Command(undertest.Server(t), words...)
		cmd.Env = append(os.Environ(), g.variables("XDG_CACHE_HOME="+folder, "NIX_SANDBOX_CONFIG="+config)...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, _ := cmd.Output() // the status says it
		if cmd.ProcessState.ExitCode() != status {
			t.Fatalf("%v: status %d: %s%s", words, cmd.ProcessState.ExitCode(), out, &stderr)
		}
		return string(out) + stderr.String()
	}
	if got := command(0, "list"); !strings.Contains(got, "\nsh     ready") || !strings.Contains(got, "building sh") {
		t.Errorf("list: %s", got)
	}
	if got := command(0, "run", "sh", "-c", "echo $((6 * 7))"); got != "42\n" {
		t.Errorf("run, of what has been built: %s", got)
	}
	if got := command(125, "run", "sh+jq", "-c", "1"); !strings.Contains(got, `environment "sh" takes no packages`) {
		t.Errorf("packages: %s", got)
	}
	if got := command(125, "run", "wrong", "-c", "1"); !strings.Contains(got, `environment "wrong" cannot be used`) {
		t.Errorf("one that is not built: %s", got)
	}
}

// Nix reads a configuration file once for each content of it.
func TestConfigurationAtStart(t *testing.T) {
	g := nix(t)
	own := flake(t)
	folder := t.TempDir()
	config := filepath.Join(folder, "config.toml")
	cache := "XDG_CACHE_HOME=" + t.TempDir()
	link(t, build(t, own+"#one", filepath.Join(folder, "result")), filepath.Join(folder, "sandbox"))
	const text = "[environments.sh]\npreset = \"shell\"\n[environments.called]\nsandbox = %q\n[session]\nmax_lifetime_seconds = %d\n"
	must.Write(t, config, fmt.Sprintf(text, filepath.Join(folder, "sandbox"), 1000), 0o644)
	c := start(t, g.variables(cache, "NIX_SANDBOX_CONFIG="+config)...)
	for _, env := range []string{"sh", "called"} {
		offered(t, c, env, true)
		expect(t, run(c, env, "echo 1"), "1\n")
	}
	if got := fmt.Sprint(listed(c)); got != "[called sh]" {
		t.Errorf("environments %s", got)
	}

	// All is known now, so that Nix is not asked: it would not answer.
	g.hold()
	c = start(t, g.variables(cache, "NIX_SANDBOX_CONFIG="+config)...)
	if got := fmt.Sprint(listed(c)); got != "[called sh]" {
		t.Errorf("environments at the second start: %s", got)
	}
	expect(t, run(c, "sh", "echo 1"), "1\n")
	g.release()

	// A mistake keeps the server from starting, and is one sentence.
	must.Write(t, config, "[environments.sh]\npreset = \"shel\"\n", 0o644)
	expectRefusal(t, command(t, g.variables(cache, "NIX_SANDBOX_CONFIG="+config)...),
		`nix-sandbox-mcp: error: config.toml: [environments.sh] preset is "shel" (did you mean "shell"?): use "`)
	must.Write(t, config, "[environments.sh\n", 0o644)
	expectRefusal(t, command(t, g.variables(cache, "NIX_SANDBOX_CONFIG="+config)...),
		"nix-sandbox-mcp: error: NIX_SANDBOX_CONFIG is "+config+", which Nix could not read: ", " (line 1)\n")
}

// A program of another flake becomes an environment with its interpreter.
func TestFlakeInConfiguration(t *testing.T) {
	g := nix(t)
	own := flake(t)
	lock(t, own)
	config := filepath.Join(own, "config.toml")
	must.Write(t, config, "[environments.pl]\nflake = \".#perl\"\ninterpreter = \"perl -e\"\n", 0o644)
	c := start(t, g.variables("NIX_SANDBOX_CONFIG="+config)...)
	offered(t, c, "pl", true)
	expect(t, run(c, "pl", "print 6*7"), "42")
}

// A project's own shell becomes an environment, if the operator says so.
func TestProjectsOwnShell(t *testing.T) {
	g := nix(t)
	own := flake(t)
	lock(t, own)
	must.Write(t, filepath.Join(own, "file"), "of the project\n", 0o644)
	c := start(t, g.variables("PROJECT_DIR="+own, "PROJECT_USE_FLAKE=1")...)
	offered(t, c, "project", true)
	expect(t, run(c, "project", `echo "$GREETING"; perl -e 'print 6*7, "\n"'; cat /project/file`), "from the shell\n42\nof the project\n")
	for name, test := range map[string]struct{ variables, want string }{
		"no project": {"PROJECT_USE_FLAKE=1", "nix-sandbox-mcp: error: PROJECT_USE_FLAKE is 1, and there is no project\nnix-sandbox-mcp: hint: set PROJECT_DIR to its folder\n"},
		"a word":     {"PROJECT_USE_FLAKE=yes", "nix-sandbox-mcp: error: PROJECT_USE_FLAKE is \"yes\"\nnix-sandbox-mcp: hint: set it to 1 or 0, or leave it unset\n"},
	} {
		t.Run(name, func(t *testing.T) { expectRefusal(t, command(t, test.variables), test.want) })
	}
}

// Entries come, are replaced and go while calls run; none is lost, and nothing
// is left of it.
func TestChangesUnderLoad(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	original, _ := environments(t)["bash"]["exec"].(string)
	artifact := filepath.Dir(filepath.Dir(original))
	// Copies differ by their name and place alone.
	copies := t.TempDir()
	copied := func(name string, generation int) string {
		at := filepath.Join(copies, fmt.Sprintf("%s-%d", name, generation))
		must.Write(t, filepath.Join(at, "metadata.json"), fmt.Sprintf(`{"schema":1,"name":%q,"backend":"jail","interpreter_type":"bash","description":"generation %d"}`, name, generation), 0o644)
		link(t, filepath.Join(artifact, "bin"), filepath.Join(at, "bin"))
		return at
	}
	entry := filepath.Join(folder, "replaced")
	link(t, copied("replaced", 0), entry)
	c := start(t, "NIX_SANDBOX_DIR="+folder)

	// 20 calls a second for 6 s, half of them of the environment that is
	// replaced meanwhile, a few in a session.
	var ids []string
	var changes sync.WaitGroup
	done := make(chan struct{})
	changes.Go(func() {
		for generation := 1; ; generation++ {
			select {
			case <-done:
				return
			case <-time.After(300 * time.Millisecond):
			}
			next := copied("replaced", generation)
			switch generation % 3 {
			case 0: // as ln -sfn does it
				os.Remove(entry)
				os.Symlink(next, entry)
			default: // as nix build does it
				os.Symlink(next, entry+".new")
				os.Rename(entry+".new", entry)
			}
			passing := filepath.Join(folder, "passing")
			if os.Remove(passing) != nil {
				os.Symlink(copied("passing", generation), passing)
			}
		}
	})
	for i := range 120 {
		arguments := mcptest.Arguments{Code: fmt.Sprintf("echo %d", i), Env: []string{"bash", "replaced"}[i%2]}
		if i%10 == 1 {
			arguments.Session = "kept"
		}
		ids = append(ids, c.SendRun(arguments))
		time.Sleep(50 * time.Millisecond)
	}
	close(done)
	changes.Wait()
	for i, id := range ids {
		if answer := c.AwaitRun(id); answer.IsError || answer.Text() != fmt.Sprintf("%d\n", i) {
			t.Errorf("call %d: %+v", i, answer)
		}
	}
	if told(c) == 0 {
		t.Error("no change reached the list")
	}
	os.Remove(filepath.Join(folder, "passing"))
	offered(t, c, "passing", false)

	// The server keeps nothing open of artifacts that were replaced: a sandbox has at
	// least four descriptors, and after 15 further generations no more are open than
	// the few sandboxes in the pool have.
	before := c.Descriptors()
	for generation := range 15 {
		name := fmt.Sprintf("last-%d", generation)
		at := filepath.Join(folder, "last")
		link(t, copied(name, 0), at+".new")
		must.Do(t, os.Rename(at+".new", at))
		offered(t, c, name, true)
		run(c, name, "echo 1")
	}
	patience.Wait(t, patience.Long, func() string {
		return fmt.Sprintf("%d descriptors are open, %d were before", c.Descriptors(), before)
	}, func() bool { return c.Descriptors() <= before+24 })
	children := procfs.Descendants(c.PID())
	c.CloseInput()
	c.Wait(10 * time.Second)
	patience.Gone(t, children...)
}

// A client of the stateless protocol is told too, if it asked for that, and one
// that did not is not.
func TestStatelessClientIsTold(t *testing.T) {
	for name, filter := range map[string]map[string]any{"asked": {"toolsListChanged": true}, "did not ask": {}} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			program, _ := environments(t)["bash"]["exec"].(string)
			c := mcptest.Start(t, command(t, "NIX_SANDBOX_DIR="+folder))
			c.Initialize(mcptest.Stateless)
			c.Send("subscriptions/listen", map[string]any{"notifications": filter})
			patience.Until(t, "the subscription is acknowledged", func() bool { return len(c.Notes()) > 0 })
			must.Write(t, filepath.Join(folder, "new", "metadata.json"), `{"schema":1,"name":"new","backend":"jail","interpreter_type":"bash"}`, 0o644)
			link(t, filepath.Dir(program), filepath.Join(folder, "new", "bin"))
			offered(t, c, "new", true)
			want := len(filter)
			patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("told %d times, want %d", told(c), want) }, func() bool { return told(c) == want })
		})
	}
}

// A folder of sandboxes that cannot be read costs its own sandboxes alone, as that of another user does
// whose HOME is kept.
func TestFolder_ThatCannotBeReadIsLeftOut(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	must.Write(t, file, "", 0o600)
	c := start(t, "NIX_SANDBOX_DIR="+file)
	expect(t, run(c, "bash", "echo 1"), "1\n")
	if log := c.Log(); !strings.Contains(log, "sandboxes are left out") || !strings.Contains(log, "set NIX_SANDBOX_DIR to other folders") {
		t.Errorf("log:\n%s", log)
	}
}

// What an earlier version of mkSandbox wrote, schema 1, is served as it is.
func TestArtifactOfSchema1(t *testing.T) {
	folder := t.TempDir()
	program, _ := environments(t)["bash"]["exec"].(string)
	text := must.Get(os.ReadFile("testdata/schema-1/metadata.json"))(t)
	must.Write(t, filepath.Join(folder, "old", "metadata.json"), string(text), 0o644)
	link(t, filepath.Dir(program), filepath.Join(folder, "old", "bin"))
	c := start(t, "NIX_SANDBOX_DIR="+folder)
	expect(t, in(c, "s", "earlier", "x=1; echo $x"), "1\n")
	expect(t, in(c, "s", "earlier", "echo $x"), "1\n")
	if strings.Contains(c.Log(), "left out") {
		t.Errorf("log:\n%s", c.Log())
	}
}
