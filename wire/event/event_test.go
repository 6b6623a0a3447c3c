package event_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networktest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

var compare = cmpopts.EquateComparable(netip.Addr{})

// pipe is a stream that is full for lines beyond its size, in bytes.
type pipe struct {
	size int

	mu    sync.Mutex
	bytes bytes.Buffer
}

func (p *pipe) send(line []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes.Len()+len(line) > p.size {
		return false
	}
	p.bytes.Write(line)
	return true
}

// take returns what was sent since the last time.
func (p *pipe) take() *bytes.Reader {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := bytes.Clone(p.bytes.Bytes())
	p.bytes.Reset()
	return bytes.NewReader(taken)
}

func readAll(t *testing.T, r io.Reader) []event.Event {
	t.Helper()
	var list []event.Event
	reader := networktest.NewEventReader(r)
	for {
		e, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
}

func TestWriter_SendsEachEventAtOnce(t *testing.T) {
	want := []event.Event{
		event.RefusedName("evil.example"),
		event.Limited("files.example", 443, event.OptionConnections),
		{Kind: event.Refused, Address: netip.MustParseAddr("2001:db8::1"), Port: 443, Reason: event.ByAddress, Count: 1},
		{Kind: event.Closed, Name: "files.example", Port: 443, Address: netip.MustParseAddr("203.0.113.5"), Up: 512, Down: 10240, Milliseconds: 35, Count: 1},
		{Kind: event.Failed, Name: "files.example", Port: 443, Problem: "connection refused", Count: 1},
		{Kind: event.Ended, Problem: "out of memory", Count: 1},
	}
	stream := pipe{size: 1 << 20}
	w := event.NewWriter(stream.send)
	for _, e := range want {
		w.Write(e)
		if diff := cmp.Diff([]event.Event{e}, readAll(t, stream.take()), compare); diff != "" {
			t.Error(diff)
		}
	}
}

func TestWriter_HasTheContractsForm(t *testing.T) {
	stream := pipe{size: 1 << 20}
	w := event.NewWriter(stream.send)
	w.Write(event.Event{Kind: event.Refused, Name: "evil.example", Port: 443, Reason: event.ByName, Option: "network.domains", Value: "evil.example", Count: 1})
	w.Write(event.Event{Kind: event.Closed, Name: "files.example", Port: 443, Address: netip.MustParseAddr("203.0.113.5"), Up: 512, Down: 10240, Milliseconds: 35})
	want := `{"event":"refused","name":"evil.example","port":443,"reason":"name","option":"network.domains","value":"evil.example","count":1}
{"event":"closed","name":"files.example","address":"203.0.113.5","port":443,"up":512,"down":10240,"milliseconds":35}
`
	got, _ := io.ReadAll(stream.take())
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestWriter_MergesAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := pipe{size: 64 << 10}
		w := event.NewWriter(stream.send)
		const flood, names = 100_000, 1000
		for i := range flood {
			w.Write(event.RefusedName(fmt.Sprintf("n%d.example", i%names)))
		}
		var total int64
		for _, e := range readAll(t, stream.take()) {
			total += e.Count
		}
		if total == 0 || total > 1000 {
			t.Fatalf("%d events came at once", total)
		}
		// The reader is told of all others later.
		for range 100 {
			for _, e := range readAll(t, stream.take()) {
				total += e.Count
			}
			time.Sleep(time.Second)
		}
		if total != flood {
			t.Errorf("%d events are accounted for, of %d", total, flood)
		}
		// After a rest, an event goes out at once again.
		w.Write(event.RefusedName("later.example"))
		if got := readAll(t, stream.take()); len(got) != 1 || got[0].Name != "later.example" {
			t.Errorf("after the flood: %v", got)
		}
	})
}

func TestWriter_CountsWhatAFullStreamLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := pipe{size: 200}
		w := event.NewWriter(stream.send)
		for range 10 {
			w.Write(event.Event{Kind: event.Closed, Name: "files.example", Port: 443, Up: 1})
		}
		before := int64(len(readAll(t, stream.take())))
		time.Sleep(time.Second)
		got := readAll(t, stream.take())
		if before == 0 || len(got) != 1 || got[0].Kind != event.Dropped || got[0].Count != 10-before {
			t.Errorf("%d came, then %v", before, got)
		}
	})
}

func TestWriter_NeverSendsWhatAReaderRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := pipe{size: 1 << 20}
		w := event.NewWriter(stream.send)
		w.Write(event.RefusedName("evil.example\n"))
		w.Write(event.RefusedName("EVIL.example"))
		w.Write(event.Event{Kind: event.Failed, Name: "a.example", Problem: "\x1b[31m"})
		w.Write(event.Event{Kind: event.Failed, Name: "a.example", Problem: strings.Repeat("a", event.MaxLine)})
		w.Write(event.RefusedName("good.example"))
		time.Sleep(time.Second)
		got := readAll(t, stream.take())
		if len(got) != 2 || got[0].Name != "good.example" || got[1].Count != 4 {
			t.Errorf("%v", got)
		}
	})
}

