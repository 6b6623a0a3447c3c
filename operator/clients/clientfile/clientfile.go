// Package clientfile adds a server to the configuration file of an MCP client, if that is plain
// JSON. Clients with other files have a command of their own for it.
//
// Members keep their order, and numbers their digits. White space changes.
package clientfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Name is the server's key in the files of all clients, in the table of their servers.
const Name = "sandbox"

// depth is the depth of a server's entry. Above it, objects and lists gain elements; in it, they
// are replaced.
const depth = 2

// maxNesting bounds the brackets of a file, which this package descends into.
const maxNesting = 10_000

// member is a member of an object.
type member struct {
	name  string
	value json.RawMessage
}

// indentation is the first one of a file.
var indentation = regexp.MustCompile(`\n([ \t]+)"`)

// Merge returns a file with the members of add, an object with one server. An empty file is an
// object without members. If the file has them all, it is returned as it was. An error continues a
// sentence that begins with the path of the file.
func Merge(file []byte, add string) ([]byte, error) { return change(file, add, false) }

// Remove returns a file without what Merge added to it: the server, and elements of lists. What is
// empty then goes too. An error is as of Merge.
func Remove(file []byte, added string) ([]byte, error) {
	if len(file) == 0 {
		return file, nil
	}
	return change(file, added, true)
}

func change(file []byte, other string, removes bool) ([]byte, error) {
	old := bytes.TrimSpace(file)
	if len(old) == 0 {
		old = []byte("{}")
	}
	if bytes.Count(old, []byte("["))+bytes.Count(old, []byte("{")) > maxNesting {
		return nil, errors.New("has too many brackets")
	}
	if !json.Valid(old) {
		return nil, errors.New("is not plain JSON: it has comments, or a mistake")
	}
	merged, err := apply(old, json.RawMessage(other), "", 0, removes)
	if merged == nil {
		merged = json.RawMessage("{}")
	}
	if err != nil || compact(merged) == compact(old) {
		return file, err
	}
	indent := "  "
	if match := indentation.FindSubmatch(file); match != nil {
		indent = string(match[1])
	}
	var result bytes.Buffer
	err = json.Indent(&result, merged, "", indent)
	return append(result.Bytes(), '\n'), err
}

// apply returns a value with what another one adds to it. If that is removed, it returns the value
// without it, or nil if nothing else is left. Name is the value's name.
func apply(old, other json.RawMessage, name string, at int, removes bool) (json.RawMessage, error) {
	if at >= depth && name == Name {
		if err := replaceable(old); err != nil || removes {
			return nil, err
		}
		return other, nil
	}
	switch other[0] {
	case '{':
		has, err := members(old)
		if err != nil {
			return nil, fmt.Errorf("%w under %q", err, name)
		}
		more, err := members(other)
		for _, m := range more {
			i := slices.IndexFunc(has, func(one member) bool { return one.name == m.name })
			if i < 0 {
				if !removes {
					has = append(has, m)
				}
				continue
			}
			if has[i].value, err = apply(has[i].value, m.value, m.name, at+1, removes); err != nil {
				return nil, err
			}
			if has[i].value == nil {
				has = slices.Delete(has, i, i+1)
			}
		}
		if removes && len(has) == 0 {
			return nil, err
		}
		return object(has), err
	case '[':
		var has, more []json.RawMessage
		if json.Unmarshal(old, &has) != nil {
			return nil, fmt.Errorf("has something else than a list under %q", name)
		}
		err := json.Unmarshal(other, &more)
		for _, one := range more {
			same := func(other json.RawMessage) bool { return isSame(one, other) }
			i := slices.IndexFunc(has, same)
			switch {
			case removes:
				has = slices.DeleteFunc(has, same)
			case i >= 0:
				has[i] = one
			default:
				has = append(has, one)
			}
		}
		if removes && len(has) == 0 {
			return nil, err
		}
		changed, _ := json.Marshal(has) // of valid JSON
		return changed, err
	}
	if removes {
		return old, nil
	}
	return other, nil
}

// hook matches the command of a client's hook: two of one client are the same, wherever the program is.
var hook = regexp.MustCompile(` hook ([a-z-]+)(?: --allow)?\);? `)

// isSame reports whether two elements of a list are equal, or hooks of this program for one client.
func isSame(one, other json.RawMessage) bool {
	a, b := hook.FindStringSubmatch(string(one)), hook.FindStringSubmatch(string(other))
	return a != nil && b != nil && a[1] == b[1] || compact(one) == compact(other)
}

// members returns the members of an object in their order.
func members(text json.RawMessage) (all []member, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return nil, errors.New("has something else than an object")
	}
	for decoder.More() {
		var m member
		token, err := decoder.Token()
		if err == nil {
			err = decoder.Decode(&m.value)
		}
		if m.name, _ = token.(string); err != nil {
			return nil, err
		}
		// Clients differ in which of two equal names they take.
		if slices.ContainsFunc(all, func(one member) bool { return one.name == m.name }) {
			return nil, fmt.Errorf("has %q twice", m.name)
		}
		all = append(all, m)
	}
	return all, nil
}

// object is the text of an object.
func object(all []member) json.RawMessage {
	text := []byte("{")
	for i, m := range all {
		if i > 0 {
			text = append(text, ',')
		}
		name, _ := json.Marshal(m.name)
		text = append(append(append(text, name...), ':'), m.value...)
	}
	return append(text, '}')
}

func compact(text json.RawMessage) string {
	var out bytes.Buffer
	_ = json.Compact(&out, text) // of valid JSON
	return out.String()
}

// entry is what tells whose a server's entry is.
type entry struct {
	Command any
	Args    []string
}

// replaceable returns an error if an entry is not of this program. A server that was started may
// become one that is reached, and the other way round.
func replaceable(old json.RawMessage) error {
	var is entry
	if json.Unmarshal(old, &is) != nil || !is.isOurs(string(old)) {
		return fmt.Errorf("has another server called %q", Name)
	}
	return nil
}

// isOurs looks at the name of the program, at the flake that nix takes it from, or, of a server at
// a URL, at all of the entry.
func (e entry) isOurs(text string) bool {
	if e.Command == nil {
		return strings.Contains(strings.ReplaceAll(strings.ToLower(text), "_", "-"), "nix-sandbox")
	}
	words := e.Args
	switch command := e.Command.(type) {
	case string:
		words = append([]string{command}, words...)
	case []any: // the command with its arguments
		for _, word := range command {
			words = append(words, fmt.Sprint(word))
		}
	}
	if len(words) == 0 {
		return false
	}
	program := path.Base(words[0])
	return strings.HasPrefix(program, "nix-sandbox") ||
		program == "nix" && slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(word, "github:nix-sandbox-mcp/") })
}
