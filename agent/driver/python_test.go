package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

func TestMain(m *testing.M) { Main(m) }

// The tests of one driver are sequences of calls in one session each.
func steps(t *testing.T, kind string, tests map[string][]Step) {
	for name, calls := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Start(t, kind).Warm().Steps(calls)
		})
	}
}

func TestPython(t *testing.T) {
	interrupted := Limit(500*time.Millisecond, 2*time.Second)
	steps(t, "python", map[string][]Step{
		"one namespace": {
			{Code: "x = 1\ndef f(): return y"},
			{Code: "y = x + 1"},
			{Code: "f()", Stdout: "2\n"},
			{Code: "import json"},
			{Code: "json.dumps([f.__module__, __name__])", Stdout: "'[\"__main__\", \"__main__\"]'\n"},
		},
		"values are shown": {
			{Code: "'é'", Stdout: "'é'\n"},
			{Code: "None"},
			{Code: "1;"},
			{Code: "x = 5\nx", Stdout: "5\n"},
			{Code: "x\n# and a comment", Stdout: "5\n"},
			{Code: "print('a')\nx * 2", Stdout: "a\n10\n"},
			{Code: "_", Stdout: "10\n"},
			{Code: ""},
			{Code: "# nothing"},
			{Code: "\ufeffx = 6\nx", Stdout: "6\n"},
		},
		"top-level await": {
			{Code: "import asyncio\nq = asyncio.Queue()"},
			{Code: "await q.put(3)\nawait asyncio.sleep(0)"},
			{Code: "task = asyncio.create_task(q.get())\nawait task", Stdout: "3\n"},
			{Code: "async def f():\n    return 4\nawait f()", Stdout: "4\n"},
			{Code: "async for i in f(): pass", Stderr: "TypeError", Exit: 1},
			{Code: "await asyncio.sleep(99)", Stderr: "KeyboardInterrupt", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted},
			{Code: "await f()", Stdout: "4\n"},
			{Code: "asyncio.run(f())", Stdout: "4\n"},
		},
		"future statements stay": {
			{Code: "from __future__ import annotations\nx: Later = 1"},
			{Code: "def f(x: Later): pass\nf.__annotations__", Stdout: "{'x': 'Later'}\n"},
		},
		"traceback": {
			{Code: "def f():\n    raise ValueError('x')"},
			{Code: "\nf()", Exit: 1, Stderr: "Traceback (most recent call last):\n  File \"<call 2>\", line 2, in <module>\n    f()\n"},
			{Code: "f()", Exit: 1, Stderr: "  File \"<call 1>\", line 2, in f\n    raise ValueError('x')\nValueError: x\n"},
			{Code: "import traceback\ntry: f()\nexcept ValueError: text = traceback.format_exc()\nprint([s in text for s in ('try: f()', \"raise ValueError('x')\", '<driver>')])", Stdout: "[True, True, False]\n"},
		},
		"syntax error": {
			{Code: "x = 1\ndef f(:", Exit: 1, Stderr: "  File \"<call 1>\", line 2\n    def f(:\n          ^\nSyntaxError: invalid syntax\n"},
			{Code: "x", Exit: 1, Stderr: "NameError"},
			{Code: "'abc", Exit: 1, Stderr: "SyntaxError: unterminated string literal"},
			{Code: "\x00", Exit: 1, Stderr: "null bytes"},
		},
		"exit": {
			{Code: "x = 1\nimport sys"},
			{Code: "sys.exit(3)", Exit: 3},
			{Code: "sys.exit('why')", Stderr: "why\n", Exit: 1},
			{Code: "sys.exit(None)"},
			{Code: "exit(-1)", Exit: 255},
			{Code: "x", Stdout: "1\n"},
			{Code: "quit()"},
			{Code: "input()", Exit: 1, Stderr: "EOFError"},
			{Code: "f = open('/dev/zero'); f.fileno() > 2", Stdout: "True\n"},
		},
		"interrupt shows where": {
			{Code: "x = 1\nimport time"},
			{Code: "def f():\n    time.sleep(99)\nf()", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted,
				Stderr: "line 2, in f\n    time.sleep(99)\n"},
			{Code: "while True: pass", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted, Stderr: "KeyboardInterrupt"},
			{Code: "import os, subprocess; subprocess.run(['sleep', '99'])", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted, Stderr: "KeyboardInterrupt"},
			{Code: "x", Stdout: "1\n"},
		},
		"a handler of SIGINT stays": {
			{Code: "import signal, time\nsignal.signal(2, lambda *a: print('mine'))\nNone"},
			{Code: "time.sleep(1)", Stdout: "mine\n", Outcome: frame.OutcomeTimeout, Change: interrupted},
		},
		"no stdin": {
			{Code: "input()", Exit: 1, Stderr: "EOFError"},
		},
		"output of children": {
			{Code: "import os, subprocess, sys"},
			{Code: "print('a')\nos.write(1, b'b\\n')\nsubprocess.run(['echo', 'c'])\nos.system('echo d >&2');", Stdout: "a\nb\nc\n", Stderr: "d\n"},
			{Code: "print('no newline', end='')", Stdout: "no newline"},
		},
		"nothing is overridden": {
			{Code: "import builtins, os"},
			{Code: "builtins.print = builtins.len = builtins.isinstance = builtins.exec = builtins.compile = builtins.int = None"},
			{Code: "os.write = os.read = os.pread = os._exit = os.getpid = None; exit = None"},
			{Code: "'still here'", Stdout: "'still here'\n"},
			{Code: "1 / 0", Exit: 1, Stderr: "ZeroDivisionError"},
		},
		"stdout is replaced": {
			{Code: "import io, sys; sys.stdout = io.StringIO(); sys.stderr = None"},
			{Code: "1 + 1\n1 / 0", Exit: 1, Stderr: "ZeroDivisionError"},
			{Code: "sys.stdout.write('x')"},
			{Code: "sys.stdout = sys.__stdout__; sys.stderr = sys.__stderr__"},
			{Code: "1 + 1", Stdout: "2\n"},
		},
		"modules are removed": {
			{Code: "import sys; x = 1\nfor name in list(sys.modules):\n    if name not in ('builtins', 'sys'): del sys.modules[name]"},
			{Code: "x", Stdout: "1\n"},
			{Code: "1 / 0", Exit: 1, Stderr: "ZeroDivisionError"},
		},
		"a child that the code forks does not answer": {
			{Code: "import os\nif os.fork() == 0: print('child')\nelse: os.wait(); print('parent')", Stdout: "child\nparent\n"},
			{Code: "if os.fork() == 0: raise SystemExit(7)\nelse: print(os.waitstatus_to_exitcode(os.wait()[1]))", Stdout: "7\n"},
			{Code: "'one answer'", Stdout: "'one answer'\n"},
		},
		"threads stay": {
			{Code: "import threading, time\nn = 0\ndef f():\n    global n\n    while True: n += 1; time.sleep(0.001)\nthreading.Thread(target=f, daemon=True).start()"},
			{Code: "a = n; time.sleep(0.1); n > a", Stdout: "True\n"},
		},
		"recursion and memory": {
			{Code: "def f(): f()\nf()", Exit: 1, Stderr: "RecursionError"},
			{Code: "x = bytearray(1 << 62)", Exit: 1, Stderr: "MemoryError"},
			{Code: "raise BaseException('b')", Exit: 1, Stderr: "BaseException: b"},
			{Code: "1", Stdout: "1\n"},
		},
		"pickle and multiprocessing": {
			{Code: "import pickle, multiprocessing, dataclasses\n@dataclasses.dataclass\nclass C:\n    x: int\n"},
			{Code: "pickle.loads(pickle.dumps(C(1)))", Stdout: "C(x=1)\n"},
			{Code: "def f(x): return x * 2"},
			{Code: "with multiprocessing.get_context('fork').Pool(2) as p: print(p.map(f, [1, 2]))", Stdout: "[2, 4]\n"},
		},
	})
}

