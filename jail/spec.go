package jail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
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
	// Command is the first process of the sandbox and its arguments.
	Command []string `json:"command"`
}

// ReadSpec reads the description in a file.
func ReadSpec(name string) (*Spec, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the sandbox's description: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, MaxSpec+1))
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
	if len(text) > MaxSpec {
		return nil, fmt.Errorf("it is larger than %d bytes", MaxSpec)
	}
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
	for _, words := range [][]string{s.Flags, s.Seal, s.Command, {s.Bubblewrap}} {
		for _, word := range words {
			if strings.ContainsRune(word, 0) {
				return fmt.Errorf("%q holds a zero byte", word)
			}
		}
	}
	return nil
}
