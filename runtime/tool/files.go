package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// maxLinks and maxLinkBytes bound the files of one call that are linked or
	// named, and what that takes: a character of a name can be nine of a URI.
	maxLinks     = 16
	maxLinkBytes = 4 << 10
	// maxResource is the largest file that is read as a resource, in bytes.
	maxResource = 8 << 20

	workspace = "/workspace/"
	scheme    = "sandbox://"
)

// files shows the images that a call wrote, and links or names its other
// files.
func (a answer) files() (content []mcp.Content, remarks []remark) {
	var named []string
	shown, bytes, rest := 0, 0, 0
	for _, file := range a.result.Files {
		if file.Content != nil {
			content = append(content, mcp.NewImageContent(base64.StdEncoding.EncodeToString(file.Content), file.Type))
			continue
		}
		entry := fmt.Sprintf("%s (%s)", quoteName(file.Path), size(file.Size))
		link := link(a.call.Session, file)
		if a.call.Session != "" {
			entry = link.Name + link.URI
		}
		if shown == maxLinks || bytes+len(entry) > maxLinkBytes {
			rest++
			continue
		}
		shown++
		bytes += len(entry)
		if a.call.Session == "" {
			named = append(named, entry)
		} else {
			content = append(content, link)
		}
	}
	if len(named) > 0 {
		more := ""
		if rest > 0 {
			more = fmt.Sprintf(" and %d more", rest)
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

// link returns a file of a session as a resource link.
func link(session string, file sandbox.File) mcp.ResourceLink {
	bytes := file.Size
	link := mcp.NewResourceLink(address(session, file.Path), quoteName(path.Base(file.Path)), "", mimeType(file.Path))
	link.Size = &bytes
	return link
}

// quoteName returns the name of a file as it is, or as a string of Go where a
// character of it is not printed or could be taken for the end of the name:
// clients show the names of links between words and brackets of their own.
func quoteName(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return isHidden(r) || strings.ContainsRune("[](){}<>,;\"\\`", r) }) {
		return printable(strconv.Quote(name))
	}
	return name
}

// address is the URI of a file in a session.
func address(session, name string) string {
	parts := strings.Split(strings.TrimPrefix(name, workspace), "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return scheme + session + "/" + strings.Join(parts, "/")
}

// mimeType returns a file's type by its name.
func mimeType(name string) string {
	kind, _, _ := strings.Cut(mime.TypeByExtension(path.Ext(name)), ";")
	if kind == "" {
		return "application/octet-stream"
	}
	return kind
}

// template is the resource template that makes the files of sessions
// readable.
func template() mcp.ResourceTemplate {
	return mcp.NewResourceTemplate(scheme+"{session}/{+path}", "file of a session",
		mcp.WithTemplateDescription("A file under /workspace of a live session"))
}

// Read is a read of a resource that has arrived.
type Read struct {
	tool   *Tool
	uri    string
	name   string // of the file, in the sandbox
	ticket *call.Ticket
}

// AcceptRead takes a ticket for a read in the session that its URI names, as
// [Tool.Accept] does for a call. The error says why the URI is not one of a
// session's file; otherwise [Read.Answer] must be called.
func (t *Tool) AcceptRead(principal, uri string) (*Read, error) {
	session, name, err := locate(uri)
	if err != nil {
		return nil, err
	}
	return &Read{tool: t, uri: uri, name: name, ticket: t.Sessions.Enqueue(call.Key{Principal: principal, ID: session})}, nil
}

// Answer reads the file.
func (r *Read) Answer(ctx context.Context) ([]mcp.ResourceContents, error) {
	defer r.ticket.Release()
	data, err := r.tool.Sessions.ReadFile(ctx, r.ticket, r.name, maxResource)
	var large *sandbox.TooLargeError
	if errors.As(err, &large) {
		err = fmt.Errorf("the file has %s, more than the %s that can be read at once: read parts of it with run", size(large.Size), size(large.Limit))
	}
	if err != nil {
		return nil, fmt.Errorf("read %.200s: %w", r.uri, err)
	}
	kind := mimeType(r.name)
	if kind == "application/octet-stream" {
		kind, _, _ = strings.Cut(http.DetectContentType(data), ";")
	}
	r.tool.Log.Info("read", "session", r.ticket.Key.ID, "bytes", len(data))
	if utf8.Valid(data) && !bytes.ContainsRune(data, 0) {
		return []mcp.ResourceContents{mcp.TextResourceContents{URI: r.uri, MIMEType: kind, Text: string(data)}}, nil
	}
	return []mcp.ResourceContents{mcp.BlobResourceContents{URI: r.uri, MIMEType: kind, Blob: base64.StdEncoding.EncodeToString(data)}}, nil
}

// locate splits the URI of a file into its session and its path.
func locate(uri string) (session, name string, err error) {
	session, escaped, ok := strings.Cut(strings.TrimPrefix(uri, scheme), "/")
	if !strings.HasPrefix(uri, scheme) || !ok || !validSession.MatchString(session) {
		return "", "", fmt.Errorf("%.200q is not sandbox://SESSION/PATH", uri)
	}
	name, err = url.PathUnescape(escaped)
	// The agent resolves the path inside the workspace, links included; what
	// leaves it by its words alone is refused here.
	if err != nil || name == "" || path.Clean("/"+name) != "/"+name || strings.ContainsRune(name, 0) {
		return "", "", fmt.Errorf("%.200q does not name a file under /workspace", uri)
	}
	return session, workspace + name, nil
}
