package tool

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// What a program may give with a call in _meta, which models neither see nor pay for.
const (
	givenPrefix    = metaPrefix
	givenStdin     = givenPrefix + "stdin"
	givenVariables = givenPrefix + "variables"
	givenFiles     = givenPrefix + "files"
	givenVerbatim  = givenPrefix + "verbatim"
	givenLast      = givenPrefix + "end_session"
	givenTimeout   = givenPrefix + "timeout"
)

// Bounds of what a call is given. With base64 and the code, it still fits into a frame.
const (
	maxGiven     = 8 << 20 // bytes, of all together
	maxGivenOf   = 256     // files, and variables
	maxGivenName = 512     // bytes
)

// validVariable matches names that are variables in every language.
var validVariable = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// IsGiven reports whether _meta has anything for [Run.Give].
func IsGiven(meta map[string]any) bool {
	for field := range meta {
		if strings.HasPrefix(field, givenPrefix) {
			return true
		}
	}
	return false
}

// Give takes what the _meta of a call's message gives the call, before [Run.Answer]. Fields of
// others are ignored; a mistake in one of this server's refuses the call.
func (r *Run) Give(meta map[string]json.RawMessage) { r.given = meta }

// give decodes what _meta gives a call. The error is a sentence.
func give(c *call.Call, meta map[string]json.RawMessage) (err error) {
	given, size := frame.Given{}, 0
	for _, field := range slices.Sorted(maps.Keys(meta)) {
		if !strings.HasPrefix(field, givenPrefix) {
			continue
		}
		switch value := meta[field]; field {
		case givenStdin:
			if given.Stdin, err = content(value); err == nil {
				size += len(given.Stdin)
			}
		case givenVariables:
			var n int
			given.Variables, n, err = variablesIn(value)
			size += n
		case givenFiles:
			var n int
			given.Files, n, err = filesIn(value)
			size += n
		case givenVerbatim:
			c.Verbatim, err = boolIn(value)
		case givenLast:
			c.Last, err = boolIn(value)
		case givenTimeout:
			var seconds any
			_ = json.Unmarshal(value, &seconds) // is JSON
			limit, ok := timeLimit(seconds, c.Env)
			if !ok {
				return badTimeout(seconds, c.Env)
			}
			c.Timeout = limit
		default:
			err = fmt.Errorf("is not a field that a call may have: give %s, %s, %s, %s, %s or %s", givenStdin, givenVariables, givenFiles, givenVerbatim, givenLast, givenTimeout)
		}
		if err != nil {
			return fmt.Errorf("_meta %.80q %w", field, err)
		}
	}
	switch {
	case size > maxGiven:
		return fmt.Errorf("_meta gives the call %d bytes: %d are allowed for stdin, variables and files together; write large files in several calls of a session", size, maxGiven)
	case size > 0 || len(given.Files) > 0:
		c.Given = &given
	}
	return nil
}

func boolIn(value json.RawMessage) (is bool, err error) {
	if is = string(value) == "true"; !is && string(value) != "false" {
		err = fmt.Errorf("is %.60s: use true or false", value)
	}
	return is, err
}

// content decodes text, or bytes in base64.
func content(value json.RawMessage) ([]byte, error) {
	var text *string
	if json.Unmarshal(value, &text) == nil && text != nil {
		return []byte(*text), nil
	}
	var encoded map[string]*string
	if json.Unmarshal(value, &encoded) != nil || len(encoded) != 1 || encoded["base64"] == nil {
		return nil, fmt.Errorf(`is %.60s: use text, or {"base64": …} for bytes`, value)
	}
	data, err := base64.StdEncoding.DecodeString(*encoded["base64"])
	if err != nil {
		return nil, fmt.Errorf("is not base64: %w", err)
	}
	return data, nil
}

// variablesIn decodes values by name, and returns how many bytes they have.
func variablesIn(value json.RawMessage) (variables map[string]json.RawMessage, size int, err error) {
	if json.Unmarshal(value, &variables) != nil || variables == nil {
		return nil, 0, fmt.Errorf("is %.60s: use an object of values by name", value)
	}
	if len(variables) > maxGivenOf {
		return nil, 0, fmt.Errorf("has %d variables: %d are allowed", len(variables), maxGivenOf)
	}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if !validVariable.MatchString(name) {
			return nil, 0, fmt.Errorf("has the name %.80q: use at most 64 letters, digits or _, and no digit first", name)
		}
		size += len(variables[name])
	}
	return variables, size, nil
}

// filesIn decodes files by name, and returns how many bytes they have.
func filesIn(value json.RawMessage) (files map[string][]byte, size int, err error) {
	var given map[string]json.RawMessage
	if json.Unmarshal(value, &given) != nil || given == nil {
		return nil, 0, fmt.Errorf("is %.60s: use an object of contents by name", value)
	}
	if len(given) > maxGivenOf {
		return nil, 0, fmt.Errorf("has %d files: %d are allowed", len(given), maxGivenOf)
	}
	files = map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		// Both ends check it: this one can say what to write, the agent's kernel is what holds.
		if name == "." || len(name) > maxGivenName || !filepath.IsLocal(name) || filepath.Clean(name) != name || strings.IndexByte(name, 0) >= 0 {
			return nil, 0, fmt.Errorf("has the name %.80q: use a path relative to the workspace, such as data/in.csv, of at most %d bytes", name, maxGivenName)
		}
		if files[name], err = content(given[name]); err != nil {
			return nil, 0, fmt.Errorf("has a file %.80q that %w", name, err)
		}
		size += len(files[name])
	}
	return files, size, nil
}
