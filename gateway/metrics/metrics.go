// Package metrics counts calls for Prometheus.
//
// It promises that the number of series is bounded whatever clients send. Labels are the
// environments that the server offers, the principals that have called, up to a number of
// each, and the methods of HTTP and MCP that this server knows. All others are "other".
package metrics

import (
	"bytes"
	"maps"
	"net/http"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

const (
	// maxEnvironments and maxPrincipals bound the labels. Names of environments to which
	// calls add packages are chosen by clients.
	maxEnvironments = 64
	maxPrincipals   = 200
	other           = "other"
)

// buckets are the upper bounds of call_seconds.
var buckets = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// Metrics are the metrics of a server. They are an Observer of calls.
type Metrics struct {
	o       Options
	started time.Time

	mu         sync.Mutex
	running    int
	calls      map[outcome]uint64
	seconds    map[string]*histogram // by environment
	principals map[string]float64    // seconds
	output     int64
	requests   map[request]uint64 // nil until Request
	toolCalls  map[toolUse]uint64 // nil until UseTool
	servers    map[string]bool    // of tools, which are labels
}

// request are the labels of a request over HTTP.
type request struct {
	method, era string
	status      int
}

// methods are the known methods of HTTP and of MCP.
var methods = map[string]bool{
	http.MethodGet: true, http.MethodPost: true, http.MethodDelete: true, http.MethodOptions: true,
	string(mcp.MethodInitialize): true, string(mcp.MethodPing): true, string(mcp.MethodServerDiscover): true,
	string(mcp.MethodToolsList): true, string(mcp.MethodToolsCall): true, string(mcp.MethodSubscriptionsListen): true,
	string(mcp.MethodResourcesList): true, string(mcp.MethodResourcesTemplatesList): true, string(mcp.MethodResourcesRead): true,
	string(mcp.MethodNotificationInitialized): true, string(mcp.MethodNotificationCancelled): true,
}

type outcome struct{ env, outcome string }

type histogram struct {
	counts [len(buckets)]uint64 // those above the last bound are in count alone
	count  uint64
	sum    float64
}

func (h *histogram) observe(value float64) {
	for i, bound := range buckets {
		if value <= bound {
			h.counts[i]++
			break
		}
	}
	h.count++
	h.sum += value
}

// Options configure metrics.
type Options struct {
	Version string
	// Sessions returns the number of live sessions.
	Sessions func() int
	// Audit is nil if there is no audit log.
	Audit *audit.Log
}

// New returns metrics at zero.
func New(o Options) *Metrics {
	return &Metrics{o: o, started: time.Now(), calls: map[outcome]uint64{}, seconds: map[string]*histogram{}, principals: map[string]float64{}}
}

// Begin implements [call.Observer].
func (m *Metrics) Begin(c call.Call) (end func(call.Result, error)) {
	began := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running++
	return func(result call.Result, err error) { m.end(c, result, err, time.Since(began).Seconds()) }
}

func (m *Metrics) end(c call.Call, result call.Result, err error, took float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	env := other
	if c.Env.SessionExec != "" { // otherwise the server has no such environment
		env = label(m.seconds, c.Env.Name, maxEnvironments)
	}
	if m.seconds[env] == nil {
		m.seconds[env] = &histogram{}
	}
	what := call.Outcome(result, err)
	m.calls[outcome{env, what}]++
	if what != "refused" {
		m.seconds[env].observe(took)
	}
	if c.Principal != "" {
		m.principals[label(m.principals, c.Principal, maxPrincipals)] += took
	}
	m.output += int64(result.Stdout.Len()+result.Stderr.Len()) + result.Stdout.Cut + result.Stderr.Cut
}

// Request counts a request over HTTP by the method of its message, or its own method if it has no
// message, by the era of the protocol, and by the status of the response.
func (m *Metrics) Request(method, era string, status int) {
	if !methods[method] {
		method = other
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests == nil {
		m.requests = map[request]uint64{}
	}
	m.requests[request{method, era, status}]++
}

// label returns a value of a label: the name if there is a series left for it, or "other".
func label[T any](known map[string]T, name string, most int) string {
	if _, ok := known[name]; !ok && len(known) >= most {
		return other
	}
	return name
}

// ServeHTTP answers with the metrics.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(m.text()) // to a client that may have gone
}

// text returns the metrics in Prometheus's text format.
func (m *Metrics) text() []byte {
	sessions := m.o.Sessions()
	var out bytes.Buffer
	w := writer{&out}
	m.mu.Lock()
	samples(w, "calls_total", "Calls that have ended, also those that were refused, by what came of them.", m.calls,
		func(o outcome) []string { return []string{"env", o.env, "outcome", o.outcome} })
	w.family("call_seconds", "histogram", "How long calls took that were not refused, with all waits.")
	for _, env := range slices.Sorted(maps.Keys(m.seconds)) {
		w.histogram("call_seconds", m.seconds[env], env)
	}
	samples(w, "principal_seconds_total", "How long the calls of a principal took together, with all waits.", m.principals,
		func(name string) []string { return []string{"principal", name} })
	w.single("output_bytes_total", counter, "What the code of calls wrote to its standard output and standard error.", float64(m.output))
	w.single("calls_running", gauge, "Calls that run or wait.", float64(m.running))
	if m.requests != nil {
		samples(w, "http_requests_total", "Requests over HTTP that have been answered, 499 if the client did not wait for it.", m.requests,
			func(r request) []string {
				return []string{"method", r.method, "era", r.era, "status", strconv.Itoa(r.status)}
			})
	}
	m.writeTools(w)
	m.mu.Unlock()
	w.single("sessions", gauge, "Sessions that live.", float64(sessions))
	if m.o.Audit != nil {
		state := m.o.Audit.State()
		w.single("audit_records_total", counter, "Records that this server has written to the audit log.", float64(state.Records))
		w.single("audit_lost_total", counter, "Records that this server could not write to the audit log.", float64(state.Lost))
	}
	w.family("build_info", gauge, "1, with the server's version.")
	w.sample("build_info", 1, "version", m.o.Version)
	w.single("start_time_seconds", gauge, "When the server started, in seconds of Unix time.", float64(m.started.UnixMilli())/1000)
	w.single("goroutines", gauge, "Goroutines of the server.", float64(runtime.NumGoroutine()))
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(heap)
	w.single("heap_bytes", gauge, "What the objects in the server's heap take.", float64(heap[0].Value.Uint64()))
	return out.Bytes()
}
