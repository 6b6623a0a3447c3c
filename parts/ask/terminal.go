package ask

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
)

// VerbName is that of [Verb].
const VerbName = "questions"

// Whose says whose questions a client of the verb answers. On standard streams there is one
// principal, the empty one.
type Whose struct {
	Principal string `json:"principal"`
}

// Reply is a frame of a client.
type Reply struct {
	ID     string      `json:"id"`
	Choice call.Choice `json:"choice"`
}

// Verb lets a user's command answer questions. The server sends a list of all open questions
// whenever they have changed, and the client a [Reply] to each that it answers.
func Verb(book Questions) desk.Verb {
	return desk.Verb{Name: VerbName, Serve: func(ctx context.Context, c *desk.Conn) error {
		var whose Whose
		if err := c.Args(&whose); err != nil {
			return err
		}
		changed, stop := book.Listen(whose.Principal)
		defer stop()
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			defer cancel()
			defer guard.Recover(nil)
			for {
				var reply Reply
				if c.Read(&reply) != nil {
					return
				}
				_ = book.Answer(whose.Principal, reply.ID, reply.Choice) // the next list shows it
			}
		}()
		defer cancel()
		for {
			if err := c.Write(book.Questions(whose.Principal)); err != nil {
				return err
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return nil
			}
		}
	}}
}

// Questions is what a way to answer needs of a [Book].
type Questions interface {
	Questions(principal string) []call.Question
	Answer(principal, id string, choice call.Choice) error
	Listen(principal string) (changed <-chan struct{}, stop func())
}

// Answer answers one question of a server. The error is [ErrAnswered] if it is not open any more, or
// the choice is none of its choices.
func Answer(ctx context.Context, server desk.Server, whose Whose, reply Reply) error {
	client, err := server.Dial(ctx, VerbName, whose)
	if err != nil {
		return err
	}
	defer client.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	isOpen := func() (open bool, err error) {
		var list []call.Question
		err = client.Read(&list)
		return slices.ContainsFunc(list, func(q call.Question) bool {
			return q.ID == reply.ID && q.Offers(reply.Choice)
		}), err
	}
	open, err := isOpen()
	if err == nil && !open {
		return ErrAnswered
	}
	if err == nil {
		err = client.Write(reply)
	}
	for err == nil && open { // until the server has taken it
		open, err = isOpen()
	}
	return err
}

// Follow answers the questions of a server until ctx ends or the server does. It gives each list to
// show, and sends the replies.
func Follow(ctx context.Context, server desk.Server, whose Whose, show func([]call.Question), replies <-chan Reply) error {
	client, err := server.Dial(ctx, VerbName, whose)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	go func() {
		defer cancel()
		defer guard.Recover(nil)
		for {
			select {
			case reply := <-replies:
				if client.Write(reply) != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		var list []call.Question
		if err := client.Read(&list); err != nil {
			if errors.Is(err, io.EOF) || ctx.Err() != nil {
				return nil
			}
			return err
		}
		show(list)
	}
}
