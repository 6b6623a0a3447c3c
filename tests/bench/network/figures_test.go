// Package network measures what a network of named hosts costs, side by side with the same
// without a sandbox or without a network. Contenders take turns, so that what slows the
// machine slows both: read the ratios.
package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// roundsVariable names the variable with the number of rounds that TestFigures measures.
// Without it nothing is measured: figures are for people who read them.
const roundsVariable = "NIX_SANDBOX_TEST_FIGURES"

// figures is what the program in the folder probe prints.
type figures struct {
	FirstByte []int64   `json:"first_byte"`
	HTTP      []int64   `json:"http"`
	HTTPS     []int64   `json:"https"`
	TCP       []float64 `json:"tcp"`
	TLS       []float64 `json:"tls"`
}

// TestFigures prints a table of what was measured, beside the aims. Needed are the
// sandboxes of tests/networld/sandboxes.nix and, for the rows of the server, a server.
func TestFigures(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv(roundsVariable))
	if err != nil {
		t.Skip(roundsVariable + " is no number of rounds")
	}
	if !networld.Again(t) {
		return
	}
	w, err := networld.New(networld.Options{NoWire: true, Lifetime: time.Hour})
	if errors.Is(err, networld.ErrImpossible) {
		t.Skip(err)
	}
	must.Do(t, err)
	t.Cleanup(w.Close)
	b := &bench{T: t, world: w, rounds: rounds}
	for name, path := range map[string]*string{"world-ample": &b.networked, "world-none": &b.isolated} {
		*path = undertest.Artifact(t, name)
	}
	b.transfers()
	b.starts()
	b.neighbours()
	if os.Getenv(undertest.ServerVariable) != "" {
		b.server()
	}
	t.Logf("\n| measured | without | with | ratio | aim |\n| --- | --- | --- | --- | --- |\n%s", strings.Join(b.table, "\n"))
}

type bench struct {
	*testing.T
	world               *networld.World
	rounds              int
	networked, isolated string // artifacts
	table               []string
}

// row adds a row of two contenders. The ratio is the median of those of the rounds.
func (b *bench) row(name, unit string, without, with []float64, aim string) {
	ratios := make([]float64, len(with))
	for i := range with {
		ratios[i] = with[i] / without[i]
	}
	b.table = append(b.table, fmt.Sprintf("| %s | %.3g %s | %.3g %s | %.2f | %s |", name, median(without), unit, median(with), unit, median(ratios), aim))
}

func quantile[T int64 | float64](values []T, q float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(max(int(math.Ceil(q*float64(len(sorted))))-1, 0), len(sorted)-1)]
}

func median[T int64 | float64](values []T) T { return quantile(values, 0.5) }

// run runs code in a sandbox on the world's host side.
func (b *bench) run(ctx context.Context, artifact, code string, environment ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(patience.Long))
	defer cancel()
	var output, messages bytes.Buffer
	err := b.world.Do(func() error {
		cmd := exec.CommandContext(ctx, filepath.Join(artifact, "bin", "run"))
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(code), &output, &messages
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, environment...)
		return cmd.Run()
	})
	if err != nil {
		err = fmt.Errorf("%w: %s", err, messages.String())
	}
	return output.String(), err
}

