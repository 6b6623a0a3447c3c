package driver_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

func TestBash(t *testing.T) {
	interrupted := Limit(500*time.Millisecond, 2*time.Second)
	// What must be there after the shell ended in each of these ways.
	const setUp = `x=1; y=$'two\nlines'; declare -i n=3; declare -a list=(a "b c"); declare -A map=([k]="v w")
declare -r fixed=r; export shown=s; f() { echo "f $1"; }; export -f f; cd /; umask 027; shopt -s extglob; set -o noglob
alias ll='ls -l'; trap 'echo usr1' USR1; set -- one "two three"`
	const check = `echo "$x|$y|$n|${list[1]}|${map[k]}|$fixed|$(printenv shown)|$PWD|$(umask)|$2"; f 5; bash -c 'f 6'; shopt -q extglob && echo *
alias ll; kill -USR1 $$; (fixed=z) 2>/dev/null || echo still fixed`
	const checked = "1|two\nlines|3|b c|v w|r|s|/|0027|two three\nf 5\nf 6\n*\nalias ll='ls -l'\nusr1\nstill fixed\n"
	survives := func(s Step) []Step {
		return []Step{{Code: setUp}, {Code: check, Stdout: checked}, s, {Code: check, Stdout: checked}, s, {Code: check, Stdout: checked}}
	}
	steps(t, "bash", map[string][]Step{
		"state stays":           survives(Step{Code: "true"}),
		"exit":                  survives(Step{Code: "exit 3", Exit: 3}),
		"exit in a function":    survives(Step{Code: "g() { local x=local shown; exit 4; }; h() { local y=1; g; }; h", Exit: 4}),
		"exit with output":      survives(Step{Code: "{ exit 5; } >/dev/null", Exit: 5}),
		"set -e":                survives(Step{Code: "set -e\nfalse\necho no", Exit: 1}),
		"set -e in a function":  survives(Step{Code: "set -e; g() { local x=2; false; echo no; }; g", Exit: 1}),
		"set -u":                survives(Step{Code: "set -u; echo $nope; set +u", Exit: 127, Stderr: "bash: line 1: nope: unbound variable"}),
		"required variable":     survives(Step{Code: "echo ${nope:?is missing}", Exit: 127, Stderr: "bash: line 1: nope: is missing"}),
		"interrupt":             survives(Step{Code: "sleep 99", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted}),
		"interrupt of a loop":   survives(Step{Code: "while :; do :; done", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted}),
		"interrupt of a script": survives(Step{Code: "bash -c 'while :; do sleep 1; done'; echo no", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted}),
		"interrupt in a pipe":   survives(Step{Code: "x=5; yes | cat >/dev/null", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted})[:3],
		"break":                 survives(Step{Code: "break 9"}),
		"continue":              survives(Step{Code: "continue 9"}),
		"return":                survives(Step{Code: "return 4", Exit: 2, Stderr: "bash: line 1: return: can only"}),
		"errors": {
			{Code: "echo hi\n\nfoo", Stdout: "hi\n", Stderr: "bash: line 3: foo: command not found\n", Exit: 127},
			{Code: "false", Exit: 1},
			{Code: "echo 'a", Exit: 2, Stderr: "unexpected EOF while looking for matching"},
			{Code: "echo $(", Exit: 2, Stderr: "unexpected EOF"},
			{Code: "if then", Exit: 2, Stderr: "syntax error near unexpected token `then'"},
			{Code: "cat <<E\nabc", Exit: 2, Stderr: "bash: here-document is not closed (wanted E)\n"},
			{Code: "cat <<'E F'\nabc\n", Exit: 2, Stderr: "wanted E F"},
			{Code: "a\x00b", Exit: 2, Stderr: "NUL byte"},
			{Code: "echo fine", Stdout: "fine\n"},
			{Code: ""},
			{Code: "# nothing"},
		},
		"the last status": {
			{Code: "(exit 3)", Exit: 3},
			{Code: "echo $?", Stdout: "3\n"},
			{Code: "echo $?", Stdout: "0\n"},
			{Code: "trap 'echo err' ERR; false", Stdout: "err\n", Exit: 1},
			{Code: "echo $?; trap - ERR; exit() { :; }; set -u; (builtin exit 4)", Stdout: "1\n", Exit: 4},
			{Code: "echo $?; set +u; false", Stdout: "4\n", Exit: 1},
			{Code: ""},
			{Code: "echo $?; IFS=1; (builtin exit 1)", Stdout: "0\n", Exit: 1},
			{Code: "echo \"$?\"; unset IFS", Stdout: "1\n"},
			{Code: "if then", Exit: 2, Stderr: "bash: eval: line 1: `if then'\n"},
			{Code: "echo $?", Stdout: "2\n"},
		},
		"here-documents": {
			{Code: "cat <<E\n$((1 + 1))\nE\ncat <<-'F'\n\t$x\n\tF\n: $((1 << 2))", Stdout: "2\n$x\n"},
			{Code: "cat <<< text", Stdout: "text\n"},
		},
		"stdin is empty": {
			{Code: "read x; echo \"$? [$x]\"; cat; wc -c", Stdout: "1 []\n0\n"},
		},
		"background jobs stay": {
			{Code: "sleep 99 & p=$!"},
			{Code: "kill -0 $p && jobs", Stdout: "[1]+  Running                 sleep 99 &\n"},
			{Code: "sleep 99", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted},
			{Code: "kill $p && echo was there", Stdout: "was there\n"},
			{Code: "(sleep 0.1; exit 7) & wait $!", Exit: 7},
		},
		"trap on EXIT": {
			{Code: "x=1; trap 'echo bye $x $?' EXIT"},
			{Code: "trap -p EXIT", Stdout: "trap -- 'echo bye $x $?' EXIT\n"},
			{Code: "trap \"echo it's\" EXIT; trap -p; trap 'echo bye $x $?' EXIT", Stdout: "trap -- 'echo it'\\''s' EXIT\n"},
			{Code: "x=2; exit 3", Stdout: "bye 2 3\n", Exit: 3},
			{Code: "echo $x; trap", Stdout: "2\n"},
			{Code: "trap 'echo twice; exit 9' 0; exit 1", Stdout: "twice\n", Exit: 9},
			{Code: "trap 'echo no' EXIT; trap - EXIT; exit 1", Exit: 1},
			{Code: "(trap 'echo sub' EXIT; true)", Stdout: "sub\n"},
			{Code: "echo $x", Stdout: "2\n"},
		},
		"other traps": {
			{Code: "trap 'echo dbg' DEBUG"},
			{Code: "trap - DEBUG", Stdout: "dbg\ndbg\n"},
			{Code: "trap 'echo err' ERR; false; trap - ERR; false", Stdout: "err\n", Exit: 1},
			{Code: "trap 'echo a' USR1 USR2; trap -p", Stdout: "trap -- 'echo a' SIGUSR1\ntrap -- 'echo a' SIGUSR2\n"},
			{Code: "trap -- - USR1; trap USR2; trap; trap -l | head -1", Stdout: " 1) SIGHUP\t 2) SIGINT\t 3) SIGQUIT\t 4) SIGILL\t 5) SIGTRAP\n"},
		},
		"tracing": {
			{Code: "set -x\necho a", Stdout: "a\n", Stderr: "+ echo a\n"},
			{Code: "echo b", Stdout: "b\n", Stderr: "+ echo b\n"},
			{Code: "{ set +x; } 2>/dev/null; echo $-", Stdout: "hBc\n"},
		},
		"allexport does not export the driver": {
			{Code: "set -a; v=1"},
			{Code: "w=" + strings.Repeat("x", 200<<10) + "; unset w; env | grep -c ^v=", Stdout: "1\n"},
		},
		"options of read": {
			{Code: "IFS=:; TMOUT=1; sleep 0.1"},
			{Code: "a=1:2; echo $a", Stdout: "1 2\n"},
		},
		"redefined builtins": {
			{Code: "exit() { :; }; printf() { :; }; read() { :; }; eval() { :; }; trap() { :; }; cd() { :; }; x=1"},
			{Code: "builtin exit 3", Exit: 3},
			{Code: "echo $x", Stdout: "1\n"},
		},
		"descriptors stay": {
			{Code: "exec 3>file; exec {fd}>other"},
			{Code: "echo a >&3; echo b >&$fd; cat file other", Stdout: "a\nb\n"},
		},
		"exec": {
			{Code: "x=1; exec sh -c 'echo replaced; exit 4'", Stdout: "replaced\n", Exit: 4, Outcome: frame.OutcomeCrashed, Lost: true},
			{Code: "echo [$x]", Stdout: "[]\n"},
		},
		"kill": {
			{Code: "kill -9 $$", Exit: 137, Outcome: frame.OutcomeCrashed, Lost: true},
			{Code: "x=1; kill $$; sleep 1", Exit: 143, Outcome: frame.OutcomeCrashed},
			{Code: "echo $x", Stdout: "1\n"},
		},
	})
}

