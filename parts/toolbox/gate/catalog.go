package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/server"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/near"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// maxCatalog bounds the metadata and the catalogue, in bytes.
const maxCatalog = 64 << 20

// plainName is a name of an argument that the model may read: any other one is a server's text.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Catalog is what Nix made of the configuration and the lock file: the servers, and which of
// their tools each environment may call.
type Catalog struct {
	Servers map[string]*Server `json:"servers"`
	// Environments has tools by server, by the bin/session-run of an artifact. The name alone
	// would give them to an artifact of a sandbox folder that has the same one.
	Environments map[string]map[string][]string `json:"-"`
}

// Server is a server with the bounds of its use.
type Server struct {
	server.Spec
	TimeoutSeconds float64 `json:"timeout_seconds"`
	AtOnce         int     `json:"at_once"`
	Calls          int     `json:"calls"`
	ResultMB       int     `json:"result_mb"`
	// Shared says who shares a process of it: server, principal or session.
	Shared string           `json:"shared"`
	Tools  map[string]*Tool `json:"tools"`
}

// Tool is a tool as the lock file has it.
type Tool struct {
	Hash      string `json:"sha256"`
	Signature string `json:"signature"`
	Ask       bool   `json:"ask"` // the user is asked before each call
	Input     Schema `json:"inputSchema"`
	Output    Schema `json:"outputSchema"` // of structured data; empty if it says nothing
}

// Load reads the catalogue that a server's metadata names, which is JSON or the path of a file of
// it, or nil.
func Load(metadata string) (*Catalog, error) {
	text := []byte(metadata)
	if !strings.HasPrefix(strings.TrimSpace(metadata), "{") {
		var err error
		if text, err = bounded.ReadFile(metadata, maxCatalog); err != nil {
			return nil, err
		}
	}
	var root struct {
		Tools string `json:"tools"`
	}
	if err := json.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("read the metadata's tools: %w", err)
	}
	if root.Tools == "" {
		return nil, nil
	}
	text, err := bounded.ReadFile(root.Tools, maxCatalog)
	if err != nil {
		return nil, err
	}
	c := &Catalog{Environments: map[string]map[string][]string{}}
	var listed struct {
		Environments []struct {
			Exec  string              `json:"exec"`
			Tools map[string][]string `json:"tools"`
		} `json:"environments"`
	}
	if err := errors.Join(json.Unmarshal(text, c), json.Unmarshal(text, &listed)); err != nil {
		return nil, fmt.Errorf("%s: %w", root.Tools, err)
	}
	for _, env := range listed.Environments {
		c.Environments[env.Exec] = env.Tools
	}
	for name, s := range c.Servers {
		s.ResultBytes = s.ResultMB << 20
		for header, variable := range s.Headers {
			value, found := os.LookupEnv(variable)
			if !found {
				return nil, fmt.Errorf("[tools.%s] wants the variable %s, and the server's environment has none of that name", name, variable)
			}
			s.Headers[header] = value
		}
	}
	return c, nil
}

// of returns the tools of an environment, which may be a link in a sandbox folder; nil if it has
// none.
func (c *Catalog) of(exec string) map[string][]string {
	if found := c.Environments[exec]; found != nil {
		return found
	}
	real, err := filepath.EvalSymlinks(exec)
	if err != nil {
		return nil
	}
	return c.Environments[real]
}

// fits returns what is wrong with a result, or an empty text: its structured data has to be as the
// lock file says.
func (t *Tool) fits(ctx context.Context, result json.RawMessage) string {
	if len(t.Output.RawMessage) == 0 {
		if !json.Valid(result) {
			return "it is no JSON"
		}
		return ""
	}
	value, count, err := decode(result, maxResultValues)
	object, isObject := value.(map[string]any)
	structured, has := object["structuredContent"]
	switch {
	case err != nil:
		return err.Error()
	case !isObject:
		return "it is no object of JSON"
	case object["isError"] == true || !has:
		return ""
	}
	if wrong := t.Output.check(ctx, structured, count); wrong != "" {
		return "its structuredContent is not as its outputSchema says: " + wrong
	}
	return ""
}

// read returns arguments in which texts are values if the schema wants no text, or nil.
func (t *Tool) read(arguments map[string]any) map[string]any {
	var schema struct {
		Properties map[string]struct{ Type json.RawMessage }
	}
	if json.Unmarshal(t.Input.RawMessage, &schema) != nil {
		return nil
	}
	read := maps.Clone(arguments)
	for name, value := range read {
		text, isText := value.(string)
		wants := schema.Properties[name].Type
		if isText && len(wants) > 0 && !bytes.Contains(wants, []byte(`"string"`)) {
			if value, _, err := decode([]byte(text), maxArgumentValues); err == nil {
				read[name] = value
			}
		}
	}
	return read
}

// nearest returns the signatures of the tools of an environment whose names are nearest to a
// wrong one, beginning with the same server's.
func (c *Catalog) nearest(tools map[string][]string, server, tool string) []string {
	type candidate struct {
		signature string
		distance  int
	}
	var all []candidate
	for name, own := range tools {
		for _, one := range own {
			away := near.Distance(one, tool)
			if strings.Contains(one, tool) || strings.Contains(tool, one) {
				away /= 2
			}
			all = append(all, candidate{name + "." + c.Servers[name].Tools[one].Signature, 2*away + near.Distance(name, server)})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return 2*(a.distance-b.distance) + strings.Compare(a.signature, b.signature)
	})
	var signatures []string
	for _, one := range all[:min(3, len(all))] {
		signatures = append(signatures, one.signature)
	}
	return signatures
}

// asks reports whether the user is asked about any of these tools, which are by server.
func (c *Catalog) asks(tools map[string][]string) bool {
	for server, names := range tools {
		for _, name := range names {
			if known := c.Servers[server]; known != nil && known.Tools[name] != nil && known.Tools[name].Ask {
				return true
			}
		}
	}
	return false
}
