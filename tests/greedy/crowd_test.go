package greedy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// greed is one way to ask for much, which all greedy principals try at once.
type greed struct {
	// principals do it, each on so many connections.
	principals, connections int
	// send writes a request to a connection.
	send func(g *greedy, conn io.Writer)
	// held is how long a request is left open without reading its answer. If it is 0, the answer
	// is read at once, and the next request follows.
	held time.Duration
	// least is how many requests are sent before the modest principal asks for something, and
	// least what passes before that.
	least int
	after time.Duration
	// apart is how long each principal waits for the one before: if all take half of what is free,
	// nearly nothing is left.
	apart time.Duration
}

// Greedy principals, and connections of each that use up all calls, or all places for connections.
const (
	all        = 19
	ofCalls    = 120
	ofListener = 4800 / all
)

var greeds = map[string]greed{
	"reads that wait":         {principals: all, connections: ofCalls, send: (*greedy).waitingReads, held: 4 * time.Second},
	"calls that sleep":        {principals: all, connections: ofCalls, send: (*greedy).sleeper},
	"calls that are given up": {principals: all, connections: ofCalls, send: (*greedy).legacySleeper, held: 200 * time.Millisecond, least: all * ofCalls * 3 / 2},
	"values":                  {principals: all, connections: 32, send: (*greedy).values},
	"values that stay":        {principals: all, connections: 64, send: (*greedy).subscription, held: time.Minute},
	"large calls":             {principals: all, connections: 8, send: (*greedy).largeCall, held: 5 * time.Second},
	"slow bodies":             {principals: all, connections: 40, send: (*greedy).slowBody, held: time.Minute, apart: 100 * time.Millisecond},
	"bodies that never come":  {principals: all, connections: ofListener, send: (*greedy).noBody, held: time.Minute},
	"idle connections":        {principals: all, connections: ofListener, send: func(*greedy, io.Writer) {}, held: time.Minute},
	"heads that never come":   {principals: all, connections: ofListener, send: (*greedy).noHead, held: time.Minute},
	"answers that nobody reads": {
		principals: all, connections: 64, held: time.Minute, after: 3 * time.Second,
		send: func(g *greedy, conn io.Writer) { g.call(conn, "", "fill 1000000") },
	},
	"files that nobody reads": {principals: all, connections: 32, send: (*greedy).file, held: time.Minute, after: 3 * time.Second},
	"files":                   {principals: all, connections: 32, send: (*greedy).file, after: 2 * time.Second},
	"refused calls":           {principals: 1, connections: 64, send: (*greedy).refused, after: 4 * time.Second},
	"sessions":                {principals: all, connections: 16, send: (*greedy).newSession, least: 60 * all},
	"sessions that end":       {principals: all, connections: 16, send: (*greedy).endingSession, least: 1200},
	"HTTP sessions":           {principals: all, connections: 16, send: (*greedy).httpSession, least: 4500},
	"builds":                  {principals: all, connections: 64, send: (*greedy).build, held: 500 * time.Millisecond, least: 2500},
	"kept files":              {principals: all, connections: 4, send: (*greedy).keptFile, least: 200},
	"files of calls":          {principals: all, connections: 8, send: (*greedy).fileOfCall, least: 400},
}

// everything is a mixture: each principal does two things.
const everything = "everything"

// crowd is many principals that ask for all they can get.
type crowd struct {
	address string
	ctx     context.Context
	users   sync.WaitGroup
	sent    atomic.Int64
}

// crowdMain is the process of the greedy clients. For each line of its input, which is a kind of
// greed, it is greedy until the next line comes. It prints a line when it has asked for so much that
// the modest principal may come.
func crowdMain(address string) error {
	// The server goes first, as it would on a machine of its own.
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10); err != nil {
		return err
	}
	with, err := seed.Pick()
	if err != nil {
		return err
	}
	source := rand.New(rand.NewPCG(with, 0))
	lines := bufio.NewScanner(os.Stdin)
	for more := lines.Scan(); more; {
		ctx, end := context.WithCancel(context.Background())
		c := &crowd{address: address, ctx: ctx}
		least, after := c.begin(lines.Text(), source)
		began := time.Now()
		go func() {
			for ctx.Err() == nil && (c.sent.Load() < int64(least) || time.Since(began) < after) {
				time.Sleep(10 * time.Millisecond)
			}
			fmt.Println("begun")
		}()
		more = lines.Scan()
		end()
		c.users.Wait()
		fmt.Println("ended after", c.sent.Load())
	}
	return nil
}

