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
	"sync"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// The descriptors of QEMU, as the description's arguments name them. Not all machines have the last
// two, for the machine's memory and for KVM.
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
	networkFD
)

// consoleBytes is how much of the end of the kernel's messages is stored; the messages of a panic
// fit.
const consoleBytes = 16 << 10

// Machine is a running virtual machine. Its owner calls [Machine.Close].
type Machine struct {
	Accelerator Accelerator
	// Input, Output and Log are the standard streams of the program in the machine.
	Input, Output, Log *net.UnixConn
	// Exited gets the end of the program, once.
	Exited chan protocol.Exited
	// Ended is closed when QEMU has ended. No requests are possible then.
	Ended chan struct{}

	// network is the port for connections, or nil.
	network *net.UnixConn
	// trusts says that the sandbox trusts certificates of the network's proxy.
	trusts  bool
	process *jail.Confined
	// memory is the file that the machine's memory began as, or nil if it cannot be captured.
	memory  *os.File
	size    int64             // of the memory, in bytes
	shown   *protocol.Project // or nil
	control *net.UnixConn
	asking  sync.Mutex
	qmp     *monitor
	answers chan protocol.Answer
	console lastBytes
	errors  lastBytes // of QEMU and bubblewrap
	readers sync.WaitGroup
}

// Expect returns the probable accelerator: emulation, unless the hardware is known to work.
func Expect(memory Memory) Accelerator {
	if known, found := memory.Recall(); found && known.Works {
		return Hardware
	}
	return Emulated
}

// Start starts a machine and returns when its first process answers. It tries the hardware if that may work,
// and remembers the result. [Machine.Capture] can capture the machine if capturable is set.
//
// The machine ends with this process, however that ends.
func (s *Spec) Start(memory Memory, capturable bool) (*Machine, error) {
	var from Origin
	if capturable {
		empty, err := emptyMemory(s.bytes())
		if err != nil {
			return nil, err
		}
		defer empty.Close()
		from.Memory = empty
	}
	if known, found := memory.Recall(); !found || known.Works {
		m, problem, err := s.tryHardware(from)
		if err != nil || m != nil {
			if err == nil && !found {
				_ = memory.Remember(Known{Works: true}) // it only costs the next start a try
			}
			return m, err
		}
		m, err = s.start(Emulated, nil, from)
		if err == nil { // what was wrong was the hardware
			_ = memory.Remember(Known{Problem: problem})
		}
		return m, err
	}
	return s.start(Emulated, nil, from)
}

// bytes is the size of the machine's memory.
func (s *Spec) bytes() int64 { return int64(s.MemoryMB) << 20 }

// Origin is the state that a machine begins with.
type Origin struct {
	// Memory is a file with the machine's memory, or nil. The machine's writes do not reach it
	// unless it is Shared: then it must be empty, and writable for QEMU's own user.
	Memory *os.File
	Shared bool
	// State is from [Machine.Save] or, with Captured, from [Machine.Capture]; nil for a machine
	// that begins at its kernel. The processes in the machine are frozen until [Machine.Thaw].
	State    *os.File
	Captured bool
}

// Begin starts a machine from an origin, with an accelerator that is known to work.
func (s *Spec) Begin(accelerator Accelerator, from Origin) (*Machine, error) {
	var device *os.File
	if accelerator == Hardware {
		var err error
		if device, err = openHardware(); err != nil {
			return nil, err
		}
		defer device.Close() // on nil too, which only returns an error
	}
	return s.start(accelerator, device, from)
}

// tryHardware starts a machine on the hardware. If that is the problem, it returns the problem and neither a
// machine nor an error.
func (s *Spec) tryHardware(from Origin) (m *Machine, problem string, err error) {
	device, err := openHardware()
	if err != nil {
		return nil, err.Error(), nil
	}
	defer device.Close()
	m, err = s.start(Hardware, device, from)
	var failed *failedError
	if errors.As(err, &failed) {
		return nil, "a machine with " + hardwareName + " does not come up: " + failed.reason, nil
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

// memoryPath is the path of the machine's memory for QEMU, which could not reach the file's own
// path.
var memoryPath = host.Descriptors + strconv.Itoa(memoryFD)

// arguments returns the arguments of QEMU that depend on the accelerator and the origin.
func (s *Spec) arguments(accelerator Accelerator, from Origin) ([]string, error) {
	board := []string{"-M", s.Board}
	if from.Memory != nil {
		board = []string{"-M", s.Board + ",memory-backend=memory", "-object", fmt.Sprintf("memory-backend-file,id=memory,size=%dM,mem-path=%s", s.MemoryMB, memoryPath)}
		if from.Shared || !privately {
			board[3] += ",share=on"
		} else {
			board[3] += ",share=off,readonly=on,rom=off"
		}
	}
	if from.State != nil {
		board = append(board, "-incoming", "defer")
	} else {
		// A saved machine has its kernel in its memory. QEMU would load another one for nothing: 15
		// MB and 7 ms.
		command := s.Append
		if accelerator == Emulated && s.Board == "microvm" { // which has a clock of x86
			rate, err := ClockRate()
			if err != nil {
				return nil, err
			}
			command += " tsc=reliable tsc_early_khz=" + strconv.Itoa(rate)
		}
		board = append(board, "-kernel", s.Kernel, "-initrd", s.Initrd, "-append", command)
	}
	if from.Captured {
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
	if accelerator == Hardware {
		return append(board, hardwareArguments()...), nil
	}
	return append(board, "-cpu", s.CPU, "-accel", "tcg,tb-size="+strconv.Itoa(translationsMB)), nil
}

// projectSet is the number of the set of descriptors that QEMU knows the project's image
// by.
const projectSet = 4

// translationsMB bounds the translated code that QEMU caches for an emulated machine.
const translationsMB = 64

func (s *Spec) start(accelerator Accelerator, device *os.File, from Origin) (_ *Machine, err error) {
	arguments, err := s.arguments(accelerator, from)
	if err != nil {
		return nil, err
	}
	m := &Machine{
		Accelerator: accelerator,
		shown:       s.shown,
		trusts:      s.HasNetwork() && s.jail.Network.Authorities != "",
		Exited:      make(chan protocol.Exited, 1),
		Ended:       make(chan struct{}),
		answers:     make(chan protocol.Answer, 1),
		size:        s.bytes(),
	}
	if from.Memory != nil && !from.Shared {
		if m.memory, err = ownMemory(from.Memory); err != nil {
			return nil, err
		}
		from.Memory = m.memory
		defer func() {
			if err != nil {
				m.memory.Close()
			}
		}()
	}
	child := jail.Child{Args: arguments}
	var own []*net.UnixConn
	// The machine's ends; this process closes its copies.
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
	child.Files = append(child.Files, from.Memory, device, s.disk) // nil is closed
	if s.HasNetwork() {
		here, there, err := pair()
		if err != nil {
			closeTheirs()
			return nil, err
		}
		own, theirs, child.Files, m.network = append(own, here), append(theirs, there), append(child.Files, there), here
	}
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
	if err := m.comeUp(from.State); err != nil {
		m.Close()
		return nil, &failedError{accelerator, fmt.Sprintf("%v%s", err, m.lastWords())}
	}
	return m, nil
}

// comeUp waits until the machine answers. If its processor fails, the machine stops, and QEMU
// reports that as an event.
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
			return fmt.Errorf("the virtual machine: %s", hostile.Message(answer.Error))
		}
		return nil
	case <-m.Ended:
		return errEnded
	}
}

