package jail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
)

// Schema is the version of [Spec] that this program reads.
const Schema = 1

// MaxSpec is the largest description, in bytes; a real one has about 3 KB.
const MaxSpec = 1 << 20

// Spec describes a sandbox. The build writes it, after a first line that
// names this program as the file's interpreter.
type Spec struct {
	Schema int `json:"schema"`
	// Bubblewrap is the absolute path of the program that makes the jail.
	Bubblewrap string `json:"bubblewrap"`
	// Seccomp is the absolute path of the system call filter, as package
	// seccomp encodes it.
	Seccomp string `json:"seccomp"`
	// Flags are given to bubblewrap before the project's mount, Seal after it.
	Flags []string `json:"flags"`
	Seal  []string `json:"seal"`
	// ProjectMount is where the project appears if the caller does not say.
	ProjectMount string `json:"project_mount"`
	// Reserved are the places in the sandbox where no project may appear.
	Reserved []string `json:"reserved"`
	// Binds are what the sandbox sees of the host besides, read-only.
	Binds []Bind `json:"binds"`
	// Masks are files of the build that the sandbox sees in place of those of
	// /proc that name the host, where the kernel has them.
	Masks []Bind `json:"masks"`
	// Variables is the absolute path of a file of environment variables,
	// NAME=VALUE and a zero byte each, that only the build of the sandbox
	// could find; empty where Flags set them all.
	Variables string `json:"variables"`
	// Overlay is how code may write into the project; nil where it may not,
	// and then NoOverlay says why.
	Overlay   *Overlay `json:"overlay"`
	NoOverlay string   `json:"no_overlay"`
	// Command is the first process of the sandbox and its arguments.
	Command []string `json:"command"`
}

// Bind is a folder or file of the host that the sandbox sees, read-only.
type Bind struct {
	From string `json:"from"` // absolute, on the host
	To   string `json:"to"`   // absolute, in the sandbox
}

// Overlay describes the throw-away layer that takes what code writes into the
// project. The layer is a file system in memory of a fixed size, which
// bubblewrap cannot give its own overlays: so a first bubblewrap makes a room
// with the layer and the project in it, and the second, the sandbox, starts
// in that room. The layer is gone with the room.
type Overlay struct {
	// Flags are the first bubblewrap's; Room is the folder in the room below
	// which what the sandbox sees of the host is bound.
	Flags []string `json:"flags"`
	Room  string   `json:"room"`
	// Upper and Work are folders of the layer, in the room.
	Upper string `json:"upper"`
	Work  string `json:"work"`
	// Option goes before the project's mount after the first two words of the
	// command, which so learns of the layer.
	Option string `json:"option"`
}

// ReadSpec reads the description in a file.
func ReadSpec(name string) (*Spec, error) {
	text, err := bounded.ReadFile(name, MaxSpec)
	if err != nil {
		return nil, fmt.Errorf("read the sandbox's description: %w", err)
	}
	spec, err := ParseSpec(text)
	if err != nil {
		return nil, &Refusal{
			Problem: fmt.Sprintf("%s does not describe a sandbox: %v", name, err),
			Hint:    "build the sandbox again with mkSandbox",
		}
	}
	return spec, nil
}

// ParseSpec reads a description: a line that starts with #!, then one JSON
// object with the fields of [Spec] and no others.
func ParseSpec(text []byte) (*Spec, error) {
	first, object, found := bytes.Cut(text, []byte("\n"))
	if !found || !bytes.HasPrefix(first, []byte("#!")) {
		return nil, errors.New("it does not start with a #! line")
	}
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.DisallowUnknownFields()
	var spec Spec
	if err := decoder.Decode(&spec); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	if err := spec.check(); err != nil {
		return nil, err
	}
	return &spec, nil
}

func (s *Spec) check() error {
	if s.Schema != Schema {
		return fmt.Errorf("its schema is %d, this program reads schema %d", s.Schema, Schema)
	}
	if !filepath.IsAbs(s.Bubblewrap) {
		return fmt.Errorf("bubblewrap is %q, want an absolute path", s.Bubblewrap)
	}
	if !filepath.IsAbs(s.Seccomp) {
		return fmt.Errorf("seccomp is %q, want the absolute path of a filter", s.Seccomp)
	}
	if len(s.Command) == 0 || !filepath.IsAbs(s.Command[0]) {
		return fmt.Errorf("command is %q, want a program's absolute path first", s.Command)
	}
	// Without these two lists a jail would be open or without a file.
	if len(s.Flags) == 0 || len(s.Seal) == 0 || len(s.Reserved) == 0 {
		return errors.New("flags, seal or reserved is empty")
	}
	if s.Variables != "" && !filepath.IsAbs(s.Variables) {
		return fmt.Errorf("variables is %q, want the absolute path of a file", s.Variables)
	}
	lists := [][]string{s.Flags, s.Seal, s.Command, {s.Bubblewrap}}
	for _, bind := range slices.Concat(s.Binds, s.Masks) {
		if !filepath.IsAbs(bind.From) || !filepath.IsAbs(bind.To) {
			return fmt.Errorf("binds has %q at %q, want absolute paths", bind.From, bind.To)
		}
		lists = append(lists, []string{bind.From, bind.To})
	}
	if o := s.Overlay; o != nil {
		if len(o.Flags) == 0 || !filepath.IsAbs(o.Room) || !filepath.IsAbs(o.Upper) || !filepath.IsAbs(o.Work) || o.Option == "" || len(s.Command) < 2 {
			return errors.New("overlay lacks flags, room, upper, work or option")
		}
		lists = append(lists, o.Flags, []string{o.Room, o.Upper, o.Work, o.Option})
	}
	for _, words := range lists {
		for _, word := range words {
			if strings.ContainsRune(word, 0) {
				return fmt.Errorf("%q holds a zero byte", word)
			}
		}
	}
	return nil
}
