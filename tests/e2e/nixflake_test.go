package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// flakeOf is a flake with this expression as its package, and these lines before its outputs.
func flakeOf(expression, lines string) string {
	return fmt.Sprintf(`{
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
  %s
  outputs = { self, nixpkgs, ... }@inputs:
    let
      pkgs = nixpkgs.legacyPackages.%s;
      system = "%[2]s";
      print = text: pkgs.runCommand "printed" { inherit text; passAsFile = [ "text" ]; } "cp $textPath $out";
    in
    %s;
}
`, lines, system, expression)
}

// packageOf is a flake with an expression as its package.
func packageOf(expression string) string {
	return flakeOf("{ packages.${system}.default = "+expression+"; }", "")
}

// written has the code of a session write a flake, run a command in its folder and answer with the output.
func written(t *testing.T, c *mcptest.Client, session, flake, command string) mcptest.Answer {
	t.Helper()
	return again(t, c, session, "sh", "rm -rf /workspace/p; mkdir /workspace/p; cd /workspace/p\ncat > flake.nix <<'FLAKE'\n"+flake+"FLAKE\n"+command)
}

// A flake of code's own files is built, run and entered as with Nix, with the server's nixpkgs.
func TestNixFlake_IsBuilt(t *testing.T) {
	s := withOnDemand(t, withNix+"[on_demand]\nflakes = true\n")
	c := s.start()
	offered(t, c, "sh", true)
	flake := flakeOf(`{
      packages.${system} = {
        default = pkgs.runCommand "greet" { } ''mkdir -p $out/bin; printf '#!/bin/sh\necho built $1\n' > $out/bin/greet; chmod +x $out/bin/greet'';
        data = pkgs.runCommand "data" { } "cp ${./input} $out";
      };
      apps.${system}.hi = { type = "app"; program = "${self.packages.${system}.default}/bin/greet"; };
      devShells.${system}.default = pkgs.mkShell { packages = [ pkgs.tree ]; GREETING = "hello"; };
    }`, "")
	expect(t, in(c, "s", "sh", "x=41"), "[no output]")
	answer := written(t, c, "s", flake, "echo text > input; nix run . -- one")
	expect(t, answer, "built one\n")
	for command, want := range map[string]string{
		"nix build .#data && cat result":      "text\n",
		"nix run .#hi -- two":                 "built two\n",
		"nix run":                             "built\n",
		"nix build && result/bin/greet three": "built three\n",
		"nix shell . nixpkgs#tree -c sh -c 'greet four; tree --version | head -c 4'": "built four\ntree",
		"nix develop -c sh -c 'echo $GREETING; tree --version | head -c 4'":          "hello\ntree",
		"cd /; nix develop /workspace/p --command printenv GREETING":                 "hello\n",
		"mkdir -p below; cd below; nix run .. -- five":                               "built five\n",
		"echo 'echo $GREETING' | nix develop":                                        "hello\n",
	} {
		expect(t, again(t, c, "s", "sh", "cd /workspace/p; "+command), want)
	}
	// Of a git repository, the files that git knows.
	answer = again(t, c, "s", "sh", "cd /workspace/p; git init -q; git add flake.nix; nix build .#data")
	expectError(t, answer, "nix: the flake could not be built: tell the user what Nix said, or do without\nerror: ")
	expect(t, again(t, c, "s", "sh", "cd /workspace/p; git add input; nix build .#data && cat result; echo $x; ls -A /workspace"), "text\n41\noutputs\np\n")
	expectError(t, again(t, c, "s", "sh", "cd /workspace/p; git rm -q --cached flake.nix; nix build"), "git does not know flake.nix: git add it")
	// What it has not.
	for command, want := range map[string]string{
		"cd /tmp; nix run .":                       "there is no flake.nix here or above: name packages of nixpkgs",
		"cd /workspace/p; git add .; nix run .#no": "nix: the flake has no apps." + system + ".no",
		"cd /workspace/p; nix flake check":         "nix flake check does not work in this sandbox",
	} {
		expectError(t, again(t, c, "s", "sh", command), want)
	}
	if log := c.Log(); !strings.Contains(log, `packages="the flake" artifact=/nix/store/`) {
		t.Errorf("the log:\n%s", log)
	}
}

