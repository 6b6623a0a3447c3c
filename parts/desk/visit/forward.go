package visit

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// maxForwarded bounds the connections to a port at a time; further ones wait in the kernel.
const maxForwarded = 32

// ForwardVerbName is the name of the verb forward.
const ForwardVerbName = "forward"

// ForwardArgs are the arguments of the verb forward: a port of a session, and a port of 127.0.0.1, which
// may be 0 for any.
type ForwardArgs struct {
	Place
	Port   uint16 `json:"port"`
	Listen uint16 `json:"listen"`
}

// Forwarded is the answer to it, and then a frame for each connection that fails, with its Problem.
type Forwarded struct {
	Address string `json:"address,omitempty"` // of this machine
	Env     string `json:"env,omitempty"`
	// Listens says whether code listens at the port yet.
	Listens bool   `json:"listens,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Listen listens at 127.0.0.1 until ctx ends, and connects whoever comes to a port of a session's own
// loopback. It calls fail for each connection that fails.
func (v *Visits) Listen(ctx context.Context, to ForwardArgs, fail func(error)) (Forwarded, error) {
	if !v.Forward {
		return Forwarded{}, &config.Error{Problem: "this server lets nobody reach ports of sandboxes", Hint: "add forward = true to [session] of its configuration, and start it again"}
	}
	_, env, leave, err := v.visit(to.Place)
	if err != nil {
		return Forwarded{}, err
	}
	leave()
	at := v.listens(ctx, to, env.Name)
	to.Env = at.Env
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(to.Listen)})
	if err != nil {
		return Forwarded{}, &config.Error{Problem: fmt.Sprintf("listen at port %d: %v", to.Listen, err), Hint: "choose another port with --listen"}
	}
	at.Address = listener.Addr().String()
	context.AfterFunc(ctx, func() { listener.Close() })
	places := make(chan struct{}, maxForwarded)
	go func() {
		defer listener.Close()
		defer guard.Recover(fail)
		for {
			places <- struct{}{}
			conn, err := listener.AcceptTCP()
			if err != nil {
				if ctx.Err() == nil {
					fail(fmt.Errorf("accept a connection: %w", err))
				}
				return
			}
			go func() {
				defer func() { <-places }()
				defer conn.Close()
				defer guard.Recover(fail)
				if err := v.carry(ctx, to, conn); err != nil && ctx.Err() == nil {
					fail(err)
				}
			}()
		}
	}()
	return at, nil
}

// listens returns the environment of the session in which code listens at a port, if there is one, or
// that of the last call.
func (v *Visits) listens(ctx context.Context, to ForwardArgs, last string) Forwarded {
	for _, env := range v.sessions.Environments(call.Key{ID: to.Session}) {
		if to.Env != "" && to.Env != env.Name {
			continue
		}
		box, _, leave, err := v.visit(Place{to.Session, env.Name})
		if err != nil {
			continue
		}
		ports, _, _ := box.Examine(ctx)
		if leave(); slices.Contains(ports, to.Port) {
			return Forwarded{Env: env.Name, Listens: true}
		}
	}
	return Forwarded{Env: last}
}

// carry connects one connection to the session.
func (v *Visits) carry(ctx context.Context, to ForwardArgs, conn *net.TCPConn) error {
	box, _, leave, err := v.visit(to.Place)
	if err != nil {
		return err
	}
	defer leave()
	s, err := box.Open(ctx, frame.Request{Port: to.Port}, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() {
		conn.Close()
		s.Close()
	})()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		defer guard.Recover(nil)
		if _, err := io.Copy(s, conn); err != nil {
			s.Close()
		}
		s.CloseWrite()
	}()
	if _, err := io.Copy(conn, s); err != nil {
		conn.Close() // the client has gone
	}
	conn.CloseWrite()
	<-sent
	return nil
}

// forward listens for the client until it goes.
func (v *Visits) forward(ctx context.Context, c *desk.Conn) error {
	var args ForwardArgs
	if err := c.Args(&args); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at, err := v.Listen(ctx, args, func(err error) { _ = c.Write(Forwarded{Problem: err.Error()}) })
	if err != nil {
		return err
	}
	if err := c.Write(at); err != nil {
		return err
	}
	_ = c.Read(new(struct{}))
	return nil
}
