package escape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

const (
	// outputBytes is the limit of each stream that a session is given, and
	// outputBound what may come of both: the limit, the driver's own words,
	// and as many samples of held back lines as fit into an attempt's time.
	outputBytes = 32 << 10
	outputBound = 2*outputBytes + 32<<10
	// loadID is the id of the ping that asks for the interpreter's load; those
	// of later pings follow, those of calls are smaller.
	loadID = 1000
	// maxReplies bounds what is read of one session.
	maxReplies = 100_000
	// grace is the time between a call's interrupt and its kill.
	grace = 300 * time.Millisecond
	// backstop is added to the timeouts and graces of all calls, because a sandbox
	// also has to start; one that has not answered by then counts as hung.
	backstop = 3 * time.Second
)

// What forged frames carry and a true answer never does.
const (
	forgedID   = 424242
	forgedExit = 77
)

// forgery returns frames that only an agent may send: an answer to the
// running call, one to a call that was never made, an error, a second ready.
func forgery(token string) []byte {
	var stream bytes.Buffer
	w := frame.NewWriter(&stream)
	for _, reply := range []frame.Reply{
		{Type: frame.Result, ID: 1, ExitCode: forgedExit, Outcome: frame.OutcomeOK, Message: token},
		{Type: frame.Result, ID: forgedID, Outcome: frame.OutcomeOK},
		{Type: frame.Error, Message: token},
		{Type: frame.Ready, ID: forgedID, Protocol: frame.Protocol},
	} {
		if err := w.Write(reply); err != nil {
			panic(err) // these four always encode
		}
	}
	return stream.Bytes()
}

// isForged reports whether a reply is one of [forgery]'s.
func isForged(reply frame.Reply, token string) bool {
	return reply.ID == forgedID || reply.ExitCode == forgedExit || reply.Message == token
}

// errForged ends the reading of a session in which a forged frame arrived.
var errForged = errors.New("a forged frame reached the reader")

// session runs calls through a program that speaks frames.
func (s *scene) session(ctx context.Context, a *attempt, program string, calls []string) (out outcome, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o := newOutput(s.needles()...)
	cmd := s.command(ctx, false, program)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return outcome{}, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return outcome{}, err
	}
	logs := newOutput(s.needles()...) // the agent's log, for messages
	cmd.Stderr = logs
	leave, err := s.enter(cmd)
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, leave()) }()
	if err := cmd.Start(); err != nil {
		return outcome{}, fmt.Errorf("start %s: %w", program, err)
	}
	defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)

	done := make(chan error, 1)
	out = outcome{output: o}
	go func() { done <- s.converse(a, &out, stdin, stdout, calls) }()
	limit := time.NewTimer(time.Duration(len(calls))*(a.timeout+grace) + a.backstop)
	defer limit.Stop()
	select {
	case err = <-done:
	case <-limit.C:
		cancel()
		err = errors.Join(errors.New("no answer in time"), <-done)
		out.timedOut = true
	}
	stdin.Close()
	// The end of its input ends a sandbox; one that stays is ended.
	ended := time.AfterFunc(drain, cancel)
	waited := cmd.Wait()
	if !ended.Stop() && !out.timedOut {
		out.evidence = "the sandbox stayed after the end of its input"
	}
	switch {
	case errors.Is(err, errForged):
		out.evidence = errForged.Error()
	case err != nil && out.timedOut:
	case err != nil:
		out.ended = fmt.Sprintf("the stream ended: %v; %v; log: %s", err, waited, logs.last())
	}
	if o.total > outputBound {
		out.evidence = fmt.Sprintf("%d bytes of output came through a limit of %d a stream", o.total, outputBytes)
	}
	return out, nil
}

