package greedy

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// crowd is many principals that ask for all they can get.
type crowd struct {
	s   *server
	ctx context.Context
	all sync.WaitGroup

	mu   sync.Mutex
	done map[string]int // how often something was asked for
}

func newCrowd(ctx context.Context, s *server, source *rand.Rand) *crowd {
	c := &crowd{s: s, ctx: ctx, done: map[string]int{}}
	names := slices.Sorted(maps.Keys(greed))
	for i := range greedyPrincipals {
		random := rand.New(rand.NewPCG(source.Uint64(), 0))
		g := &greedy{crowd: c, name: fmt.Sprintf("greedy-%d", i), random: random}
		// Each kind has one at least.
		kinds := []string{names[i%len(names)]}
		for range random.IntN(3) {
			kinds = append(kinds, names[random.IntN(len(names))])
		}
		for _, kind := range kinds {
			seed := random.Uint64()
			c.all.Go(func() { (&greedy{c, g.name, rand.New(rand.NewPCG(seed, 0))}).want(kind) })
		}
	}
	return c
}

func (c *crowd) wait() { c.all.Wait() }

func (c *crowd) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.done)
}

// greedy is one of them.
type greedy struct {
	*crowd
	name   string
	random *rand.Rand
}

// greed are the ways to ask for much: each sends something on connections that stay open
// for a while, and says how many of them.
var greed = map[string]struct {
	connections int
	// send writes to one connection, and how its answer is read follows from slow.
	send func(g *greedy, conn io.Writer)
	slow bool
}{
	"waiting reads":       {200, (*greedy).waitingReads, true},
	"values":              {8, (*greedy).values, false},
	"subscribed values":   {64, (*greedy).subscribedValues, true},
	"large calls":         {6, (*greedy).largeCalls, true},
	"large subscriptions": {6, (*greedy).largeSubscriptions, true},
	"slow bodies":         {40, (*greedy).slowBodies, true},
	"connections":         {300, (*greedy).bodiless, true},
	"idle connections":    {300, (*greedy).idle, true},
	"unread answers":      {40, (*greedy).unread, true},
	"refusals":            {16, (*greedy).refusals, false},
	"calls":               {40, (*greedy).calls, false},
	"sleepers":            {100, (*greedy).sleepers, true},
	"sessions":            {16, (*greedy).sessions, false},
}

// want asks for one thing again and again.
func (g *greedy) want(kind string) {
	what := greed[kind]
	var users sync.WaitGroup
	for range what.connections {
		seed := g.random.Uint64()
		one := &greedy{g.crowd, g.name, rand.New(rand.NewPCG(seed, 0))}
		users.Go(func() {
			for g.ctx.Err() == nil {
				one.use(kind, what.send, what.slow)
			}
		})
	}
	users.Wait()
}

// use opens a connection, and sends and reads until something fails.
func (g *greedy) use(kind string, send func(*greedy, io.Writer), slow bool) {
	conn, err := (&net.Dialer{}).DialContext(g.ctx, "tcp", g.s.address)
	if err != nil {
		g.pause(time.Second)
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(g.ctx, func() { conn.Close() })
	defer stop()
	if slow {
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		send(g, conn)
		g.count(kind)
		_ = conn.SetReadDeadline(time.Now().Add(g.between(time.Second, 20*time.Second)))
		for buffer := make([]byte, 4<<10); ; g.pause(time.Second) {
			if _, err := conn.Read(buffer); err != nil {
				return
			}
		}
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with the connection
	for range 100 {
		if g.ctx.Err() != nil {
			return
		}
		failing := &failing{Writer: conn}
		send(g, failing)
		g.count(kind)
		// Processors are not shared out here, so the crowd leaves some to the server.
		g.pause(50 * time.Millisecond)
		if failing.failed {
			g.pause(50 * time.Millisecond)
			return
		}
	}
}

// failing notes whether a write failed.
type failing struct {
	io.Writer
	failed bool
}

func (f *failing) Write(data []byte) (int, error) {
	n, err := f.Writer.Write(data)
	f.failed = f.failed || err != nil
	return n, err
}

func (g *greedy) count(kind string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done[kind]++
}

func (g *greedy) between(least, most time.Duration) time.Duration {
	return least + time.Duration(g.random.Int64N(int64(most-least)))
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

func (g *greedy) call(conn io.Writer, session, code string) {
	if session != "" {
		session = fmt.Sprintf(`"session":%q,`, session)
	}
	g.post(conn, "tools/call", "run", fmt.Sprintf(`,"name":"run","arguments":{"env":"bash",%s"code":%q}`, session, code), "")
}

func (g *greedy) waitingReads(conn io.Writer) {
	if g.random.IntN(20) == 0 {
		g.call(conn, "s", "sleep 4")
		return
	}
	g.post(conn, "resources/read", "sandbox://s/x", `,"uri":"sandbox://s/x"`, "")
}

// bomb is a list of many values.
func (g *greedy) bomb(most int) string {
	one := []string{"1", "[]", "{}", `{"":0}`}[g.random.IntN(4)]
	return `,"x":[` + strings.Repeat(one+",", 1+g.random.IntN(most)) + "1]"
}

func (g *greedy) values(conn io.Writer) {
	most := []int{3000, 9000, 100_000}[g.random.IntN(3)]
	if g.random.IntN(2) == 0 {
		g.post(conn, "ping", "", "", g.bomb(most))
		return
	}
	g.post(conn, "tools/call", "run", `,"name":"run","arguments":{"env":"bash","code":"sleep 1"`+g.bomb(most)+"}", "")
}

func (g *greedy) subscribedValues(conn io.Writer) {
	g.post(conn, "subscriptions/listen", "", `,"notifications":{"toolsListChanged":true}`, g.bomb(9000))
}

func (g *greedy) largeCalls(conn io.Writer) {
	g.call(conn, "", "sleep 3; #"+padding[:1+g.random.IntN(len(padding)-1)])
}

func (g *greedy) largeSubscriptions(conn io.Writer) {
	g.post(conn, "subscriptions/listen", "", `,"notifications":{"toolsListChanged":true},"x":"`+padding[:1+g.random.IntN(len(padding)-1)]+`"`, "")
}

func (g *greedy) slowBodies(conn io.Writer) {
	g.head(conn, "ping", "", "Transfer-Encoding: chunked")
	fmt.Fprintf(conn, "%x\r\n%s", 1<<20, padding[:64<<10+1])
}

func (g *greedy) bodiless(conn io.Writer) {
	g.head(conn, "ping", "", "Content-Length: 100")
}

func (g *greedy) idle(conn io.Writer) {
	if g.random.IntN(2) == 0 {
		g.post(conn, "ping", "", "", "")
	}
}

func (g *greedy) unread(conn io.Writer) {
	if g.random.IntN(4) == 0 {
		g.call(conn, "big", "seq 800000 >outputs/f")
		return
	}
	g.call(conn, "", "seq 400000")
}

func (g *greedy) refusals(conn io.Writer) {
	g.post(conn, "tools/call", "run", fmt.Sprintf(`,"name":"run","arguments":{"env":"%s","code":""}`, strings.Repeat(`\u0001`, 128)), "")
}

func (g *greedy) calls(conn io.Writer) { g.call(conn, "", "echo x") }

func (g *greedy) sleepers(conn io.Writer) {
	g.call(conn, fmt.Sprintf("s%d", g.random.IntN(20)), "sleep 5")
}

func (g *greedy) sessions(conn io.Writer) {
	g.call(conn, fmt.Sprintf("n%d", g.random.Uint32()), "crash")
}
