package machine

import (
	"bufio"
	"bytes"
	"crypto/rand"
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

// The descriptors of QEMU, as the description's arguments name them, and those of the
// machine's memory and of KVM, which not all machines have.
const (
	inputFD = 3 + iota
	outputFD
	logFD
	controlFD
	qmpFD
	consoleFD
	memoryFD
	kvmFD
	projectFD
)

// consoleBytes is what is kept of the end of the kernel's messages: those of a panic fit.
const consoleBytes = 16 << 10

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
	// memory is the file that the machine's memory was when it began; nil where it can
	// not be captured.
	memory  *os.File
	size    int64             // of the memory, in bytes
	shown   *protocol.Project // nil where there is none
	control *net.UnixConn
	asking  sync.Mutex
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
	return s.startEither(memory, origin{})
}

// StartCapturable starts a machine as [Spec.Start] does, which [Machine.Capture] can
// capture.
func (s *Spec) StartCapturable(memory Memory) (*Machine, error) {
	empty, err := emptyMemory(s.bytes())
	if err != nil {
		return nil, err
	}
	defer empty.Close()
	return s.startEither(memory, origin{memory: empty})
}

// bytes is the size of the machine's memory.
func (s *Spec) bytes() int64 { return int64(s.MemoryMB) << 20 }

// startEither starts a machine with KVM where that works, and emulated otherwise.
func (s *Spec) startEither(memory Memory, from origin) (*Machine, error) {
	if known, found := memory.Recall(); !found || known.Works {
		m, problem, err := s.tryKVM(from)
		if err != nil || m != nil {
			if err == nil && !found {
				_ = memory.Remember(Known{Works: true}) // it costs the next start a try, and nothing else
			}
			return m, err
		}
		m, err = s.start(Emulated, nil, from)
		if err == nil { // what was wrong was KVM
			_ = memory.Remember(Known{Problem: problem})
		}
		return m, err
	}
	return s.start(Emulated, nil, from)
}

// origin is what a machine begins with.
type origin struct {
	// memory is a file with the machine's memory, which may be empty; nil where it has
	// none. Nothing that the machine writes reaches it, unless it is shared.
	memory *os.File
	shared bool
	// state is the state of a machine that was saved or captured; nil for a machine
	// that begins at its kernel.
	state    *os.File
	captured bool
}

// begin starts a machine from an origin, with an accelerator that is known to work.
func (s *Spec) begin(accelerator Accelerator, from origin) (*Machine, error) {
	var device *os.File
	if accelerator == KVM {
		var err error
		if device, err = os.OpenFile(kvmDevice, os.O_RDWR, 0); err != nil {
			return nil, err
		}
		defer device.Close()
	}
	return s.start(accelerator, device, from)
}

// StartSaveable starts a machine whose memory is a file, which has to be empty and
// which QEMU's own user may write to.
func (s *Spec) StartSaveable(accelerator Accelerator, memory *os.File) (*Machine, error) {
	return s.begin(accelerator, origin{memory: memory, shared: true})
}

// Restore starts a machine from what [Machine.Save] saved. It never changes these
// files. What runs in it stands still until [Machine.Thaw].
func (s *Spec) Restore(accelerator Accelerator, memory, state *os.File) (*Machine, error) {
	return s.begin(accelerator, origin{memory: memory, state: state})
}

// RestoreCaptured starts a machine from what [Machine.Capture] wrote, as [Spec.Restore]
// does.
func (s *Spec) RestoreCaptured(accelerator Accelerator, memory, state *os.File) (*Machine, error) {
	return s.begin(accelerator, origin{memory: memory, state: state, captured: true})
}

// tryKVM starts a machine with KVM. Where that is what does not work, it returns the
// problem and neither a machine nor an error.
func (s *Spec) tryKVM(from origin) (m *Machine, problem string, err error) {
	device, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, fmt.Sprintf("%s cannot be opened: %v", kvmDevice, err), nil
	}
	defer device.Close()
	m, err = s.start(KVM, device, from)
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

