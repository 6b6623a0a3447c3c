package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// A command is a contender that starts a process for each call, and is
// answered when it has ended.
type command struct {
	name string
	// argv is the command for a given code; where it takes the code on
	// standard input, stdin says so.
	argv  func(code string) []string
	stdin bool
	env   []string
	code  string
	want  string // the output, without the white space around it
	hold  string // code that prints a line and then stays for a second
	// prepare and clean are optional.
	prepare func(ctx context.Context) error
	clean   func() error
}

func (c *command) Name() string { return c.name }

func (c *command) Prepare(ctx context.Context) error {
	if c.prepare == nil {
		return nil
	}
	return c.prepare(ctx)
}

func (c *command) Close() error {
	if c.clean == nil {
		return nil
	}
	return c.clean()
}

// samples is the number of calls that the processor time is a mean of.
const samples = 5

// CPU makes calls under [reap]: a jail's first process may outlive the one
// that started it, and nobody else would wait for it.
func (c *command) CPU(ctx context.Context) (time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	under := *c
	under.argv = func(code string) []string {
		return append([]string{self, reapVerb}, c.argv(code)...)
	}
	var sum time.Duration
	for range samples {
		spent, err := under.cost(ctx)
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum / samples, nil
}

// cost is the processor time of one call under [reap], as that reports it.
func (c *command) cost(ctx context.Context) (time.Duration, error) {
	cmd, _ := c.start(ctx, c.code)
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer read.Close()
	cmd.Env = append(cmd.Env, reportVariable+"=3")
	cmd.ExtraFiles = []*os.File{write}
	err = cmd.Run()
	write.Close()
	if err != nil {
		return 0, fmt.Errorf("processor time: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(read, 64))
	if err != nil {
		return 0, err
	}
	return time.ParseDuration(string(text))
}

// marks numbers the commands that were started.
var marks atomic.Int64

// start returns the command for code, ready to start, and its mark. A
// cancelled context ends everything that it started.
func (c *command) start(ctx context.Context, code string) (*exec.Cmd, string) {
	argv := c.argv(code)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	mark := fmt.Sprintf("%d-%d", os.Getpid(), marks.Add(1))
	cmd.Env = append([]string{markVariable + "=" + mark}, c.env...)
	if c.stdin {
		cmd.Stdin = strings.NewReader(code)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		kill(cmd.Process.Pid, mark)
		return nil
	}
	cmd.WaitDelay = callLimit // where many run, their ends wait too
	return cmd, mark
}

func (c *command) Call(ctx context.Context) (time.Duration, error) {
	cmd, _ := c.start(ctx, c.code)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if ctx.Err() != nil {
		return 0, fmt.Errorf("gave no answer in %v", took.Round(time.Millisecond))
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", cmd.Args[0], err, brief(stderr.String()))
	}
	if got := strings.TrimSpace(stdout.String()); got != c.want {
		return 0, fmt.Errorf("%s: answered %s in place of %s: %s", cmd.Args[0], brief(got), brief(c.want), brief(stderr.String()))
	}
	return took, nil
}

// Memory measures the memory of a call that runs the workload's hold.
func (c *command) Memory(ctx context.Context) (int64, error) {
	cmd, mark := c.start(ctx, c.hold)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	lines := bufio.NewReader(out)
	_, lineErr := lines.ReadString('\n')
	bytes, err := procfs.Memory(tree(cmd.Process.Pid, mark)...)
	io.Copy(io.Discard, lines)
	if waitErr := cmd.Wait(); waitErr != nil {
		return 0, fmt.Errorf("weigh: %w", waitErr)
	}
	if lineErr != nil {
		return 0, fmt.Errorf("weigh: %w", lineErr)
	}
	return bytes, err
}

// brief shortens a program's output to what fits into a table.
func brief(s string) string {
	const limit = 160
	lines := strings.Split(strings.TrimSpace(s), "\n")
	s = lines[len(lines)-1]
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strconv.Quote(s)
}
