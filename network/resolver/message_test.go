package resolver

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

func FuzzParse(f *testing.F) {
	f.Add([]byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05files\x07example\x00\x00\x01\x00\x01"))
	f.Add([]byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x05files\x07example\x00\x00\x1c\x00\x01\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, message []byte) {
		q, problem, answer := parse(message)
		if !answer {
			return
		}
		address := netip.AddrFrom4([4]byte{198, 18, 0, 1})
		if problem != success {
			address = netip.Addr{}
		}
		response := q.respond(nil, problem, address, 60)
		if len(response) < headerSize || len(response) > len(message)+headerSize+16+11 {
			t.Fatalf("a query of %d bytes has a response of %d", len(message), len(response))
		}
		if response[0] != message[0] || response[1] != message[1] || response[2]&0x80 == 0 || code(response[3]&0xf) != problem {
			t.Fatalf("% x is answered % x", message, response)
		}
		if problem != success {
			return
		}
		// The response contains the same question, and is a response to this package too.
		if again, _, answer := parse(response); answer {
			t.Fatalf("a response is read as a query: %+v", again)
		}
		response[2] &^= 0x80
		binary.BigEndian.PutUint16(response[6:], 0)
		again, problem, _ := parse(response)
		if problem != success || again.name != q.name || again.kind != q.kind || again.class != q.class || len(q.name) > maxName {
			t.Fatalf("%+v becomes %+v, %v", q, again, problem)
		}
	})
}