// memoryPath is where QEMU finds the file of the machine's memory, whose own path it
// could not reach.
var memoryPath = "/proc/self/fd/" + strconv.Itoa(memoryFD)

// arguments are those of QEMU that the accelerator and the origin decide.
func (s *Spec) arguments(accelerator Accelerator, from origin) ([]string, error) {
	board := []string{"-M", "microvm"}
	if from.memory != nil {
		board = []string{"-M", "microvm,memory-backend=memory", "-object", fmt.Sprintf("memory-backend-file,id=memory,size=%dM,mem-path=%s", s.MemoryMB, memoryPath)}
		if from.shared {
			board[3] += ",share=on"
		} else {
			board[3] += ",share=off,readonly=on,rom=off"
		}
	}
	if from.state != nil {
		board = append(board, "-incoming", "defer")
	} else {
		// A machine that was saved has its kernel in its memory. QEMU would load another
		// one, which nothing reads: 15 MB and 7 ms.
		command := s.Append
		if accelerator == Emulated {
			rate, err := ClockRate()
			if err != nil {
				return nil, err
			}
			command += " tsc=reliable tsc_early_khz=" + strconv.Itoa(rate)
		}
		board = append(board, "-kernel", s.Kernel, "-initrd", s.Initrd, "-append", command)
	}
	if from.captured {
		// The state of devices alone has no section for it.
		board = append(board, "-global", "migration.send-configuration=off")
	}
	if s.disk != nil {
		disk := "id=project,if=none,format=raw,readonly=on,file.locking=off,file=/dev/fdset/" + strconv.Itoa(projectSet)
		board = append(board,
			"-add-fd", fmt.Sprintf("fd=%d,set=%d", projectFD, projectSet),
			"-drive", disk, "-device", "virtio-blk-device,drive=project,serial="+protocol.ProjectDisk,
		)
	}
	if accelerator == KVM {
		return append(board, "-cpu", "host", "-add-fd", "fd="+strconv.Itoa(kvmFD)+",set=1", "-accel", "kvm,device=/dev/fdset/1"), nil
	}
	return append(board, "-cpu", emulatedCPU, "-accel", "tcg,tb-size="+strconv.Itoa(translationsMB)), nil
}

// emulatedCPU is the processor of an emulated machine: all that QEMU can do, but for what
// has a kernel take a way that costs a real processor less and QEMU more. The fast string
// instructions move one byte at a time, where programs otherwise move 8 to 32, and a fifth
// level of page tables makes each of QEMU's many walks through them longer. Without these
// a copy takes a fifth less of processor time until it is ready, and for its first call.
const emulatedCPU = "max,-la57,-erms,-fsrm,-fsrs,-fsrc,-fzrm"

// projectSet is the number of the set of descriptors that QEMU knows the project's image
// by.
const projectSet = 4

// translationsMB bounds what an emulated machine keeps of translated code.
const translationsMB = 64

func (s *Spec) start(accelerator Accelerator, device *os.File, from origin) (_ *Machine, err error) {
	arguments, err := s.arguments(accelerator, from)
	if err != nil {
		return nil, err
	}
	m := &Machine{
		Accelerator: accelerator,
		shown:       s.shown,
		Exited:      make(chan protocol.Exited, 1),
		Ended:       make(chan struct{}),
		answers:     make(chan protocol.Answer, 1),
		size:        s.bytes(),
	}
	if from.memory != nil && !from.shared {
		// The caller closes its own.
		if m.memory, err = duplicate(from.memory); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				m.memory.Close()
			}
		}()
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
	child.Files = append(child.Files, from.memory, device, s.disk) // nil is closed
	errs, stderr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs = append(theirs, stderr)
	child.Stderr = stderr
	m.Input, m.Output, m.Log, m.control = own[0], own[1], own[2], own[3]
	if m.qmp, err = newMonitor(own[4]); err != nil {
		errs.Close()
		return nil, err
	}
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
	if err := m.comeUp(from.state); err != nil {
		m.Close()
		return nil, &failedError{accelerator, fmt.Sprintf("%v%s", err, m.lastWords())}
	}
	return m, nil
}

