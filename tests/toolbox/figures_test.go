package toolbox

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// figuresVariable is how many rounds are measured.
const figuresVariable = "NIX_SANDBOX_TEST_FIGURES"

// bare is a client with nothing around it: the same server, asked through two pipes.
type bare struct {
	t   *testing.T
	in  *bufio.Writer
	out *bufio.Reader
	n   int
}

func (b *bare) call() time.Duration {
	b.t.Helper()
	b.n++
	began := time.Now()
	fmt.Fprintf(b.in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"add","arguments":{"a":1,"b":2}}}`+"\n", b.n)
	must.Do(b.t, b.in.Flush())
	line := must.Get(b.out.ReadBytes('\n'))(b.t)
	took := time.Since(began)
	if !json.Valid(line) {
		b.t.Fatalf("%q", line)
	}
	return took
}

func median(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/2]
}

// What a call of a tool costs. All take turns, so that a busy machine slows all of them; the figures
// are medians, in milliseconds.
func TestFigures(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv(figuresVariable))
	if rounds == 0 {
		t.Skip(figuresVariable + " does not say how many rounds")
	}
	w := start(t)
	cmd := exec.Command("python3", "../../examples/tools/ten.py")
	b := &bare{t: t, in: bufio.NewWriter(must.Get(cmd.StdinPipe())(t)), out: bufio.NewReader(must.Get(cmd.StdoutPipe())(t))}
	must.Do(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it was killed

	inSession := func(env, code string) (figures []float64) {
		answer := w.Run(mcptest.Arguments{Env: env, Session: env, Code: code})
		if err := json.Unmarshal([]byte(answer.Text()), &figures); err != nil {
			t.Fatalf("%s: %v", answer.Text(), err)
		}
		return figures
	}
	const python = `
import time, json
times = []
for _ in range(50):
    began = time.perf_counter()
    tools.ten.add(a=1, b=2)
    times.append((time.perf_counter() - began) * 1000)
print(json.dumps(times))`
	const shell = `
times() { for i in 1 2 3 4 5 6 7 8 9 10; do began=${EPOCHREALTIME/./}; "$@" >/dev/null; now=${EPOCHREALTIME/./}; echo $((now - began)); done; }
{ times tool ten add a:=1 b:=2; times env true; } | jq -cs 'map(. / 1000)'`
	inSession("python", python)
	inSession("shell", shell)
	for range 50 {
		b.call()
	}
	var direct, sandboxed, tool, program []float64
	for range rounds {
		for range 50 {
			direct = append(direct, b.call().Seconds()*1000)
		}
		sandboxed = append(sandboxed, inSession("python", python)...)
		both := inSession("shell", shell)
		tool, program = append(tool, both[:10]...), append(program, both[10:]...)
	}
	t.Logf("bare client %.2f ms; from warm Python %.2f ms: %.2f ms more", median(direct), median(sandboxed), median(sandboxed)-median(direct))
	t.Logf("tool %.1f ms; env true %.1f ms: %.1f ms more", median(tool), median(program), median(tool)-median(program))

	processor := func() (all time.Duration) {
		for _, pid := range append(procfs.Descendants(w.PID()), w.PID()) {
			if p, err := procfs.Read(pid); err == nil {
				own, ended := p.Times()
				all += own + ended
			}
		}
		return all
	}
	var walls []float64
	before := processor()
	for range rounds {
		walls = append(walls, inSession("python", `
import time, json
began = time.perf_counter()
tools.map(tools.ten.add, [{'a': n, 'b': 1} for n in range(1000)], at_once=8)
print(json.dumps([(time.perf_counter() - began) * 1000]))`)...)
	}
	t.Logf("1,000 calls, 8 at once: %.0f ms (the fastest %.0f ms), %v of processor time for all processes, the server's memory %d MiB",
		median(walls), slices.Min(walls), (processor()-before)/time.Duration(rounds), w.PeakMemory()>>20)
}