// transfers compares connections and transfers from a sandbox with those from the host.
func (b *bench) transfers() {
	folder := must.Get(os.MkdirTemp("", "figures-"))(b)
	b.Cleanup(func() { os.RemoveAll(folder) })
	must.Do(b, os.Chmod(folder, 0o755))
	program := filepath.Join(folder, "probe")
	build := exec.Command("go", "build", "-o", program, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	const requests = 100
	var direct, inside []figures
	for range b.rounds {
		var text []byte
		must.Do(b, b.world.Do(func() (err error) {
			text, err = exec.Command(program, "-n", fmt.Sprint(requests), "-address", networld.CDN.String()).Output()
			return err
		}))
		output, err := b.run(b.Context(), b.networked, fmt.Sprintf("import subprocess\n_ = subprocess.run(['/project/probe', '-n', '%d'], check=True)", requests), "PROJECT_DIR="+folder)
		must.Do(b, err)
		for _, each := range []struct {
			list *[]figures
			text []byte
		}{{&direct, text}, {&inside, []byte(output)}} {
			var f figures
			must.Do(b, json.Unmarshal(each.text, &f))
			*each.list = append(*each.list, f)
		}
	}
	times := func(name, aim string, of func(figures) []int64) {
		b.row(name, "ms", over(direct, func(f figures) float64 { return float64(median(of(f))) / 1000 }),
			over(inside, func(f figures) float64 { return float64(median(of(f))) / 1000 }), aim)
	}
	rates := func(name, aim string, of func(figures) []float64) {
		b.row(name, "MB/s", over(direct, func(f figures) float64 { return median(of(f)) }),
			over(inside, func(f figures) float64 { return median(of(f)) }), aim)
	}
	times("connect to first byte, p50", "≤ 3", func(f figures) []int64 { return f.FirstByte })
	times("new HTTP GET, p50", "", func(f figures) []int64 { return f.HTTP })
	times("new HTTPS GET, p50", "≤ 1.6", func(f figures) []int64 { return f.HTTPS })
	rates("100 MB over TCP", "≥ 0.6", func(f figures) []float64 { return f.TCP })
	rates("100 MB over HTTPS", "", func(f figures) []float64 { return f.TLS })
}

func over(list []figures, of func(figures) float64) []float64 {
	var values []float64
	for _, f := range list {
		values = append(values, of(f))
	}
	return values
}

// starts compares the time of bin/run with a network and without.
func (b *bench) starts() {
	const runs = 10
	var without, with []float64
	for range b.rounds {
		for _, each := range []struct {
			list     *[]float64
			artifact string
		}{{&without, b.isolated}, {&with, b.networked}} {
			var times []float64
			for range runs {
				began := time.Now()
				_, err := b.run(b.Context(), each.artifact, "pass")
				must.Do(b, err)
				times = append(times, float64(time.Since(began).Microseconds())/1000)
			}
			*each.list = append(*each.list, median(times))
		}
	}
	b.row("bin/run from start to end, p50", "ms", without, with, fmt.Sprintf("≤ +4 ms; here %+.1f ms", median(with)-median(without)))
}

// delays fetches pages and prints the time that each took, in microseconds.
const delays = `
import socket, time
def get():
    with socket.create_connection(("files.example", 80), timeout=10) as c:
        c.sendall(b"GET /small HTTP/1.0\r\nHost: files.example\r\n\r\n")
        assert b"hello files" in c.makefile("rb").read()
get()
for _ in range(300):
    before = time.monotonic()
    get()
    print(int((time.monotonic() - before) * 1e6))
    time.sleep(0.002)
`

// flood asks for names and connects as fast as it can, and spin computes, both until they
// are ended: with as many processes.
const flood = `
import os, socket
for _ in range(3):
    if os.fork() == 0:
        break
print("ready", flush=True)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
n = 0
while True:
    n += 1
    name = f"{os.getpid()}-{n}.mute.host.example" if n % 2 else f"{n}.attacker.test"
    q = b"\x12\x34\x01\x00\x00\x01\0\0\0\0\0\0" + b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\0\0\x01\0\x01"
    try:
        sender.sendto(q, ("127.0.0.1", 53))
        c = socket.socket()
        c.settimeout(0.2)
        c.connect(("198.18.0.1", 443))
        c.send(b"x")
        c.close()
    except OSError:
        pass
`

const spin = `
import os
for _ in range(3):
    if os.fork() == 0:
        break
print("ready", flush=True)
while True:
    pass
`

// beside runs do while another sandbox runs code that first prints a line.
func (b *bench) beside(code string, do func()) {
	ctx, end := context.WithCancel(b.Context())
	reader, writer := io.Pipe()
	var running sync.WaitGroup
	running.Go(func() {
		_ = b.world.Do(func() error {
			cmd := exec.CommandContext(ctx, filepath.Join(b.networked, "bin", "run"))
			cmd.Stdin, cmd.Stdout = strings.NewReader(code), writer
			cmd.WaitDelay = time.Second
			return cmd.Run() // it is ended
		})
		writer.Close()
	})
	_, err := io.ReadFull(reader, make([]byte, len("ready\n")))
	must.Do(b, err)
	running.Go(func() { _, _ = io.Copy(io.Discard, reader) })
	do()
	end()
	running.Wait()
}

// neighbours measures a sandbox that fetches pages while another one floods its resolver
// and its ports, and while another one computes.
func (b *bench) neighbours() {
	var quiet, busy, flooded, quietMedian, floodedMedian []float64
	fetch := func(p50, p99 *[]float64) {
		output, err := b.run(b.Context(), b.networked, delays)
		must.Do(b, err)
		var times []float64
		for line := range strings.Lines(output) {
			times = append(times, must.Get(strconv.ParseFloat(strings.TrimSpace(line), 64))(b)/1000)
		}
		if p50 != nil {
			*p50 = append(*p50, median(times))
		}
		*p99 = append(*p99, quantile(times, 0.99))
	}
	for range b.rounds {
		fetch(&quietMedian, &quiet)
		b.beside(spin, func() { fetch(nil, &busy) })
		b.beside(flood, func() { fetch(&floodedMedian, &flooded) })
	}
	b.row("a neighbour's GET beside a flood, p99", "ms", quiet, flooded, "< 2")
	b.row("the same, p50", "ms", quietMedian, floodedMedian, "")
	b.row("the same, p99, over one beside processes that compute", "ms", busy, flooded, "")
}

// server compares calls of a server, and measures the memory of idle proxies.
func (b *bench) server() {
	environments := map[string]map[string]any{}
	for name, dir := range map[string]string{"world-ample": b.networked, "world-none": b.isolated} {
		var fields map[string]any
		must.Do(b, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(dir, "metadata.json")))(b), &fields))
		fields["exec"], fields["session_exec"] = filepath.Join(dir, "bin", "run"), filepath.Join(dir, "bin", "session-run")
		environments[name] = fields
	}
	home := b.TempDir()
	cmd := exec.Command(undertest.Server(b), "--stdio")
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "NIX_SANDBOX_METADATA=" + mcptest.Metadata(b, environments)}
	var client *mcptest.Client
	must.Do(b, b.world.Do(func() error {
		client = mcptest.Start(b, cmd)
		return nil
	}))
	client.Initialize(mcptest.Newest)
	call := func(env string) float64 {
		began := time.Now()
		answer := client.Run(mcptest.Arguments{Code: "print(1)", Env: env})
		taken := float64(time.Since(began).Microseconds()) / 1000
		if answer.IsError || !strings.HasPrefix(answer.Text(), "1\n") {
			b.Fatal(answer.Text())
		}
		time.Sleep(150 * time.Millisecond) // so that one sandbox waits for the next call
		return taken
	}
	var without, with []float64
	for range b.rounds {
		var a, c []float64
		for range 10 {
			a, c = append(a, call("world-none")), append(c, call("world-ample"))
		}
		without, with = append(without, median(a)), append(with, median(c))
	}
	b.row("warm call, p50", "ms", without, with, "no difference")
	const sessions = 12
	for i := range sessions {
		if answer := client.Run(mcptest.Arguments{Code: "print(1)", Env: "world-ample", Session: fmt.Sprintf("s%d", i)}); !strings.HasPrefix(answer.Text(), "1\n") {
			b.Fatal(answer.Text())
		}
	}
	var shares []float64
	for _, pid := range procfs.Descendants(client.PID()) {
		p, err := procfs.Read(pid)
		if err != nil || p.Name() != "nix-sandbox-net" {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			b.Logf("the memory of a proxy: %v", err) // where this user may not read it
			continue
		}
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "Pss:"); ok {
				var kib float64
				_, _ = fmt.Sscan(value, &kib)
				shares = append(shares, kib/1024)
			}
		}
	}
	if len(shares) > 0 {
		b.table = append(b.table, fmt.Sprintf("| memory of an idle proxy (PSS), of %d | | %.2f MiB | | ≤ 3 MB |", len(shares), median(shares)))
	}
}
