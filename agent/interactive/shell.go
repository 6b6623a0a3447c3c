package interactive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

const (
	// shellState is what the last shell left, as commands. A shell writes it under this name and its
	// process id, and the agent puts it in place as a whole, because several shells run at once.
	shellState = "/tmp/.shell-state"
	// maxShellState bounds it, in bytes: a larger one is dropped.
	maxShellState = 1 << 20
	// maxText bounds the text of a shell, in bytes, as the kernel bounds an argument (MAX_ARG_STRLEN
	// of execve(2)).
	maxText = 128<<10 - 1
)

// shellStart is what bash reads before the text (BASH_ENV), so that the text itself runs as it does
// outside: with its own line numbers, and as "bash" in messages. Restoring names variables that are
// read-only, such as UID, and those errors are not shown. A text with a trap for EXIT of its own
// replaces this one, and the state stays as it was.
const shellStart = `exec 3<&-
unset BASH_ENV
[ ! -r ` + shellState + ` ] || . ` + shellState + ` 2>/dev/null
trap 'unset BASH_EXECUTION_STRING; { declare -p; declare -f; printf "cd -- %q\n" "$PWD"; } >|` + shellState + `.$$ 2>/dev/null' EXIT
`

// shell starts a shell that runs the text of a request, with pipes in place of a terminal.
func (v *Visits) shell(r frame.Request, s *visit, spec interpreter.Spec) (*os.File, func() int, error) {
	if len(r.Code) > maxText {
		return nil, nil, fmt.Errorf("the command has %d bytes, and may have %d: write it to a file, and run that", len(r.Code), maxText)
	}
	start := shellStart
	if r.Program.Dir != "" {
		start += "cd -- '" + strings.ReplaceAll(r.Program.Dir, "'", `'\''`) + "' || exit\n"
	}
	files, ends, err := pipes()
	if err != nil {
		return nil, nil, err
	}
	defer closeAll(files[:])
	commands, err := interpreter.Memory("start", start)
	var p *process.Process
	if err == nil {
		defer commands.Close()
		p, err = v.start(r, spec, append(files[:], commands))
	}
	if err != nil {
		closeAll(ends[:])
		return nil, nil, err
	}
	v.mu.Lock()
	s.process = p
	v.mu.Unlock()
	return nil, func() int {
		defer keepState(p.Pid)
		v.follow(r.ID, s, ends, p.Done(), func() {
			p.Signal(unix.SIGHUP)
			select {
			case <-p.Done():
			case <-time.After(hangupTime):
				p.Signal(unix.SIGKILL)
			}
		})
		return p.ExitCode()
	}, nil
}

// pipes makes the input and the outputs of a program, and the agent's ends of them.
func pipes() (files, ends [3]*os.File, err error) {
	var errs [3]error
	files[0], ends[0], errs[0] = os.Pipe()
	ends[1], files[1], errs[1] = os.Pipe()
	ends[2], files[2], errs[2] = os.Pipe()
	if err = errors.Join(errs[:]...); err != nil {
		closeAll(files[:])
		closeAll(ends[:])
	}
	return files, ends, err
}

// closeAll closes files, of which some may be nil.
func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// start starts the shell in a directory that is there.
func (v *Visits) start(r frame.Request, spec interpreter.Spec, files []*os.File) (*process.Process, error) {
	path, args, err := program(spec, false)
	if err != nil {
		return nil, err
	}
	args = append(args, "-c", r.Code, "bash") // as messages call it
	if len(spec.Limiter) > 0 {
		args[0] = path
		path, args = spec.Limiter[0], append(append([]string{}, spec.Limiter...), args...)
	}
	dir := r.Program.Start
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		dir = spec.Root
	}
	env := set(set(spec.Env, "BASH_ENV", "/proc/self/fd/3"), "PWD", dir)
	return v.table.Start(process.Command{Path: path, Args: args, Env: env, Dir: dir, Files: files})
}

// follow carries the streams of a program until it has ended. If the other end goes before, it calls hangUp, which ends
// the program. Programs that it leaves behind may have its pipes open, and go on.
func (v *Visits) follow(id uint64, s *visit, ends [3]*os.File, ended <-chan struct{}, hangUp func()) {
	var shown sync.WaitGroup
	for i, name := range []string{frame.Stdout, frame.Stderr} {
		shown.Go(func() { v.copy(id, s, ends[i+1], name) })
	}
	go func() {
		v.feed(id, s, ends[0])
		ends[0].Close()
	}()
	all := make(chan struct{})
	go func() {
		shown.Wait()
		close(all)
	}()
	select {
	case <-ended:
		s.awaitOutput(all, ends[1:]...)
	case <-s.closed:
		hangUp()
		<-ended
	}
	closeAll(ends[:])
}

// keepState puts what a shell left in place, for the next one.
func keepState(pid int) {
	left := fmt.Sprintf("%s.%d", shellState, pid)
	info, err := os.Lstat(left)
	switch {
	case err != nil:
	case info.Mode().IsRegular() && info.Size() <= maxShellState:
		_ = os.Rename(left, shellState)
	default:
		_ = os.RemoveAll(filepath.Clean(left))
	}
}