// What an earlier call left running prints with the next call.
// A session's sources are kept for tracebacks, but not without end.
func TestPythonSources(t *testing.T) {
	a := Start(t, "python").Warm()
	large := strings.Repeat("#", 3<<20)
	calls := []Step{{Code: "def f(): raise ValueError('x')\n" + large}, {Code: "f()", Exit: 1, Stderr: "in f\n    def f(): raise ValueError('x')\n"}, {Code: large}}
	for range 1100 {
		calls = append(calls, Step{Code: "pass"})
	}
	calls = append(calls,
		Step{Code: "import linecache\nlen([n for n in linecache.cache if n.startswith('<call')]) <= 1000", Stdout: "True\n"},
		Step{Code: "f()", Exit: 1, Stderr: "line 1, in f\nValueError: x\n"},
		Step{Code: "def g(): raise ValueError('y')"},
		Step{Code: "g()", Exit: 1, Stderr: "in g\n    def g(): raise ValueError('y')\n"},
	)
	a.Steps(calls)
}

func TestPythonBackgroundOutput(t *testing.T) {
	a := Start(t, "python")
	if got := a.Run("import subprocess; p = subprocess.Popen('echo now; sleep 0.2; echo later', shell=True); print(p.stdout)"); got.State != frame.StateKept {
		t.Fatalf("%+v", got)
	}
	got := a.Run("p.wait()")
	if !strings.HasSuffix(got.Stdout, "later\n0\n") {
		t.Errorf("stdout %q", got.Stdout)
	}
}

