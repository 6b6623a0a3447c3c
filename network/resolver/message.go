package resolver

import (
	"encoding/binary"
	"net/netip"
)

// The parts of RFC 1035 that a resolver of one question needs. Queries are hostile, and only 12
// bytes and one name without compression are read: less than any library would read.

// maxQuery is the longest query, in bytes. A question has at most 271; the rest
// is for the options of EDNS (RFC 6891).
const maxQuery = 1232

const (
	headerSize = 12
	maxName    = 255 // in bytes of the message (RFC 1035, section 2.3.4)
	maxLabel   = 63
)

// Types and the class of questions.
const (
	typeA    = 1
	typeAAAA = 28
	typeOPT  = 41
	classIN  = 1
)

type code byte

const (
	success        code = 0
	formatError    code = 1
	serverFailure  code = 2
	noSuchName     code = 3
	notImplemented code = 4
)

// Bits of the header's flags.
const (
	flagResponse  = 1 << 15
	maskOpcode    = 0xf << 11
	flagDesired   = 1 << 8 // recursion is desired
	flagAvailable = 1 << 7 // recursion is available
)

type question struct {
	id       uint16
	flags    uint16
	name     string // with dots between the labels; empty if a label has other bytes
	kind     uint16
	class    uint16
	raw      []byte // the question as it came
	extended bool   // it has an OPT record
}

// parse reads a query. The code is formatError or notImplemented if there is no question to answer.
// answer is false if no answer may be sent, because the message is itself a response or has no
// whole header.
func parse(message []byte) (q question, problem code, answer bool) {
	if len(message) < headerSize {
		return q, 0, false
	}
	q.id = binary.BigEndian.Uint16(message)
	q.flags = binary.BigEndian.Uint16(message[2:])
	if q.flags&flagResponse != 0 {
		return q, 0, false
	}
	if q.flags&maskOpcode != 0 {
		return q, notImplemented, true
	}
	questions := binary.BigEndian.Uint16(message[4:])
	answers := binary.BigEndian.Uint32(message[6:]) // and authorities
	if questions != 1 || answers != 0 || len(message) > maxQuery {
		return q, formatError, true
	}
	rest := message[headerSize:]
	size, name, ok := parseName(rest)
	if !ok || len(rest) < size+4 {
		return q, formatError, true
	}
	q.name = name
	q.kind = binary.BigEndian.Uint16(rest[size:])
	q.class = binary.BigEndian.Uint16(rest[size+2:])
	q.raw = rest[:size+4]
	// An OPT record begins with the root's name.
	if rest = rest[size+4:]; len(rest) >= 3 {
		q.extended = rest[0] == 0 && binary.BigEndian.Uint16(rest[1:]) == typeOPT
	}
	return q, success, true
}

// parseName reads a name without compression, which a question cannot have. It
// returns the size of its bytes. A label can have any byte in DNS; a name with a
// byte that no host's name has is returned as empty, so that a dot inside a
// label is never taken for one between two.
func parseName(message []byte) (size int, name string, ok bool) {
	var text [maxName]byte
	n, odd := 0, false
	for {
		if size >= len(message) {
			return 0, "", false
		}
		label := int(message[size])
		size++
		if label == 0 {
			break
		}
		if label > maxLabel || size+label >= len(message) || size+label >= maxName {
			return 0, "", false
		}
		for _, c := range message[size : size+label] {
			odd = odd || c <= ' ' || c == '.' || c > '~'
		}
		if n > 0 {
			text[n] = '.'
			n++
		}
		n += copy(text[n:], message[size:size+label])
		size += label
	}
	if odd {
		return size, "", true
	}
	return size, string(text[:n]), true
}

// respond appends a response to buffer, with one address if that is valid.
func (q *question) respond(buffer []byte, c code, address netip.Addr, ttl uint32) []byte {
	flags := flagResponse | q.flags&(maskOpcode|flagDesired) | flagAvailable | uint16(c)
	var questions, answers, additional uint16
	if len(q.raw) > 0 {
		questions = 1
	}
	if address.IsValid() {
		answers = 1
	}
	if q.extended {
		additional = 1
	}
	b := binary.BigEndian.AppendUint16(buffer, q.id)
	for _, n := range []uint16{flags, questions, answers, 0, additional} {
		b = binary.BigEndian.AppendUint16(b, n)
	}
	b = append(b, q.raw...)
	if address.IsValid() {
		b = append(b, 0xc0, headerSize) // the question's name
		b = binary.BigEndian.AppendUint16(b, typeA)
		b = binary.BigEndian.AppendUint16(b, classIN)
		b = binary.BigEndian.AppendUint32(b, ttl)
		b = binary.BigEndian.AppendUint16(b, 4)
		a := address.As4()
		b = append(b, a[:]...)
	}
	if q.extended {
		b = append(b, 0)
		b = binary.BigEndian.AppendUint16(b, typeOPT)
		b = binary.BigEndian.AppendUint16(b, maxQuery)
		b = append(b, 0, 0, 0, 0, 0, 0) // no extended code, version 0, no flags, no options
	}
	return b
}
