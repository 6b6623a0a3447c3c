// Package lock writes the lock file of tools: what each server says of its tools, with hashes. A
// person reviews it, Nix builds from it, and the gate calls no tool that has changed since.
package lock

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/gate"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/server"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// Name is that of the lock file, beside the configuration.
const Name = "tools.lock.json"

// maxFile bounds a lock file, in bytes.
const maxFile = 64 << 20

// isName is the form of tools' names in MCP. One of another form is left out.
var isName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// File is a lock file.
type File struct {
	Schema  int               `json:"schema"`
	Servers map[string]Server `json:"servers"`
}

// Server has the tools of a server by name.
type Server struct {
	Tools map[string]server.Tool `json:"tools"`
}

// Read reads a lock file; one that does not exist is empty.
func Read(path string) (File, error) {
	f := File{Schema: 1, Servers: map[string]Server{}}
	text, err := bounded.ReadFile(path, maxFile)
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return f, fmt.Errorf("read the lock file: %w", err)
	}
	return f, nil
}

// Make starts each server in its jail and returns what they say of their tools.
func Make(ctx context.Context, catalog *gate.Catalog, log *slog.Logger) (File, error) {
	f := File{Schema: 1, Servers: map[string]Server{}}
	for _, name := range slices.Sorted(maps.Keys(catalog.Servers)) {
		client, tools, err := server.Start(ctx, catalog.Servers[name].Spec, log)
		if err != nil {
			return f, fmt.Errorf("[tools.%s] did not start: %s", name, hostile.Message(err.Error()))
		}
		client.Close()
		for tool := range tools {
			if !isName.MatchString(tool) {
				log.Warn("a tool is left out, because MCP allows no such name", "server", name, "tool", hostile.Message(tool))
				delete(tools, tool)
			}
		}
		f.Servers[name] = Server{tools}
	}
	return f, nil
}

// Write replaces the file at a path.
func (f File) Write(path string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(f); err != nil {
		return err
	}
	part, err := os.CreateTemp(filepath.Dir(path), "."+Name)
	if err != nil {
		return err
	}
	defer os.Remove(part.Name())
	_, err = part.Write(visible(text.String()))
	return cmp.Or(err, part.Chmod(0o644), part.Close(), os.Rename(part.Name(), path))
}

// visible writes the invisible characters of a text in JSON as JSON's escapes, because the user reads it.
func visible(text string) []byte {
	var shown []byte
	for _, r := range text {
		switch {
		case r == '\n' || !hostile.Invisible(r):
			shown = utf8.AppendRune(shown, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			shown = fmt.Appendf(shown, "\\u%04x\\u%04x", high, low)
		default:
			shown = fmt.Appendf(shown, "\\u%04x", r)
		}
	}
	return shown
}

// Compare writes a line for each tool that differs from that of an earlier file, and returns how
// many do.
func (f File) Compare(earlier File, to io.Writer) (changes int) {
	say := func(sign, server, tool, more string) {
		changes++
		fmt.Fprintf(to, "%s %s.%s%s\n", sign, server, tool, more)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Servers)) {
		was := earlier.Servers[name].Tools
		now := f.Servers[name].Tools
		for _, tool := range slices.Sorted(maps.Keys(now)) {
			hint := ""
			if now[tool].ReadOnly {
				hint = "   (calls itself read-only)"
			}
			switch old, found := was[tool]; {
			case !found:
				say("+", name, tool, hint)
			case old.Hash != now[tool].Hash:
				say("~", name, tool, hint)
			}
		}
		for _, tool := range slices.Sorted(maps.Keys(was)) {
			if _, found := now[tool]; !found {
				say("-", name, hostile.Message(tool), "")
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(earlier.Servers)) {
		if _, found := f.Servers[name]; !found {
			say("-", hostile.Message(name), "*", "")
		}
	}
	return changes
}
