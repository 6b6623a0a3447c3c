// Package interpreter keeps one interpreter running, with its driver, and runs code in it.
//
// An [Interpreter] reports and does not decide: replies of the driver and the end of the
// process arrive on channels, and the owner acts on them. The end of the process is known
// from its status, never from the end of a pipe, because a child may keep that open.
package interpreter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/script"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/pipe"
)

// maxArgument is the longest argument that the kernel lets a program have, in
// bytes: MAX_ARG_STRLEN of include/uapi/linux/binfmts.h less the final zero.
const maxArgument = 128<<10 - 1

// ErrCode reports code that the interpreter cannot take at all.
var ErrCode = errors.New("code cannot be run")

// Spec says which interpreter to run and how.
type Spec struct {
	// Driver runs code in an interpreter that stays. If it is nil, each call starts
	// Command with the code.
	Driver  *driver.Driver
	Command []string // the interpreter's program and its own arguments
	Pipe    bool     // without a driver: Command reads its code from stdin, not from its last argument
	Root    string   // the workspace, which is the working directory
	Env     []string
	Null    *os.File // stdin
	Stdout  *os.File
	Stderr  *os.File
	// Limits apply to an interpreter with a driver before it runs code. A command runs
	// code at once, so Limiter is the command line that starts it under these limits.
	Limits  []limitkeeper.Rlimit
	Limiter []string
	// Beside says that killing the interpreter leaves other programs alone.
	Beside bool
	// InMachine says that the sandbox is in a virtual machine, which may be emulated.
	InMachine bool
}

// loadTimeout and machineLoadTimeout are how long an interpreter may take to load its driver.
const (
	loadTimeout        = 15 * time.Second
	machineLoadTimeout = 6 * time.Minute
)

// LoadTimeout is how long this interpreter may take to load its driver.
func (s *Spec) LoadTimeout() time.Duration {
	if s.InMachine {
		return machineLoadTimeout
	}
	return loadTimeout
}

// Sessions reports whether the interpreter can keep state.
func (s *Spec) Sessions() bool { return s.Driver != nil }

// path finds the interpreter's program.
func (s *Spec) path() (string, error) {
	path, err := exec.LookPath(s.Command[0])
	if err != nil {
		return "", fmt.Errorf("interpreter %s: %w", s.Command[0], err)
	}
	return path, nil
}

// RunCommand starts an interpreter without a driver. The end of its process is
// the answer.
func RunCommand(table *process.Table, s *Spec, code string) (*process.Process, error) {
	path, err := s.path()
	if err != nil {
		return nil, err
	}
	arguments := slices.Clone(s.Command)
	stdin := s.Null
	if s.Pipe {
		file, err := Memory("code", code)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		stdin = file
	} else {
		switch {
		case len(code) > maxArgument:
			return nil, fmt.Errorf("%w: it has %d bytes and this environment takes at most %d; write it to a file in parts", ErrCode, len(code), maxArgument)
		case strings.IndexByte(code, 0) >= 0:
			return nil, fmt.Errorf("%w: it contains a NUL byte; remove it", ErrCode)
		}
		arguments = append(arguments, code)
	}
	return runProgram(table, s, path, arguments, stdin)
}

// runProgram starts a program under the limits of the sandbox.
func runProgram(table *process.Table, s *Spec, path string, arguments []string, stdin *os.File) (*process.Process, error) {
	if len(s.Limiter) > 0 {
		arguments[0] = path
		path, arguments = s.Limiter[0], slices.Concat(s.Limiter, arguments)
	}
	return table.Start(process.Command{
		Path: path, Args: arguments, Env: s.Env, Dir: s.Root, Beside: s.Beside,
		Files: []*os.File{stdin, s.Stdout, s.Stderr},
	})
}

// Script is code with a first line that names another interpreter of the sandbox. It runs
// as a program, without a driver, and keeps no state.
type Script struct {
	spec    *Spec
	path    string   // of the program
	command []string // as the code names it
	code    string
	file    string // with the code, while it runs
}

// Script returns code as a script, or nil if it is for the interpreter of the specification
// because its first line names that interpreter, none, or one that the sandbox lacks.
func (s *Spec) Script(code string) *Script {
	words := script.Interpreter(code)
	if words == nil || isSame(words[0], filepath.Base(s.Command[0])) {
		return nil
	}
	path, err := exec.LookPath(words[0])
	if err != nil {
		return nil
	}
	return &Script{spec: s, path: path, command: words, code: code}
}

