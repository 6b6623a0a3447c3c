package relay

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// buildHello returns a ClientHello with these extensions, in one record.
func buildHello(extensions ...[]byte) []byte {
	all := bytes.Join(extensions, nil)
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0)             // no session
	body = append(body, 0, 2, 0x13, 1) // one cipher suite
	body = append(body, 1, 0)          // no compression
	if extensions != nil {
		body = append(binary.BigEndian.AppendUint16(body, uint16(len(all))), all...)
	}
	return inRecords(append([]byte{1, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...), maxRecord)
}

// inRecords splits a handshake message into records of at most size bytes.
func inRecords(message []byte, size int) []byte {
	var records []byte
	for part := range slices.Chunk(message, size) {
		records = append(binary.BigEndian.AppendUint16(append(records, recordHandshake, 3, 1), uint16(len(part))), part...)
	}
	return records
}

func extension(kind uint16, data ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(data))), data...)
}

func serverName(names ...string) []byte {
	var list []byte
	for _, name := range names {
		list = append(append(list, 0, byte(len(name)>>8), byte(len(name))), name...)
	}
	return extension(0, append([]byte{byte(len(list) >> 8), byte(len(list))}, list...)...)
}

func verdict(records []byte, name string) (event.Reason, error) {
	_, err := readHello(bytes.NewReader(records), name)
	var refused *helloError
	if errors.As(err, &refused) {
		return refused.reason, nil
	}
	return "", err
}

func TestReadHello_AcceptsTheHostsNameAlone(t *testing.T) {
	good := buildHello(serverName("files.example"))
	message := good[recordHeader:]
	many := [][]byte{serverName("files.example")}
	for i := range maxExtensions {
		many = append(many, extension(uint16(1000+i)))
	}
	change := func(i int, b byte) []byte {
		m := slices.Clone(good)
		m[i] = b
		return m
	}
	for name, test := range map[string]struct {
		records []byte
		want    event.Reason
	}{
		"one record":          {good, ""},
		"records of one byte": {inRecords(message, 1), ""},
		"upper case":          {buildHello(serverName("FILES.example")), ""},
		"other extensions":    {buildHello(extension(10, 0, 2, 0, 29), serverName("files.example"), extension(0x0a0a)), ""},
		"of crypto/tls":       {hello(t, "files.example", nil), ""},
		"of TLS 1.0":          {hello(t, "files.example", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS10 }), ""},

		"another name":          {buildHello(serverName("evil.example")), event.BySNI},
		"another of crypto/tls": {hello(t, "evil.example", nil), event.BySNI},
		"a dot at the end":      {buildHello(serverName("files.example.")), event.BySNI},
		"a NUL":                 {buildHello(serverName("files.example\x00")), event.BySNI},
		"a longer name":         {buildHello(serverName("files.example.evil.example")), event.BySNI},
		"an address":            {buildHello(serverName("93.184.216.34")), event.BySNI},
		"no name":               {buildHello(extension(10, 0, 2, 0, 29)), event.ByNoSNI},
		"no extensions":         {buildHello(), event.ByNoSNI},
		"ECH":                   {buildHello(serverName("files.example"), extension(0xfe0d, 0)), event.ByHiddenSNI},
		"ECH before the name":   {buildHello(extension(0xfe0d, 0), serverName("files.example")), event.ByHiddenSNI},
		"a draft of ECH":        {buildHello(serverName("files.example"), extension(0xfe0a, 0)), event.ByHiddenSNI},
		"ESNI":                  {buildHello(extension(0xffce, 0)), event.ByHiddenSNI},

		"two names":             {buildHello(serverName("files.example", "evil.example")), event.ByNotTLS},
		"two extensions":        {buildHello(serverName("files.example"), serverName("evil.example")), event.ByNotTLS},
		"two unknown ones":      {buildHello(serverName("files.example"), extension(77), extension(77)), event.ByNotTLS},
		"an empty name":         {buildHello(serverName("")), event.ByNotTLS},
		"an empty list":         {buildHello(serverName()), event.ByNotTLS},
		"no list":               {buildHello(extension(0)), event.ByNotTLS},
		"bytes after the list":  {buildHello(append(serverName("files.example")[:3], append([]byte{19}, append(serverName("files.example")[4:], 0)...)...)), event.ByNotTLS},
		"a name of type 1":      {buildHello(extension(0, append([]byte{0, 16, 1, 0, 13}, "files.example"...)...)), event.ByNotTLS},
		"too many extensions":   {buildHello(many...), event.ByNotTLS},
		"HTTP":                  {[]byte("GET / HTTP/1.1\r\nHost: files.example\r\n\r\n"), event.ByNotTLS},
		"SSH":                   {[]byte("SSH-2.0-OpenSSH_9.2\r\n"), event.ByNotTLS},
		"SSLv2":                 {append([]byte{0x80, 46, 1, 3, 1}, make([]byte, 43)...), event.ByNotTLS},
		"version 2.0":           {change(1, 2), event.ByNotTLS},
		"an alert":              {change(0, 21), event.ByNotTLS},
		"a record of 0 bytes":   {append([]byte{22, 3, 1, 0, 0}, good...), event.ByNotTLS},
		"a record too long":     {append([]byte{22, 3, 1, 0x40, 1}, make([]byte, 0x4001)...), event.ByNotTLS},
		"a ServerHello":         {change(recordHeader, 2), event.ByNotTLS},
		"bytes after the hello": {inRecords(append(slices.Clone(message), 1), maxRecord), event.ByNotTLS},
		"an odd cipher list":    {change(recordHeader+handshakeHeader+2+32+1+1, 1), event.ByNotTLS},
		"too large":             {inRecords(append([]byte{1, 1, 0, 0}, make([]byte, 65536)...), maxRecord), event.ByNotTLS},
		"announced too large":   {inRecords([]byte{1, 1, 0, 0}, maxRecord), event.ByNotTLS},
	} {
		got, err := verdict(test.records, "files.example")
		if err != nil || got != test.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, test.want)
		}
	}
	for i := range good {
		if got, err := verdict(good[:i], "files.example"); got == "" && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes of a hello: %v", i, err)
		}
	}
}

