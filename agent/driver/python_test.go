package driver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// A figure that an earlier call has shown is shown again when it is asked for.
func TestPythonFigures_Again(t *testing.T) {
	t.Parallel()
	a := Start(t, "python")
	if got := a.Run("import matplotlib"); got.ExitCode != 0 {
		t.Skipf("no matplotlib here: %s", got.Stderr)
	}
	for _, step := range []struct {
		code string
		want int
	}{
		{"import matplotlib.pyplot as plt\nfig, ax = plt.subplots(); ax.plot([1]);", 1},
		{"ax.plot([2])\nfig", 1},
		{"fig", 1},
		{"fig.show(); fig", 1},
	} {
		if got := a.Run(step.code); got.ExitCode != 0 || got.Stdout != "" || len(got.Files) != step.want {
			t.Errorf("%s: %q, %s%d files, want %d", step.code, got.Stdout, got.Stderr, len(got.Files), step.want)
		}
	}
}

func TestMain(m *testing.M) { os.Exit(patience.Main(m)) }

// What an earlier call left running prints with the next call.
func TestPythonBackgroundOutput(t *testing.T) {
	t.Parallel()
	a := Start(t, "python")
	if got := a.Run("import subprocess; p = subprocess.Popen('echo now; read line; echo later', shell=True, stdin=subprocess.PIPE); print(p.stdout)"); got.State != frame.StateKept {
		t.Fatalf("%+v", got)
	}
	got := a.Run("p.stdin.close(); p.wait()")
	if !strings.HasSuffix(got.Stdout, "later\n0\n") {
		t.Errorf("stdout %q", got.Stdout)
	}
}

func TestPythonFigures(t *testing.T) {
	t.Parallel()
	a := Start(t, "python")
	if got := a.Run("import matplotlib"); got.ExitCode != 0 {
		t.Skipf("no matplotlib here: %s", got.Stderr)
	}
	got := a.Run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.figure()\nplt.plot([2, 1])\nplt.show()")
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
	if got := a.Run("%%capture cap\nplt.plot([1]);"); got.ExitCode != 0 || len(got.Files) != 0 {
		t.Errorf("a figure that is kept is shown: %+v", got)
	}
	if got := a.Run("cap.show()"); got.ExitCode != 0 || len(got.Files) != 1 {
		t.Errorf("a figure that was kept: %+v", got)
	}
	// What the code has saved there is not shown twice; what it saved
	// elsewhere, or went on with, is.
	for code, want := range map[string]int{
		"plt.plot([1]); plt.savefig('outputs/a.png')":                                          1,
		"plt.plot([1]); plt.savefig('outputs/a.png', dpi=50, bbox_inches='tight')":             1,
		"plt.plot([1]); plt.savefig('outputs/a.png'); plt.figure(); plt.plot([2]);":            2,
		"plt.plot([1]); plt.savefig('outputs/a.png'); plt.plot([2]);":                          2,
		"plt.plot([1]); plt.savefig('a.png')":                                                  1,
		"f = plt.figure(); plt.plot([1]); f.savefig('f.png')":                                  1,
		"f, ax = plt.subplots(); ax.plot([1]); f.savefig('f.png'); plt.show()":                 1,
		"f, ax = plt.subplots(); ax.plot([1]); f.savefig('f.png'); ax.plot([2]);":              2,
		"plt.plot([1]); plt.savefig('outputs/a.pdf')":                                          2,
		"import os; os.symlink('nowhere', 'outputs/b.png'); plt.plot([1]);":                    1,
		"import matplotlib; matplotlib.use('TkAgg'); plt.plot([1]); plt.show()":                1,
		"plt.switch_backend('qtagg'); plt.plot([1]); plt.show()":                               1,
		"plt.switch_backend('agg'); plt.plot([1]);":                                            1,
		"plt.plot([1]); plt.show(); plt.close()":                                               1,
		"plt.plot([1]); plt.show(); plt.clf()":                                                 1,
		"for i in range(3):\n    plt.plot([i]); plt.show()":                                    3,
		"plt.plot([1]); plt.savefig('c.png'); plt.show()":                                      1,
		"import os; os.makedirs('x/y'); plt.plot([1]); plt.savefig('x/y/deep.png')":            1,
		"old = plt.figure(); old.subplots().plot([1]); plt.close(old)":                         0,
		"plt.plot([1]); plt.gcf()":                                                             1,
		"from matplotlib.figure import Figure; f = Figure(); f.subplots(); f":                  1,
		"plt.plot([1])[0].figure":                                                              1,
		"plt.figure()":                                                                         1,
		"from PIL import Image; Image.new('RGB', (2, 2)).save('pillow.png')":                   1,
		"from PIL import Image; Image.new('RGB', (2, 2)).show()":                               1,
		"from PIL import Image; Image.new('RGB', (2, 2))":                                      1,
		"import IPython.display as d; plt.plot([1]); plt.savefig('d.png'); d.Image('d.png')":   1,
		"import io; from PIL import Image; Image.new('RGB', (2, 2)).save(io.BytesIO(), 'png')": 0,
	} {
		if got := a.Run(code); got.ExitCode != 0 || len(got.Files) != want {
			t.Errorf("%s: %s%d files, want %d", code, got.Stderr, len(got.Files), want)
		}
	}
	// A later call has to show a file again.
	if got := a.Run("d.Image('d.png')"); got.ExitCode != 0 || len(got.Files) != 1 {
		t.Errorf("files %v of a call that shows the file of an earlier one, %s", got.Files, got.Stderr)
	}
}

