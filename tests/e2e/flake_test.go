package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// system is what Nix calls the machine that the tests run on.
var system = map[string]string{"amd64": "x86_64-linux", "arm64": "aarch64-linux"}[runtime.GOARCH]

// projectFlake writes a project whose flake has one shell, with this expression
// as the variable FOUND and these lines before its outputs, and returns its
// folder. It is a git checkout with a lock file.
func projectFlake(t testing.TB, expression, lines string) string {
	t.Helper()
	packages := undertest.Packages(t)
	folder := t.TempDir()
	must.Write(t, filepath.Join(folder, "flake.nix"), fmt.Sprintf(`{
  inputs.nixpkgs.url = "path:%s";
  %s
  outputs = { self, nixpkgs, ... }@inputs:
    let pkgs = nixpkgs.legacyPackages.%s; in {
      devShells.%[3]s.default = pkgs.mkShellNoCC { FOUND = %s; };
    };
}
`, packages, lines, system, expression), 0o644)
	commandIn(t, folder, nil, "git", "init", "-q")
	commandIn(t, folder, nil, "git", "add", ".")
	commandIn(t, folder, nil, "nix", "--extra-experimental-features", "nix-command flakes", "flake", "lock")
	commandIn(t, folder, nil, "git", "add", ".")
	return folder
}

// commandIn runs a command that has to succeed, with more variables, and returns
// its output.
func commandIn(t testing.TB, folder string, variables []string, words ...string) string {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), variables...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// opened serves a project with its own shell, and returns what FOUND is in
// there, or why the shell was not built.
func opened(t testing.TB, folder string, variables ...string) (found, problem string) {
	t.Helper()
	c := start(t, append([]string{"PATH=" + os.Getenv("PATH"), "NIX_CONFIG=" + os.Getenv("NIX_CONFIG"), "PROJECT_DIR=" + folder, "PROJECT_USE_FLAKE=1"}, variables...)...)
	var answer mcptest.Answer
	patience.Wait(t, building, func() string { return answer.Text() + "\n" + c.Log() }, func() bool {
		answer = run(c, "project", `printf %s "$FOUND"`)
		return !strings.Contains(answer.Text(), "is still being built")
	})
	if answer.IsError {
		return "", answer.Text()
	}
	return answer.Text(), ""
}

// withoutDaemon skips a test where Nix has others build: what builds then has
// variables and settings of its own, and the control cannot succeed.
func withoutDaemon(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("/nix/var/nix/daemon-socket/socket"); err == nil {
		t.Skip("a daemon builds for Nix")
	}
}

// evaluated is a control: what Nix finds for FOUND where it evaluates a flake
// for its user, with these flags.
func evaluated(t testing.TB, folder string, variables []string, flags ...string) string {
	t.Helper()
	return commandIn(t, folder, variables, append([]string{"nix", "--extra-experimental-features", "nix-command flakes",
		"eval", "--raw", ".#devShells." + system + ".default.FOUND"}, flags...)...)
}

