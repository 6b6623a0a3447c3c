package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// loops are the least that an interpreter needs to run code again and again:
// the code's length in decimal and a line's end, the code; the code's output
// and a zero byte.
var loops = map[string][]string{
	"python": {"-c", `
import sys, io
source, sink, space = sys.stdin.buffer, sys.stdout, {}
while line := source.readline():
    sys.stdout = io.StringIO()
    exec(source.read(int(line)), space)
    sink.write(sys.stdout.getvalue())
    sink.write("\0")
    sink.flush()
`},
	"bash": {"-c", `
while read -r length; do
  IFS= read -r -N "$length" code
  eval "$code"
  printf '\0'
done
`},
	"node": {"-e", `
const fs = require('fs'), vm = require('vm');
let held = Buffer.alloc(0);
function more() {
  const chunk = Buffer.alloc(1 << 16), n = fs.readSync(0, chunk);
  if (n === 0) process.exit(0);
  held = Buffer.concat([held, chunk.subarray(0, n)]);
}
for (;;) {
  let end;
  while ((end = held.indexOf(10)) < 0) more();
  const length = Number(held.subarray(0, end));
  while (held.length < end + 1 + length) more();
  vm.runInThisContext(held.subarray(end + 1, end + 1 + length).toString());
  held = held.subarray(end + 1 + length);
  fs.writeSync(1, '\0');
}
`},
}

// A piped call goes to an interpreter that runs already, over nothing but a
// pair of pipes.
type piped struct {
	name string
	argv []string
	env  []string
	code string
	want string
	cmd  *exec.Cmd
	cost meter
	in   io.WriteCloser
	out  *bufio.Reader
}

// floor is the interpreter of an artifact in a minimal jail, which is the lower
// bound for the time of a session's call.
func floor(a artifact, code, want string) *piped {
	argv := append(a.minimal(), programs[a.language])
	return &piped{name: pipeName, argv: append(argv, loops[a.language]...), code: code, want: want}
}

// bare is the interpreter without a jail.
func bare(a artifact, env []string, code, want string) *piped {
	argv := append([]string{a.interpreter}, loops[a.language]...)
	return &piped{name: "bare interpreter, over a pipe", argv: argv, env: env, code: code, want: want}
}

func (c *piped) Name() string { return c.name }

func (c *piped) Prepare(ctx context.Context) (err error) {
	c.cmd = exec.Command(c.argv[0], c.argv[1:]...)
	c.cmd.Env = c.env
	if c.cmd.Env == nil {
		c.cmd.Env = []string{} // nil would be ours
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	c.out = bufio.NewReaderSize(out, 1<<20)
	if err := c.cmd.Start(); err != nil {
		return err
	}
	c.cost.begin(c.cmd.Process.Pid)
	return nil
}

func (c *piped) Call(ctx context.Context) (time.Duration, error) {
	stop := context.AfterFunc(ctx, func() { kill(c.cmd.Process.Pid, "") })
	defer stop()
	request := []byte(strconv.Itoa(len(c.code)) + "\n" + c.code)
	began := time.Now()
	if _, err := c.in.Write(request); err != nil {
		return 0, fmt.Errorf("write to the interpreter: %w", err)
	}
	reply, err := c.out.ReadString(0)
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("read from the interpreter: %w", err)
	}
	if got := strings.TrimSpace(strings.TrimSuffix(reply, "\x00")); got != c.want {
		return 0, fmt.Errorf("the interpreter answered %s in place of %s", brief(got), brief(c.want))
	}
	c.cost.calls.Add(1)
	return took, nil
}

func (c *piped) CPU(context.Context) (time.Duration, error) { return c.cost.mean(), nil }

func (c *piped) Memory(ctx context.Context) (int64, error) {
	return procfs.Memory(tree(c.cmd.Process.Pid, "")...)
}

func (c *piped) Close() error {
	if c.cmd == nil || c.cmd.Process == nil {
		return nil
	}
	c.in.Close()
	end := time.AfterFunc(callLimit, func() { kill(c.cmd.Process.Pid, "") })
	defer end.Stop()
	return c.cmd.Wait()
}