// Run starts a program of the image in the machine, and sets the machine's clock to now. An agent
// gets the ports of its input and output.
func (m *Machine) Run(program string, agent bool, now time.Time) error {
	return m.Ask(protocol.Request{Do: protocol.Start, Program: program, Ports: agent, Project: m.shown, Network: m.network != nil, Certificates: m.trusts, Now: now.UnixNano()})
}

// HasNetwork reports whether the sandbox has a network of named hosts.
func (s *Spec) HasNetwork() bool { return s.jail.Network != nil }

// Connect has the proxy of the sandbox's network take the machine's connections, if it has a network: program is this
// process's own, and carries them with an argument. The proxy writes its events to a descriptor, unless it is 0.
func (s *Spec) Connect(m *Machine, events int, argument string) error {
	if m.network == nil {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	file, err := m.network.File()
	if err != nil {
		return err
	}
	defer file.Close()
	defer m.network.Close()
	return s.jail.StartCarrier(events, file, program, argument)
}

// AwaitTrust waits until the program in the machine trusts the proxy of its network, if that presents certificates
// of its own. The program was started, and [Spec.Connect] called.
func (m *Machine) AwaitTrust() error {
	if !m.trusts {
		return nil
	}
	return m.Ask(protocol.Request{Do: protocol.Trust})
}

// Finish has a machine write a mark to its output and its log, after all output of its ended
// program.
func (m *Machine) Finish(mark []byte) error {
	return m.Ask(protocol.Request{Do: protocol.Finish, Mark: mark})
}

// Thaw continues the processes of the machine that began with a state, with random
// numbers of its own and its clock set to now.
func (m *Machine) Thaw(now time.Time) error {
	seed := make([]byte, 32)
	rand.Read(seed)
	return m.Ask(protocol.Request{Do: protocol.Thaw, Seed: seed, Now: now.UnixNano()})
}

// Save freezes the processes of the machine and writes the machine's state to a file. The file of
// its memory belongs to that state. The machine is paused then, and its owner closes it.
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

// follow reads the control port. A malformed line ends the machine.
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
		default: // it was not asked for
			return
		}
	}
}

// Close ends the machine, and returns when all of its processes are gone.
func (m *Machine) Close() {
	_ = m.process.Kill() // bubblewrap, and QEMU with it
	<-m.Ended
	for _, connection := range []*net.UnixConn{m.Input, m.Output, m.Log, m.control, m.qmp.connection} {
		connection.Close()
	}
	if m.network != nil {
		m.network.Close() // a second time after Connect, which does no harm
	}
	if m.memory != nil {
		m.memory.Close()
	}
}

// lastWords returns the last message of the machine's kernel, or of QEMU if the kernel printed
// none, as the end of a sentence; or "" if both were silent. Both print little except the reason of
// their end, and QEMU a warning at the start of each copy.
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
	ends, err := host.Pair(syscall.SOCK_STREAM)
	if err != nil {
		return nil, nil, err
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

// lastBytes stores the last bytes that are written to it.
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

// panicked begins the line with the reason of a kernel's panic, before many others.
const panicked = "Kernel panic - "

// last returns the last lines as one, or the line with the reason of a kernel's panic.
func (l *lastBytes) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := bytes.TrimSpace(l.text)
	if at := bytes.LastIndex(text, []byte(panicked)); at >= 0 {
		line, _, _ := bytes.Cut(text[at:], []byte("\n"))
		return hostile.Message(string(line))
	}
	return hostile.Message(string(text[max(0, len(text)-300):]))
}
