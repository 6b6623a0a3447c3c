package escape

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
)

// hostsOf returns the hosts that an artifact's metadata allows: none where its network is
// the string "none".
func hostsOf(network json.RawMessage) ([]string, error) {
	var none string
	if len(network) == 0 || json.Unmarshal(network, &none) == nil {
		return nil, nil
	}
	var policy struct{ Domains []string }
	err := json.Unmarshal(network, &policy)
	return policy.Domains, err
}

// reachesWorld reports whether an artifact has the policy of the tests' internet. Attempts
// on a network by name mean nothing in any other sandbox.
func (s *suite) reachesWorld() bool {
	return slices.Equal(s.hosts, networld.ReadPolicy().Domains)
}

// world is an internet: bin/run and the control start on its host side.
func world(s *scene) error {
	w, err := networld.New(networld.Options{Secret: s.secret, Lifetime: time.Minute + 2*maxSlow})
	if errors.Is(err, networld.ErrImpossible) {
		return errLacking(err.Error())
	}
	if err != nil {
		return err
	}
	s.world = w
	s.closers = append(s.closers, w.Close)
	s.vars["CDN"], s.vars["CDN6"] = networld.CDN.String(), networld.CDN6.String()
	s.vars["OWN"], s.vars["OWN6"] = networld.Host.String(), networld.Host6.String()
	s.vars["NEIGHBOUR"], s.vars["ABSTRACT"], s.vars["INTERFACE"] = networld.Neighbour.String(), w.Abstract(), networld.Interface
	s.checks = append(s.checks, func() string {
		found := w.Violations()
		// A packet is noted a moment after it was sent.
		for range 400 {
			if s.inside || len(found) > 0 || exceeded(w) != "" {
				break
			}
			time.Sleep(5 * time.Millisecond)
			found = w.Violations()
		}
		if len(found) > 0 {
			return found[0]
		}
		return exceeded(w)
	})
	return nil
}

// exceeded names the limit of the policy that a sandbox's traffic is beyond, or nothing.
func exceeded(w *networld.World) string {
	load := w.Load()
	for _, each := range []struct {
		what       string
		got, limit int
	}{
		{"connections at once", load.Connections, w.Policy.Connections},
		// The limit holds for each second of a clock that the world does not know.
		{"connections in one second", load.Rate, 2 * w.Policy.Rate},
		{"names", load.Names, w.Policy.Names},
		// What comes down is counted by the code: the server's buffers take more than that.
		{"megabytes", int(load.Received >> 20), w.Policy.Megabytes + 1},
		// Each name is asked about twice, and asked about again.
		{"questions without an answer", load.Waiting, 4 * w.Policy.Names},
	} {
		if each.got > each.limit {
			return fmt.Sprintf("%d %s, and %d are allowed", each.got, each.what, each.limit)
		}
	}
	return ""
}

// channel offers, as the runtime does, a pipe for the proxy's events, in descriptor 3, and,
// as the launcher does between itself and the proxy, a socket from which descriptors come,
// in descriptor 4. Neither may reach the code.
func channel(s *scene) error {
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { reader.Close(); writer.Close() })
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	near, far := os.NewFile(uintptr(pair[0]), "near"), os.NewFile(uintptr(pair[1]), "far")
	s.closers = append(s.closers, func() { near.Close(); far.Close() })
	path, err := s.write("handed-over", s.secret+"\n", 0o644)
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { file.Close() })
	if err := syscall.Sendmsg(pair[0], []byte("descriptor"), syscall.UnixRights(int(file.Fd())), nil, 0); err != nil {
		return err
	}
	s.files = append(s.files, writer, far)
	s.env = append(s.env, "NIX_SANDBOX_NETWORK_EVENTS=3")
	s.checks = append(s.checks, func() string {
		reader.SetReadDeadline(time.Now().Add(time.Millisecond))
		text, _ := io.ReadAll(io.LimitReader(reader, 1<<20))
		if strings.Contains(string(text), s.mark) && strings.Contains(string(text), "forged") {
			return "code wrote an event of its own"
		}
		return ""
	})
	return nil
}

// proxy is a process of the host that stands for the proxy in controls, which must not
// touch those of sandboxes that run beside them. Its name is the scene's mark.
func proxy(s *scene) error {
	shell, err := exec.LookPath("sh")
	if err != nil {
		return errLacking("no sh for a process with the proxy's name")
	}
	if shell, err = filepath.EvalSymlinks(shell); err != nil {
		return err
	}
	program := filepath.Join(s.dir, "bin", s.mark)
	if err := errors.Join(os.Mkdir(filepath.Dir(program), 0o755), os.Symlink(shell, program)); err != nil {
		return err
	}
	pid, err := s.startVictimOf(program, &syscall.SysProcAttr{Setsid: true})
	s.vars["VICTIM"], s.vars["PROXY"] = pid, s.mark
	return err
}

// listening is a listener of the world's host side that bin/run inherits.
func listening(s *scene) error {
	if s.world == nil {
		return errors.New("it comes after the bait world")
	}
	var file *os.File
	if err := s.world.Do(func() error {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		file, err = listener.(*net.TCPListener).File()
		return err
	}); err != nil {
		return err
	}
	s.closers = append(s.closers, func() { file.Close() })
	s.files = append(s.files, file)
	return unix.SetNonblock(int(file.Fd()), true)
}
