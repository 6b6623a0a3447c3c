package watch

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
)

// VerbName names the verb that answers with [Event]s, ImageVerbName the verb that answers an [ImageArgs]
// with an [Image].
const (
	VerbName      = "watch"
	ImageVerbName = "image"
)

// eventPause is the time between two events with the state of the server.
const eventPause = time.Second

// Event is a frame of the verb watch. One of its fields is set.
type Event struct {
	Call  *Card     `json:"call,omitempty"`
	State *Snapshot `json:"state,omitempty"`
}

// ImageArgs name a file of a call that ended lately, by its index in [Card].Files.
type ImageArgs struct {
	Call uint64 `json:"call"`
	File int    `json:"file"`
}

// Image is an image that browsers show without running any of it.
type Image struct {
	Type    string `json:"type"`
	Content []byte `json:"content"`
}

// Verbs are the questions of the user's commands about this server.
func (s *Server) Verbs() []desk.Verb {
	return []desk.Verb{
		desk.Answer("status", func() any { return s.Now() }),
		{Name: VerbName, Serve: s.watch},
		{Name: ImageVerbName, Serve: s.image},
	}
}

// image answers with an image of a call.
func (s *Server) image(_ context.Context, c *desk.Conn) error {
	var args ImageArgs
	if err := c.Args(&args); err != nil {
		return err
	}
	one, ok := s.Find(args.Call)
	if !ok || args.File < 0 || args.File >= len(one.Files) || one.Files[args.File].Type == "" {
		return errors.New("this server keeps no such image any more")
	}
	return c.Write(Image{one.Files[args.File].Type, one.Files[args.File].Content})
}

// watch sends the calls that have ended lately, the oldest first, and each further one when it has
// ended; and once a second the state of the server, and the running calls that have changed.
func (s *Server) watch(ctx context.Context, c *desk.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		defer guard.Recover(nil)
		_ = c.Read(new(struct{})) // the client has gone
	}()
	wake, unfollow := s.Follow()
	defer unfollow()
	seen, sent := uint64(0), map[uint64][sha256.Size]byte{}
	sendEnded := func() error {
		var ended []Card
		ended, seen = s.EndedSince(seen)
		for _, one := range ended {
			if err := c.Write(Event{Call: &one}); err != nil {
				return err
			}
		}
		return nil
	}
	sendState := func() error {
		running := map[uint64][sha256.Size]byte{}
		for _, one := range s.Cards() {
			text, _ := json.Marshal(one) // its types can be written
			running[one.Number] = sha256.Sum256(text)
			if running[one.Number] == sent[one.Number] {
				continue
			}
			if err := c.Write(Event{Call: &one}); err != nil {
				return err
			}
		}
		sent = running
		now := s.Now()
		now.Recent = nil // are events of their own
		return c.Write(Event{State: &now})
	}
	ticker := time.NewTicker(eventPause)
	defer ticker.Stop()
	for {
		if err := sendEnded(); err != nil {
			return err
		}
		if err := sendState(); err != nil {
			return err
		}
		for isTime := false; !isTime; {
			select {
			case <-ctx.Done():
				return nil
			case <-wake:
				if err := sendEnded(); err != nil {
					return err
				}
			case <-ticker.C:
				isTime = true
			}
		}
	}
}
