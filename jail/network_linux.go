package jail

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// portDNS is the port of the sandbox's resolver, which is the proxy as well.
const portDNS = 53

// maxSecret bounds a secret, in bytes.
const maxSecret = 16 << 10

// The proxy's descriptors.
const (
	proxyHandover = firstExtra + iota // the socket that brings its listening sockets
	proxyEvents                       // the pipe for its events; may be closed
	proxyParent                       // a pidfd(2) of the launcher: the proxy ends with it
	proxySecrets                      // the first secret
)

// readProxy reads the description of the proxy and checks its files, so that a missing
// one is an error before anything has started. It returns nil without a network.
func (s *Spec) readProxy() (*Spec, error) {
	if s.Network == nil || s.Network.Proxy == "" {
		return nil, nil
	}
	proxy, err := ReadSpec(s.Network.Proxy)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &Refusal{
			Problem: fmt.Sprintf("the network's proxy %s does not exist", s.Network.Proxy),
			Hint:    rebuild,
		}
	case err != nil:
		return nil, err
	case proxy.Network != nil:
		return nil, &Refusal{
			Problem: fmt.Sprintf("%s does not describe a network's proxy", s.Network.Proxy),
			Hint:    "build the sandbox again with mkSandbox",
		}
	}
	filter, err := proxy.openFilter()
	if err != nil {
		return nil, err
	}
	_ = unix.Close(filter)
	return proxy, proxy.checkBinds()
}

// start starts the jail of the network's proxy, and returns the step that the launcher
// takes in the outer namespace. The start does not wait for the proxy: connections wait
// in the queues of its sockets. But if the proxy ends TLS for some hosts, the step waits
// for its certificate.
//
// If root is the caller, the proxy has a user of its own. It is in this process's group
// and ends with this process, which becomes bubblewrap. A process with the same user ends
// by the signal of its parent's end; the kernel does not send that to another user, so
// the proxy also watches a descriptor of this process.
func (n *Network) start(proxy *Spec, appArmor string, events int) (*networkStep, error) {
	fail := func(what string, err error) (*networkStep, error) {
		return nil, fmt.Errorf("start the network's proxy: %s: %w", what, err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail("make a socket", err)
	}
	this, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fail("open this process (pidfd_open)", err)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open "+os.DevNull, err)
	}
	files := []uintptr{
		uintptr(null), uintptr(null), uintptr(unix.Stderr),
		proxyHandover: uintptr(pair[1]), proxyEvents: uintptr(events), proxyParent: uintptr(this),
	}
	if events == 0 {
		files[proxyEvents] = closed
	}
	for _, secret := range n.Secrets {
		fd, err := secret.open()
		if err != nil {
			return nil, err
		}
		files = append(files, uintptr(fd))
	}
	if _, err := proxy.spawn(os.Getpid()+ofProxy, files, nil, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}); err != nil {
		return nil, err
	}
	// The end of the events tells their reader that the proxy has ended.
	for _, fd := range append(files[proxyHandover:], uintptr(null)) {
		_ = unix.Close(int(fd))
	}
	if _, err := unix.FcntlInt(uintptr(pair[0]), unix.F_SETFD, 0); err != nil {
		return fail("keep the socket open", err)
	}
	result := &networkStep{Proxy: pair[0], Ports: n.Ports, Authorities: n.Authorities, AppArmor: appArmor}
	if n.Authorities != "" {
		if result.Certificates, err = memfile("certificates", nil); err != nil {
			return fail("keep the certificates", err)
		}
	}
	return result, nil
}

// flags returns bubblewrap's flags that show the certificates at a path of the sandbox.
func (s *networkStep) flags(at string) []string {
	if s.Authorities == "" {
		return nil
	}
	return []string{"--perms", "0444", "--ro-bind-data", strconv.Itoa(s.Certificates), at}
}

// open returns the descriptor of an anonymous file with the secret.
func (s *Secret) open() (int, error) {
	where, text, problem := "the variable "+s.Variable, []byte(os.Getenv(s.Variable)), ""
	if s.Variable == "" {
		where = "the file " + s.File
		text, problem = readSecret(s.File)
	}
	defer clear(text)
	switch {
	case problem != "":
	case len(text) == 0:
		problem = "which is empty or not set"
	case len(text) > maxSecret:
		problem = fmt.Sprintf("which has %d bytes, more than %d", len(text), maxSecret)
	case !isOneLine(text):
		problem = "which has to be one line of printable ASCII, as an HTTP header is"
	default:
		fd, err := memfile("secret", text)
		if err == nil {
			unix.CloseOnExec(fd)
		}
		return fd, err
	}
	return 0, &Refusal{
		Problem: fmt.Sprintf("the network's credential %s is in %s, %s", s.Name, where, problem),
		Hint:    "put the secret there, or build the sandbox with other network.credentials",
	}
}