// Nothing that lies in the workspace runs unless the code asks for it.
func TestPythonPlanted(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"sitecustomize.py", "usercustomize.py", "json.py", "traceback.py", "linecache.py", "asyncio.py", "os.py", "encodings.py"} {
		plant(t, root, name, "print('planted "+name+"')\nraise SystemExit(9)\n")
	}
	plant(t, root, "mine.py", "x = 'found'\n")
	a := Start(t, "python", Root(root), Env("PYTHONSTARTUP", filepath.Join(root, "json.py")))
	a.Steps([]Step{
		{Code: "1 / 0", Exit: 1, Stderr: "1 / 0"},
		{Code: "async def f(): return 1\nawait f()", Stdout: "1\n"},
		{Code: "import mine; mine.x", Stdout: "'found'\n"},
		{Code: "import json", Stdout: "planted json.py\n", Exit: 9},
	})
}

func TestPythonPath(t *testing.T) {
	lib := t.TempDir()
	plant(t, lib, "lib_of_mine.py", "x = 3\n")
	Start(t, "python", Env("PYTHONPATH", lib)).Steps([]Step{
		{Code: "import lib_of_mine; lib_of_mine.x", Stdout: "3\n"},
	})
}

// A program's end waits for its threads and runs its atexit functions.
func TestPythonEphemeral(t *testing.T) {
	for name, s := range map[string]Step{
		"value":       {Code: "print(1)\n2", Stdout: "1\n2\n"},
		"exit":        {Code: "import sys; sys.exit(3)", Exit: 3},
		"error":       {Code: "1 / 0", Exit: 1, Stderr: "  File \"<code>\", line 1, in <module>\n"},
		"_exit":       {Code: "import os; os._exit(4)", Exit: 4},
		"thread":      {Code: "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()", Stdout: "late\n"},
		"atexit":      {Code: "import atexit; atexit.register(print, 'bye');", Stdout: "bye\n"},
		"await":       {Code: "import asyncio\nawait asyncio.sleep(0.01)\n3", Stdout: "3\n"},
		"unflushed":   {Code: "import os\nf = os.fdopen(os.dup(1), 'w')\nf.write('x');", Stdout: "x"},
		"finalizer":   {Code: "class C:\n    def __del__(self): print('gone')\nc = C()\nd = C(); d.me = d;", Stdout: "gone\ngone\n"},
		"order":       {Code: "import atexit, threading, time\nclass C:\n    def __del__(self): print('finalizer')\n_c = C()\natexit.register(print, 'atexit')\nthreading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('code')", Stdout: "code\nthread\natexit\nfinalizer\n"},
		"its own end": {Code: "import atexit, sys\n@atexit.register\ndef end(): print(1 / 0)\nsys.exit(3)", Exit: 3, Stderr: "ZeroDivisionError"},
		"fork":        {Code: "import os\nif os.fork(): print(os.wait()[1] >> 8)\nelse: raise SystemExit(7)", Stdout: "7\n"},
		"descriptors": {Code: "import os\nos.closerange(3, 1000)\nf = os.fdopen(os.dup2(1, 250), 'w'); f.write('mine'); f.flush();", Stdout: "mine"},
		"background":  {Code: "import subprocess; subprocess.Popen(['sleep', '99'])\nprint(1)", Stdout: "1\n"},
		"signal":      {Code: "import os; os.kill(os.getpid(), 9)", Exit: 137, Outcome: frame.OutcomeCrashed},
		"no control":  {Code: "import os\nfor n in (3, 4):\n    try: os.fstat(n); print(n)\n    except OSError: pass"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Change = Ephemeral
			Start(t, "python").Steps([]Step{s})
		})
	}
}

