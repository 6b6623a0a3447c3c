package escape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
)

const (
	// keepOutput is how much of an attempt's output is kept, in bytes. The
	// rest is searched and forgotten.
	keepOutput = 64 << 10
	// drain bounds the wait for output after a program has ended: a process
	// that it left behind may still have the pipe open.
	drain = 2 * time.Second
)

// Words by which an attempt reports how far it came, each before the scene's token.
const (
	wordStarted = "started"
	wordEscaped = "escaped"
	wordLacking = "lacking"
	wordTried   = "tried"
)

// An outcome is what one run of an attempt has shown.
type outcome struct {
	output   *output
	exit     int // exit status; 128 + N where signal N ended it
	timedOut bool
	evidence string // found by other means than the output
	ended    string // how a session ended, where that is no mistake
}

// output is a Writer that keeps the beginning of what is written to it and
// searches all of it.
type output struct {
	mu    sync.Mutex
	total int64
	kept  bytes.Buffer
	tail  []byte // the last bytes searched, where a needle may have begun
	found map[string]bool
	wake  chan struct{} // closed when the needle awaited is found
	await string
}

func newOutput(needles ...string) *output {
	o := &output{found: map[string]bool{}}
	for _, needle := range needles {
		o.found[needle] = false
	}
	return o
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total += int64(len(data))
	if room := keepOutput - o.kept.Len(); room > 0 {
		o.kept.Write(data[:min(room, len(data))])
	}
	window := append(o.tail, data...)
	longest := 0
	for needle, found := range o.found {
		longest = max(longest, len(needle))
		o.found[needle] = found || bytes.Contains(window, []byte(needle))
	}
	o.tail = bytes.Clone(window[max(0, len(window)-longest):])
	if o.wake != nil && o.found[o.await] {
		close(o.wake)
		o.wake = nil
	}
	return len(data), nil
}

// has reports whether a needle has been written.
func (o *output) has(needle string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.found[needle]
}

// seen returns a channel that is closed when needle has been written.
func (o *output) seen(needle string) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	done := make(chan struct{})
	if o.found[needle] {
		close(done)
		return done
	}
	o.wake, o.await = done, needle
	return done
}

// lineAfter returns the rest of the first line that starts with needle, if it was
// kept.
func (o *output) lineAfter(needle string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, rest, _ := strings.Cut(o.kept.String(), needle)
	line, _, _ := strings.Cut(rest, "\n")
	return printable(line, 200)
}

// last returns the end of what was kept, for a message.
func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := strings.TrimSpace(o.kept.String())
	return printable(text[max(0, len(text)-300):], 300)
}

// printable makes one line of at most size bytes out of hostile text.
func printable(text string, size int) string {
	text = strings.Map(func(char rune) rune {
		switch {
		case char == '\n':
			return '|'
		case char < ' ' || char == 0x7f || char == '\uFFFD' || char >= 0x80 && char < 0xa0:
			return '?'
		}
		return char
	}, strings.ToValidUTF8(text, "?"))
	return strings.TrimSpace(text[:min(size, len(text))])
}

// needles returns what the output of a run in this scene is searched for.
func (s *scene) needles() []string {
	return []string{s.secret, s.signal(wordStarted), s.signal(wordEscaped), s.signal(wordLacking), s.signal(wordTried)}
}

// signal returns the line by which an attempt reports a word, which nothing else
// prints because of the token.
func (s *scene) signal(word string) string { return word + " " + s.token }

// command returns the program that runs an attempt in this scene, not yet
// started. Its descriptors beyond the scene's are the caller's.
func (s *scene) command(ctx context.Context, namespaces bool, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = s.launch
	cmd.Env = append(without(os.Environ(), "PROJECT_DIR", "PROJECT_MOUNT"), "HOME="+s.scratch, "TMPDIR="+s.scratch)
	cmd.Env = append(cmd.Env, s.env...)
	if !s.inside {
		if cmd.Dir = s.scratch; s.vars["START"] != nil {
			cmd.Dir = s.vars["START"].(string)
		}
	}
	cmd.ExtraFiles = s.files
	cmd.WaitDelay = drain
	attr := &syscall.SysProcAttr{Setsid: true}
	switch {
	case s.group != 0:
		attr = &syscall.SysProcAttr{Setpgid: true, Pgid: s.group}
	case s.tty != nil:
		attr.Setctty, attr.Ctty = true, 2
		cmd.Stderr = s.tty
	}
	if namespaces {
		attr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
	// The whole group: an interpreter may have started others.
	cmd.Cancel = func() error {
		if s.group != 0 {
			return cmd.Process.Kill()
		}
		return errors.Join(cmd.Process.Kill(), syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
	}
	return cmd
}

// enter has a program start in a control group of its own, if there are any. The
// caller calls leave when the program has ended.
func (s *scene) enter(cmd *exec.Cmd) (leave func() error, err error) {
	group, err := s.groups.New(s.limits, cgroup.Owner{})
	if err != nil {
		return nil, err
	}
	group.Apply(cmd.SysProcAttr)
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), maxSlow)
		defer cancel()
		return group.Close(ctx)
	}, nil
}

// keepDescriptors keeps what this process has inherited from whoever started
// it: attempts write to every descriptor that they find.
func keepDescriptors() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list this process's descriptors: %w", err)
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// allowPriorities lets this process and those that it starts raise their priorities, where it may.
// A sandbox must not inherit that.
func allowPriorities() {
	for _, limit := range []int{unix.RLIMIT_RTPRIO, unix.RLIMIT_NICE} {
		_ = unix.Setrlimit(limit, &unix.Rlimit{Cur: 30, Max: 30})
	}
}

// without returns an environment without some variables.
func without(environ []string, names ...string) []string {
	return slices.DeleteFunc(environ, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(names, name)
	})
}

// run starts a program with code on its stdin, collects its output in o, and
// waits for its end.
func (s *scene) run(ctx context.Context, o *output, namespaces bool, stdin string, argv ...string) (out outcome, err error) {
	cmd := s.command(ctx, namespaces, argv...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Stdout = o
	if cmd.Stderr == nil {
		cmd.Stderr = o
	}
	leave, err := s.enter(cmd)
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, leave()) }()
	var started error
	switch {
	case s.world != nil:
		started = s.world.Do(cmd.Run)
	case networld.Entered():
		started = networld.Unprivileged(cmd.Run)
	default: // on this thread, whose keyring may be a bait
		started = cmd.Run()
	}
	if cmd.Process != nil && s.group == 0 {
		// What a control left in its group goes; a sandbox has taken its
		// processes along, and if it has not, that was seen.
		defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if s.tty != nil {
		s.hear(o)
	}
	out = outcome{output: o, timedOut: ctx.Err() != nil}
	if s.left {
		out.evidence = s.survivor()
	}
	var exit *exec.ExitError
	switch {
	case started == nil || errors.Is(started, exec.ErrWaitDelay):
	case errors.As(started, &exit):
		out.exit = exitStatus(exit.ProcessState)
	case out.timedOut || errors.Is(started, syscall.EPIPE) || errors.Is(started, io.ErrClosedPipe):
	default:
		return out, fmt.Errorf("start %s: %w", argv[0], started)
	}
	return out, nil
}

func exitStatus(state *os.ProcessState) int {
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}