// isSame reports whether two names mean the same interpreter, in any version.
func isSame(a, b string) bool {
	plain := func(name string) string {
		if name = strings.TrimRight(name, "0123456789."); name == "sh" {
			return "bash"
		}
		return name
	}
	return plain(a) == plain(b)
}

// Run starts the script. The end of its process is the answer. Close must be called after
// it.
func (s *Script) Run(table *process.Table) (*process.Process, error) {
	folder := os.TempDir()
	if info, err := os.Stat("/tmp"); err == nil && info.IsDir() {
		folder = "/tmp" // not the workspace, where the file would be in the way
	}
	file, err := os.CreateTemp(folder, "code-")
	if err != nil {
		return nil, fmt.Errorf("make a file for the code: %w", err)
	}
	s.file = file.Name()
	_, err = file.WriteString(s.code)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("write the code to a file: %w", err)
	}
	return runProgram(table, s.spec, s.path, append(slices.Clone(s.command), s.file), s.spec.Null)
}

// Close removes the script's file.
func (s *Script) Close() {
	if s.file != "" {
		_ = os.Remove(s.file)
	}
}

// Interpreter is a running interpreter with its driver.
type Interpreter struct {
	*process.Process
	driver      *driver.Driver
	control     *os.File
	channel     io.ReadWriter // of control
	code        *os.File
	state       *os.File
	replies     chan Reply
	closed      chan struct{}
	interrupted bool // the previous call was interrupted
	// Fed says that the owner has given it another stdin than at its start.
	Fed bool
}

// Reply is a driver's reply, or the reason why it is none.
type Reply struct {
	driver.Reply
	Err error
}

// Start starts an interpreter with its driver, which the specification must have. state is
// the state of an earlier interpreter, or nil. The Interpreter owns it from now on.
func Start(table *process.Table, s *Spec, state *os.File) (_ *Interpreter, err error) {
	path, err := s.path()
	if err != nil {
		return nil, err
	}
	d := s.Driver
	i := &Interpreter{driver: d, replies: make(chan Reply), closed: make(chan struct{}), state: state}
	defer func() {
		if err != nil {
			i.closeFiles()
		}
	}()
	if i.state == nil {
		if i.state, err = Memory("state", ""); err != nil {
			return nil, err
		}
	}
	if _, err = i.state.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if i.code, err = Memory("code", ""); err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a control channel: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "control")
	defer theirs.Close()
	_ = unix.SetNonblock(pair[0], true)
	i.control = os.NewFile(uintptr(pair[0]), "control")
	i.channel = pipe.New(i.control)

	files := make([]*os.File, d.Control+3)
	files[0], files[1], files[2] = s.Null, s.Stdout, s.Stderr
	files[d.Control], files[d.Control+1], files[d.Control+2] = theirs, i.code, i.state
	i.Process, err = table.Start(process.Command{
		Path: path, Args: slices.Concat(s.Command, d.Arguments, []string{d.Program}),
		Env: s.Env, Dir: s.Root, Files: files, Beside: s.Beside,
	})
	if err != nil {
		return nil, err
	}
	// An interpreter that has ended already is reported by its end.
	if err = limitkeeper.Apply(i.Pid, s.Limits); err != nil && !errors.Is(err, unix.ESRCH) {
		i.Kill()
		return nil, err
	}
	go i.read()
	return i, nil
}

// Memory returns an unnamed file (O_TMPFILE) that contains text, positioned at its
// beginning. It is in a file system with a size, so that it counts towards a limit if code
// adds to it. A memfd would not, and the jail refuses memfd_create(2). Several file systems
// are tried because code may have filled one.
func Memory(name, text string) (*os.File, error) {
	var errs []error
	for _, folder := range []string{"/dev/shm", "/tmp", os.TempDir()} {
		f, err := unnamed(folder, name, text)
		if err == nil {
			return f, nil
		}
		errs = append(errs, fmt.Errorf("make a file in %s: %w", folder, err))
	}
	return nil, errors.Join(errs...)
}

