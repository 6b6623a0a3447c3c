package machine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
)

// The descriptors of QEMU, as the description's arguments name them. The device of KVM
// follows.
const (
	inputFD = 3 + iota
	outputFD
	logFD
	controlFD
	qmpFD
	consoleFD
	kvmFD
)

// consoleBytes is what is kept of the end of the kernel's messages.
const consoleBytes = 4 << 10

// Machine is one that runs. Its owner calls [Machine.Close].
type Machine struct {
	Accelerator Accelerator
	// Input, Output and Log are the standard streams of the program in the machine.
	Input, Output, Log *net.UnixConn
	// Exited gets the end of the program, once.
	Exited chan protocol.Exited
	// Ended is closed when QEMU has ended, and nothing else can be asked.
	Ended chan struct{}

	process *os.Process
	control *net.UnixConn
	qmp     *monitor
	answers chan protocol.Answer
	console lastBytes
	errors  lastBytes // of QEMU and bubblewrap
	readers sync.WaitGroup
}

// Expect returns what a machine probably has: emulation, unless KVM is known to work.
func Expect(memory Memory) Accelerator {
	if known, found := memory.Recall(); found && known.Works {
		return KVM
	}
	return Emulated
}

// Start starts a machine and returns when its first process answers. It tries KVM
// where it may work, and remembers whether it did.
//
// The machine ends with the thread that calls this, which therefore is one that ends
// with the process.
func (s *Spec) Start(memory Memory) (*Machine, error) {
	if known, found := memory.Recall(); !found || known.Works {
		m, problem, err := s.tryKVM()
		if err != nil || m != nil {
			if err == nil && !found {
				_ = memory.Remember(Known{Works: true}) // it costs the next start a try, and nothing else
			}
			return m, err
		}
		m, err = s.start(Emulated, nil)
		if err == nil { // what was wrong was KVM
			_ = memory.Remember(Known{Problem: problem})
		}
		return m, err
	}
	return s.start(Emulated, nil)
}

// tryKVM starts a machine with KVM. Where that is what does not work, it returns the
// problem and neither a machine nor an error.
func (s *Spec) tryKVM() (m *Machine, problem string, err error) {
	device, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, fmt.Sprintf("%s cannot be opened: %v", kvmDevice, err), nil
	}
	defer device.Close()
	m, err = s.start(KVM, device)
	var failed *failedError
	if errors.As(err, &failed) {
		return nil, "a machine with KVM does not come up: " + failed.reason, nil
	}
	return m, "", err
}

// failedError is a machine that was started and did not come up.
type failedError struct {
	accelerator Accelerator
	reason      string
}

func (e *failedError) Error() string {
	return fmt.Sprintf("the virtual machine (%s) did not come up: %s", e.accelerator, e.reason)
}

// arguments are those of QEMU that the accelerator decides.
func (s *Spec) arguments(accelerator Accelerator) ([]string, error) {
	if accelerator == KVM {
		return []string{
			"-M", "microvm", "-cpu", "host", "-append", s.Append,
			"-add-fd", "fd=" + strconv.Itoa(kvmFD) + ",set=1", "-accel", "kvm,device=/dev/fdset/1",
		}, nil
	}
	rate, err := kilohertz()
	if err != nil {
		return nil, err
	}
	return []string{
		"-M", "microvm", "-cpu", "max",
		"-append", s.Append + " tsc=reliable tsc_early_khz=" + strconv.Itoa(rate),
		"-accel", "tcg,tb-size=" + strconv.Itoa(translationsMB),
	}, nil
}

// translationsMB bounds what an emulated machine keeps of translated code.
const translationsMB = 64

func (s *Spec) start(accelerator Accelerator, device *os.File) (_ *Machine, err error) {
	arguments, err := s.arguments(accelerator)
	if err != nil {
		return nil, err
	}
	m := &Machine{
		Accelerator: accelerator,
		Exited:      make(chan protocol.Exited, 1),
		Ended:       make(chan struct{}),
		answers:     make(chan protocol.Answer, 1),
	}
	child := jail.Child{Args: arguments}
	var own []*net.UnixConn
	// The machine's ends, of which this process keeps none.
	var theirs []*os.File
	closeTheirs := func() {
		for _, file := range theirs {
			file.Close()
		}
	}
	for range consoleFD - inputFD + 1 {
		here, there, err := pair()
		if err != nil {
			closeTheirs()
			return nil, err
		}
		own, theirs = append(own, here), append(theirs, there)
	}
	defer func() {
		if err != nil {
			closeTheirs()
			for _, connection := range own {
				connection.Close()
			}
		}
	}()
	child.Files = slices.Clone(theirs)
	if device != nil {
		child.Files = append(child.Files, device)
	}
	errs, stderr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs = append(theirs, stderr)
	child.Stderr = stderr
	m.Input, m.Output, m.Log, m.control = own[0], own[1], own[2], own[3]
	m.qmp = newMonitor(own[4])
	if m.process, err = s.jail.StartChild(child); err != nil {
		errs.Close()
		return nil, err
	}
	closeTheirs()
	m.readers.Go(func() { _, _ = io.Copy(&m.console, own[5]) })
	m.readers.Go(func() { _, _ = io.Copy(&m.errors, errs); errs.Close() })
	go m.follow()
	go func() {
		_, _ = m.process.Wait()
		close(m.Ended)
	}()
	if err := m.comeUp(); err != nil {
		m.Close()
		return nil, &failedError{accelerator, fmt.Sprintf("%v%s", err, m.lastWords())}
	}
	return m, nil
}