func TestReadHello_TakesTheLargestAndReadsNoByteMore(t *testing.T) {
	const records = 4
	smallest := len(buildHello(serverName("files.example"), extension(21)))
	padding := make([]byte, maxHello-(records-1)*recordHeader-smallest)
	largest := buildHello(serverName("files.example"), extension(21, padding...))
	if len(largest) != maxHello {
		t.Fatalf("the hello has %d bytes", len(largest))
	}
	stream := bytes.NewReader(slices.Concat(largest, []byte("more")))
	if _, err := readHello(stream, "files.example"); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(stream); string(rest) != "more" {
		t.Errorf("%d bytes are left", len(rest))
	}
	larger := buildHello(serverName("files.example"), extension(21, append(padding, 0)...))
	if got, err := verdict(larger, "files.example"); got != event.ByNotTLS {
		t.Errorf("a hello of %d bytes: %q, %v", len(larger), got, err)
	}
}

func TestReadSecondHello_PassesWhatMayComeBeforeIt(t *testing.T) {
	change := []byte{recordChangeCipher, 3, 3, 0, 1, 1}
	early := append([]byte{recordData, 3, 3, 0x40, 0x10}, make([]byte, 0x4010)...)
	good := buildHello(serverName("files.example"))
	for name, test := range map[string]struct {
		stream []byte
		ok     bool
	}{
		"the hello":       {good, true},
		"a cipher change": {slices.Concat(change, good), true},
		"early data":      {slices.Concat(early, change, early, good), true},
		"another name":    {slices.Concat(change, buildHello(serverName("evil.example"))), false},
		"an alert":        {[]byte{recordAlert, 3, 3, 0, 2, 2, 49}, false},
		"endless data":    {bytes.Repeat(early, 5), false},
		"HTTP":            {[]byte("GET / HTTP/1.1\r\n"), false},
	} {
		passed, err := readSecondHello(bytes.NewReader(test.stream), "files.example")
		var refused *helloError
		if test.ok && (err != nil || !bytes.Equal(passed, test.stream)) || !test.ok && !errors.As(err, &refused) {
			t.Errorf("%s: %d of %d bytes, %v", name, len(passed), len(test.stream), err)
		}
	}
}

// seenBy returns what crypto/tls reads of a ClientHello.
func seenBy(records []byte) *tls.ClientHelloInfo {
	var seen *tls.ClientHelloInfo
	_ = tls.Server(&reader{Reader: bytes.NewReader(records)}, &tls.Config{
		MinVersion: tls.VersionTLS10,
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			seen = info
			return nil, errors.New("enough")
		},
	}).Handshake()
	return seen
}

type reader struct {
	io.Reader
	recorder
}

func (r *reader) Read(b []byte) (int, error) { return r.Reader.Read(b) }

// What this package accepts, crypto/tls reads as the same name. Where it does
// not read it at all, no other reading is known.
func FuzzReadHello(f *testing.F) {
	for _, seed := range [][]byte{
		hello(f, "files.example", nil), buildHello(serverName("files.example")), buildHello(serverName("files.example", "evil.example")),
		buildHello(extension(0xfe0d, 0), serverName("files.example")), inRecords(buildHello(serverName("files.example"))[recordHeader:], 7),
		hello(f, "evil.example", nil), buildHello(),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		in := bytes.NewReader(stream)
		records, err := readHello(in, "files.example")
		if !bytes.HasPrefix(stream, records) || len(records) > maxHello {
			t.Fatalf("%d bytes were read as %d", len(stream), len(records))
		}
		if err != nil {
			return
		}
		if len(stream)-in.Len() != len(records) {
			t.Fatalf("%d bytes were read for a hello of %d", len(stream)-in.Len(), len(records))
		}
		if seen := seenBy(stream); seen != nil && (!strings.EqualFold(seen.ServerName, "files.example") || slices.Contains(seen.Extensions, extensionECH)) {
			t.Fatalf("crypto/tls reads %q", seen.ServerName)
		}
	})
}