func unnamed(folder, name, text string) (*os.File, error) {
	fd, err := unix.Open(folder, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err = f.WriteString(text); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// read reads the control channel until either end is closed or a line is no reply.
func (i *Interpreter) read() {
	defer close(i.replies)
	send := func(r Reply) bool {
		select {
		case i.replies <- r:
			return r.Err == nil
		case <-i.closed:
			return false
		}
	}
	lines := bufio.NewReaderSize(i.channel, driver.MaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
		// The beginning of a line that is too long is refused.
		r, err := driver.ParseReply(strings.TrimSuffix(string(line), "\n"))
		if !send(Reply{r, err}) {
			return
		}
	}
}

// Replies carries the driver's replies. It is closed when no further reply can
// come; the process may still run.
func (i *Interpreter) Replies() <-chan Reply { return i.replies }

// Finish ends the control channel: Replies carries the lines written until now and is then
// closed. The agent closes its own end, because a child may keep the other end open after
// its interpreter has ended.
func (i *Interpreter) Finish() {
	raw, err := i.control.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
}

// Interrupted records that a signal was sent to the running call, for the next call.
func (i *Interpreter) Interrupted() { i.interrupted = true }

// Run gives code to the driver and returns the nonce of its reply. With last set there is
// no reply: the process ends with the code.
func (i *Interpreter) Run(code string, number uint64, last bool) (uint64, error) {
	if i.driver.RefusesNUL && strings.IndexByte(code, 0) >= 0 {
		return 0, fmt.Errorf("%w: it contains a NUL byte; remove it", ErrCode)
	}
	// A driver may read the code by position, as many bytes as the call says, or
	// from the file's offset to its end.
	for _, f := range []*os.File{i.code, i.state} {
		if err := empty(f); err != nil {
			return 0, fmt.Errorf("empty the %s file: %w", f.Name(), err)
		}
	}
	if err := fill(i.code, code); err != nil {
		return 0, fmt.Errorf("write %d bytes of code: %w", len(code), err)
	}
	nonce := rand.Uint64()
	line := driver.Call{Nonce: nonce, Last: last, Late: i.interrupted, Number: number, Size: len(code)}.Line()
	i.interrupted = false
	// The line fits into any socket's buffer: this cannot block.
	if _, err := io.WriteString(i.channel, line); err != nil {
		return 0, fmt.Errorf("write to the driver: %w", err)
	}
	return nonce, nil
}

// shortCode is the largest code, in bytes, that is written without telling Go's scheduler.
const shortCode = 64 << 10

// empty removes the contents of a file in memory, and goes to its beginning. As in [pipe], Go's scheduler is
// not told of these short system calls.
func empty(f *os.File) error {
	_, _, errno := unix.RawSyscall(unix.SYS_FTRUNCATE, f.Fd(), 0, 0)
	if errno == 0 {
		_, _, errno = unix.RawSyscall(unix.SYS_LSEEK, f.Fd(), 0, io.SeekStart)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// fill writes text to an empty file in memory.
func fill(f *os.File, text string) error {
	if 0 < len(text) && len(text) <= shortCode {
		n, _, errno := unix.RawSyscall6(unix.SYS_PWRITE64, f.Fd(), uintptr(unsafe.Pointer(unsafe.StringData(text))), uintptr(len(text)), 0, 0, 0)
		if errno == 0 && int(n) == len(text) {
			return nil
		}
	}
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// Close closes the agent's files of an interpreter that has ended or is about to be
// killed. It returns the file with the interpreter's state, which the caller owns.
func (i *Interpreter) Close() (state *os.File) {
	close(i.closed)
	state, i.state = i.state, nil
	i.closeFiles()
	return state
}

func (i *Interpreter) closeFiles() {
	for _, f := range []*os.File{i.control, i.code, i.state} {
		if f != nil {
			f.Close()
		}
	}
}

// Blocking makes writes to a pipe block again. The flag belongs to the open file
// description, which programs share, and some of them change it.
func Blocking(f *os.File) {
	fd := f.Fd()
	if flags, _, errno := unix.RawSyscall(unix.SYS_FCNTL, fd, unix.F_GETFL, 0); errno == 0 && flags&unix.O_NONBLOCK != 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_FCNTL, fd, unix.F_SETFL, flags&^unix.O_NONBLOCK)
	}
}