// The flake of a project gets nothing of whoever opens it: no file, no variable,
// no answer of their network, no program that it names.
func TestProjectFlake_GetsNothingOfTheUser(t *testing.T) {
	nix(t)
	secret := "secret-" + rand.Text()
	private := t.TempDir()
	must.Write(t, filepath.Join(private, "secret"), secret, 0o644)
	must.Do(t, os.Chmod(filepath.Join(private, "secret"), 0o600))
	refused := func(t *testing.T, folder, want string, variables ...string) {
		t.Helper()
		found, problem := opened(t, folder, variables...)
		if found != "" || !strings.Contains(problem, want) {
			t.Errorf("found %q, problem %q, want %q", found, problem, want)
		}
	}

	t.Run("file", func(t *testing.T) {
		folder := projectFlake(t, fmt.Sprintf("builtins.readFile %q", filepath.Join(private, "secret")), "")
		refused(t, folder, "forbidden")
		if got := evaluated(t, folder, nil, "--impure"); !strings.Contains(got, secret) {
			t.Errorf("the control found %q", got)
		}
	})
	t.Run("file through a link of the project", func(t *testing.T) {
		folder := projectFlake(t, "builtins.readFile ./link", "")
		link(t, filepath.Join(private, "secret"), filepath.Join(folder, "link"))
		commandIn(t, folder, nil, "git", "add", ".")
		found, problem := opened(t, folder)
		if found != "" || problem == "" {
			t.Errorf("found %q, problem %q", found, problem)
		}
		if got := evaluated(t, folder, nil, "--impure"); !strings.Contains(got, secret) {
			t.Errorf("the control found %q", got)
		}
	})
	t.Run("file as a locked input", func(t *testing.T) {
		folder := projectFlake(t, `builtins.readFile "${inputs.private}/secret"`, "")
		hash := strings.TrimSpace(commandIn(t, folder, nil, "nix", "--extra-experimental-features", "nix-command", "hash", "path", private))
		path := filepath.Join(folder, "flake.nix")
		text := must.Get(os.ReadFile(path))(t)
		must.Write(t, path, strings.Replace(string(text), "outputs =", fmt.Sprintf("inputs.private = { url = \"path:%s\"; flake = false; };\n  outputs =", private), 1), 0o644)
		lockText := must.Get(os.ReadFile(filepath.Join(folder, "flake.lock")))(t)
		must.Write(t, filepath.Join(folder, "flake.lock"), strings.NewReplacer(
			`"nodes": {`, fmt.Sprintf(`"nodes": { "private": {"flake": false, "locked": {"narHash": %q, "path": %q, "type": "path"}, "original": {"path": %[2]q, "type": "path"}},`, hash, private),
			`"nixpkgs": "nixpkgs"`, `"nixpkgs": "nixpkgs", "private": "private"`,
		).Replace(string(lockText)), 0o644)
		refused(t, folder, private)
		if got := evaluated(t, folder, nil); !strings.Contains(got, secret) {
			t.Errorf("the control found %q", got)
		}
	})
	t.Run("variable", func(t *testing.T) {
		folder := projectFlake(t, `"found:${builtins.getEnv "A_TOKEN"}"`, "")
		found, problem := opened(t, folder, "A_TOKEN="+secret)
		if found != "found:" {
			t.Errorf("found %q, problem %q", found, problem)
		}
		if got := evaluated(t, folder, []string{"A_TOKEN=" + secret}, "--impure"); !strings.Contains(got, secret) {
			t.Errorf("the control found %q", got)
		}
	})
	t.Run("variable of what builds", func(t *testing.T) {
		withoutDaemon(t)
		token := rand.Text()
		folder := projectFlake(t, fmt.Sprintf(`"${pkgs.runCommand "token" {
        impureEnvVars = [ "A_TOKEN" ];
        outputHashMode = "flat";
        outputHashAlgo = "sha256";
        outputHash = "%x";
      } "printf %%s \"$A_TOKEN\" > $out"}"`, sha256.Sum256([]byte(token))), "")
		refused(t, folder, "failed to build", "A_TOKEN="+token)
		commandIn(t, folder, []string{"A_TOKEN=" + token}, "nix", "--extra-experimental-features", "nix-command flakes", "build", "--no-link", ".#devShells."+system+".default")
	})
	t.Run("network", func(t *testing.T) {
		var requests atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			fmt.Fprint(w, secret)
		}))
		defer server.Close()
		folder := projectFlake(t, fmt.Sprintf(`builtins.readFile (builtins.fetchurl "%s/?${baseNameOf ./flake.nix}")`, server.URL), "")
		refused(t, folder, "in pure evaluation mode")
		if n := requests.Load(); n != 0 {
			t.Errorf("%d requests reached the network", n)
		}
		unlocked := projectFlake(t, `builtins.readFile inputs.answer`, "")
		path := filepath.Join(unlocked, "flake.nix")
		text := must.Get(os.ReadFile(path))(t)
		must.Write(t, path, strings.Replace(string(text), "outputs =", fmt.Sprintf("inputs.answer = { url = \"%s/answer.tar.gz\"; flake = false; };\n  outputs =", server.URL), 1), 0o644)
		refused(t, unlocked, "has inputs that its flake.lock lacks: lock them with `nix flake lock` and `git add`")
		if n := requests.Load(); n != 0 {
			t.Errorf("%d requests for an unlocked input reached the network", n)
		}
		_ = exec.Command("nix", "--extra-experimental-features", "nix-command flakes", "eval", "--impure", "--raw", folder+"#devShells."+system+".default.FOUND").Run()
		if requests.Load() == 0 {
			t.Error("the control's request did not reach the network")
		}
	})
	t.Run("import from derivation", func(t *testing.T) {
		folder := projectFlake(t, `builtins.readFile (pkgs.runCommand "built" { } "printf built > $out")`, "")
		refused(t, folder, "needs a build for its evaluation (import from derivation)")
		if got := evaluated(t, folder, nil); !strings.Contains(got, "built") {
			t.Errorf("the control found %q", got)
		}
	})
	t.Run("settings of Nix", func(t *testing.T) {
		withoutDaemon(t)
		marker := filepath.Join(t.TempDir(), "ran")
		hook := filepath.Join(t.TempDir(), "hook")
		must.Write(t, hook, "#!/bin/sh\n: >"+marker+"\n", 0o755)
		folder := projectFlake(t, fmt.Sprintf("%q", rand.Text()), fmt.Sprintf("nixConfig.post-build-hook = %q;", hook))
		if found, problem := opened(t, folder); found == "" {
			t.Errorf("problem %q", problem)
		}
		if _, err := os.Stat(marker); err == nil {
			t.Error("a program that nixConfig names was started")
		}
		commandIn(t, folder, nil, "nix", "--extra-experimental-features", "nix-command flakes", "build", "--no-link", "--accept-flake-config", ".#devShells."+system+".default")
		if _, err := os.Stat(marker); err != nil {
			t.Error("the control's hook did not run")
		}
	})
}

