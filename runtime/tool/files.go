package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

const (
	// maxLinks and maxLinkBytes bound the linked or named files of one call, and the bytes of that:
	// a character of a name can take nine in a URI.
	maxLinks     = 16
	maxLinkBytes = 4 << 10
	// maxResource is the largest file that is read as a resource, in bytes.
	maxResource = 8 << 20
	// readTimeout bounds the time that a sandbox takes to send a file.
	readTimeout = 20 * time.Second

	workspace = "/workspace/"
	scheme    = "sandbox://"
	// keptPrefix stands before the id of the files of a call without a session. No
	// name of a session has a dot.
	keptPrefix = "call."
)

// files shows the images that a call wrote, which encode makes text of, and links or names its other
// files.
func (a answer) files(encode func([]byte) string) (content []mcp.Content, remarks []remark) {
	var named []string
	shown, bytes, rest := 0, 0, 0
	for _, file := range a.result.Files {
		if file.Content != nil {
			content = append(content, mcp.NewImageContent(encode(file.Content), file.Type))
			continue
		}
		entry := fmt.Sprintf("%s (%s)", quoteName(file.Path), size(file.Size))
		folder := a.call.Session
		if file.Kept != "" {
			folder = keptPrefix + file.Kept
		}
		link := link(folder, file)
		if folder != "" {
			entry = link.Name + link.URI
		}
		if shown == maxLinks || bytes+len(entry) > maxLinkBytes {
			rest++
			continue
		}
		shown++
		bytes += len(entry)
		if folder == "" {
			named = append(named, entry)
		} else {
			content = append(content, link)
		}
	}
	if a.call.Session == "" && len(named)+rest > 0 {
		more := ""
		switch {
		case rest > 0 && len(named) > 0:
			more = fmt.Sprintf(" and %d more", rest)
		case rest > 0:
			more = fmt.Sprintf("%d more files", rest)
		}
		keep := ""
		if a.call.Env.Sessions() {
			keep = "; to keep files, use a session"
		}
		remarks = append(remarks, remark{opening: filesGone, rest: fmt.Sprintf(" with the sandbox: %s%s%s", strings.Join(named, ", "), more, keep)})
	} else if rest > 0 {
		remarks = append(remarks, remark{amount: fmt.Sprint(rest), opening: moreFiles, rest: "/workspace/outputs"})
	}
	return content, remarks
}

// unshown says which images the answer has as files alone, and why, or returns "".
func (a answer) unshown() string {
	var parts []string
	for _, reason := range []struct {
		why   sandbox.Unshown
		words string
	}{
		{sandbox.TooLarge, "too large: save with fewer pixels, such as dpi=100, to at most 1 MB"},
		{sandbox.Unreadable, "not whole, or not of the type that the name says"},
		{sandbox.TooMany, "others came first: those in outputs, and the last"},
	} {
		var names []string
		count := 0
		for _, file := range a.result.Files {
			if file.Unshown != reason.why {
				continue
			}
			if count++; count <= 2 {
				names = append(names, quoteName(bounded.Head(path.Base(file.Path), 64)))
			}
		}
		if count > 2 {
			names = append(names, fmt.Sprintf("%d more", count-2))
		}
		if count > 0 {
			parts = append(parts, strings.Join(names, ", ")+" ("+reason.words+")")
		}
	}
	return strings.Join(parts, "; ")
}

// link returns a file of a session, or of a call, as a resource link.
func link(folder string, file sandbox.File) mcp.ResourceLink {
	bytes := file.Size
	link := mcp.NewResourceLink(address(folder, file.Path), quoteName(path.Base(file.Path)), "", mimeType(file.Path))
	link.Size = &bytes
	return link
}

// quoteName returns the name of a file as it is, or as a string of Go if a character is not
// printable or could be mistaken for the end of the name: clients show the names of links between
// words and brackets of their own.
func quoteName(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return hostile.Invisible(r) || strings.ContainsRune("[](){}<>,;\"\\`", r) }) {
		return hostile.Escape(strconv.Quote(name), nil)
	}
	return name
}

