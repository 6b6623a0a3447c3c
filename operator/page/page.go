// Package page shows all servers of a user in a browser: calls as they come, sessions, questions, ports
// and patches.
//
// It promises that nobody but the user reaches any of that: each request carries a key, except for the
// page's own files. The command prints the key, and browsers send it to no other page. What comes of
// sandboxes is data in JSON, which the page's script makes text of.
package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/local"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// files are the page, which is the same whatever runs; a script fills it from the events. html/template
// would be 2.8 MB of the program, because the linker keeps all exported methods of a program that looks
// up methods by name.
//
//go:embed page.html page.css page.js page.svg
var files embed.FS

// contentPolicy has browsers load only files of this address, and refuse markup that a script makes of
// text, whatever sandboxes print. The script makes blobs of images, which are fetched with the key.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

const (
	// keyHeader has the key. A page of another origin can send no such header, because this server
	// answers no preflight.
	keyHeader = "Nix-Sandbox-Key"
	// maxBody bounds the body of a request, in bytes.
	maxBody = 64 << 10
	// askTimeout is how long a server may take to answer, and writeTimeout a browser to read.
	askTimeout   = 10 * time.Second
	writeTimeout = 10 * time.Second
	headTimeout  = 10 * time.Second
	idleTimeout  = 2 * time.Minute
	maxHead      = 16 << 10
	// maxViewers bounds the pages that are open, and maxConnections all connections.
	maxViewers     = 16
	maxConnections = 256
)

// Command serves the page.
func Command(std cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "page",
		Short: "Show calls, sessions, questions and patches in a browser",
		Long: "Serve a page for your browser, as long as the command runs. It finds the running servers of this user, also\n" +
			"those that start later, and shows their calls as they come, sessions, questions to answer, ports of web servers\n" +
			"to open, and patches to apply file by file or hunk by hunk. Only the link that is printed reaches it.",
		Example: "  " + cli.Program + " page",
		Args:    cli.AtMost(0),
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return fmt.Errorf("listen for a browser: %w", err)
			}
			s := newSite(config.DeskFolders(os.Getenv), config.ChangesFolder(os.Getenv), config.UserFile(os.Getenv))
			fmt.Fprintf(std.Out, "Open http://%s/#key=%s\nCtrl-C ends the page. Whoever has the link can do what the page can.\n", listener.Addr(), s.key)
			return s.serve(ctx, listener)
		},
	}
}

// site is the page and what it asks servers.
type site struct {
	key     string
	desks   []string // folders of sockets
	changes string   // folder of patches
	// configuration is the user's file.
	configuration string

	mu      sync.Mutex
	numbers map[string]int // of the servers that were found, by their sockets
	servers []desk.Server  // by their numbers
}

func newSite(desks []string, changes, configuration string) *site {
	return &site{key: rand.Text(), desks: desks, changes: changes, configuration: configuration, numbers: map[string]int{}}
}

// find returns the servers that run, by their numbers. A number is never of another server.
func (s *site) find() map[int]desk.Server {
	running := map[int]desk.Server{}
	for _, server := range desk.Find(s.desks) {
		id := fmt.Sprint(server.Path, server.Since.UnixNano()) // a process id comes again
		s.mu.Lock()
		number, known := s.numbers[id]
		if !known {
			number = len(s.servers)
			s.numbers[id], s.servers = number, append(s.servers, server)
		}
		s.mu.Unlock()
		running[number] = server
	}
	return running
}

// server returns a server by its number.
func (s *site) server(number int) (desk.Server, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number < 0 || number >= len(s.servers) {
		return desk.Server{}, false
	}
	return s.servers[number], true
}