// What a loop prints leaves in pieces, as if it left in lines: in its order, and whole, however the
// interpreter ends.
func TestPythonPrinting(t *testing.T) {
	t.Parallel()
	const loop = "import os, signal, subprocess, sys, threading, time\nfor i in range(3000): print(i)\n"
	var lines strings.Builder
	for i := range 3000 {
		fmt.Fprintln(&lines, i)
	}
	for name, test := range map[string]struct{ code, want string }{
		"system":           {loop + "os.system('echo child'); print('end')", "child\nend\n"},
		"subprocess":       {loop + "subprocess.run(['echo', 'child']); print('end')", "child\nend\n"},
		"posix_spawn":      {loop + "os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', 'echo child'], os.environ), 0); print('end')", "child\nend\n"},
		"fork":             {loop + "pid = os.fork()\nif pid == 0:\n    print('child'); os._exit(0)\nos.waitpid(pid, 0); print('end')", "child\nend\n"},
		"a fork that goes": {loop + "pid = os.fork()\nif pid == 0:\n    sys.exit(0)\nos.waitpid(pid, 0); print('end')", "end\n"},
		"exec":             {loop + "os.execvp('echo', ['echo', 'child'])", "child\n"},
		"_exit":            {loop + "os._exit(3)", ""},
		"abort":            {loop + "os.abort()", ""},
		"kill":             {loop + "os.kill(os.getpid(), 9)", ""},
		"a kill later":     {loop + "time.sleep(.5); signal.raise_signal(9)", ""},
		"an error":         {loop + "1/0", ""},
		"bytes":            {loop + "sys.stdout.buffer.write(b'bytes\\n'); print('end')", "bytes\nend\n"},
		"a begun line":     {loop + "print('begun', end='')\n1", "begun\n1\n"},
		"a thread":         {"import threading\nt = threading.Thread(target=lambda: [print(i) for i in range(3000)]); t.start(); t.join(); print('end')", "end\n"},
		"the signal":       {"import signal; signal.signal(signal.SIGURG, lambda *a: print('signal'))\n" + loop + "time.sleep(.1); os._exit(0)", ""},
		"its own buffer":   {"import sys; sys.stdout.reconfigure(line_buffering=False)\n" + loop, ""},
		"a closed output":  {loop + "sys.stdout.close()", ""},
		"a closed channel": {"import os; os.closerange(3, 256)\n" + loop + "os._exit(0)", ""},
	} {
		for kind, change := range map[string][]func(*frame.Request){"session": nil, "program": {Ephemeral}} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				got := Start(t, "python", Bare(t)).Run(test.code, change...)
				if want := lines.String() + test.want; got.Stdout != want {
					t.Errorf("%d bytes that end in %q, want %d: %+v", len(got.Stdout), got.Stdout[max(0, len(got.Stdout)-30):], len(want), got.Reply)
				}
			})
		}
	}
}

// The signal that has lines leave at once again may come before the driver has done more than ask for it.
func TestPythonPrinting_TakesASignalAtOnce(t *testing.T) {
	t.Parallel()
	const asks = "        write(channel, b'soon %s\\n' % Buffer.nonce)\n"
	const pause = "        [None for _ in iter(lambda until=monotonic() + .1: monotonic() < until, False)]\n"
	slow := func(s *interpreter.Spec) {
		text := string(must.Get(os.ReadFile(s.Driver.Program))(t))
		if strings.Count(text, asks) != 1 {
			t.Fatal("the driver asks for the signal in other words")
		}
		copied := *s.Driver
		copied.Program = filepath.Join(t.TempDir(), "driver.py")
		must.Write(t, copied.Program, strings.Replace(text, asks, asks+pause, 1), 0o600)
		s.Driver = &copied
	}
	got := Start(t, "python", Bare(t), slow).Run("import signal, time\nfor i in range(3000): print(i)\ntime.sleep(.5); signal.raise_signal(9)")
	if !strings.HasSuffix(got.Stdout, "\n2999\n") {
		t.Errorf("%d bytes that end in %q: %+v", len(got.Stdout), got.Stdout[max(0, len(got.Stdout)-30):], got.Reply)
	}
}

// What a loop has printed is seen while the code does something else.
func TestPythonPrinting_IsSeen(t *testing.T) {
	t.Parallel()
	a := Start(t, "python", Bare(t))
	id := a.Call("import time\nfor i in range(1000): print(i)\ntime.sleep(3600)", Limit(time.Hour, Grace))
	for seen := ""; !strings.HasSuffix(seen, "\n999\n"); {
		seen += a.Receive().Data
	}
	a.Send(frame.Request{Type: frame.Interrupt, ID: id})
	a.Wait(id)
}
