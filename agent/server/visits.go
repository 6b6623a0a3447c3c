package server

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
)

const (
	// maxNamed bounds the files that an answer to look names, maxName each path, in bytes, and
	// maxPorts the ports of an answer to examine.
	maxNamed = 16
	maxName  = 1 << 10
	maxPorts = 64
	// maxTable bounds the kernel's table of sockets, in bytes, of which a line has 150.
	maxTable = 1 << 20
)

// beside answers requests about the sandbox rather than its calls.
func (s *Server) beside(req frame.Request) error {
	switch req.Type {
	case frame.Look:
		go func() { // other requests do not wait for it
			s.looks <- struct{}{}
			defer func() { <-s.looks }()
			_ = s.out.Write(look(req.ID, &s.look))
		}()
		return nil
	case frame.Examine:
		reply := frame.Reply{Type: frame.Examined, ID: req.ID, Ports: listening()}
		if s.keeper != nil {
			usage, err := s.keeper.Usage()
			if err != nil {
				s.logf("%v", err)
			}
			reply.Size = usage.Memory()
		}
		return s.out.Write(reply)
	}
	if err := s.visits.Request(req); err != nil {
		return s.out.Write(frame.Reply{Type: frame.Error, ID: req.ID, Message: err.Error()})
	}
	return nil
}

// look names the files that have changed since the last look.
func look(id uint64, l *workspace.Look) frame.Reply {
	paths, err := l.Changes()
	if err != nil {
		return frame.Reply{Type: frame.Error, ID: id, Message: err.Error()}
	}
	reply := frame.Reply{Type: frame.Looked, ID: id, Size: int64(len(paths))}
	for _, path := range paths {
		if len(reply.Files) < maxNamed && len(path) <= maxName {
			reply.Files = append(reply.Files, frame.File{Path: path})
		}
	}
	return reply
}

// listening returns the TCP ports on which processes of this network namespace listen, at its
// loopback or everywhere.
func listening() (ports []uint16) {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, _ := bounded.ReadFile(name, maxTable) // without IPv6 there is no second one
		ports = append(ports, listeners(table)...)
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	return ports[:min(len(ports), maxPorts)]
}

// listeners reads a table of proc_net_tcp(5): number, local address, remote address, state, …
func listeners(table []byte) (ports []uint16) {
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) < 4 || string(fields[3]) != "0A" { // TCP_LISTEN
			continue
		}
		address, port, _ := bytes.Cut(fields[1], []byte(":"))
		n, err := strconv.ParseUint(string(port), 16, 16)
		if err == nil && isLocal(string(address)) {
			ports = append(ports, uint16(n))
		}
	}
	return ports
}

// isLocal reports whether a connection to the loopback reaches an address of the kernel's table,
// which has words of 32 bits in the order of the machine.
func isLocal(address string) bool {
	bytes, err := hex.DecodeString(address)
	if err != nil || len(bytes) == 0 {
		return false
	}
	isAny := !slices.ContainsFunc(bytes, func(b byte) bool { return b != 0 })
	return isAny || len(bytes) == 4 && bytes[3] == 127 || address == "00000000000000000000000001000000"
}