// serve serves browsers until ctx ends.
func (s *site) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: headTimeout, ReadTimeout: headTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHead,
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	local.Bound(server, maxConnections)
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *site) handler() http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]struct{ name, kind string }{
		"/{$}":      {"page.html", "text/html"},
		"/page.css": {"page.css", "text/css"},
		"/page.js":  {"page.js", "text/javascript"},
		"/page.svg": {"page.svg", "image/svg+xml"},
		// Some browsers ask for it whatever the page says.
		"/favicon.ico": {"page.svg", "image/svg+xml"},
	} {
		content, _ := files.ReadFile(file.name) // is embedded
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file.kind+"; charset=utf-8")
			_, _ = w.Write(content)
		})
	}
	viewers := make(chan struct{}, maxViewers)
	for path, handle := range map[string]http.HandlerFunc{
		"GET /events": func(w http.ResponseWriter, r *http.Request) {
			select {
			case viewers <- struct{}{}:
				defer func() { <-viewers }()
				s.events(w, r)
			default:
				http.Error(w, fmt.Sprintf("%d pages are open already", maxViewers), http.StatusServiceUnavailable)
			}
		},
		"GET /images/{server}/{call}/{file}": s.image,
		"GET /patches/{id}":                  s.patch,
		"POST /apply":                        s.apply,
		"POST /discard":                      s.discard,
		"GET /files/{server}":                s.file,
		"POST /answer":                       s.answer,
		"POST /remember":                     s.remember,
		"POST /forward":                      s.forward,
	} {
		mux.HandleFunc(path, s.forUser(handle))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		for name, value := range map[string]string{
			"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": contentPolicy, "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			w.Header().Set(name, value)
		}
		// A page elsewhere can have a browser send requests here under another name (DNS rebinding).
		host, _ := local.Host(r)
		site := r.Header.Get("Sec-Fetch-Site")
		if !local.IsLoopback(host) || site != "" && site != "same-origin" && site != "none" {
			http.Error(w, "this page is for this machine alone: use the link that was printed", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// forUser refuses requests without the key, and what changes something from another origin.
func (s *site) forUser(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		isPost := r.Method == http.MethodPost
		switch {
		case subtle.ConstantTimeCompare([]byte(r.Header.Get(keyHeader)), []byte(s.key)) != 1, isPost && r.Header.Get("Origin") != "http://"+r.Host:
			http.Error(w, "this page has another key: open the link that nix-sandbox-mcp page printed", http.StatusForbidden)
		case isPost && kind != "application/json":
			http.Error(w, "the body is application/json", http.StatusUnsupportedMediaType)
		default:
			next(w, r)
		}
	}
}

// read takes the body of a request, or refuses it.
func read(w http.ResponseWriter, r *http.Request, v any) bool {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil || json.Unmarshal(text, v) != nil {
		http.Error(w, fmt.Sprintf("the body is a JSON object of at most %d KB", maxBody>>10), http.StatusBadRequest)
		return false
	}
	return true
}

// image serves an image of a call that has ended lately.
func (s *site) image(w http.ResponseWriter, r *http.Request) {
	number, wrong := strconv.Atoi(r.PathValue("server"))
	server, known := s.server(number)
	var args watch.ImageArgs
	if _, err := fmt.Sscan(r.PathValue("call")+" "+r.PathValue("file"), &args.Call, &args.File); err != nil || wrong != nil || !known {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	var image watch.Image
	if server.Ask(ctx, watch.ImageVerbName, args, &image) != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", image.Type)
	_, _ = w.Write(image.Content)
}

// answer takes the user's answer to a question.
func (s *site) answer(w http.ResponseWriter, r *http.Request) {
	var reply struct {
		Server int `json:"server"`
		ask.Reply
	}
	if !read(w, r, &reply) {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	server, known := s.server(reply.Server)
	err := fmt.Errorf("there is no server %d", reply.Server)
	if known {
		err = ask.Answer(ctx, server, ask.Whose{Principal: ask.Everyone}, reply.Reply)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// forward leads to a port of a session while the page reads the response, which begins with a line
// that says where.
func (s *site) forward(w http.ResponseWriter, r *http.Request) {
	var to struct {
		Server  int    `json:"server"`
		Session string `json:"session"`
		Port    uint16 `json:"port"`
	}
	if !read(w, r, &to) {
		return
	}
	refuse := func(err error) { http.Error(w, err.Error(), http.StatusConflict) }
	server, known := s.server(to.Server)
	if !known {
		refuse(fmt.Errorf("there is no server %d", to.Server))
		return
	}
	client, err := server.Dial(r.Context(), visit.ForwardVerbName, visit.ForwardArgs{Place: visit.Place{Session: to.Session}, Port: to.Port})
	if err != nil {
		refuse(err)
		return
	}
	defer client.Close()
	var at visit.Forwarded
	if err := client.Read(&at); err != nil {
		refuse(err)
		return
	}
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // that of the server is for the request
	_ = out.SetWriteDeadline(time.Time{})
	fmt.Fprintln(w, at.Address)
	_ = out.Flush()
	defer context.AfterFunc(r.Context(), func() { client.Close() })()
	for client.Read(&at) == nil { // a connection that failed; an error if the server or the page ends
	}
}