// comeUp waits until the machine answers. A machine whose processor fails stands
// still, which QEMU reports as an event.
func (m *Machine) comeUp(state *os.File) error {
	limit := time.NewTimer(m.Accelerator.upLimit())
	defer limit.Stop()
	up := make(chan error, 1)
	go func() {
		err := m.qmp.greet()
		switch {
		case err != nil:
		case state == nil:
			err = m.Ask(protocol.Request{Do: protocol.Ping})
		default:
			err = m.qmp.restore(state, m.Accelerator.upLimit())
		}
		up <- err
	}()
	for {
		select {
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
	m.asking.Lock()
	defer m.asking.Unlock()
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

// Run starts a program of the image in the machine. One that is an agent gets the ports of
// its input and output.
// The machine's time is now from then on.
func (m *Machine) Run(program string, agent bool, now time.Time) error {
	return m.Ask(protocol.Request{Do: protocol.Start, Program: program, Ports: agent, Project: m.shown, StartFactor: m.Accelerator.StartFactor(), Now: now.UnixNano()})
}

// Finish has a machine whose program has ended write a mark to its output and its log,
// after all that the program wrote.
func (m *Machine) Finish(mark []byte) error {
	return m.Ask(protocol.Request{Do: protocol.Finish, Mark: mark})
}

// Thaw has what runs in the machine go on after [Machine.Restore] and the like, with
// random numbers of its own. The machine's time is now from then on.
func (m *Machine) Thaw(now time.Time) error {
	seed := make([]byte, 32)
	rand.Read(seed)
	return m.Ask(protocol.Request{Do: protocol.Thaw, Seed: seed, Now: now.UnixNano()})
}

// Save freezes what runs in the machine and writes the machine's state to a file. The
// file of its memory, with which it was started, belongs to it. The machine stands
// still then, and its owner closes it.
func (m *Machine) Save(state *os.File) error {
	for _, do := range []string{protocol.Freeze, protocol.Trim} {
		if err := m.Ask(protocol.Request{Do: do}); err != nil {
			return err
		}
	}
	return m.qmp.save(state, saveLimit)
}

// saveLimit bounds the time that QEMU takes to write the state of devices, some 100 KB.
const saveLimit = 30 * time.Second

// Pause has the machine stand still, so that it takes no processor time, until
// [Machine.Resume].
func (m *Machine) Pause() error {
	_, err := m.qmp.execute("stop", nil)
	return err
}

// Resume has a machine that stood still go on, at the time of the host.
func (m *Machine) Resume() error {
	if _, err := m.qmp.execute("cont", nil); err != nil {
		return err
	}
	return m.SetClock()
}

// SetClock gives a machine the time of the host.
func (m *Machine) SetClock() error {
	return m.Ask(protocol.Request{Do: protocol.SetClock, Now: time.Now().UnixNano()})
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
			if exited {
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
	if m.memory != nil {
		m.memory.Close()
	}
}

// lastWords returns what the machine's kernel printed last, or QEMU where the kernel printed
// nothing, as the end of a sentence; empty where that is nothing either. Both print little
// but why they end, and QEMU a warning at the start of each copy.
func (m *Machine) lastWords() string {
	m.readers.Wait()
	for _, text := range []string{m.console.last(), m.errors.last()} {
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

// panicked begins the line in which a kernel says why it panics, before many others.
const panicked = "Kernel panic - "

// last returns the last lines, as one, or that in which the kernel says why it panics.
func (l *lastBytes) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := bytes.TrimSpace(l.text)
	if at := bytes.LastIndex(text, []byte(panicked)); at >= 0 {
		line, _, _ := bytes.Cut(text[at:], []byte("\n"))
		return oneLine(string(line))
	}
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
