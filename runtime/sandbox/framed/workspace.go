package framed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// workspaceProgram is the program of an artifact that makes a workspace for several sandboxes: its
// standard input is a socket, and it answers each message on that with a descriptor for the start
// of a sandbox. If the project is an overlay, the program has that too, and two further descriptors
// come: for the start, and of the upper layer.
const workspaceProgram = "workspace"

// These variables tell the program of a sandbox the numbers of the descriptors for its start.
const (
	workspaceVariable = "NIX_SANDBOX_WORKSPACE"
	overlayVariable   = "NIX_SANDBOX_OVERLAY"
)

// holderLimits are the limits of the program. The files in the workspace count in the sandboxes
// that write them.
var holderLimits = cgroup.Limits{Memory: 64 << 20, Tasks: 32}

// Workspace implements [sandbox.Workspaces].
func (l *Starter) Workspace(ctx context.Context, spec sandbox.Spec) (sandbox.Workspace, error) {
	program := filepath.Join(filepath.Dir(spec.Exec), workspaceProgram)
	if unix.Access(program, unix.X_OK) != nil {
		return nil, nil
	}
	ours, theirs, err := socketpair(unix.SOCK_SEQPACKET, "workspace")
	if err != nil {
		return nil, &sandbox.DeadError{Reason: err.Error()}
	}
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, &sandbox.DeadError{Reason: err.Error()}
	}
	logged, log, err := os.Pipe()
	if err != nil {
		conn.Close()
		return nil, &sandbox.DeadError{Reason: err.Error()}
	}
	defer log.Close()
	w := &workspace{conn: conn.(*net.UnixConn), timeout: l.startTimeout, done: make(chan struct{}), ended: make(chan struct{})}
	cmd := exec.Command(program)
	cmd.Stdin, cmd.Stderr = theirs, log
	cmd.Env = append(sandbox.Environ(nil), spec.Host.Environ()...)
	if err := l.run(w, cmd, l.owner(spec.Principal), logged, l.log.With("env", spec.Name)); err != nil {
		conn.Close()
		logged.Close()
		return nil, err
	}
	// The holder makes the workspace for the first mount, so that its errors are not mistaken for
	// errors of a sandbox.
	mounts, err := w.mounts(ctx)
	if err == nil && spec.Host.Project.IsOverlay() && len(mounts) < 3 {
		err = &sandbox.DeadError{Reason: fmt.Sprintf("environment %q cannot share a project: build it again", spec.Name)}
	}
	closeAll(mounts)
	if err != nil {
		w.Close()
		<-w.ended
		return nil, err
	}
	return w, nil
}

// socketpair makes a Unix socket of a kind for a program that is about to start. The
// caller owns both ends; its own has deadlines.
func socketpair(kind int, name string) (ours, theirs *os.File, err error) {
	ends, err := host.Pair(kind)
	if err == nil {
		err = unix.SetNonblock(ends[0], true)
	}
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(ends[0]), name), os.NewFile(uintptr(ends[1]), name), nil
}

// join gives the workspace of a spec to the program of a sandbox. The caller closes
// the files when the program has started.
func (l *Starter) join(ctx context.Context, cmd *exec.Cmd, spec sandbox.Spec) ([]*os.File, error) {
	if unix.Access(filepath.Join(filepath.Dir(spec.Exec), workspaceProgram), unix.X_OK) != nil {
		return nil, &sandbox.DeadError{Reason: fmt.Sprintf("environment %q cannot share files with other environments: use a session of its own", spec.Name)}
	}
	// An exchange that is broken off ends the workspace, and the others' files.
	mounts, err := spec.Workspace.(*workspace).mounts(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	pass(cmd, mounts[0], workspaceVariable)
	if len(mounts) > 1 {
		pass(cmd, mounts[1], overlayVariable)
		// A launcher that knows no shared layer refuses this.
		cmd.Env = append(cmd.Env, "PROJECT_MODE=shared")
	}
	return mounts, nil
}

// run starts the program of a workspace, and the goroutine that owns it. The reading
// end of its log is then the goroutine's.
func (l *Starter) run(w *workspace, cmd *exec.Cmd, owner cgroup.Owner, logged *os.File, log *slog.Logger) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return sandbox.ErrClosed
	}
	if w.process, err = l.processes.Start(cmd, holderLimits, owner); err != nil {
		return startError(err)
	}
	l.workspaces[w] = struct{}{}
	l.running.Go(func() {
		var reading sync.WaitGroup
		reading.Go(func() {
			defer guard.Recover(func(error) { w.Close() })
			if !w.log.follow(logged, log) {
				w.Close()
			}
		})
		_ = w.process.Wait()
		logged.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		reading.Wait()
		logged.Close()
		close(w.done)
		w.Close()
		if err := w.process.Close(); err != nil {
			l.log.Error("a control group is left behind", "error", err)
		}
		l.mu.Lock()
		delete(l.workspaces, w)
		l.mu.Unlock()
		close(w.ended)
	})
	return nil
}