// begin has the crowd do what a kind of greed says. It returns how many requests are to be sent, and
// the time to wait, before the modest principal comes.
func (c *crowd) begin(kind string, source *rand.Rand) (least int, after time.Duration) {
	names := slices.Sorted(maps.Keys(greeds))
	if one, ok := greeds[kind]; ok {
		for i := range one.principals {
			c.join(one, one.connections, i, source.Uint64())
		}
		return max(one.least, one.principals*one.connections), max(one.after, 300*time.Millisecond)
	}
	for i := range all {
		for range 2 {
			one := greeds[names[source.IntN(len(names))]]
			c.join(one, one.connections/2, i, source.Uint64())
			least += one.connections / 2
		}
	}
	return least, time.Second
}

// join has a principal be greedy on connections.
func (c *crowd) join(one greed, connections, principal int, with uint64) {
	for n := range connections {
		g := &greedy{crowd: c, name: fmt.Sprintf("greedy-%d", principal), connection: n, random: rand.New(rand.NewPCG(with, uint64(n)))}
		c.users.Go(func() {
			g.pause(time.Duration(principal) * one.apart)
			for c.ctx.Err() == nil {
				g.use(one)
				g.pause(20 * time.Millisecond)
			}
		})
	}
}

// greedy is one of them, with one connection at a time.
type greedy struct {
	*crowd
	name       string
	connection int
	random     *rand.Rand
	session    string // of HTTP
}

// use opens a connection, and sends and reads until something fails.
func (g *greedy) use(one greed) {
	conn, err := (&net.Dialer{}).DialContext(g.ctx, "tcp", g.address)
	if err != nil {
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(g.ctx, func() { conn.Close() })
	defer stop()
	if one.held > 0 {
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		g.sent.Add(1)
		one.send(g, conn)
		g.hold(conn, one.held)
		return
	}
	answers := bufio.NewReader(conn)
	for {
		one.send(g, conn)
		g.sent.Add(1)
		response, err := http.ReadResponse(answers, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		if err != nil {
			return
		}
		if response.Close {
			return
		}
	}
}

// hold leaves a connection open for a time, or until the server closes it. It reads 4 KiB a second.
func (g *greedy) hold(conn net.Conn, d time.Duration) {
	_ = conn.SetReadDeadline(time.Now().Add(d))
	for buffer := make([]byte, 4<<10); ; g.pause(time.Second) {
		if _, err := conn.Read(buffer); err != nil {
			return
		}
	}
}

func (g *greedy) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-g.ctx.Done():
	}
}

const meta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`

// padding is what large messages share.
var padding = strings.Repeat("x", 15<<20)

func (g *greedy) head(conn io.Writer, method, name, length string) {
	if name != "" {
		name = "Mcp-Name: " + name + "\r\n"
	}
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: %s\r\n%s%s\r\n\r\n", g.name, method, name, length)
}

// post sends a request with params beside _meta.
func (g *greedy) post(conn io.Writer, method, name, params, moreMeta string) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"_meta":{%s%s}%s}}`, method, meta, moreMeta, params)
	g.head(conn, method, name, fmt.Sprintf("Content-Length: %d", len(body)))
	_, _ = io.WriteString(conn, body) // use finds out
}

func (g *greedy) callIn(conn io.Writer, env, session, code string) {
	if session != "" {
		session = fmt.Sprintf(`"session":%q,`, session)
	}
	g.post(conn, "tools/call", "run", fmt.Sprintf(`,"name":"run","arguments":{"env":%q,%s"code":%q}`, env, session, code), "")
}

func (g *greedy) call(conn io.Writer, session, code string) { g.callIn(conn, "bash", session, code) }

