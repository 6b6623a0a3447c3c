package jail

import (
	"bytes"
	"fmt"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
)

// maxVariables is the largest file of variables, in bytes. By default, Linux starts no
// program with more than 2 MiB of them.
const maxVariables = 2 << 20

// variables returns the flags that set the variables in the file of variables.
func (s *Spec) variables() ([]string, error) {
	if s.Variables == "" {
		return nil, nil
	}
	text, err := bounded.ReadFile(s.Variables, maxVariables)
	if err != nil {
		return nil, &Refusal{
			Problem: fmt.Sprintf("read the sandbox's variables in %s: %s", s.Variables, reason(err)),
			Hint:    rebuild,
		}
	}
	var flags []string
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		name, value, found := bytes.Cut(entry, []byte("="))
		if found && len(name) > 0 {
			flags = append(flags, "--setenv", string(name), string(value))
		}
	}
	return flags, nil
}
