package tool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

const (
	// graceOnce and graceKept are what code gets between interrupt and kill:
	// little where nothing is lost by a kill, more where state is.
	graceOnce = 300 * time.Millisecond
	graceKept = 2 * time.Second
	// progressEvery keeps clients waiting that give up after silence; the
	// promise is 5 s.
	progressEvery = 4 * time.Second
)

// execute runs a call that can run.
func (t *Tool) execute(ctx context.Context, request mcp.CallToolRequest, args arguments) answer {
	output := sandbox.NewOutput(args.environment.OutputBytes)
	stop := t.progress(ctx, request.Params.Meta, output)
	defer stop()

	sum := sha256.Sum256([]byte(args.Code))
	reply := answer{args: args, code: hex.EncodeToString(sum[:])}
	call := sandbox.Call{
		Code:    args.Code,
		Timeout: args.environment.Timeout,
		Grace:   graceOnce,
		Output:  output,
	}
	use := func(lease session.Lease) error {
		reply.fresh = lease.Fresh
		reply.began = true
		reply.enforcer = lease.Enforcer()
		var err error
		reply.ended, err = lease.Execute(ctx, call)
		reply.stdout, reply.stderr = output.Texts()
		if err != nil {
			return err
		}
		// What was written before a cancellation is shown as well, so this
		// does not end with the call.
		reply.files = t.collect(context.WithoutCancel(ctx), lease.Sandbox, args, reply.ended.Files)
		return nil
	}
	var err error
	if args.Session == "" {
		err = t.manager.Once(ctx, args.environment, use)
	} else {
		call.Grace, call.Keep = graceKept, true
		place, leave := t.place(ctx, args.Session)
		err = t.manager.Use(ctx, place, args.environment, use)
		leave()
	}
	if err != nil {
		var dead *sandbox.DeadError
		if errors.As(err, &dead) {
			reply.limit = dead.Limit
		}
		reply.trouble = t.trouble(err, reply)
	}
	if reply.failed() {
		reply.hint = t.list().hint(reply)
	}
	return reply
}

// trouble words why a call has no result.
func (t *Tool) trouble(err error, reply answer) string {
	var refusal *session.Refusal
	var dead *sandbox.DeadError
	switch {
	case errors.As(err, &refusal):
		return refusal.Sentence
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled before it ran"
	case errors.Is(err, sandbox.ErrClosed):
		return "not run: the server is ending"
	case !errors.As(err, &dead):
		return err.Error()
	}
	t.log.Error("sandbox died", "env", reply.args.Env, "session", reply.args.Session, "reason", dead.Reason, "log", dead.Log)
	lost := ""
	if reply.args.Session != "" {
		lost = "; the session's variables and files are lost, and its next call starts a new one"
	}
	switch {
	case reply.began && dead.Limit != "":
		return "stopped: " + reply.crossed(dead.Limit) + lost
	case !reply.began:
		return fmt.Sprintf("the sandbox of env %q did not start: %v", reply.args.Env, dead)
	default:
		return fmt.Sprintf("the sandbox ended during the call: %v%s", dead, lost)
	}
}

// notifier is a client that notifications can be written to in order.
type notifier interface {
	Notify(mcp.JSONRPCNotification)
}

// progress tells the client now and then that the call goes on, if it asked
// for that. The returned function ends it and returns when nothing more will
// be written, so that the result comes last.
func (t *Tool) progress(ctx context.Context, meta *mcp.Meta, output *sandbox.Output) func() {
	client, ok := server.ClientSessionFromContext(ctx).(notifier)
	if !ok || meta == nil || meta.ProgressToken == nil {
		return func() {}
	}
	began := time.Now()
	done := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		ticker := time.NewTicker(t.every)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				elapsed := time.Since(began).Seconds() // it must grow each time
				message := fmt.Sprintf("%.0f s", elapsed)
				if newest := output.Newest(); newest != "" {
					message += ": " + newest
				}
				client.Notify(mcp.JSONRPCNotification{
					JSONRPC: mcp.JSONRPC_VERSION,
					Notification: mcp.Notification{
						Method: string(mcp.MethodNotificationProgress),
						Params: mcp.NotificationParams{AdditionalFields: map[string]any{
							"progressToken": meta.ProgressToken,
							"progress":      elapsed,
							"message":       message,
						}},
					},
				})
			}
		}
	})
	return func() {
		close(done)
		ended.Wait()
	}
}
