package relay

import (
	"net"
	"sync"
)

// maxLines bounds the lines of a response before its body. net/http bounds only their bytes, and
// each line of a few bytes costs it a hundred times as many.
const maxLines = 1000

// errLines ends a connection because its response has too many lines before the body.
const errLines = problem("its response has too many header lines")

// head counts the lines of a response before its body, together with those of the informational
// responses (1xx) before it. It is safe for concurrent use.
type head struct {
	mu     sync.Mutex
	body   bool
	lines  int
	column int // in the current line
	first  bool
	status int
}

// reset expects another response.
func (h *head) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.body, h.lines, h.column, h.first, h.status = false, 0, 0, true, 0
}

// read takes the next bytes of a response. It returns [errLines] if they have too many lines.
func (h *head) read(bytes []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range bytes {
		switch {
		case h.body:
			return nil
		case b == '\n':
			h.endLine()
			if h.lines > maxLines {
				return errLines
			}
		case b == ' ' && h.first && h.column == 9:
			// net/http skips further blanks before the status.
		case b != '\r':
			// The status is at columns 9 to 11: "HTTP/1.1 200 OK".
			if h.first && h.column >= 9 && h.column <= 11 {
				h.status = 10*h.status + int(b-'0')
			}
			h.column++
		}
	}
	return nil
}

func (h *head) endLine() {
	h.lines++
	h.first = false
	if h.column == 0 {
		// After 101 the connection speaks another protocol.
		h.body = h.status < 100 || h.status > 199 || h.status == 101
		h.first, h.status = true, 0
	}
	h.column = 0
}

// headConn is a connection to a host, after TLS if there is any, that counts the lines of responses.
type headConn struct {
	net.Conn
	head *head
}

func (h headConn) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	if problem := h.head.read(b[:n]); problem != nil {
		return 0, problem
	}
	return n, err
}