// readSecret reads a file of at most [maxSecret] bytes, or returns why it cannot.
func readSecret(name string) (text []byte, problem string) {
	// Without O_NONBLOCK, a pipe or a device could make this wait forever.
	file, err := os.OpenFile(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, "which cannot be read: " + reason(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() < 1 || info.Size() > maxSecret {
		return nil, fmt.Sprintf("which has to be a file of 1 to %d bytes", maxSecret)
	}
	if text, err = bounded.Read(file, maxSecret); err != nil {
		return nil, "which cannot be read: " + err.Error()
	}
	return text, ""
}

// isOneLine reports whether a text, without a line end, can be the value of an HTTP header.
func isOneLine(text []byte) bool {
	text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
	return len(text) > 0 && !bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// StartCarrier starts the proxy of this network and, in the network's namespace, a program that has a file as its
// descriptor [CarrierFD]. Both end with the calling thread. The proxy writes its events to a descriptor, unless it is 0.
func (s *Spec) StartCarrier(events int, file *os.File, command ...string) error {
	proxy, err := s.readProxy()
	if err != nil {
		return err
	}
	network, err := s.Network.start(proxy, s.AppArmor, events)
	if err != nil {
		return err
	}
	// The proxy waits until all copies are closed: the program has none under this number.
	unix.CloseOnExec(network.Proxy)
	handed := os.NewFile(uintptr(network.Proxy), "handover")
	defer handed.Close()
	certificates := closed
	if network.Authorities != "" {
		filled := os.NewFile(uintptr(network.Certificates), "certificates")
		defer filled.Close()
		certificates = filled.Fd()
	}
	network.Proxy, network.Certificates = firstExtra, certificatesFD
	first, err := step{Network: network}.command()
	if err != nil {
		return err
	}
	attributes, err := s.apart()
	if err != nil {
		return err
	}
	attributes.Pdeathsig = syscall.SIGKILL
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	if _, err := syscall.ForkExec(first[0], append(first, command...), &syscall.ProcAttr{
		Dir: "/", Env: oneProcessor, Sys: attributes,
		Files: []uintptr{null.Fd(), null.Fd(), uintptr(unix.Stderr), handed.Fd(), file.Fd(), certificates},
	}); err != nil {
		return network.networkRefused(appArmorProfile(), fmt.Errorf("make its namespaces: %w", err))
	}
	return nil
}

// apart returns the attributes of a process in namespaces for a network, as a user of its own if root is the caller.
func (s *Spec) apart() (*syscall.SysProcAttr, error) {
	user, err := hostUser(os.Getpid())
	if err != nil || user == 0 {
		return inNetwork(os.Geteuid(), os.Getegid()), err
	}
	attributes := inNetwork(user, user)
	attributes.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user), NoSetGroups: true}
	return attributes, nil
}

// tryNetwork makes the network in an empty outer namespace, and returns the error that a start
// would return.
func (s *Spec) tryNetwork(ctx context.Context) error {
	command, err := step{Network: &networkStep{Proxy: firstExtra, Ports: s.Network.Ports, AppArmor: s.AppArmor}}.command()
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	defer unix.Close(pair[0])
	passed := os.NewFile(uintptr(pair[1]), "handover")
	defer passed.Close()
	attributes, err := s.apart()
	if err != nil {
		return err
	}
	output, works := attempt(ctx, attributes, []*os.File{passed}, command[0], append(command[1:], s.Bubblewrap, "--version")...)
	if works {
		return nil
	}
	problem, hint := parseMessages(output)
	return &Refusal{Problem: problem, Hint: cmp.Or(hint, networkHint)}
}

// messageError and messageHint begin the lines of the launcher's errors and hints.
const (
	messageError = "nix-sandbox-jail: error: "
	messageHint  = "nix-sandbox-jail: hint: "
)

// WriteError writes an error of this package as the launcher prints it.
func WriteError(w io.Writer, err error) {
	message := messageError + err.Error() + "\n"
	if hint := HintOf(err); hint != "" {
		message += messageHint + hint + "\n"
	}
	_, _ = io.WriteString(w, message) // an error here cannot be reported
}

// parseMessages returns the error and the hint in the launcher's output, or the output of
// another program.
func parseMessages(output string) (problem, hint string) {
	for line := range strings.Lines(output) {
		line = strings.TrimSuffix(line, "\n")
		if text, found := strings.CutPrefix(line, messageError); found {
			problem = text
		}
		if text, found := strings.CutPrefix(line, messageHint); found {
			hint = text
		}
	}
	if problem == "" {
		problem = "make an outer namespace: " + bounded.Head(strings.Join(strings.Fields(output), " "), maxOutput)
	}
	return problem, hint
}
