package live

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// served serves a server's site, and returns its URL.
func served(t testing.TB) string {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	site := &Site{Server: watch.New(registry.New(&registry.Set{})), Metrics: http.NotFoundHandler(), IsReady: func() bool { return true }, Log: slog.New(slog.DiscardHandler)}
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- site.Serve(ctx, listener) }()
	t.Cleanup(func() {
		end()
		must.Do(t, <-done)
	})
	return "http://" + listener.Addr().String()
}

func get(t testing.TB, url string, change func(*http.Request)) (*http.Response, string) {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	if change != nil {
		change(request)
	}
	response := must.Get(http.DefaultClient.Do(request))(t)
	defer response.Body.Close()
	return response, string(must.Get(io.ReadAll(response.Body))(t))
}

// A page elsewhere reaches nothing, and neither does who writes.
func TestSite_IsForThisMachineAlone(t *testing.T) {
	url := served(t)
	for _, path := range []string{watch.Path, metricsPath} {
		for name, change := range map[string]func(*http.Request){
			"another host": func(r *http.Request) { r.Host = "evil.example" },
			"another page": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		} {
			if response, _ := get(t, url+path, change); response.StatusCode != http.StatusForbidden {
				t.Errorf("%s of %s: %s", path, name, response.Status)
			}
		}
	}
	response := must.Get(http.Post(url+watch.Path, "text/plain", strings.NewReader("x")))(t)
	response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", response.Status)
	}
	// The control.
	if response, _ := get(t, url+watch.Path, nil); response.StatusCode != http.StatusOK {
		t.Errorf("a page of this machine: %s", response.Status)
	}
	// An address that others reach has metrics alone.
	site := &Site{Server: watch.New(registry.New(&registry.Set{})), Metrics: http.NotFoundHandler(), IsReady: func() bool { return false }}
	for path, want := range map[string]int{"/": 404, watch.Path: 404, "/healthz": 200, "/readyz": 503} {
		w := &recorded{header: http.Header{}, status: 200}
		site.handler(false).ServeHTTP(w, must.Get(http.NewRequest(http.MethodGet, path, nil))(t))
		if w.status != want {
			t.Errorf("%s at a public address: %d, want %d", path, w.status, want)
		}
	}
	for address, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "0.0.0.0:1": false, "192.0.2.1:1": false} {
		if got := IsPrivate(must.Get(net.ResolveTCPAddr("tcp", address))(t)); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}

type recorded struct {
	header http.Header
	status int
}

func (r *recorded) Header() http.Header            { return r.header }
func (r *recorded) WriteHeader(status int)         { r.status = status }
func (r *recorded) Write(data []byte) (int, error) { return len(data), nil }

// A connection beyond the bound is closed without an answer, and there is room again when others
// are closed.
func TestSite_BoundsConnections(t *testing.T) {
	url := served(t)
	ask := func() (net.Conn, error) {
		conn := must.Get(net.Dial("tcp", strings.TrimPrefix(url, "http://")))(t)
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		_, err := conn.Read(make([]byte, 1))
		return conn, err
	}
	var open []net.Conn
	for range maxConnections {
		conn, err := ask()
		must.Do(t, err)
		open = append(open, conn)
	}
	if _, err := ask(); err == nil {
		t.Errorf("connection %d is answered", maxConnections+1)
	}
	open[0].Close()
	patience.Until(t, "there is room again", func() bool {
		_, err := ask()
		return err == nil
	})
}
