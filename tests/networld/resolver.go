package networld

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"
)

// A Question is one that came to a resolver of the world.
type Question struct {
	To    netip.Addr // the address that was asked
	Over  string     // udp or tcp
	Name  string     // as it was written; labels are separated by dots
	Type  uint16
	Raw   []byte // the whole message
	Legal bool   // whether a policy's resolver may ask it
}

// Types of records.
const (
	TypeA    = 1
	TypeAAAA = 28

	typeCNAME = 5
	typeOPT   = 41
)

// led are the addresses to which names below led.example lead.
var led = map[string][]string{
	"private":    {"10.0.0.5"},
	"private172": {"172.16.0.5"},
	"private192": {"192.168.0.5"},
	"meta":       {"169.254.169.254"},
	"loop":       {"127.0.0.1"},
	"loops":      {"127.8.8.8"},
	"zero":       {"0.0.0.0"},
	"own":        {Host.String()},
	"own6":       {Host6.String()},
	"mixed":      {CDN.String(), "10.0.0.5"},
	"mixed6":     {CDN.String(), "fd00::5"},
	"mapped":     {"::ffff:10.0.0.5"},
	"mappedloop": {"::ffff:127.0.0.1"},
	"compatible": {"::10.0.0.5"},
	"nat64":      {"64:ff9b::10.0.0.5"},
	"nat64local": {"64:ff9b:1::10.0.0.5"},
	"sixtofour":  {"2002:a00:5::1"},
	"teredo":     {"2001:0:5db8:d835:0:63bf:f5ff:fffa"},
	"isatap":     {"2606:2800:220::5efe:10.0.0.5"},
	"ula":        {"fd00::5"},
	"site":       {"fec0::5"},
	"loop6":      {"::1"},
	"zero6":      {"::"},
	"cgnat":      {"100.64.0.5"},
	"pool":       {"198.18.0.5"},
	"reserved":   {"240.0.0.5"},
	"docs":       {"192.0.2.5"},
	"anycast":    {"192.88.99.1"},
	"gateway":    {"93.184.216.2"},
	"v6":         {CDN6.String()},
	"both":       {CDN.String(), CDN6.String()},
	"down":       {Unreachable.String()},
	"silent":     {Silent.String()},
	"stuck":      {Stuck.String()},
	"mixedown":   {CDN.String(), Host.String()},
}

// serveResolver answers questions at one address.
func (w *World) serveResolver(at netip.Addr) error {
	where := netip.AddrPortFrom(at, 53)
	datagrams, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(where))
	if err != nil {
		return err
	}
	w.keep(datagrams)
	_ = datagrams.SetReadBuffer(4 << 20) // a flood is what some tests are about
	w.tasks.Go(func() {
		message := make([]byte, 64<<10)
		for {
			n, from, err := datagrams.ReadFromUDPAddrPort(message)
			if err != nil {
				return
			}
			if reply := w.answer(at, "udp", message[:n]); reply != nil {
				datagrams.WriteToUDPAddrPort(reply, from)
			}
		}
	})
	return w.listen(where, func(conn net.Conn) {
		for {
			conn.SetDeadline(time.Now().Add(10 * time.Second))
			var size [2]byte
			if _, err := io.ReadFull(conn, size[:]); err != nil {
				return
			}
			message := make([]byte, binary.BigEndian.Uint16(size[:]))
			if _, err := io.ReadFull(conn, message); err != nil {
				return
			}
			reply := w.answer(at, "tcp", message)
			if reply == nil {
				continue
			}
			if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
				return
			}
		}
	})
}

var errShort = errors.New("the message is too short")

// parse reads the question of a message, and returns what follows it.
func parse(message []byte) (q Question, rest []byte, err error) {
	if len(message) < 12 {
		return q, nil, errShort
	}
	rest = message[12:]
	var labels []string
	for {
		if len(rest) == 0 {
			return q, nil, errShort
		}
		size := int(rest[0])
		if size > 63 || len(rest) < 1+size {
			return q, nil, fmt.Errorf("a label of %d bytes", size)
		}
		label := rest[1 : 1+size]
		rest = rest[1+size:]
		if size == 0 {
			break
		}
		labels = append(labels, strings.ReplaceAll(string(label), ".", `\.`))
	}
	if len(rest) < 4 {
		return q, nil, errShort
	}
	q.Name, q.Type = strings.Join(labels, "."), binary.BigEndian.Uint16(rest)
	q.Raw = message
	return q, rest[4:], nil
}

// legal reports whether a message is a question that a policy's resolver may ask: one
// allowed name in its canonical form, an address, and nothing else that could carry data.
func (w *World) legal(q Question, rest []byte) bool {
	header := func(at int) uint16 { return binary.BigEndian.Uint16(q.Raw[at:]) }
	const counts = 4 // of questions, answers, authorities, additional records
	class := header(len(q.Raw) - len(rest) - 2)
	const notQuery = 0xfe // the bits of the third byte that a plain query does not set
	plain := q.Raw[2]&notQuery == 0 && header(counts) == 1 && header(counts+2) == 0 && header(counts+4) == 0 && class == 1 &&
		(q.Type == TypeA || q.Type == TypeAAAA) && q.To == Resolver
	// An OPT record without options tells how long answers may be.
	const option = 11
	switch header(counts + 6) {
	case 0:
		plain = plain && len(rest) == 0
	case 1:
		plain = plain && len(rest) == option && rest[0] == 0 && binary.BigEndian.Uint16(rest[1:]) == typeOPT && rest[9] == 0 && rest[10] == 0
	default:
		return false
	}
	for _, c := range q.Name {
		plain = plain && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	}
	return plain && w.Policy.Allows(q.Name)
}