// address is the URI of a file in a session, or of a call.
func address(folder, name string) string {
	parts := strings.Split(strings.TrimPrefix(name, workspace), "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return scheme + folder + "/" + strings.Join(parts, "/")
}

func mimeType(name string) string {
	kind, _, _ := strings.Cut(mime.TypeByExtension(path.Ext(name)), ";")
	if kind == "" {
		return "application/octet-stream"
	}
	return kind
}

// Template is the resource template that makes the files of sessions readable.
func Template() mcp.ResourceTemplate {
	return mcp.NewResourceTemplate(scheme+"{session}/{+path}", "file of a session",
		mcp.WithTemplateDescription("A file under /workspace of a live session, or one that a call left"))
}

// Read is a read of a resource that has arrived.
type Read struct {
	tool *Tool
	uri  string
	name string // of the file, in the sandbox
	// ticket is that of a session's file. Other files belong to a principal and
	// have the id of a call.
	ticket    *call.Ticket
	principal string
	kept      string
	// leave gives back the slot of the tool's Reads; nil before there is one.
	leave func()
}

// AcceptRead takes a ticket for a read in the session that its URI names, as [Tool.Accept] does for
// a call. The error says why the URI is not that of a session's file; otherwise the caller must
// call [Read.Answer] and then [Read.Release].
func (t *Tool) AcceptRead(principal, uri string) (*Read, error) {
	session, name, err := locate(uri)
	if err != nil {
		return nil, &NoResourceError{err}
	}
	if id, isKept := strings.CutPrefix(session, keptPrefix); isKept {
		return &Read{tool: t, uri: uri, name: name, principal: principal, kept: id}, nil
	}
	return &Read{tool: t, uri: uri, name: name, principal: principal, ticket: t.Sessions.Enqueue(call.Key{Principal: principal, ID: session})}, nil
}

// NoResourceError says that there is no resource of a URI, which has a code of its own in the
// protocol. Its text is the cause's.
type NoResourceError struct{ Cause error }

func (e *NoResourceError) Error() string { return e.Cause.Error() }
func (e *NoResourceError) Unwrap() error { return e.Cause }

// Answer reads the file. A file is in memory several times until the client has
// its answer, so few are read at a time ([Options.Reads]): others wait for
// [Read.Release].
func (r *Read) Answer(ctx context.Context) ([]mcp.ResourceContents, error) {
	defer r.ticket.Release()
	data, err := r.read(ctx)
	var large *sandbox.TooLargeError
	var gone *call.GoneError
	switch {
	case errors.As(err, &gone):
		err = fmt.Errorf("there is no such file any more: files of a call without a session are kept until nobody has read them for %g s, at most %g s, and fewer where there are many: run the call again, or use a session", gone.Idle.Seconds(), gone.Lifetime.Seconds())
	case errors.As(err, &large) && r.isChanges():
		err = fmt.Errorf("the patch has %s, more than the %s that can be read at once: a user reads it with nix-sandbox-mcp changes %s", size(large.Size), size(large.Limit), r.session())
	case errors.As(err, &large):
		err = fmt.Errorf("the file has %s, more than the %s that can be read at once: read parts of it with run", size(large.Size), size(large.Limit))
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("the sandbox did not send the file within %v: read it again when it has less to do, or parts of it with run", readTimeout)
	}
	if err != nil {
		err = fmt.Errorf("read %.200s: %w", hostile.Escape(r.uri, nil), err)
		if gone != nil || errors.Is(err, fs.ErrNotExist) || errors.As(err, new(*call.NoSessionError)) {
			err = &NoResourceError{err}
		}
		return nil, err
	}
	kind := mimeType(r.name)
	if r.isChanges() {
		kind = changesType
	}
	if kind == "application/octet-stream" {
		kind, _, _ = strings.Cut(http.DetectContentType(data), ";")
	}
	r.tool.Log.Info("read", "session", r.session(), "bytes", len(data))
	if isText(data) {
		return []mcp.ResourceContents{mcp.TextResourceContents{URI: r.uri, MIMEType: kind, Text: string(data)}}, nil
	}
	return []mcp.ResourceContents{mcp.BlobResourceContents{URI: r.uri, MIMEType: kind, Blob: base64.StdEncoding.EncodeToString(data)}}, nil
}

// read reads the file when its turn in the session has come, and then its turn among all
// reads.
func (r *Read) read(ctx context.Context) ([]byte, error) {
	var box sandbox.Sandbox
	switch {
	case r.isChanges():
		// The last call's have been saved when the turn has come.
		select {
		case <-r.ticket.Turn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case r.ticket != nil:
		var err error
		if box, err = r.tool.Sessions.Sandbox(ctx, r.ticket); err != nil {
			return nil, err
		}
	}
	var err error
	if r.leave, err = r.tool.Reads.Enter(ctx, r.principal); err != nil {
		return nil, err
	}
	if r.isChanges() {
		return r.tool.Changes.Read(r.ticket.Key, maxResource)
	}
	if box == nil {
		return r.tool.readKept(r.principal, r.kept, r.name)
	}
	// A sandbox that is busy does not keep the reads of others waiting.
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return sandbox.ReadFile(ctx, box, r.name, maxResource)
}

// isChanges reports whether the read is of the patch of a session's changes.
func (r *Read) isChanges() bool {
	return r.tool.Changes != nil && r.ticket != nil && r.name == workspace+changesName
}

// readKept reads a file of a call without a session.
func (t *Tool) readKept(principal, id, name string) ([]byte, error) {
	if t.Kept == nil {
		return nil, &call.GoneError{}
	}
	return t.Kept.Read(principal, id, name)
}

// session is the session's id, or its substitute in the URI.
func (r *Read) session() string {
	if r.ticket == nil {
		return keptPrefix + r.kept
	}
	return r.ticket.Key.ID
}

// Release lets the next file be read. It is called when the answer has been
// encoded, or is not needed.
func (r *Read) Release() {
	if r.leave != nil {
		r.leave()
	}
}

// isText reports whether data is sent as text: it is valid UTF-8, and JSON takes
// at most twice its size. JSON takes six bytes for most control characters, two
// for line ends and quotation marks; a blob takes four for three.
func isText(data []byte) bool {
	controls := 0
	for _, c := range data {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' {
			controls++
		}
	}
	return 5*controls <= len(data) && !bytes.ContainsRune(data, 0) && utf8.Valid(data)
}

var validKept = lazyregexp.New(`^call\.[0-9a-f]{16}$`)

// locate splits the URI of a file into its session, or the substitute of a one-shot call, and its
// path.
func locate(uri string) (session, name string, err error) {
	session, escaped, ok := strings.Cut(strings.TrimPrefix(uri, scheme), "/")
	if !strings.HasPrefix(uri, scheme) || !ok || !ValidSession.MatchString(session) && !validKept.MatchString(session) {
		return "", "", fmt.Errorf("%.200q is not sandbox://SESSION/PATH", uri)
	}
	name, err = url.PathUnescape(escaped)
	// The agent resolves the path inside the workspace, including links; a path that is outside by
	// its words alone is refused here.
	if err != nil || name == "" || path.Clean("/"+name) != "/"+name || strings.ContainsRune(name, 0) {
		return "", "", fmt.Errorf("%.200q does not name a file under /workspace", uri)
	}
	return session, workspace + name, nil
}
