// Package clientfile adds a server to the configuration file of an MCP client, and leaves every
// other byte of the file as it is: comments, order and indentation.
//
// It relies on no editing: a decoder of the file's format must find the old settings and the new
// ones in the result, and no others. Otherwise the file is refused.
package clientfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/tailscale/hujson"
	"go.yaml.in/yaml/v3"
)

// Format is the format of a file.
type Format string

// JSON may have comments and trailing commas, which some clients allow.
const (
	JSON Format = "json"
	TOML Format = "toml"
	YAML Format = "yaml"
)

// Name is the server's key in the files of all clients, in the table of their servers.
const Name = "sandbox"

// depth is the depth of a server's entry. Above it, lists gain elements; in it, they are replaced.
const depth = 2

// maxNesting bounds the brackets of a file: the parser of JSON calls itself for each.
const maxNesting = 1 << 20

// Merge returns a file with the settings of add in it, which is a text of the same format with one
// server. If the file has them, it returns the file as it was. An error continues a sentence that
// begins with the path of the file.
func Merge(format Format, file []byte, add string) ([]byte, error) {
	before, err := format.decode(file)
	if err != nil {
		return nil, fmt.Errorf("is no valid %s: %w", strings.ToUpper(string(format)), err)
	}
	wanted, err := format.decode([]byte(add))
	if err != nil {
		return nil, err
	}
	after, err := merge(before, wanted, 0)
	if err != nil || reflect.DeepEqual(before, after) {
		return file, err
	}
	table, entry := server(wanted)
	has, _ := before[table].(map[string]any)
	old, taken := has[Name]
	if taken {
		if err := replaces(old, entry); err != nil {
			return nil, err
		}
	}
	var result []byte
	if format == JSON {
		result, err = mergeJSON(file, add)
	} else {
		is, _ := old.(map[string]any)
		result = format.mergeLines(file, add, func(key string) bool { return !reflect.DeepEqual(is[key], entry[key]) }, taken)
	}
	if err == nil {
		var got map[string]any
		if got, err = format.decode(result); err == nil && reflect.DeepEqual(got, after) {
			return result, nil
		}
	}
	return nil, errors.New("is written in a way that this command cannot add to without a risk for the rest of it")
}

// server returns the server's entry in settings, and the table that has it.
func server(settings map[string]any) (table string, entry map[string]any) {
	for table, servers := range settings {
		if all, ok := servers.(map[string]any); ok {
			if entry, ok := all[Name].(map[string]any); ok {
				return table, entry
			}
		}
	}
	return "", nil
}

// replaces returns an error if an entry is not of this program, or starts or reaches it in another
// way than the new one: settings of both would be left in it.
func replaces(has any, entry map[string]any) error {
	old, _ := has.(map[string]any)
	words := fmt.Sprint(has) // an address, or the variable with its token
	isOtherWay := false
	for _, key := range []string{"command", "cmd"} {
		isOtherWay = isOtherWay || (old[key] == nil) != (entry[key] == nil)
		if old[key] != nil {
			words = program(old[key], old["args"])
		}
	}
	switch isOurs := strings.Contains(strings.ReplaceAll(strings.ToLower(words), "_", "-"), "nix-sandbox"); {
	case !isOurs:
		return fmt.Errorf("has another server called %q", Name)
	case isOtherWay:
		return fmt.Errorf("has this server as %q already, started or reached in the other way: remove that entry first", Name)
	}
	return nil
}

// program returns the name of the program that a command starts, which may have its arguments, or
// the flake that nix takes it from, if that has this program. Other arguments do not say whose the entry is.
func program(command, arguments any) string {
	all, isList := command.([]any)
	if !isList {
		all = []any{command}
	}
	more, _ := arguments.([]any)
	name := ""
	for i, one := range slices.Concat(all, more) {
		text, _ := one.(string)
		if i == 0 {
			name = path.Base(text)
		} else if name == "nix" && strings.HasPrefix(text, "github:nix-sandbox-mcp/") {
			return text
		}
	}
	return name
}

// decode returns the settings of a file, which may be empty.
func (f Format) decode(text []byte) (settings map[string]any, err error) {
	settings = map[string]any{}
	switch {
	case len(bytes.TrimSpace(text)) == 0:
	case f == TOML:
		err = toml.Unmarshal(text, &settings)
	case f == YAML:
		err = yaml.Unmarshal(text, &settings)
	case bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > maxNesting:
		err = errors.New("it has too many brackets")
	default:
		if text, err = hujson.Standardize(bytes.Clone(text)); err == nil {
			decoder := json.NewDecoder(bytes.NewReader(text))
			decoder.UseNumber() // which loses no digits
			err = decoder.Decode(&settings)
		}
	}
	if err == nil && settings == nil {
		err = io.ErrUnexpectedEOF // null
	}
	return settings, err
}

// merge returns settings with those of add.
func merge(old, add map[string]any, at int) (map[string]any, error) {
	result := map[string]any{}
	maps.Copy(result, old)
	for key, value := range add {
		switch inner := value.(type) {
		case map[string]any:
			has, ok := old[key].(map[string]any)
			if !ok && old[key] != nil {
				return nil, fmt.Errorf("has something else than an object under %q", key)
			}
			merged, err := merge(has, inner, at+1)
			if err != nil {
				return nil, err
			}
			result[key] = merged
			continue
		case []any:
			has, ok := old[key].([]any)
			if !ok && old[key] != nil {
				return nil, fmt.Errorf("has something else than a list under %q", key)
			}
			if at < depth {
				value = append(slices.Clip(has), missing(has, inner)...)
			}
		}
		result[key] = value
	}
	return result, nil
}

// missing returns the elements of add that a list lacks.
func missing(list, add []any) []any {
	return slices.DeleteFunc(slices.Clone(add), func(one any) bool {
		return slices.ContainsFunc(list, func(other any) bool { return reflect.DeepEqual(one, other) })
	})
}
