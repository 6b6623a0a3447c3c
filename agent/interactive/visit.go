package interactive

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

const (
	// lastOutput is how long others that have the output of a program open may add to it when that has ended.
	lastOutput = 200 * time.Millisecond
	// maxDrained bounds the bytes that are read after that: as many as a pipe has at most (pipe(7)).
	maxDrained = 1 << 20
	// hangupTime is how long a program may go on after its terminal has gone.
	hangupTime = time.Second
	// maxSignal is more than the number of any signal.
	maxSignal = 65
)

// Visits are the user's ways into a sandbox beside its calls: terminals with a program, shells that
// run a text, and connections to ports of its loopback. They never lead out: the agent connects, and only when it
// is asked.
//
// Each direction of a stream has a window: the receiver grants more when it has passed bytes on, so
// neither end keeps more for a slow reader.
type Visits struct {
	table *process.Table
	write func(...any) error

	mu   sync.Mutex
	spec interpreter.Spec
	open map[uint64]*visit
}

// NewVisits returns a Visits without any. It answers with write.
func NewVisits(table *process.Table, spec interpreter.Spec, write func(...any) error) *Visits {
	return &Visits{table: table, write: write, spec: spec, open: map[uint64]*visit{}}
}

// SetEnv sets the variables of programs that start later.
func (v *Visits) SetEnv(env []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.spec.Env = env
}

// visit is one stream.
type visit struct {
	wake, credit chan struct{} // more of waiting, and of granted
	closed       chan struct{}
	once         sync.Once
	over         chan struct{} // closed some time after the program has ended
	drained      atomic.Int64  // bytes of output since then

	out    sync.Mutex // orders what is sent
	isOver bool       // the other end has been told of the end, and takes no more

	// mu of Visits guards these.
	file    *os.File
	process *process.Process // of a shell that runs a text
	signals chan os.Signal   // to code
	waiting []byte           // input that the program has not taken
	ended   bool             // no more input comes
	window  int              // how much input may still come
	granted int              // how much output the other end takes
}

func signal(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// end ends a stream at once.
func (s *visit) end() { s.once.Do(func() { close(s.closed) }) }

// send sends a frame of a stream, if the other end still takes some.
func (v *Visits) send(s *visit, r frame.Reply) error {
	s.out.Lock()
	defer s.out.Unlock()
	if s.isOver {
		return io.ErrClosedPipe
	}
	s.isOver = r.Type == frame.Closed
	return v.write(r)
}

// Request takes a request about a stream. It does not wait.
func (v *Visits) Request(r frame.Request) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.open[r.ID]
	if r.Type == frame.Open {
		if s != nil || len(v.open) >= frame.MaxStreams || r.Terminal == nil && r.Port == 0 && r.Program == nil {
			return fmt.Errorf("stream %d cannot be opened beside %d others", r.ID, len(v.open))
		}
		s = &visit{wake: make(chan struct{}, 1), credit: make(chan struct{}, 1), closed: make(chan struct{}), over: make(chan struct{}), window: frame.Window, granted: frame.Window}
		v.open[r.ID] = s
		go v.run(r, s, v.spec)
		return nil
	}
	if s == nil {
		return nil // it has just ended
	}
	switch r.Type {
	case frame.Input:
		if s.window -= len(r.Contents); s.window < 0 {
			s.end()
			return nil
		}
		s.waiting = append(s.waiting, r.Contents...)
		s.ended = s.ended || len(r.Contents) == 0
		signal(s.wake)
	case frame.Credit:
		s.granted += int(r.Length)
		signal(s.credit)
	case frame.Resize:
		if r.Terminal != nil && s.file != nil {
			_ = resize(s.file, *r.Terminal)
		}
	case frame.Signal:
		if r.Length <= 0 || r.Length >= maxSignal {
			return nil
		}
		if s.process != nil {
			s.process.Signal(unix.Signal(r.Length))
		}
		select {
		case s.signals <- unix.Signal(r.Length):
		default: // it is no code, or an earlier one has not been passed on yet
		}
	case frame.Close:
		s.end()
	}
	return nil
}

// Close ends all streams.
func (v *Visits) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.open {
		s.end()
	}
}

// run opens a stream, and answers it up to its end.
func (v *Visits) run(r frame.Request, s *visit, spec interpreter.Spec) {
	last := frame.Reply{Type: frame.Closed, ID: r.ID}
	begin := v.connect
	switch {
	case r.Terminal != nil:
		begin = v.terminal
	case r.Program != nil && r.Program.Interpreter:
		begin = v.code
	case r.Program != nil:
		begin = v.shell
	}
	file, wait, err := begin(r, s, spec)
	if err == nil {
		v.mu.Lock()
		s.file = file
		v.mu.Unlock()
		_ = v.send(s, frame.Reply{Type: frame.Opened, ID: r.ID})
		last.ExitCode = wait()
		s.end()
		file.Close()
	} else {
		last.Message = err.Error()
	}
	v.mu.Lock()
	s.file, s.process, s.signals = nil, nil, nil
	delete(v.open, r.ID)
	v.mu.Unlock()
	_ = v.send(s, last)
}