// answer notes a question and returns the reply, or nil for none.
func (w *World) answer(to netip.Addr, over string, message []byte) []byte {
	message = append([]byte(nil), message...)
	q, rest, err := parse(message)
	if err != nil {
		w.violate("a question that is none came to %v over %s: %v", to, over, err)
		return nil
	}
	q.To, q.Over = to, over
	q.Legal = w.legal(q, rest)
	if !q.Legal {
		w.violate("a question of type %d about %q came to %v over %s", q.Type, q.Name, to, over)
	}
	name := strings.ToLower(q.Name)
	mute := w.Mute || strings.HasSuffix(name, ".mute.host.example")
	w.mu.Lock()
	if len(w.questions) < maxQuestions {
		w.questions = append(w.questions, q)
	}
	if mute {
		w.waiting++
	}
	w.mu.Unlock()
	if mute {
		return nil
	}
	return w.reply(q, name)
}

// A record is one of an answer.
type record struct {
	name string
	kind uint16
	data []byte
}

// reply makes the message that answers a question.
func (w *World) reply(q Question, name string) []byte {
	var records []record
	failure := byte(0)
	truncated := false
	const noSuchName = 3
	address := func(name string, texts ...string) {
		for _, text := range texts {
			a := netip.MustParseAddr(text)
			if a.Is4() && q.Type == TypeA {
				records = append(records, record{name, TypeA, a.AsSlice()})
			}
			if a.Is6() && q.Type == TypeAAAA {
				bytes := a.As16()
				records = append(records, record{name, TypeAAAA, bytes[:]})
			}
		}
	}
	alias := func(from, to string) { records = append(records, record{from, typeCNAME, wireName(to)}) }
	label, isLed := strings.CutSuffix(name, ".led.example")
	switch {
	case name == "gone.host.example", !strings.HasSuffix(name, ".example") && !strings.HasSuffix(name, ".test"):
		failure = noSuchName
	case !isLed && name == "git.example":
		address(name, Git.String())
	case !isLed:
		address(name, CDN.String())
	case label == "rebind":
		// The first answer is good; then every second one is not.
		if q.Type == TypeA && w.turns.Add(1)%2 == 0 {
			address(name, Private.String())
		} else {
			address(name, CDN.String())
		}
	case label == "chain": // through names that are not allowed to a private address
		alias(name, "one.attacker.test")
		alias("one.attacker.test", "two.attacker.test")
		address("two.attacker.test", Private.String())
	case label == "goodchain":
		alias(name, "edge.cdn.test")
		address("edge.cdn.test", CDN.String())
	case label == "ring":
		alias(name, "other.led.example")
		alias("other.led.example", name)
	case label == "stranger": // an address of a name that was not asked about
		address("evil.example", Private.String())
	case label == "many":
		for i := range 300 {
			address(name, netip.AddrFrom4([4]byte{93, 184, 217, byte(i)}).String())
		}
	case label == "truncated":
		if truncated = q.Over == "udp"; !truncated {
			address(name, CDN.String())
		}
	default:
		texts, ok := led[label]
		if !ok {
			failure = noSuchName
		}
		address(name, texts...)
	}
	reply := append([]byte(nil), q.Raw[:12]...)
	reply[2], reply[3] = 0x81, 0x80|failure // a response; recursion is available
	if truncated {
		reply[2] |= 2
	}
	binary.BigEndian.PutUint16(reply[4:], 1)
	binary.BigEndian.PutUint16(reply[6:], uint16(len(records)))
	clear(reply[8:12])
	reply = append(reply, wireName(q.Name)...)
	reply = binary.BigEndian.AppendUint16(reply, q.Type)
	reply = binary.BigEndian.AppendUint16(reply, 1)
	for _, r := range records {
		reply = append(reply, wireName(r.name)...)
		reply = binary.BigEndian.AppendUint16(reply, r.kind)
		reply = binary.BigEndian.AppendUint16(reply, 1)
		reply = binary.BigEndian.AppendUint32(reply, 0) // may not be kept
		reply = binary.BigEndian.AppendUint16(reply, uint16(len(r.data)))
		reply = append(reply, r.data...)
	}
	const datagram = 1232 // what fits into a datagram everywhere
	if q.Over == "udp" && len(reply) > datagram {
		reply[2] |= 2
		clear(reply[6:8])
		reply = reply[:12+len(wireName(q.Name))+4]
	}
	return reply
}

func wireName(name string) []byte {
	var wire []byte
	for label := range strings.SplitSeq(name, ".") {
		if label != "" {
			wire = append(append(wire, byte(len(label))), label...)
		}
	}
	return append(wire, 0)
}
