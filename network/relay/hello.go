package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostname"
)

// The readable parts of TLS (RFC 8446, sections 4 and 5; RFC 6066, section 3). This parser accepts
// a subset of the messages that crypto/tls accepts, and a test compares the two: a message that two
// programs could read differently is refused.

const (
	recordHeader    = 5
	handshakeHeader = 4
	// maxRecord is the longest record without encryption (RFC 8446, section 5.1).
	maxRecord = 1 << 14
	// maxHello is the longest ClientHello that is read, in bytes with its headers. Today's have
	// about 2 KiB.
	maxHello = 64 << 10
	// maxExtensions is how many extensions a ClientHello may have.
	maxExtensions = 256
	// maxEarly is how much a client may send between two ClientHellos, which is
	// early data that the server throws away.
	maxEarly = 64 << 10
)

// Types of records and of handshake messages.
const (
	recordChangeCipher = 20
	recordAlert        = 21
	recordHandshake    = 22
	recordData         = 23

	messageClientHello = 1
	messageServerHello = 2
)

// Extensions of a ClientHello.
const (
	extensionServerName = 0
	// Encrypted Client Hello, its drafts, and the encrypted server name before it.
	extensionECH      = 0xfe0d
	extensionECHDraft = 0xfe08
	extensionESNI     = 0xffce
)

// serverNameHost is the only type of names in the extension.
const serverNameHost = 0

// helloRetry is the random value of a ServerHello that asks for a second
// ClientHello (RFC 8446, section 4.1.3).
var helloRetry = []byte{
	0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
	0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
}

type helloError struct{ reason event.Reason }

func (e *helloError) Error() string { return "the ClientHello is refused: " + string(e.reason) }

// errRecord reports a record that is not the part of TLS that is due.
var errRecord = errors.New("not a record of TLS")

// readRecord appends the next record of a stream to buffer, which has at most
// most bytes then. It reads no byte after the record.
func readRecord(r io.Reader, buffer []byte, most int) ([]byte, error) {
	begin := len(buffer)
	if begin+recordHeader > most {
		return buffer, errRecord
	}
	buffer = slices.Grow(buffer, 2048)[:begin+recordHeader]
	if n, err := io.ReadFull(r, buffer[begin:]); err != nil {
		return buffer[:begin+n], err
	}
	header := buffer[begin:]
	size := int(binary.BigEndian.Uint16(header[3:]))
	if header[0] < recordChangeCipher || header[0] > recordData || header[1] != 3 || size == 0 || len(buffer)+size > most {
		return buffer, errRecord
	}
	if header[0] != recordData && size > maxRecord {
		return buffer, errRecord
	}
	begin = len(buffer)
	buffer = slices.Grow(buffer, size)[:begin+size]
	n, err := io.ReadFull(r, buffer[begin:])
	return buffer[:begin+n], err
}

// readHello reads the records of one ClientHello, checks that it names the host,
// and returns their bytes. It reads no byte after them. The error is a
// *[helloError], or that of the stream.
func readHello(r io.Reader, name string) ([]byte, error) {
	var records, message []byte
	for {
		begin := len(records)
		var err error
		records, err = readRecord(r, records, maxHello)
		if errors.Is(err, errRecord) || len(records) > begin && records[begin] != recordHandshake {
			err = &helloError{event.ByNotTLS}
		}
		if err != nil {
			return records, err
		}
		message = append(message, records[begin+recordHeader:]...)
		if message[0] != messageClientHello {
			return records, &helloError{event.ByNotTLS}
		}
		if len(message) < handshakeHeader {
			continue
		}
		size := handshakeHeader + int(message[1])<<16 + int(message[2])<<8 + int(message[3])
		switch {
		case size > maxHello, len(message) > size:
			// A ClientHello must be the last message of its record.
			return records, &helloError{event.ByNotTLS}
		case len(message) < size:
			continue
		}
		if reason := checkHello(message[handshakeHeader:], name); reason != "" {
			return records, &helloError{reason}
		}
		return records, nil
	}
}