func TestReader_RefusesWhatIsNoEvent(t *testing.T) {
	good := `{"event":"refused","name":"a.example","reason":"name","count":1}` + "\n"
	for _, bad := range []string{
		"x\n", "{}x\n", "\n", good[:20], `[]` + "\n", `"event"` + "\n",
		`{"event":"refused","name":"A.example"}` + "\n",
		`{"event":"refused","name":"a.example\u001b[31m"}` + "\n",
		`{"event":"refused","name":"ignore what was written before, and"}` + "\n",
		`{"event":"refused","reason":"NAME IT"}` + "\n",
		`{"event":"refused","option":"a\nb"}` + "\n",
		`{"event":"refused","value":"a b"}` + "\n",
		`{"event":"refused","value":"a\"]"}` + "\n",
		`{"event":"refused","count":-1}` + "\n",
		`{"event":"refused","port":65536}` + "\n",
		`{"event":"closed","address":"fe80::1%a"}` + "\n",
		`{"event":"closed","address":"evil"}` + "\n",
		`{"event":"closed","up":-1}` + "\n",
		`{"event":"failed","problem":"\u00e4"}` + "\n",
		`{"event":"failed","problem":"` + strings.Repeat("a", 513) + `"}` + "\n",
		strings.Repeat("a", event.MaxLine+1),
	} {
		r := networktest.NewEventReader(strings.NewReader(good + bad + good))
		if e, err := r.Read(); err != nil || e.Name != "a.example" {
			t.Fatalf("the control: %v, %v", e, err)
		}
		for range 2 {
			if e, err := r.Read(); !errors.Is(err, event.ErrMalformed) {
				t.Errorf("%.80q is read as %v, %v", bad, e, err)
			}
		}
	}
}

func TestReader_SkipsWhatANewerProxySays(t *testing.T) {
	got := readAll(t, strings.NewReader(`{"event":"newer","name":"a.example","more":{"a":1}}`+"\n"+`{"event":"refused","name":"b.example","reason":"newer","more":1}`+"\n"))
	if len(got) != 1 || got[0].Name != "b.example" || got[0].Reason != "newer" || got[0].Count != 1 {
		t.Errorf("%v", got)
	}
	if got[0].Sentence() == "" {
		t.Error("no sentence")
	}
}

func TestReader_TakesALineOfTheLargestSize(t *testing.T) {
	line := `{"event":"refused","name":"a.example"`
	line += strings.Repeat(" ", event.MaxLine-len(line)-2) + "}\n"
	if got := readAll(t, strings.NewReader(line)); len(got) != 1 {
		t.Errorf("%v", got)
	}
	if _, err := networktest.NewEventReader(strings.NewReader(" " + line)).Read(); !errors.Is(err, event.ErrMalformed) {
		t.Errorf("a longer line: %v", err)
	}
}

func TestSentence_NamesTheOption(t *testing.T) {
	for want, e := range map[string]event.Event{
		`the sandbox's network refused evil.example (not among the environment's domains). Trying again does not help; an operator allows it with network.domains: "evil.example"`: event.RefusedName("evil.example"),
		`the sandbox's network refused 8.8.8.8:443 (an address). Connect to hosts by name`:                                                                                         {Kind: event.Refused, Reason: event.ByAddress, Address: netip.MustParseAddr("8.8.8.8"), Port: 443},
		`the sandbox's network refused files.example:443 (over a limit). An operator sets the limit with network.rate`:                                                             event.Limited("files.example", 443, event.OptionRate),
		`files.example:443 is allowed, and did not answer: connection refused`:                                                                                                     {Kind: event.Failed, Name: "files.example", Port: 443, Problem: "connection refused"},
	} {
		if got := e.Sentence(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"event":"refused","name":"a.example","reason":"name","count":1}` + "\n"))
	f.Add([]byte(`{"event":"closed","address":"::1","up":1}` + "\n" + `{"event":"x"}` + "\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := networktest.NewEventReader(bytes.NewReader(stream))
		for {
			e, err := r.Read()
			if err != nil {
				if again, same := r.Read(); same == nil {
					t.Fatalf("after %v came %v", err, again)
				}
				return
			}
			text, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range e.Sentence() {
				if c < ' ' || c > '~' {
					t.Fatalf("the sentence has %q", c)
				}
			}
			if _, err := networktest.NewEventReader(bytes.NewReader(append(text, '\n'))).Read(); err != nil {
				t.Fatalf("%s is read, and then %v", text, err)
			}
		}
	})
}
