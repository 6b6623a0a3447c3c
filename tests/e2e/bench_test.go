package e2e

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

// measure runs f again and again and reports the median and the 99th
// percentile beside the mean, in milliseconds. What comes after each f does
// not count.
func measure(b *testing.B, f func(), after ...func()) {
	b.Helper()
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		f()
		took = append(took, time.Since(began))
		b.StopTimer()
		for _, clean := range after {
			clean()
		}
		b.StartTimer()
	}
	slices.Sort(took)
	at := func(part int) float64 { return float64(took[len(took)*part/100].Microseconds()) / 1000 }
	b.ReportMetric(at(50), "p50-ms")
	b.ReportMetric(at(99), "p99-ms")
}

// codes are a calculation in each language that answers 2.
func codes() map[string]string {
	return map[string]string{"bash": "echo $((1+1))", "python": "print(1+1)", "node": "console.log(1+1)"}
}

// BenchmarkInitialize is from the server's start to its reply to initialize,
// beside a Go program that does nothing.
func BenchmarkInitialize(b *testing.B) {
	b.Run("server", func(b *testing.B) {
		var c *mcptest.Client
		measure(b, func() {
			c = mcptest.Start(b, command(b))
			c.Initialize(mcptest.Newest)
		}, func() {
			c.CloseInput()
			c.Wait(10 * time.Second)
		})
	})
	b.Run("empty-program", func(b *testing.B) {
		dir := b.TempDir()
		source := filepath.Join(dir, "main.go")
		if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println() }\n"), 0o644); err != nil {
			b.Fatal(err)
		}
		program := filepath.Join(dir, "empty")
		if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		measure(b, func() {
			if err := exec.Command(program).Run(); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// BenchmarkRefusal is a call that no sandbox takes: the transport and MCP.
func BenchmarkRefusal(b *testing.B) {
	c := start(b)
	measure(b, func() {
		if answer := run(c, "none", "1"); !answer.IsError {
			b.Fatalf("answer %+v", answer)
		}
	})
}

// BenchmarkOnce is a call without a session: a sandbox from start to answer,
// beside the same interpreter without a sandbox where the machine has it.
func BenchmarkOnce(b *testing.B) {
	c := start(b)
	for env, code := range codes() {
		b.Run(env, func(b *testing.B) {
			measure(b, func() {
				if answer := run(c, env, code); answer.Text() != "2\n" {
					b.Fatalf("answer %+v", answer)
				}
			})
		})
	}
	for env, command := range map[string][]string{"bash": {"bash", "-c"}, "python": {"python3", "-c"}, "node": {"node", "-e"}} {
		b.Run(env+"-without-a-sandbox", func(b *testing.B) {
			path, err := exec.LookPath(command[0])
			if err != nil {
				b.Skip(err)
			}
			measure(b, func() {
				cmd := exec.Command(path, command[1], codes()[env])
				cmd.Stdout = io.Discard
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkSession is a call to a session that is there.
func BenchmarkSession(b *testing.B) {
	c := start(b)
	for env, code := range codes() {
		b.Run(env, func(b *testing.B) {
			measure(b, func() {
				if answer := in(c, env, env, code); answer.Text() != "2\n" {
					b.Fatalf("answer %+v", answer)
				}
			})
		})
	}
}