// comeUp waits until the machine answers. A machine whose processor fails stands
// still, which QEMU reports as an event.
func (m *Machine) comeUp() error {
	limit := time.NewTimer(m.Accelerator.upLimit())
	defer limit.Stop()
	greeted := make(chan error, 1)
	go func() { greeted <- m.qmp.greet() }()
	up := make(chan error, 1)
	go func() { up <- m.Ask(protocol.Request{Do: protocol.Ping}) }()
	for {
		select {
		case err := <-greeted:
			if err != nil {
				return err
			}
			greeted = nil
		case err := <-up:
			return err
		case <-m.qmp.stopped:
			return errors.New("its processor stopped")
		case <-m.Ended:
			return errors.New("QEMU ended")
		case <-limit.C:
			return fmt.Errorf("it did not answer within %v", m.Accelerator.upLimit())
		}
	}
}

// errEnded is what is asked of a machine that has ended.
var errEnded = errors.New("the virtual machine ended")

// Ask has the first process do something. One request is under way at a time.
func (m *Machine) Ask(request protocol.Request) error {
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := m.control.Write(append(line, '\n')); err != nil {
		return errors.Join(errEnded, err)
	}
	select {
	case answer, open := <-m.answers:
		switch {
		case !open:
			return errEnded
		case answer.Did != request.Do:
			return fmt.Errorf("the virtual machine answered %.40q, not %q", answer.Did, request.Do)
		case answer.Error != "":
			return fmt.Errorf("the virtual machine: %.300s", oneLine(answer.Error))
		}
		return nil
	case <-m.Ended:
		return errEnded
	}
}

// Run starts a program of the image in the machine.
func (m *Machine) Run(program string, environ []string) error {
	return m.Ask(protocol.Request{Do: protocol.Start, Program: program, Environ: environ, StartFactor: m.Accelerator.StartFactor(), Now: time.Now().UnixNano()})
}

// follow reads the control port. What makes no sense ends it.
func (m *Machine) follow() {
	defer close(m.answers)
	lines := bufio.NewReaderSize(m.control, protocol.MaxLine)
	exited := false
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return
		}
		var answer protocol.Answer
		if json.Unmarshal(line, &answer) != nil {
			return
		}
		if answer.Exited != nil {
			if exited || answer.Exited.Output < 0 || answer.Exited.Log < 0 {
				return
			}
			exited = true
			m.Exited <- *answer.Exited
			continue
		}
		select {
		case m.answers <- answer:
		default: // nobody asked
			return
		}
	}
}

// Close ends the machine and returns when nothing is left of it.
func (m *Machine) Close() {
	_ = m.process.Kill() // bubblewrap, and QEMU with it
	<-m.Ended
	for _, connection := range []*net.UnixConn{m.Input, m.Output, m.Log, m.control, m.qmp.connection} {
		connection.Close()
	}
}

// LastWords returns what QEMU and the machine's kernel printed last, as the end of a
// sentence; empty where that is nothing.
func (m *Machine) lastWords() string {
	m.readers.Wait()
	for _, text := range []string{m.errors.last(), m.console.last()} {
		if text != "" {
			return ": " + text
		}
	}
	return ""
}

// Failure says why a machine that has ended did so.
func (m *Machine) Failure() error {
	return fmt.Errorf("%w%s", errEnded, m.lastWords())
}

// pair returns the two ends of a stream: one for this process and one for QEMU.
func pair() (*net.UnixConn, *os.File, error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a stream to the virtual machine: %w", err)
	}
	here := os.NewFile(uintptr(ends[0]), "")
	defer here.Close()
	connection, err := net.FileConn(here)
	if err != nil {
		syscall.Close(ends[1])
		return nil, nil, err
	}
	return connection.(*net.UnixConn), os.NewFile(uintptr(ends[1]), ""), nil
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	mu   sync.Mutex
	text []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p[max(0, len(p)-consoleBytes):]...)
	l.text = append(l.text[:0], l.text[max(0, len(l.text)-consoleBytes):]...)
	return len(p), nil
}

// last returns the last lines, as one.
func (l *lastBytes) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := bytes.TrimSpace(l.text)
	return oneLine(string(text[max(0, len(text)-300):]))
}

// oneLine makes a text from a machine fit for one line of a message.
func oneLine(text string) string {
	return bounded.Head(strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f {
			return ' '
		}
		return r
	}, text)), " "), 300)
}