// Settings of a checkout that name programs have none of them started.
func TestProjectFlake_GitSettingsStartNoProgram(t *testing.T) {
	nix(t)
	for name, settings := range map[string]struct {
		git     [][]string
		control []string
	}{
		"core.fsmonitor":    {[][]string{{"core.fsmonitor", "PROGRAM"}}, []string{"status"}},
		"hooks":             {[][]string{{"core.hooksPath", "HOOKS"}}, []string{"update-index", "--refresh", "--really-refresh", "--force-write-index"}},
		"filter.evil.clean": {[][]string{{"filter.evil.clean", "PROGRAM"}, {"core.attributesFile", "ATTRIBUTES"}}, []string{"diff", "HEAD"}},
		"gpg.program":       {[][]string{{"log.showSignature", "true"}, {"gpg.program", "PROGRAM"}}, []string{"log", "-1"}},
		"include.path":      {[][]string{{"include.path", "INCLUDED"}}, []string{"status"}},
	} {
		t.Run(name, func(t *testing.T) {
			folder := projectFlake(t, fmt.Sprintf("%q", rand.Text()), "")
			own := t.TempDir()
			marker := filepath.Join(own, "ran")
			program := filepath.Join(folder, ".git", "program")
			// In the jail of the evaluation the home is all that can be written.
			must.Write(t, program, "#!/bin/sh\n: >"+marker+"\n: >$HOME/ran\ncat\n", 0o644)
			must.Write(t, filepath.Join(folder, ".git", "evil", "post-index-change"), "#!/bin/sh\n: >"+marker+"\n: >$HOME/ran\n", 0o644)
			must.Write(t, filepath.Join(folder, ".git", "attributes"), "*.nix filter=evil\n", 0o644)
			must.Write(t, filepath.Join(folder, ".git", "included"), "[core]\nfsmonitor = "+program+"\n", 0o644)
			for _, path := range []string{program, filepath.Join(folder, ".git", "evil", "post-index-change")} {
				must.Do(t, os.Chmod(path, 0o755))
			}
			tree := strings.TrimSpace(commandIn(t, folder, nil, "git", "write-tree"))
			// A signature that is checked by gpg.program.
			commit := filepath.Join(own, "commit")
			must.Write(t, commit, "tree "+tree+"\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\ntext\n", 0o644)
			head := strings.TrimSpace(commandIn(t, folder, nil, "git", "hash-object", "-t", "commit", "-w", commit))
			commandIn(t, folder, nil, "git", "update-ref", "HEAD", head)
			for _, setting := range settings.git {
				commandIn(t, folder, nil, "git", "config", setting[0], strings.NewReplacer(
					"PROGRAM", program, "HOOKS", filepath.Join(folder, ".git", "evil"),
					"ATTRIBUTES", filepath.Join(folder, ".git", "attributes"), "INCLUDED", filepath.Join(folder, ".git", "included"),
				).Replace(setting[1]))
			}
			// The index knows another time, so that git looks into the file.
			later := time.Now().Add(time.Hour)
			must.Do(t, os.Chtimes(filepath.Join(folder, "flake.nix"), later, later))
			cache := t.TempDir()
			if found, problem := opened(t, folder, "XDG_CACHE_HOME="+cache); found == "" {
				t.Errorf("problem %q", problem)
			}
			if _, err := os.Stat(marker); err == nil {
				t.Error("the program was started as the user's")
			}
			if homes, err := filepath.Glob(filepath.Join(cache, "nix-sandbox-mcp", "roots", "*", "home", "ran")); err != nil || len(homes) > 0 {
				t.Error("the program was started in the jail of the evaluation")
			}
			_ = exec.Command("git", append([]string{"-C", folder}, settings.control...)...).Run()
			if _, err := os.Stat(marker); err != nil {
				t.Error("the control's program was not started")
			}
		})
	}
}

