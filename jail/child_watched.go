package jail

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// watched is the argument of a watcher.
type watched struct {
	Spec *Spec    `json:"spec"`
	Args []string `json:"args"`
	// Files says which descriptors from 3 on are open. The one after them ends the program when its other end is
	// closed.
	Files []bool `json:"files"`
}

// StartChild starts the sandbox below a watcher: a process of this program that ends the sandbox when this process
// has ended. macOS has no signal for that, and bubblewrap asks Linux for it only late: a program whose launcher is
// killed before would stay. The caller waits for the watcher, which has the sandbox's status.
//
// If root is the caller, the sandbox runs as a user that no other sandbox has, and this
// process stays root.
func (s *Spec) StartChild(child Child) (*Confined, error) {
	launcher, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	held, hold, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer held.Close()
	stdin, null, err := child.inputs()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	w := watched{Spec: s, Args: child.Args}
	files := []*os.File{stdin, null, child.Stderr}
	for _, file := range child.Files {
		w.Files = append(w.Files, file != nil)
		files = append(files, file)
	}
	text, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	// In a process group of its own, so that a signal to this process's group does not end the watcher first.
	process, err := os.StartProcess(launcher, []string{launcher, WatchStep, string(text)}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: append(files, held), Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		hold.Close()
		return nil, err
	}
	return &Confined{process, hold}, nil
}

// Watch is a watcher: it takes the arguments after [WatchStep], and ends this process with the sandbox's status. It
// returns only if no sandbox has started.
func Watch(args []string) error {
	var w watched
	if len(args) != 1 {
		return fmt.Errorf("%s is for the launcher itself", WatchStep)
	}
	if err := bounded.JSON([]byte(args[0]), &w); err != nil {
		return fmt.Errorf("%s: %w", WatchStep, err)
	}
	runtime.LockOSThread()
	child := Child{Args: w.Args, Stdin: os.Stdin, Stderr: os.Stderr}
	next := uintptr(firstExtra)
	for _, isOpen := range w.Files {
		var file *os.File
		if isOpen {
			unix.CloseOnExec(int(next))
			file = os.NewFile(next, "")
		}
		child.Files = append(child.Files, file)
		next++
	}
	unix.CloseOnExec(int(next))
	held := os.NewFile(next, "")
	// A group of its own has the processes that it starts before it is confined.
	process, err := w.Spec.startChild(child, &syscall.SysProcAttr{Setpgid: true})
	if err != nil {
		return err
	}
	// The ends are the sandbox's alone, so that others see its end.
	for _, file := range append(child.Files, os.Stdin) {
		if file != nil {
			file.Close()
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, held)
		_ = unix.Kill(-process.Pid, unix.SIGKILL)
	}()
	state, err := process.Wait()
	if err != nil {
		return err
	}
	if state.ExitCode() < 0 {
		os.Exit(128 + int(state.Sys().(syscall.WaitStatus).Signal()))
	}
	os.Exit(state.ExitCode())
	return nil
}