func TestPythonFigures(t *testing.T) {
	a := Start(t, "python")
	if got := a.Run("import matplotlib"); got.ExitCode != 0 {
		t.Skip("no matplotlib here")
	}
	got := a.Run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.figure()\nplt.show()")
	if got.ExitCode != 0 || len(got.Files) != 2 {
		t.Fatalf("%+v", got)
	}
	if want := filepath.Join(a.Root, "outputs", "figure-1.png"); got.Files[0].Path != want {
		t.Errorf("file %s, want %s", got.Files[0].Path, want)
	}
	if got := a.Run("1"); len(got.Files) != 0 {
		t.Errorf("files %v of a call without figures", got.Files)
	}
	if got := a.Run("plt.plot([1]);"); len(got.Files) != 1 || !strings.HasSuffix(got.Files[0].Path, "figure-3.png") {
		t.Errorf("files %v", got.Files)
	}
	// What the code has saved there is not shown twice; what it saved
	// elsewhere, or went on with, is.
	for code, want := range map[string]int{
		"plt.plot([1]); plt.savefig('outputs/a.png')":                               1,
		"plt.plot([1]); plt.savefig('outputs/a.png', dpi=50, bbox_inches='tight')":  1,
		"plt.plot([1]); plt.savefig('outputs/a.png'); plt.figure(); plt.plot([2]);": 2,
		"plt.plot([1]); plt.savefig('outputs/a.png'); plt.plot([2]);":               2,
		"plt.plot([1]); plt.savefig('a.png')":                                       1,
		"plt.plot([1]); plt.savefig('outputs/a.pdf')":                               2,
		"import os; os.symlink('nowhere', 'outputs/b.png'); plt.plot([1]);":         1,
	} {
		if got := a.Run(code); got.ExitCode != 0 || len(got.Files) != want {
			t.Errorf("%s: %s%d files, want %d", code, got.Stderr, len(got.Files), want)
		}
	}
}

func TestLargeCode(t *testing.T) {
	for kind, code := range map[string]string{
		"python": "s = '" + strings.Repeat("x", 1<<20) + "'\nlen(s)",
		"bash":   "s='" + strings.Repeat("x", 1<<20) + "'; echo ${#s}",
		"node":   "s = '" + strings.Repeat("x", 1<<20) + "'\ns.length",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			Start(t, kind).Warm().Steps([]Step{{Code: code, Stdout: "1048576\n"}, {Code: "s = 1", Stdout: map[string]string{"node": "1\n"}[kind], Exit: map[string]int{"bash": 127}[kind], Stderr: map[string]string{"bash": "line 1: s: command not found"}[kind]}})
		})
	}
}

func plant(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