func TestBashTwentyCalls(t *testing.T) {
	a := Start(t, "bash")
	a.Run("n=0")
	for range 20 {
		a.Run("n=$((n + 1)); (exit 3)")
	}
	if got := a.Run("echo $n"); got.Stdout != "20\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
}

// A shell counts its seconds from its first code on, not from when it began
// to wait for it.
func TestBashSeconds(t *testing.T) {
	a := Start(t, "bash").Warm()
	time.Sleep(1100 * time.Millisecond)
	if got := a.Run("echo $SECONDS; SECONDS=100"); got.Stdout != "0\n" {
		t.Errorf("stdout %q of the first call", got.Stdout)
	}
	if got := a.Run("((SECONDS >= 100)) && echo kept"); got.Stdout != "kept\n" {
		t.Errorf("stdout %q of the second", got.Stdout)
	}
}

func TestBashEphemeral(t *testing.T) {
	for name, s := range map[string]Step{
		"exit":       {Code: "echo hi; exit 3", Stdout: "hi\n", Exit: 3},
		"last":       {Code: "false", Exit: 1},
		"set -e":     {Code: "set -e\nfalse\necho no", Exit: 1},
		"trap":       {Code: "trap 'echo bye' EXIT; trap 'echo int' INT; kill -INT $$", Stdout: "int\nbye\n"},
		"background": {Code: "sleep 99 & echo hi", Stdout: "hi\n"},
		"exec":       {Code: "exec sh -c 'exit 4'", Exit: 4},
		"not found":  {Code: "command_not_found_handle() { echo \"no $1\"; }; echo hi; nope", Stdout: "hi\nno nope\n"},
		"line":       {Code: "\nfoo", Exit: 127, Stderr: "bash: line 2: foo: command not found"},
		"clean":      {Code: "declare -F; trap; for n in 251 252 253; do [[ ! -e /proc/$$/fd/$n ]] || echo $n; done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Change = Ephemeral
			Start(t, "bash").Steps([]Step{s})
		})
	}
}

// Start-up files are not read, whatever the workspace holds.
func TestBashPlanted(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{".bashrc", ".bash_profile", ".profile", ".inputrc"} {
		plant(t, root, name, "echo planted\nexit 9\n")
	}
	Start(t, "bash", Root(root)).Steps([]Step{{Code: "echo $HOME", Stdout: root + "\n"}})
}