func (g *greedy) read(conn io.Writer, uri string) {
	g.post(conn, "resources/read", uri, fmt.Sprintf(`,"uri":%q`, uri), "")
}

func (g *greedy) waitingReads(conn io.Writer) {
	if g.connection == 0 {
		g.call(conn, "s", "sleep 3")
		return
	}
	g.read(conn, "sandbox://s/x")
}

func (g *greedy) sleeper(conn io.Writer) { g.call(conn, "", "sleep 0.25") }

// legacySleeper makes a call in a revision in which calls go on when their clients have gone.
func (g *greedy) legacySleeper(conn io.Writer) {
	if g.session == "" {
		g.httpSession(conn)
		if response, err := http.ReadResponse(bufio.NewReader(conn.(io.Reader)), nil); err == nil {
			g.session = response.Header.Get("Mcp-Session-Id")
		}
	}
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"env":"bash","code":"sleep 0.25"}}}`
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nMcp-Session-Id: %s\r\nContent-Length: %d\r\n\r\n%s", g.name, g.session, len(body), body)
}

// bomb is a list of as many values as a message may have, nearly.
func (g *greedy) bomb() string {
	one := []string{"[]", "{}", `{"":0}`}[g.random.IntN(3)]
	return `,"x":[` + strings.Repeat(one+",", 9800/strings.Count(one+",:", "")) + "1]"
}

func (g *greedy) values(conn io.Writer) {
	if g.random.IntN(2) == 0 {
		g.post(conn, "ping", "", "", g.bomb())
		return
	}
	g.post(conn, "tools/call", "run", `,"name":"run","arguments":{"env":"bash","code":"sleep 1"`+g.bomb()+"}", "")
}

func (g *greedy) subscription(conn io.Writer) {
	g.post(conn, "subscriptions/listen", "", `,"notifications":{"toolsListChanged":true}`, g.bomb())
}

func (g *greedy) largeCall(conn io.Writer) {
	g.call(conn, "", "sleep 3; #"+padding[:1<<20+g.random.IntN(len(padding)-1<<20)])
}

func (g *greedy) slowBody(conn io.Writer) {
	g.head(conn, "ping", "", "Transfer-Encoding: chunked")
	size := (64<<10 + 1) << g.random.IntN(6)
	fmt.Fprintf(conn, "%x\r\n%s", 8<<20, padding[:size])
}

func (g *greedy) noBody(conn io.Writer) { g.head(conn, "ping", "", "Content-Length: 100") }

func (g *greedy) noHead(conn io.Writer) { fmt.Fprint(conn, "POST /mcp HTTP/1.1\r\nHost: ") }

// file reads a file of 8 MiB.
func (g *greedy) file(conn io.Writer) {
	if g.connection == 0 {
		g.call(conn, "big", "fill 8000000 >outputs/f")
		return
	}
	g.read(conn, "sandbox://big/outputs/f")
}

func (g *greedy) refused(conn io.Writer) {
	g.post(conn, "tools/call", "run", fmt.Sprintf(`,"name":"run","arguments":{"env":"%s","code":""}`, strings.Repeat(`\u0001`, 128)), "")
}

func (g *greedy) inSession(conn io.Writer, code string) {
	g.call(conn, fmt.Sprintf("n%d", g.random.Uint32()), code)
}

func (g *greedy) newSession(conn io.Writer) { g.inSession(conn, ":") }

func (g *greedy) endingSession(conn io.Writer) { g.inSession(conn, "crash") }

func (g *greedy) httpSession(conn io.Writer) {
	const body = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"greedy","version":"1"}}}`
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", g.name, len(body), body)
}

func (g *greedy) build(conn io.Writer) {
	g.callIn(conn, fmt.Sprintf("bash+g%d", g.random.Uint32()), "", ":")
}

func (g *greedy) keptFile(conn io.Writer) {
	g.call(conn, fmt.Sprintf("kept-%d", g.connection), fmt.Sprintf("X=%d; fill 750000 >big", g.random.Uint32()))
}

func (g *greedy) fileOfCall(conn io.Writer) { g.call(conn, "", "fill 100000 >outputs/f") }