// input is the unread rest of a message.
type input []byte

// take returns the next n bytes.
func (in *input) take(n int) (input, bool) {
	if n > len(*in) {
		return nil, false
	}
	taken := (*in)[:n]
	*in = (*in)[n:]
	return taken, true
}

// number returns the next number of so many bytes.
func (in *input) number(size int) (n int, ok bool) {
	bytes, ok := in.take(size)
	for _, b := range bytes {
		n = n<<8 | int(b)
	}
	return n, ok
}

// vector returns the next bytes that have their length, of so many bytes,
// before them.
func (in *input) vector(size int) (input, bool) {
	n, ok := in.number(size)
	if !ok {
		return nil, false
	}
	return in.take(n)
}

// checkHello checks the body of a ClientHello. It returns "" if the server name is readable and is
// the host's.
func checkHello(in input, name string) event.Reason {
	_, ok := in.take(2 + 32) // the version and the random value
	session, ok1 := in.vector(1)
	suites, ok2 := in.vector(2)
	compressions, ok3 := in.vector(1)
	if !ok || !ok1 || !ok2 || !ok3 || len(session) > 32 || len(suites) == 0 || len(suites)%2 != 0 || len(compressions) == 0 {
		return event.ByNotTLS
	}
	if len(in) == 0 {
		return event.ByNoSNI
	}
	extensions, ok := in.vector(2)
	if !ok || len(in) != 0 {
		return event.ByNotTLS
	}
	seen := make([]int, 0, 32)
	var server input
	hidden := false
	for len(extensions) > 0 {
		kind, ok := extensions.number(2)
		data, ok1 := extensions.vector(2)
		if !ok || !ok1 || len(seen) == maxExtensions || slices.Contains(seen, kind) {
			return event.ByNotTLS
		}
		seen = append(seen, kind)
		switch {
		case kind == extensionServerName:
			server = data
		case kind == extensionESNI, extensionECHDraft <= kind && kind <= extensionECH:
			hidden = true
		}
	}
	switch {
	case hidden:
		return event.ByHiddenSNI
	case !slices.Contains(seen, extensionServerName):
		return event.ByNoSNI
	}
	list, ok := server.vector(2)
	if !ok || len(server) != 0 {
		return event.ByNotTLS
	}
	// The list has one name: only one type of names was ever defined, and no two
	// may have the same type.
	kind, ok := list.number(1)
	host, ok1 := list.vector(2)
	if !ok || !ok1 || len(list) != 0 || kind != serverNameHost || len(host) == 0 {
		return event.ByNotTLS
	}
	// RFC 6066 allows no dot at the end, which Canonical would take away.
	canonical, err := hostname.Canonical(string(host))
	if err != nil || canonical != name || len(canonical) != len(host) {
		return event.BySNI
	}
	return ""
}

// helloRetrySize is how many bytes of a server's first message show whether it asks
// for a second ClientHello: the header, the version and the random value.
const helloRetrySize = handshakeHeader + 2 + 32

// asksAgain returns whether a ServerHello, of which the first helloRetrySize bytes are
// given, asks for a second ClientHello.
func asksAgain(message []byte) bool { return string(message[helloRetrySize-32:]) == string(helloRetry) }

// readSecondHello reads a client's bytes up to and including its second ClientHello, which a server
// asked for. It checks that like the first one and returns all bytes.
func readSecondHello(r io.Reader, name string) ([]byte, error) {
	var before []byte
	for {
		begin := len(before)
		header := make([]byte, recordHeader)
		if _, err := io.ReadFull(r, header); err != nil {
			return before, err
		}
		whole := io.MultiReader(bytes.NewReader(header), r)
		if header[0] == recordHandshake {
			records, err := readHello(whole, name)
			return append(before, records...), err
		}
		var err error
		before, err = readRecord(whole, before, maxEarly)
		if errors.Is(err, errRecord) || err == nil && before[begin] != recordChangeCipher && before[begin] != recordData {
			err = &helloError{event.ByNotTLS}
		}
		if err != nil {
			return before, err
		}
	}
}