// connect opens a connection to a port of the sandbox's own loopback.
func (v *Visits) connect(r frame.Request, s *visit, _ interpreter.Spec) (*os.File, func() int, error) {
	file, err := dial(r.Port)
	if err != nil {
		return nil, nil, err
	}
	return file, func() int {
		var both sync.WaitGroup
		both.Go(func() {
			v.feed(r.ID, s, file)
			raw, err := file.SyscallConn()
			if err == nil {
				_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
			}
		})
		both.Go(func() {
			v.copy(r.ID, s, file, "")
			_ = v.send(s, frame.Reply{Type: frame.Bytes, ID: r.ID}) // its end
		})
		done := make(chan struct{})
		go func() {
			both.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-s.closed:
			file.Close()
			<-done
		}
		return 0
	}, nil
}

// terminal starts a shell, or the interpreter, on a terminal of its own.
func (v *Visits) terminal(r frame.Request, s *visit, spec interpreter.Spec) (*os.File, func() int, error) {
	env := set(spec.Env, "HISTFILE", "") // else bash writes one when it ends, as if the user had
	p, master, err := onTerminal(v.table, spec, *r.Terminal, env)
	if err != nil {
		return nil, nil, err
	}
	return master, func() int {
		shown := make(chan struct{})
		go func() {
			defer close(shown)
			v.copy(r.ID, s, master, "")
		}()
		go v.feed(r.ID, s, master)
		select {
		case <-p.Done():
			s.awaitOutput(shown, master)
		case <-s.closed:
			master.Close() // SIGHUP
			select {
			case <-p.Done():
			case <-time.After(hangupTime):
				p.Signal(unix.SIGKILL)
				<-p.Done()
			}
		}
		return p.ExitCode()
	}, nil
}

// feed writes the input to a file, and grants more when that took it.
func (v *Visits) feed(id uint64, s *visit, to io.Writer) {
	for {
		v.mu.Lock()
		data, ended := s.waiting, s.ended
		s.waiting = nil
		v.mu.Unlock()
		if len(data) == 0 {
			if ended {
				return
			}
			select {
			case <-s.wake:
				continue
			case <-s.closed:
				return
			}
		}
		if _, err := to.Write(data); err != nil {
			return
		}
		v.mu.Lock()
		s.window += len(data)
		v.mu.Unlock()
		if v.send(s, frame.Reply{Type: frame.Credit, ID: id, Size: int64(len(data))}) != nil {
			return
		}
	}
}

// awaitOutput returns when all that a program wrote before its end has been sent, or the other end has gone. Others may
// have the files open and go on: they have a moment, and then the files are read as far as they are filled.
func (s *visit) awaitOutput(all <-chan struct{}, files ...*os.File) {
	select {
	case <-all:
		return
	case <-s.closed:
		return
	case <-time.After(lastOutput):
	}
	close(s.over)
	for _, file := range files {
		if file.SetReadDeadline(time.Now()) != nil {
			file.Close()
		}
	}
	select {
	case <-all:
	case <-s.closed:
	}
}

// read reads output, and after that of a program that has ended io.EOF.
func (s *visit) read(from *os.File, p []byte) (n int, err error) {
	select {
	case <-s.over:
	default:
		if n, err = from.Read(p); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	if s.drained.Load() < maxDrained {
		err = control(from, func(fd int) (err error) {
			n, err = unix.Read(fd, p)
			return err
		})
	}
	if err != nil || n <= 0 {
		return 0, io.EOF
	}
	s.drained.Add(int64(n))
	return n, nil
}

// copy sends what comes from a file, as far as the other end takes it. Several may send for one
// stream, under the names of theirs.
func (v *Visits) copy(id uint64, s *visit, from *os.File, name string) {
	buffer := make([]byte, frame.StreamPart)
	for {
		v.mu.Lock()
		room := min(s.granted, len(buffer))
		if s.granted -= room; s.granted > 0 {
			signal(s.credit) // for another one
		}
		v.mu.Unlock()
		if room <= 0 {
			select {
			case <-s.credit:
				continue
			case <-s.closed:
				return
			}
		}
		// A read fails with EIO once no process has a terminal open.
		n, err := s.read(from, buffer[:room])
		v.mu.Lock()
		if s.granted += room - n; s.granted > 0 {
			signal(s.credit)
		}
		v.mu.Unlock()
		if n > 0 && v.send(s, frame.Reply{Type: frame.Bytes, ID: id, Stream: name, Contents: buffer[:n]}) != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

// onTerminal starts a shell, or the interpreter, on a new terminal, which the caller closes.
func onTerminal(table *process.Table, spec interpreter.Spec, terminal frame.Terminal, env []string) (*process.Process, *os.File, error) {
	path, args, err := program(spec, terminal.Interpreter)
	if err != nil {
		return nil, nil, err
	}
	if len(spec.Limiter) > 0 {
		args[0] = path
		path, args = spec.Limiter[0], append(append([]string{}, spec.Limiter...), args...)
	}
	master, slave, err := pty.Open()
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	defer slave.Close()
	// Package pty has left it blocking: closing it would wait for a read, and no SIGHUP would be sent.
	err = control(master, func(fd int) error { return unix.SetNonblock(fd, true) })
	env = set(env, "PS1", prompt)
	if terminal.Term != "" {
		env = set(env, "TERM", terminal.Term)
	}
	if err == nil {
		err = resize(master, terminal)
	}
	var p *process.Process
	if err == nil {
		p, err = table.Start(process.Command{
			Path: path, Args: args, Env: env, Dir: spec.Root,
			Files: []*os.File{slave, slave, slave}, Terminal: true,
		})
	}
	if err != nil {
		master.Close()
		return nil, nil, err
	}
	return p, master, nil
}
