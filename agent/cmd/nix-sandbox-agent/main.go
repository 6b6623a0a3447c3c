// These settings keep the Go runtime from reading files about the processors of its control
// group. The agent waits nearly all the time.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command nix-sandbox-agent is the first process inside a sandbox. It starts the
// sandbox's interpreter, gives it code, returns its output, and reaps processes
// whose parent has ended.
//
//	nix-sandbox-agent run   [LIMITS] [--driver FOLDER | --pipe] COMMAND...
//	nix-sandbox-agent serve [LIMITS] [--driver FOLDER | --pipe] COMMAND...
//	nix-sandbox-agent exec  [LIMITS] COMMAND...
//
// run takes code from stdin; serve speaks frames on stdin and stdout; exec replaces itself
// by a command for which the kernel enforces the limits.
//
// COMMAND is an interpreter. With --driver it starts with the driver in that folder
// (package driver) and keeps its state between calls. Without, each call starts it with the
// code as its last argument or, with --pipe, on stdin.
//
// LIMITS are --memory-mb MIB and --pids N, processes and threads, for the whole sandbox.
// They require that the agent is the first process of its pid namespace, because otherwise
// the sandbox's processes could not be told from others. --layer FOLDER names an overlay
// with an upper layer in memory, which counts too. --group FD is a descriptor of a control
// group with the same limits, in which the code is started, in a virtual machine. --asks lets
// code ask the server (package asking).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/asking"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/oneshot"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/server"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/pipe"
)

// root is the workspace of every sandbox.
const root = "/workspace"

// failed is the exit status of an agent that could not do its work.
const failed = 125

// The main thread does no work. The kernel drops signals that the first process of a pid
// namespace has no handler for, but only if the main thread does not block them, and Go's
// threads that wait for signals block most (pid_namespaces(7)).
func init() { runtime.LockOSThread() }

func main() {
	go work()
	select {}
}

func work() {
	// Code has the same user and must not read the agent's memory or open its
	// descriptors.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fail(fmt.Errorf("make the agent undumpable: %w", err))
	}
	// The files of code do not depend on the server's umask.
	unix.Umask(0o022)
	// There may be hundreds of agents: they take a small heap and few threads.
	debug.SetGCPercent(25)
	runtime.GOMAXPROCS(1)
	status, err := agent(os.Args[1:])
	if err != nil {
		fail(err)
	}
	os.Exit(status)
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "nix-sandbox-agent: error: %v\n", err)
	os.Exit(failed)
}

func agent(args []string) (status int, err error) {
	const usage = "usage: nix-sandbox-agent run|serve [--memory-mb MIB] [--pids N] [--group FD] [--layer FOLDER] [--asks] [--driver FOLDER | --pipe] COMMAND..."
	if len(args) == 0 {
		return 0, fmt.Errorf("no arguments; %s", usage)
	}
	mode := args[0]
	options, command, err := parse(args[1:])
	limits := options.limits
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w; %s", err, usage)
	case mode == "exec" && len(command) > 0:
		return 0, execLimited(limits, command)
	case mode != "run" && mode != "serve":
		return 0, fmt.Errorf("unknown mode %q; %s", mode, usage)
	case len(command) == 0:
		return 0, fmt.Errorf("no command; %s", usage)
	}
	spec := interpreter.Spec{Command: command, Pipe: options.pipe, InMachine: options.group != 0, Root: workspace(), Env: os.Environ()}
	if options.driver != "" {
		if spec.Driver, err = driver.Load(options.driver); err != nil {
			return 0, err
		}
	}
	// Signals end an agent outside of a sandbox. Inside, code could send them too, and
	// the agent ends together with bubblewrap, its parent.
	signals := make(chan os.Signal, 4)
	first := os.Getpid() == 1
	if first {
		dropSignals()
		// The model is told to save files there, and seldom makes the folder first.
		_ = os.Mkdir(filepath.Join(spec.Root, "outputs"), 0o755)
	} else {
		signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	}
	if !first && limits != (limitkeeper.Limits{}) {
		// It was not started by a jail, and the code would not be confined.
		return 0, fmt.Errorf("it is process %d and not the first of a sandbox, so that it cannot enforce limits", os.Getpid())
	}
	var keeper *limitkeeper.Keeper
	var group *limitkeeper.Group
	if first && limits != (limitkeeper.Limits{}) {
		folders := []string{spec.Root, "/tmp", "/dev/shm"}
		if options.layer != "" {
			folders = append(folders, options.layer)
		}
		if keeper, err = limitkeeper.New(limits, folders...); err != nil {
			return 0, err
		}
		each := limits
		if options.group != 0 {
			if group, err = keeper.UseGroup(options.group); err != nil {
				return 0, err
			}
			// It is the only agent of a virtual machine. If that is emulated, a
			// collection takes a tenth of the first call.
			debug.SetGCPercent(100)
			// The group refuses one process too many, and reports it.
			each.Tasks = 0
		}
		spec.Limits = limitkeeper.Rlimits(each)
		if spec.Limiter, err = limiter(each); err != nil {
			return 0, err
		}
	}
	table := process.NewTable()
	if group != nil {
		table.OnStart(group.Join)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if mode == "run" {
		spec.Stdout, spec.Stderr = os.Stdout, os.Stderr
		return oneshot.Run(ctx, table, keeper, spec, os.Stdin, signals)
	}
	ended := make(chan int, 1)
	go func() {
		sig := <-signals
		ended <- 128 + int(sig.(unix.Signal))
		stop()
	}()
	// Non-blocking, so that a close ends a read, and that reads and writes are cheap.
	for _, fd := range []int{unix.Stdin, unix.Stdout} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return 0, fmt.Errorf("prepare a standard stream: %w", err)
		}
	}
	asks := ""
	if options.asks {
		asks = asking.Socket
	}
	err = server.Serve(ctx, table, server.Config{
		Spec: spec, Keeper: keeper, Asks: asks, Log: os.Stderr,
		In: pipe.New(os.NewFile(uintptr(unix.Stdin), "stdin")), Out: pipe.New(os.NewFile(uintptr(unix.Stdout), "stdout")),
	})
	select {
	case status = <-ended:
	default:
	}
	return status, err
}

// workspace returns the working directory of code: /workspace, or the agent's own outside
// of a sandbox.
func workspace() string {
	if _, err := os.Stat(root); err == nil {
		return root
	}
	dir, err := os.Getwd()
	if err != nil {
		return "/"
	}
	return dir
}
