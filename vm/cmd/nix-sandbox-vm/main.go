// The command nix-sandbox-vm is the interpreter of the programs of an artifact whose
// sandboxes are virtual machines: the kernel starts it with the path of such a file.
// It starts the machine that the file describes, has it run the program of the same
// name that is in its image, and carries the standard streams. For a file that is
// called check it prints what the sandbox needs of this computer.
//
// Its exit status is that of the program in the machine, or 125 where there was none.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
)

// version is set when the program is linked.
var version = "unknown"

// exitRefused tells "no sandbox started" from every status of the code in it.
const exitRefused = 125

// QEMU ends with the thread that started it, which is the main thread.
func init() { runtime.LockOSThread() }

func main() {
	status, err := run(os.Args[1:])
	if err != nil {
		message := "nix-sandbox-vm: error: " + err.Error() + "\n"
		if hint := jail.HintOf(err); hint != "" {
			message += "nix-sandbox-vm: hint: " + hint + "\n"
		}
		_, _ = io.WriteString(os.Stderr, message) // there is nobody else to tell
		status = exitRefused
	}
	os.Exit(status)
}

func run(args []string) (status int, err error) {
	switch {
	case len(args) == 1 && args[0] == "--version":
		_, err := os.Stdout.WriteString("nix-sandbox-vm " + version + "\n")
		return 0, err
	case len(args) == 0:
		return 0, &jail.Refusal{Problem: "no sandbox was named", Hint: "run the sandbox's own bin/run"}
	case len(args) > 1:
		return 0, &jail.Refusal{
			Problem: "a sandbox takes no arguments, and was given " + args[1],
			Hint:    "write the code to its standard input",
		}
	}
	spec, err := machine.ReadSpec(args[0])
	if err != nil {
		return 0, err
	}
	memory := machine.Memory{Folder: cacheFolder()}
	program := filepath.Base(args[0])
	if program == jail.CheckName {
		return 0, jail.WriteFindings(os.Stdout, spec.Check(context.Background(), memory))
	}
	for _, variable := range []string{"PROJECT_DIR", "NIX_SANDBOX_INBOX", "NIX_SANDBOX_WORKSPACE"} {
		if os.Getenv(variable) != "" {
			return 0, &jail.Refusal{
				Problem: variable + " is set, and a sandbox in a virtual machine shows nothing of the host yet",
				Hint:    "leave it unset, or build the environment with backend = \"jail\"",
			}
		}
	}
	report, err := openReports(os.Getenv(reportsVariable))
	if err != nil {
		return 0, err
	}
	report(startReport{StartFactor: machine.Expect(memory).StartFactor()})
	if program == serveProgram {
		s, err := startServing(spec, memory, cacheFolder())
		if err != nil {
			return 0, err
		}
		defer s.Close()
		report(startReport{Isolation: s.Accelerator})
		return serve(s)
	}
	m, err := spec.Start(memory)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	report(startReport{Isolation: m.Accelerator})
	if err := m.Run(program, time.Now()); err != nil {
		return 0, err
	}
	return carry(m, false, [2]int64{})
}

// carry carries the standard streams until the program in the machine has ended, and
// returns its exit status. A machine that pauses stands still until its first call.
// taken is how much of its output and log was read before.
func carry(m *machine.Machine, pauses bool, taken [2]int64) (status int, err error) {
	var output atomic.Int64
	go func() {
		if pauses {
			_ = (&pauser{machine: m, written: &output}).carry(m.Input, os.Stdin)
		} else {
			_, _ = io.Copy(m.Input, os.Stdin)
		}
		_ = m.Input.CloseWrite() // the machine may have ended
	}()
	var (
		streams sync.WaitGroup
		written [2]int64
		wanted  [2]chan int64
	)
	for i, stream := range []struct {
		from *net.UnixConn
		to   *os.File
	}{{m.Output, os.Stdout}, {m.Log, os.Stderr}} {
		wanted[i] = make(chan int64, 1)
		count := func(int) {}
		if i == 0 {
			count = func(n int) { output.Add(int64(n)) }
		}
		streams.Go(func() { written[i] = copyAll(stream.to, stream.from, wanted[i], count) })
	}
	var exited protocol.Exited
	select {
	case exited = <-m.Exited:
	case <-m.Ended:
		// The last lines of the machine's own may be there.
		select {
		case exited = <-m.Exited:
		default:
			return 0, m.Failure()
		}
	}
	wanted[0] <- exited.Output - taken[0]
	wanted[1] <- exited.Log - taken[1]
	streams.Wait()
	if missing := exited.Output - taken[0] - written[0] + exited.Log - taken[1] - written[1]; missing != 0 {
		return 0, fmt.Errorf("of what the program in the virtual machine wrote, %d bytes are missing", missing)
	}
	return exited.Status & 0xff, nil
}

// copyAll copies a stream until it ends, or until as much has been copied as is
// wanted, which becomes known later. count is called with each part's size.
func copyAll(to *os.File, from *net.UnixConn, wanted <-chan int64, count func(int)) (written int64) {
	buffer := make([]byte, 64<<10)
	limit := int64(-1)
	end := make(chan struct{})
	defer close(end)
	var mu sync.Mutex
	go func() {
		select {
		case n := <-wanted:
			mu.Lock()
			defer mu.Unlock()
			limit = n
			if written >= n {
				_ = from.CloseRead() // ends the copy, which waits
			}
		case <-end:
		}
	}()
	for {
		n, err := from.Read(buffer)
		count(n)
		mu.Lock()
		if _, failed := to.Write(buffer[:n]); failed != nil && err == nil {
			err = failed
		}
		written += int64(n)
		done := limit >= 0 && written >= limit
		mu.Unlock()
		if err != nil || done {
			return written
		}
	}
}

// cacheFolder is where the launcher remembers what it found out about this computer;
// empty where it has no such folder.
func cacheFolder() string {
	folder, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(folder, "nix-sandbox-mcp", "vm")
}