// Without the option, no flake of code is evaluated.
func TestNixFlake_IsOff(t *testing.T) {
	s := withOnDemand(t, withNix)
	c := s.start()
	offered(t, c, "sh", true)
	expectError(t, written(t, c, "s", packageOf(`print "x"`), "nix build"), "flakes of files are not built here: name packages of nixpkgs, as in nixpkgs#jq, or ask the user to set flakes = true in [on_demand]")
}

// An evaluation and a build without an end have one.
func TestNixFlake_Ends(t *testing.T) {
	s := withOnDemand(t, withNix+"[on_demand]\nflakes = true\nbuild_seconds = 6\n")
	c := s.start()
	offered(t, c, "sh", true)
	for _, test := range []struct{ name, flake, want string }{
		{"no end of evaluation", packageOf("print (toString (builtins.length (builtins.filter (x: builtins.length (builtins.filter (y: false) (builtins.genList (y: y) 100000)) == 1) (builtins.genList (x: x) 100000))))"), "was not built within build_seconds"},
		{"no end of a build", packageOf(`pkgs.runCommand "slow" { } "sleep 900"`), "was not built within build_seconds"},
	} {
		if answer := written(t, c, "s", test.flake, "nix build"); !strings.Contains(answer.Text(), test.want) {
			t.Errorf("%s: %s", test.name, answer.Text())
		}
	}
}

