package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/picture"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// maxImages and maxImageBytes bound the images of one answer.
	maxImages     = 4
	maxImageBytes = 1 << 20
	// maxTries is how many files of one call are read to see whether they are
	// images: what is named so need not be one.
	maxTries = 4 * maxImages
	// maxLinks is how many files of one call are linked or named.
	maxLinks = 16
	// maxResource is the largest file that is read as a resource, in bytes.
	maxResource = 8 << 20

	workspace = "/workspace/"
	outputs   = workspace + "outputs/"
	scheme    = "sandbox://"
)

// collection is what an answer carries of the files that a call wrote.
type collection struct {
	content []mcp.Content
	remarks []string
}

// collect reads the images among files and links or names the others.
func (t *Tool) collect(ctx context.Context, box *sandbox.Sandbox, args arguments, files []frame.File) collection {
	var all collection
	var named []string
	shown, tries, linked, rest := 0, 0, 0, 0
	svgRoom := args.environment.OutputBytes
	for _, file := range files {
		if !strings.HasPrefix(file.Path, outputs) {
			continue
		}
		kind := imageType(file.Path)
		if kind != "" && shown < maxImages && tries < maxTries && file.Size > 0 && file.Size <= maxImageBytes {
			tries++
			if content := shownImage(ctx, box, file.Path, kind, &svgRoom); content != nil {
				all.content = append(all.content, content)
				shown++
				continue
			}
		}
		switch {
		case linked+len(named) == maxLinks:
			rest++
		case args.Session == "":
			named = append(named, fmt.Sprintf("%s (%s)", file.Path, size(file.Size)))
		default:
			all.content = append(all.content, link(args.Session, file))
			linked++
		}
	}
	if len(named) > 0 {
		more := ""
		if rest > 0 {
			more = fmt.Sprintf(" and %d more", rest)
		}
		keep := ""
		if args.environment.Sessions() {
			keep = "; to keep files, use a session"
		}
		all.remarks = append(all.remarks, fmt.Sprintf("written and gone with the sandbox: %s%s%s", strings.Join(named, ", "), more, keep))
	} else if rest > 0 {
		all.remarks = append(all.remarks, fmt.Sprintf("%d more files in /workspace/outputs", rest))
	}
	return all
}

// imageType returns the MIME type of an image by its name, or nothing.
func imageType(name string) string {
	switch strings.ToLower(path.Ext(name)) {
	case ".png":
		return "image/png"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".gif":
		return "image/gif"
	case ".webp":
		return "image/webp"
	case ".svg":
		return "image/svg+xml"
	default:
		return ""
	}
}

// shownImage returns an image as content, or nil where it cannot be shown.
func shownImage(ctx context.Context, box *sandbox.Sandbox, name, kind string, svgRoom *int64) mcp.Content {
	data, err := whole(ctx, box, name, maxImageBytes)
	if err != nil {
		return nil
	}
	if kind == "image/svg+xml" {
		if int64(len(data)) > *svgRoom || !utf8.Valid(data) {
			return nil
		}
		*svgRoom -= int64(len(data))
		return mcp.NewTextContent(strings.TrimPrefix(name, workspace) + ":\n" + string(data))
	}
	if http.DetectContentType(data) != kind || picture.Viewable(data, kind) != nil {
		return nil
	}
	return mcp.NewImageContent(base64.StdEncoding.EncodeToString(data), kind)
}

// whole reads a file of at most limit bytes.
func whole(ctx context.Context, box *sandbox.Sandbox, name string, limit int64) ([]byte, error) {
	var data []byte
	for {
		part, size, err := box.Read(ctx, name, int64(len(data)), sandbox.ReadChunk)
		if err != nil {
			return nil, err
		}
		data = append(data, part...)
		if size > limit || int64(len(data)) > limit {
			return nil, fmt.Errorf("the file has %s, more than the %s that can be read at once: read parts of it with run", sizeOf(size, data), sizeOf(limit, nil))
		}
		// A file that shrinks meanwhile ends with an empty part.
		if len(part) == 0 || int64(len(data)) >= size {
			return data, nil
		}
	}
}

// sizeOf words a file's size, which is at least what was read of it.
func sizeOf(claimed int64, data []byte) string { return size(max(claimed, int64(len(data)))) }

// link returns a file of a session as a resource link.
func link(session string, file frame.File) mcp.Content {
	bytes := file.Size
	link := mcp.NewResourceLink(address(session, file.Path), path.Base(file.Path), "", mimeType(file.Path))
	link.Size = &bytes
	return link
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

// read answers resources/read.
func (t *Tool) read(ctx context.Context, request mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
	if reason, refused := ctx.Value(refusalKey{}).(string); refused {
		return nil, fmt.Errorf("%s", reason)
	}
	uri := request.Params.URI
	session, name, err := locate(uri)
	if err != nil {
		return nil, err
	}
	place, leave := t.place(ctx, session)
	defer leave()
	var data []byte
	err = t.manager.Find(ctx, place, func(box *sandbox.Sandbox) error {
		data, err = whole(ctx, box, name, maxResource)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %.200s: %w", uri, err)
	}
	kind := mimeType(name)
	if kind == "application/octet-stream" {
		kind, _, _ = strings.Cut(http.DetectContentType(data), ";")
	}
	t.log.Info("read", "session", session, "bytes", len(data))
	if utf8.Valid(data) && !bytes.ContainsRune(data, 0) {
		return []mcp.ResourceContents{mcp.TextResourceContents{URI: uri, MIMEType: kind, Text: string(data)}}, nil
	}
	return []mcp.ResourceContents{mcp.BlobResourceContents{URI: uri, MIMEType: kind, Blob: base64.StdEncoding.EncodeToString(data)}}, nil
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