// A checkout in which git needs more than its own folder is evaluated too, and
// one that points to a repository which does not know it is not.
func TestProjectFlake_Checkouts(t *testing.T) {
	nix(t)
	folder := projectFlake(t, `"hello"`, "")
	commandIn(t, folder, nil, "git", "-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "first")
	others := t.TempDir()
	works := func(t *testing.T, folder string) {
		t.Helper()
		before := tree(t, folder)
		if found, problem := opened(t, folder); found != "hello" {
			t.Errorf("found %q, problem %q", found, problem)
		}
		if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
			t.Errorf("the host's files changed:\n%s", diff)
		}
	}
	t.Run("committed", func(t *testing.T) { works(t, folder) })
	t.Run("working tree", func(t *testing.T) {
		commandIn(t, folder, nil, "git", "worktree", "add", "-q", filepath.Join(others, "tree"))
		works(t, filepath.Join(others, "tree"))
	})
	t.Run("submodule", func(t *testing.T) {
		super := filepath.Join(others, "super")
		commandIn(t, others, nil, "git", "init", "-q", super)
		commandIn(t, super, nil, "git", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", folder, "sub")
		works(t, filepath.Join(super, "sub"))
	})
	t.Run("shared objects", func(t *testing.T) {
		commandIn(t, others, nil, "git", "clone", "-q", "--shared", folder, "shared")
		works(t, filepath.Join(others, "shared"))
	})
	t.Run("folder below the flake", func(t *testing.T) {
		must.Write(t, filepath.Join(folder, "below", "file"), "", 0o644)
		works(t, filepath.Join(folder, "below"))
	})
	t.Run("no checkout", func(t *testing.T) {
		plain := filepath.Join(others, "plain")
		for _, name := range []string{"flake.nix", "flake.lock"} {
			text := must.Get(os.ReadFile(filepath.Join(folder, name)))(t)
			must.Write(t, filepath.Join(plain, name), string(text), 0o644)
		}
		works(t, plain)
	})
	t.Run("another user's", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can have a checkout that is another user's")
		}
		theirs := filepath.Join(others, "theirs")
		commandIn(t, others, nil, "git", "clone", "-q", folder, theirs)
		commandIn(t, theirs, nil, "chown", "-R", "1234:1234", ".")
		commandIn(t, theirs, nil, "chmod", "700", ".")
		works(t, theirs)
	})
	t.Run("another's repository", func(t *testing.T) {
		thief := filepath.Join(others, "thief")
		text := must.Get(os.ReadFile(filepath.Join(folder, "flake.nix")))(t)
		must.Write(t, filepath.Join(thief, "flake.nix"), string(text), 0o644)
		must.Write(t, filepath.Join(thief, ".git"), "gitdir: "+filepath.Join(folder, ".git", "worktrees", "tree")+"\n", 0o644)
		// The control: git itself takes the repository for the folder's.
		commandIn(t, thief, nil, "git", "rev-parse", "HEAD")
		if found, problem := opened(t, thief); found != "" || !strings.Contains(problem, "which is that of another folder") {
			t.Errorf("found %q, problem %q", found, problem)
		}
	})
}