// converse makes the calls and reads the answers.
func (s *scene) converse(a *attempt, out *outcome, stdin io.Writer, stdout io.Reader, calls []string) error {
	replies, requests := frame.NewReader(stdout), frame.NewWriter(stdin)
	var reply frame.Reply
	if err := replies.Read(&reply); err != nil {
		return fmt.Errorf("before ready: %w", err)
	}
	if reply.Type != frame.Ready || reply.Protocol != frame.Protocol {
		return fmt.Errorf("first frame is %q, protocol %d", reply.Type, reply.Protocol)
	}
	if err := requests.Write(frame.Request{Type: frame.Configure, OutputBytes: outputBytes}); err != nil {
		return err
	}
	// The first call's time is for the attempt, not for the interpreter's load.
	if err := requests.Write(frame.Request{Type: frame.Ping, ID: loadID}); err != nil {
		return err
	}
	reply = frame.Reply{}
	if err := replies.Read(&reply); err != nil {
		return fmt.Errorf("before the interpreter's load: %w", err)
	}
	if reply.Type != frame.Pong || reply.ID != loadID {
		return fmt.Errorf("the interpreter did not load: %s", printable(reply.Message, 200))
	}
	read := 0
	for i, code := range calls {
		id := uint64(i + 1)
		if err := requests.Write(frame.Request{
			Type: frame.Execute, ID: id, Code: code,
			TimeoutMS: a.timeout.Milliseconds(), GraceMS: grace.Milliseconds(),
			Keep: len(calls) > 1,
		}); err != nil {
			return err
		}
		// A request that the running code has no business to read.
		if err := requests.Write(frame.Request{Type: frame.Ping, ID: loadID + id, Path: s.secret}); err != nil {
			return err
		}
		for answered := false; !answered; read++ {
			if read == maxReplies {
				return fmt.Errorf("more than %d frames", maxReplies)
			}
			reply = frame.Reply{}
			if err := replies.Read(&reply); err != nil {
				return err
			}
			if isForged(reply, s.token) {
				return errForged
			}
			switch {
			case reply.Type == frame.Output && reply.ID <= id:
				io.WriteString(out.output, reply.Data)
			case reply.Type == frame.Result && reply.ID == id:
				answered = true
				out.exit = reply.ExitCode
				if reply.Outcome != frame.OutcomeOK {
					out.ended = "outcome " + printable(reply.Outcome, 20)
				}
			case reply.Type == frame.Pong, reply.Type == frame.Error:
			default:
				return fmt.Errorf("unexpected frame %q for call %d", printable(reply.Type, 20), reply.ID)
			}
		}
	}
	return nil
}

// exposed is the control of an attempt on the frames: an interpreter whose
// stdin and stdout are the stream itself, as if there were no agent.
func (s *scene) exposed(ctx context.Context, argv ...string) (outcome, error) {
	o := newOutput(s.needles()...)
	cmd := s.command(ctx, false, argv...)
	reader, writer, err := os.Pipe()
	if err != nil {
		return outcome{}, err
	}
	defer writer.Close()
	defer reader.Close()
	cmd.Stdin = reader
	if err := frame.NewWriter(writer).Write(frame.Request{Type: frame.Ping, Path: s.secret}); err != nil {
		return outcome{}, err
	}
	var stream bytes.Buffer
	cmd.Stdout = io.MultiWriter(o, &prefix{&stream})
	cmd.Stderr = o
	err = cmd.Run()
	if cmd.Process != nil {
		defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	} else {
		return outcome{}, err
	}
	out := outcome{output: o, timedOut: ctx.Err() != nil, exit: exitStatus(cmd.ProcessState)}
	for replies := frame.NewReader(&stream); ; {
		var reply frame.Reply
		err := replies.Read(&reply)
		var syntax *json.SyntaxError
		if err != nil && !errors.As(err, &syntax) {
			break
		}
		if isForged(reply, s.token) {
			out.evidence = errForged.Error()
		}
	}
	if o.total > outputBound {
		out.evidence = fmt.Sprintf("%d bytes of output came", o.total)
	}
	return out, nil
}

// prefix keeps the beginning of what is written.
type prefix struct{ buf *bytes.Buffer }

func (p *prefix) Write(data []byte) (int, error) {
	if room := keepOutput - p.buf.Len(); room > 0 {
		p.buf.Write(data[:min(room, len(data))])
	}
	return len(data), nil
}