// A flake of code cannot use the machine that evaluates and builds it. The controls are TestNixFlake_IsBuilt, and
// for the evaluation TestProjectFlake_GetsNothingOfTheUser, in the same jail.
func TestNixFlake_Attempts(t *testing.T) {
	s := withOnDemand(t, withNix+"[on_demand]\nflakes = true\n")
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		fmt.Fprint(w, "answer")
	}))
	defer server.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	must.Write(t, secret, "a secret of the host", 0o644)
	c := s.start("A_TOKEN=a secret of the host")
	offered(t, c, "sh", true)
	const answerHash = "sha256:0000000000000000000000000000000000000000000000000000"
	for _, test := range []struct{ name, flake, want string }{
		{"file of the host", packageOf(fmt.Sprintf("print (builtins.readFile %q)", secret)), "forbidden"},
		{"file by a path", packageOf(fmt.Sprintf("print (builtins.readFile %s)", secret)), "forbidden"},
		{"folder of the host", packageOf(`print (builtins.toJSON (builtins.readDir "/etc"))`), "forbidden"},
		{"copy of a folder", packageOf(fmt.Sprintf("print \"${builtins.path { path = %s; }}\"", filepath.Dir(secret))), "forbidden"},
		{"file above the flake", packageOf("print (builtins.readFile ../secret)"), "error"},
		{"path of the store", packageOf(`print "${builtins.storePath "/nix/store"}"`), "error"},
		{"search path", packageOf("print (import <nixpkgs> { }).hello"), "error"},
		{"time", packageOf("print (toString builtins.currentTime)"), "error"},
		{"fetch without a hash", packageOf(fmt.Sprintf("print (builtins.readFile (builtins.fetchurl %q))", server.URL)), "pure evaluation|store lacks"},
		{"fetch with a hash", packageOf(fmt.Sprintf("print (builtins.readFile (builtins.fetchurl { url = %q; sha256 = %q; }))", server.URL, answerHash)), "error|store lacks"},
		{"fetch of an archive", packageOf(fmt.Sprintf("print (builtins.readFile (builtins.fetchTarball { url = %q; sha256 = %q; }))", server.URL+"/x.tar.gz", answerHash)), "this server's store lacks"},
		{"repository of the host", packageOf(`print "${builtins.fetchGit { url = "file:///root"; rev = "0000000000000000000000000000000000000000"; }}"`), "this server's store lacks"},
		{"program", packageOf(`print (builtins.exec [ "id" ])`), "error"},
		{"library", packageOf(`print (builtins.importNative "/lib/x.so" "x")`), "error"},
		{"import from derivation", packageOf(`print (builtins.readFile (print "x"))`), "import from derivation"},
		{"input on the host", flakeOf(`{ packages.${system}.default = print (builtins.readFile "${inputs.host}/secret"); }`, fmt.Sprintf("inputs.host = { url = \"path:%s\"; flake = false; };", filepath.Dir(secret))), "error|store lacks"},
		{"input of the network", flakeOf(`{ packages.${system}.default = print (builtins.readFile inputs.net); }`, fmt.Sprintf("inputs.net = { url = %q; flake = false; };", server.URL+"/x.tar.gz")), "nix: the flake wants inputs that this server's store lacks"},
		{"derivation with a hash", packageOf(fmt.Sprintf(`pkgs.runCommand "fetched" { outputHash = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="; outputHashMode = "flat"; } "echo > /dev/tcp/%s; echo x > $out"`, strings.Replace(strings.TrimPrefix(server.URL, "http://"), ":", "/", 1))), "nix: the flake needs to fetch fetched"},
		{"derivation with a hash behind another", packageOf(`pkgs.runCommand "outer" { inner = pkgs.runCommand "inner" { outputHash = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="; } "x"; } "cp $inner $out"`), "the flake needs to fetch inner"},
		{"impure derivation", packageOf(`pkgs.runCommand "impure" { __impure = true; } "echo x > $out"`), "error"},
		{"derivation of floating hash", packageOf(`pkgs.runCommand "floating" { __contentAddressed = true; outputHashMode = "recursive"; outputHashAlgo = "sha256"; } "echo x > $out"`), "error"},
		{"derivation without a sandbox", packageOf(`pkgs.runCommand "open" { __noChroot = true; } "echo x > $out"`), "error"},
		{"builder of Nix's own", packageOf(fmt.Sprintf(`derivation { name = "x"; inherit system; builder = "builtin:fetchurl"; url = %q; }`, server.URL)), "error"},
		{"network of a build", packageOf(fmt.Sprintf(`pkgs.runCommand "net" { } "echo GET / > /dev/tcp/%s; echo reached > $out"`, strings.Replace(strings.TrimPrefix(server.URL, "http://"), ":", "/", 1))), "error"},
		{"recursion", packageOf("let f = x: 1 + f (x + 1); in print (toString (f 0))"), "error"},
		{"no package", packageOf(`"text"`), "error"},
		{"package that only looks like one", packageOf(`{ type = "derivation"; name = "x"; drvPath = "/nix/store/../../etc/passwd"; outPath = "/etc"; }`), "no package"},
		{"package of a path", packageOf(`{ type = "derivation"; name = "x"; drvPath = "/etc/passwd"; }`), "no package"},
		{"settings", flakeOf(`{ packages.${system}.default = pkgs.runCommand "x" { } "[ -e /var ] && echo open > $out"; }`, "nixConfig = { sandbox = false; extra-sandbox-paths = [ \"/var\" ]; };"), "error"},
	} {
		answer := written(t, c, "s", test.flake, "echo 'a secret' > /workspace/secret; nix build && cat result")
		isWanted := func(want string) bool { return strings.Contains(answer.Text(), want) }
		if !answer.IsError || !slices.ContainsFunc(strings.Split(test.want, "|"), isWanted) || strings.Contains(answer.Text(), "a secret of the host") {
			t.Errorf("%s: %s\nwant %s", test.name, answer.Text(), test.want)
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests reached the network", n)
	}
	// Evaluations and builds that end well, and are empty.
	for _, test := range []struct{ name, flake, want string }{
		{"variable", packageOf(`print "found:${builtins.getEnv "A_TOKEN"}."`), "found:.\n"},
		{"variable of a build", packageOf(`pkgs.runCommand "env" { impureEnvVars = [ "A_TOKEN" ]; } "echo found:$A_TOKEN. > $out"`), "found:.\n"},
		{"files of a build", packageOf(fmt.Sprintf(`pkgs.runCommand "files" { } "for f in %s /etc/shadow /root /home /var; do [ ! -e $f ] || echo $f; done > $out; echo end >> $out"`, secret)), "end\n"},
		{"processes of a build", packageOf(`pkgs.runCommand "processes" { } "for p in /proc/[0-9]*; do echo $p; done | wc -l | { read n; [ $n -lt 20 ] && echo few; } > $out"`), "few\n"},
	} {
		expect(t, written(t, c, "s", test.flake, "nix build && echo $(cat result)"), test.want)
	}
	// Links in the tree lead to what the sandbox has, and not the host.
	answer := written(t, c, "s", packageOf("print (builtins.readFile ./link)"), "ln -s "+secret+" link; nix build && cat result")
	if !answer.IsError || strings.Contains(answer.Text(), "a secret of the host") {
		t.Errorf("a link: %s", answer.Text())
	}
	answer = written(t, c, "s", packageOf("x"), "ln -sf "+secret+" flake.nix; nix build")
	if !answer.IsError || strings.Contains(answer.Text(), "a secret of the host") {
		t.Errorf("a flake that is a link: %s", answer.Text())
	}
	for _, attribute := range []string{"a;id", "../x", "$(id)", "a b", "-x", "a\"b", strings.Repeat("a", 200)} {
		expectError(t, written(t, c, "s", packageOf(`print "x"`), "nix build '.#"+attribute+"'"), "is no attribute of a flake")
	}
	// Questions that the program would not ask.
	const asks = `import socket, struct, json, sys
s = socket.socket(socket.AF_UNIX); s.connect('\0nix-sandbox-tools')
t = json.dumps({'nix': {'flake': {'source': sys.argv[1], 'attribute': '', 'want': sys.argv[2]}}}).encode()
s.sendall(struct.pack('>I', len(t)) + t)
print(s.recv(struct.unpack('>I', s.recv(4, socket.MSG_WAITALL))[0], socket.MSG_WAITALL).decode())`
	expect(t, in(c, "s", "sh", "cat > /tmp/ask.py <<'EOF'\n"+asks+"\nEOF"), "[no output]")
	for arguments, want := range map[string]string{
		secret + " build":                           "cannot be read",
		"/etc/passwd build":                         "cannot be read",
		"/workspace/../etc/passwd build":            "cannot be read",
		"/workspace/nosuch build":                   "cannot be read",
		"/workspace build":                          "cannot be read",
		"/workspace/garbage build":                  "the archive of the flake",
		"/workspace/large build":                    "cannot be read",
		"/workspace/link build":                     "cannot be read",
		"/workspace/p.tar rm":                       "is none of build, run and develop",
		"/workspace/p.tar '--option sandbox false'": "is none of build, run and develop",
	} {
		answer := again(t, c, "s", "sh", "cd /workspace; head -c 10000 /dev/urandom > garbage; truncate -s 50M large; ln -sf /etc/passwd link; tar -cf p.tar -C p . ; python3 /tmp/ask.py "+arguments)
		if !strings.Contains(answer.Text(), want) {
			t.Errorf("%s: %s\nwant %s", arguments, answer.Text(), want)
		}
	}
	// The control.
	if answer := written(t, c, "s", packageOf(`print "x"`), "tar -cf /workspace/p.tar . ; python3 /tmp/ask.py /workspace/p.tar build"); !strings.Contains(answer.Text(), `"paths":["/nix/store/`) {
		t.Errorf("the control: %s", answer.Text())
	}
	// Nothing of the attempts is left with the server.
	left := must.Get(filepath.Glob(filepath.Join(s.cache, "nix-sandbox-mcp", "packages", ".flake-*")))(t)
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