// A flake or a repository that another user put above the project does not count.
func TestProjectFlake_IgnoresOtherUsersAbove(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of other users")
	}
	nix(t)
	const flake = "{ outputs = { self }: { }; }"
	above := t.TempDir()
	own := filepath.Join(above, "own")
	must.Write(t, filepath.Join(own, "file"), "", 0o644)
	must.Write(t, filepath.Join(above, "flake.nix"), flake, 0o644)
	// The control: root's own counts.
	if _, problem := opened(t, own); !strings.Contains(problem, "the flake of "+own+" has no devShells") {
		t.Errorf("problem %q", problem)
	}
	must.Do(t, os.Chown(filepath.Join(above, "flake.nix"), 65500, 65500))
	if _, problem := opened(t, own); !strings.Contains(problem, own+" has no flake.nix in it or above it") {
		t.Errorf("problem %q", problem)
	}
	// Nix would take the repository's files, and not the project's own.
	must.Write(t, filepath.Join(own, "flake.nix"), flake, 0o644)
	commandIn(t, above, nil, "git", "init", "-q")
	commandIn(t, above, nil, "chown", "-R", "65500:65500", ".git")
	if _, problem := opened(t, own); !strings.Contains(problem, "the flake of "+own+" has no devShells") {
		t.Errorf("problem %q", problem)
	}
}

// Commands of an agent's shell run in the project's own development shell, with the tools that agents
// expect behind it. Until it is built, they say so and do not run.
func TestProjectFlake_IsTheShellOfAgents(t *testing.T) {
	nix(t)
	t.Parallel()
	a := newAgentShell(t, projectFlake(t, `"yes"`, ""))
	a.ready()
	a.do("exec", "-c", `echo "$FOUND"; pwd; git --version; rg --version; python3 -c 'print(6 * 7)'`)
	for _, want := range []string{"yes\n/project\n", "git version", "ripgrep", "42\n"} {
		if !strings.Contains(a.out, want) {
			t.Errorf("%q is not in %s", want, a.out)
		}
	}
}

// What keeps a project's shell from being built is one sentence.
func TestProjectFlake_Mistakes(t *testing.T) {
	nix(t)
	folder := t.TempDir()
	for name, test := range map[string]struct{ flake, want string }{
		"no flake":          {"", "PROJECT_USE_FLAKE: " + "FOLDER" + " has no flake.nix in it or above it: add one with devShells." + system + ".default, or leave PROJECT_USE_FLAKE unset"},
		"no lock":           {`{ inputs.other.url = "github:a/b"; outputs = { self, other }: { }; }`, "PROJECT_USE_FLAKE: the flake of FOLDER has inputs that its flake.lock lacks: lock them with `nix flake lock` and `git add`"},
		"in git, not added": {"{ outputs = { self }: { }; }", "PROJECT_USE_FLAKE: the flake of FOLDER has a flake.nix that git does not know: `git add flake.nix`"},
		"in git, a mistake": {"{ outputs = ", "syntax error"},
		"no shell":          {"{ outputs = { self }: { }; }", "PROJECT_USE_FLAKE: the flake of FOLDER has no devShells." + system + ".default: define one with mkShell, or leave PROJECT_USE_FLAKE unset"},
	} {
		t.Run(name, func(t *testing.T) {
			own := filepath.Join(folder, strings.ReplaceAll(name, " ", "-"))
			must.Write(t, filepath.Join(own, "file"), "", 0o644)
			if test.flake != "" {
				must.Write(t, filepath.Join(own, "flake.nix"), test.flake, 0o644)
			}
			if strings.HasPrefix(name, "in git") {
				commandIn(t, own, nil, "git", "init", "-q")
			}
			if name == "in git, a mistake" {
				commandIn(t, own, nil, "git", "add", "flake.nix")
			}
			want := strings.ReplaceAll(test.want, "FOLDER", own)
			if _, problem := opened(t, own); !strings.Contains(problem, want) {
				t.Errorf("problem %q, want %q", problem, want)
			}
		})
	}
}
