package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/local"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/mcphttp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal/oauth"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// front is the listener of a server for many clients, and authenticates their requests.
type front struct {
	net.Listener
	serve  *registry.Serve
	tokens *principal.Tokens // nil if there is no file of tokens
	chain  principal.Chain
	oauth  *oauth.Server // nil if access tokens are not accepted
	hosts  []string      // names of the server
	// isKept says that the socket stays open when this process ends.
	isKept bool
}

// newFront reads who may call, and listens. Address is that of the command line, or empty.
func newFront(address string, settings config.Config, serve *registry.Serve) (*front, error) {
	if serve == nil {
		return nil, &config.Error{
			Problem: "the server's metadata has no settings for HTTP",
			Hint:    "unset NIX_SANDBOX_METADATA to serve what the server was built with, or build the server again",
		}
	}
	f := &front{serve: serve, hosts: slices.Concat(serve.Hosts, settings.Hosts)}
	if err := f.readCallers(cmp.Or(settings.TokenFile, serve.TokenFile)); err != nil {
		return nil, err
	}
	address = cmp.Or(address, settings.HTTP, serve.Listen)
	f.isKept = address == systemdAddress
	var err error
	f.Listener, err = listen(address, len(f.chain) > 0)
	return f, err
}

// readCallers makes the authenticators. The proxy comes first: a client that pretends to be the
// proxy is refused, even with a good token.
func (f *front) readCallers(tokenFile string) error {
	if proxy := f.serve.Proxy; proxy != nil {
		one := &principal.Proxy{Header: proxy.Header}
		for _, from := range proxy.From {
			if from == "unix" {
				one.Unix = true
				continue
			}
			prefix, err := netip.ParsePrefix(from)
			if err != nil {
				return fmt.Errorf("serve.proxy.from: %w", err)
			}
			one.From = append(one.From, prefix)
		}
		f.chain = append(f.chain, one)
	}
	if tokenFile != "" {
		var err error
		if f.tokens, err = principal.ReadTokens(tokenFile); err != nil {
			return &config.Error{
				Problem: fmt.Sprintf("the tokens cannot be used: %v", err),
				Hint:    "correct the file; " + command.Program + " token new NAME prints a line for it",
			}
		}
		if err := f.checkClasses(); err != nil {
			return err
		}
		f.chain = append(f.chain, f.tokens)
	}
	if o := f.serve.OAuth; o != nil {
		f.oauth = oauth.New(oauth.Options{Resource: o.Resource, Issuer: o.Issuer, KeysURL: o.JWKS, Claim: o.Claim, Scope: o.Scope})
		f.chain = append(f.chain, f.oauth)
	}
	return nil
}

// checkClasses refuses a file of tokens that names a class without quotas.
func (f *front) checkClasses() error {
	for _, class := range f.tokens.Classes() {
		if _, found := f.serve.Quotas[class]; !found {
			return &config.Error{
				Problem: fmt.Sprintf("the file of tokens has class=%s, and the configuration has no serve.quotas.%s", class, class),
				Hint:    "add it to the configuration, or use one of " + strings.Join(slices.Sorted(maps.Keys(f.serve.Quotas)), ", "),
			}
		}
	}
	return nil
}

// quota returns the bounds of a principal.
func (f *front) quota(name string) registry.Quota {
	if f.tokens != nil {
		if quota, found := f.serve.Quotas[f.tokens.Class(name)]; found {
			return quota
		}
	}
	return f.serve.Quotas[registry.DefaultClass]
}

// together returns the limits of all sandboxes of a principal together, for control groups.
func (f *front) together(name string) sandbox.Limits {
	quota := f.quota(name)
	return sandbox.Limits{Memory: quota.MemoryUsedMB << 20, Tasks: quota.PIDs}
}

// warnUnheld logs the quotas that have no effect without control groups.
func (f *front) warnUnheld(log *slog.Logger) {
	for class, quota := range f.serve.Quotas {
		if quota.MemoryUsedMB > 0 || quota.PIDs > 0 {
			log.Warn("memory_used_mb and pids of a quota have no effect without control groups", "class", class)
		}
	}
}

// leastCallsAtOnce is the least number of calls at a time, also on a machine with few processors:
// most calls wait.
const leastCallsAtOnce = 8

// callsAtOnce returns how many calls may run at a time.
func (f *front) callsAtOnce() int {
	return cmp.Or(f.serve.CallsAtOnce, max(2*runtime.NumCPU(), leastCallsAtOnce))
}

// callers names the ways to authenticate, for the log.
func (f *front) callers() string {
	var ways []string
	if f.serve.Proxy != nil {
		ways = append(ways, "proxy")
	}
	if f.tokens != nil {
		ways = append(ways, "tokens")
	}
	if f.serve.OAuth != nil {
		ways = append(ways, "oauth")
	}
	if ways == nil {
		return principal.Anonymous
	}
	return strings.Join(ways, ", ")
}

// reload returns a function that reads the tokens again and forgets the keys of the
// authorization server, at each SIGHUP until its context ends.
func (f *front) reload(log *slog.Logger) func(context.Context) {
	return func(ctx context.Context) {
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		for {
			select {
			case <-hangups:
				f.reloadOnce(log)
			case <-ctx.Done():
				return
			}
		}
	}
}

