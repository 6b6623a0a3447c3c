package networld

import (
	"bytes"
	"encoding/binary"
	"net"
	"regexp"
	"sync"
)

// Evil is a name that is not allowed and has the same address as allowed ones.
const Evil = "evil.example"

// maxJudged is how much of a connection's beginning is judged, in bytes.
const maxJudged = 128 << 10

// judged reads the beginning of a connection as a careless server might: that a careful one
// refuses a request which names two hosts does not excuse whoever passed it on.
type judged struct {
	net.Conn
	w    *World
	port uint16

	mu    sync.Mutex
	begun []byte
	over  bool // the beginning is complete, or a violation was noted
}

func (j *judged) Read(p []byte) (int, error) {
	n, err := j.Conn.Read(p)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over {
		return n, err
	}
	j.begun = append(j.begun, p[:n]...)
	var problem string
	if j.port == 443 {
		problem, j.over = judgeTLS(j.begun, err != nil)
	} else {
		problem, j.over = judgeHTTP(j.begun)
	}
	if problem != "" {
		j.w.violate("%s reached the server of many names at port %d", problem, j.port)
		j.over = true
	}
	if j.over = j.over || len(j.begun) > maxJudged; j.over {
		j.begun = nil
	}
	return n, err
}

// judgeTLS returns what is wrong with the beginning of a connection for TLS, and whether
// no more of it is needed. Ended says that nothing follows.
func judgeTLS(data []byte, ended bool) (problem string, over bool) {
	const handshake, header = 22, 5
	switch {
	case len(data) == 0:
		return "", false
	case data[0] != handshake:
		return "something that is no ClientHello", true
	case bytes.Contains(bytes.ToLower(data), []byte(Evil)):
		return "a ClientHello with the name " + Evil, true
	}
	// The message without the headers of its records.
	var message []byte
	for rest := data; len(rest) >= header && rest[0] == handshake; {
		size := int(binary.BigEndian.Uint16(rest[3:]))
		message = append(message, rest[header:min(len(rest), header+size)]...)
		rest = rest[min(len(rest), header+size):]
	}
	if len(message) >= 4 {
		size := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
		switch {
		case size > 64<<10:
			return "a ClientHello of more than 64 KiB", true
		case bytes.Contains(bytes.ToLower(message), []byte(Evil)):
			return "a ClientHello with the name " + Evil, true
		case len(message) >= 4+size:
			return "", true
		}
	}
	if ended {
		return "the beginning of a ClientHello", true
	}
	return "", false
}

var (
	requestLine = regexp.MustCompile(`^[!#$%&'*+.^_|~0-9A-Za-z-]+ [^ \t\r\n]+ HTTP/1\.[01]\r\n`)
	evilHost    = regexp.MustCompile(`(?i)(^|[\r\n])[ \t]*host[ \t]*:\s*[^\r\n]*` + regexp.QuoteMeta(Evil))
)

// judgeHTTP is judgeTLS for HTTP: its first request's head.
func judgeHTTP(data []byte) (problem string, over bool) {
	head, _, whole := bytes.Cut(data, []byte("\r\n\r\n"))
	switch {
	case bytes.Contains(head, []byte("\r\n")) && !requestLine.Match(append(bytes.Clone(head), '\r', '\n')),
		len(data) > 0 && (data[0] <= ' ' || data[0] > '~'):
		return "something that is no request", true
	case evilHost.Match(head):
		return "a request's head with a Host of " + Evil, true
	}
	return "", whole
}