// workspace is the holder of a workspace. The workspace lives as long as it, or as a
// sandbox that has it.
type workspace struct {
	process *process.Process
	timeout time.Duration
	log     logTail
	done    chan struct{} // closed when the holder has ended
	ended   chan struct{} // closed when nothing of it is left

	mu   sync.Mutex // of one exchange
	conn *net.UnixConn
}

// mounts returns descriptors for the start of a sandbox, and that of the upper layer if there is
// one. The caller closes them.
func (w *workspace) mounts(ctx context.Context) ([]*os.File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn.SetDeadline(time.Now().Add(w.timeout))
	defer context.AfterFunc(ctx, func() { w.conn.SetDeadline(time.Now()) })()
	files, err := w.exchange(handOut)
	switch {
	case err == nil:
		return files, nil
	case ctx.Err() != nil:
		// The answer may come later, and would be taken for the next one's.
		w.Close()
		return nil, ctx.Err()
	}
	w.Close()
	<-w.done
	return nil, &sandbox.DeadError{Reason: fmt.Sprintf("the files of the session cannot be shared: %v", err), Log: w.log.String()}
}

// Messages to the holder: it answers them with descriptors, or when the overlay has forgotten what it
// knew of names.
const (
	handOut = 1
	refresh = 2
)

// exchange asks for descriptors, which come with the answer to handOut.
func (w *workspace) exchange(what byte) ([]*os.File, error) {
	if _, err := w.conn.Write([]byte{what}); err != nil {
		return nil, err
	}
	message, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(3*4))
	_, n, flags, _, err := w.conn.ReadMsgUnix(message, rights)
	if err != nil {
		return nil, err
	}
	if what == refresh && n == 0 {
		return nil, nil
	}
	return received(rights[:n], flags, "workspace")
}

// received returns the descriptors that came with a message.
func received(rights []byte, flags int, name string) (files []*os.File, err error) {
	if len(rights) == 0 || flags&unix.MSG_CTRUNC != 0 {
		return nil, errors.New("no descriptor came")
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("%d control messages came: %w", len(messages), err)
	}
	numbers, err := unix.ParseUnixRights(&messages[0])
	if err == nil && len(numbers) == 0 {
		err = errors.New("no descriptor came")
	}
	for _, fd := range numbers {
		unix.CloseOnExec(fd)
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files, err
}

// Upper implements [sandbox.Layered].
func (w *workspace) Upper() *os.File {
	files, err := w.mounts(context.Background())
	if err != nil || len(files) < 3 {
		closeAll(files)
		return nil
	}
	closeAll(files[:2])
	return files[2]
}

// Refresh implements [sandbox.Layered].
func (w *workspace) Refresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn.SetDeadline(time.Now().Add(w.timeout))
	files, err := w.exchange(refresh)
	if closeAll(files); err != nil {
		w.Close() // an answer that comes later would be taken for the next one's
	}
}

// Close implements [sandbox.Workspace].
func (w *workspace) Close() {
	w.conn.Close()
	w.process.Kill()
}

// Done implements [sandbox.Workspace].
func (w *workspace) Done() <-chan struct{} { return w.done }