func (f *front) reloadOnce(log *slog.Logger) {
	if f.oauth != nil {
		f.oauth.Forget()
		log.Info("keys forgotten", "issuer", f.serve.OAuth.Issuer)
	}
	if f.tokens == nil {
		return
	}
	if err := f.tokens.Reload(); err != nil {
		log.Error("the tokens stay as they were", "error", err)
		return
	}
	log.Info("tokens read", "tokens", f.tokens.Count())
	if err := f.checkClasses(); err != nil {
		log.Warn("principals have the quotas of another class", "error", err)
	}
}

func (f *front) options() mcphttp.Options {
	o := mcphttp.Options{
		Hosts:         f.hosts,
		Origins:       f.serve.Origins,
		Authenticator: f.chain,
		LameDuck:      time.Duration(f.serve.LameDuckSeconds) * time.Second,
		DrainTimeout:  time.Duration(f.serve.DrainSeconds) * time.Second,
		HandsOver:     f.isKept,
	}
	if f.oauth != nil {
		o.Resource, o.Metadata = f.serve.OAuth.Resource, f.oauth.Metadata()
	}
	return o
}

// isPort matches an address that is a port of this machine alone.
var isPort = lazyregexp.New(`^[0-9]{1,5}$`)

// listen returns a listener at an address or a port, at the path of a socket after "unix:", or the socket
// that systemd passed. Without authentication, other machines may not reach it.
func listen(address string, knowsCallers bool) (net.Listener, error) {
	if address == systemdAddress {
		return listenSystemd(knowsCallers)
	}
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		return listenUnix(path)
	}
	if isPort.MatchString(address) {
		address = net.JoinHostPort("127.0.0.1", address)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &config.Error{
			Problem: fmt.Sprintf("the address is %q, which is not ADDRESS:PORT", address),
			Hint:    "use an address such as 127.0.0.1:8080, or unix:/run/nix-sandbox-mcp/socket",
		}
	}
	if !knowsCallers && !local.IsLoopback(host) {
		return nil, reachable(address)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, cannotListen(address, err)
	}
	return listener, nil
}

// reachable is the error of an address that other machines reach without authentication.
func reachable(address string) error {
	return &config.Error{
		Problem: fmt.Sprintf("%s can be reached from other machines, and there is no way to tell who calls", address),
		Hint:    "set NIX_SANDBOX_TOKENS to a file of tokens, or listen at an address of this machine alone, such as 127.0.0.1:8080",
	}
}

// listenUnix returns a listener at a path. It replaces the socket of a server that has ended.
func listenUnix(path string) (net.Listener, error) {
	// Clients, and the next server, may have another working directory.
	if !filepath.IsAbs(path) {
		return nil, &config.Error{
			Problem: fmt.Sprintf("the address is %q, whose path is not absolute", "unix:"+path),
			Hint:    "use an absolute path, such as unix:/run/nix-sandbox-mcp/socket",
		}
	}
	listener, err := bind(path)
	if errors.Is(err, syscall.EADDRINUSE) && removeOldSocket(path) {
		listener, err = bind(path)
	}
	if err != nil {
		return nil, cannotListen("unix:"+path, err)
	}
	return listener, nil
}

// bind listens at a path that does not exist. The socket has its mode before it has its name there, so
// that others never can connect; a group may be given it.
func bind(path string) (net.Listener, error) {
	folder, err := os.MkdirTemp(filepath.Dir(path), ".socket") // of this user alone
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	hidden := filepath.Join(folder, "s")
	var listener *net.UnixListener
	err = host.ShortSocket(hidden, func(name string) error {
		listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // the name is another one
	if err = os.Chmod(hidden, 0o660); err == nil {
		// In contrast to rename(2), it replaces nothing.
		if err = os.Link(hidden, path); errors.Is(err, fs.ErrExist) {
			err = syscall.EADDRINUSE
		}
	}
	if err != nil {
		listener.Close()
		return nil, err
	}
	return &named{listener, path}, nil
}

// named is a listener whose socket is removed when it is closed.
type named struct {
	*net.UnixListener
	path string
}

func (n *named) Addr() net.Addr { return &net.UnixAddr{Name: n.path, Net: "unix"} }

func (n *named) Close() error {
	_ = os.Remove(n.path)
	return n.UnixListener.Close()
}

// removeOldSocket removes a socket without a listener, and reports whether it did. Other files
// refuse connections in the same way, and stay.
func removeOldSocket(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED) && os.Remove(path) == nil
}

// listenError is the error of an address that cannot be used. Its cause is an errno.
type listenError struct {
	wrong *config.Error
	cause error
}

func (e *listenError) Error() string   { return e.wrong.Error() }
func (e *listenError) Unwrap() []error { return []error{e.wrong, e.cause} }

// cannotListen returns a [*listenError].
func cannotListen(address string, err error) error {
	var of *net.OpError
	if errors.As(err, &of) {
		err = of.Err
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err
	}
	hint := "choose an address of this machine and a port that the server may use"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		hint = "end the program that listens there, or choose another address"
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(address, "unix:"):
		hint = "make its folder, or name a socket in one that exists"
	}
	return &listenError{&config.Error{Problem: fmt.Sprintf("listen at %s: %v", address, err), Hint: hint}, err}
}
