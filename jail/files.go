package jail

import (
	"bytes"
	"fmt"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// checkBinds checks the host's files that the sandbox sees, because bubblewrap's own
// errors would not say what to do.
func (s *Spec) checkBinds() error {
	for _, bind := range s.Binds {
		refuse := func(what string) error {
			return &Refusal{
				Problem: fmt.Sprintf("the sandbox shows %s at %s, %s", bind.From, bind.To, what),
				Hint:    "put a folder or a file there, or build the sandbox with other extra_binds",
			}
		}
		info, err := os.Stat(bind.From)
		switch {
		case os.IsNotExist(err):
			return refuse("which does not exist")
		case err != nil:
			return refuse("which cannot be read: " + reason(err))
		// A socket or a device would let code reach the host, even read-only.
		case !info.IsDir() && !info.Mode().IsRegular():
			return refuse("which is neither a folder nor a file")
		}
	}
	return nil
}

// masks returns the flags that cover files of /proc. It leaves out files that the kernel
// lacks, because bubblewrap cannot create them there.
func (s *Spec) masks() []string {
	var flags []string
	for _, mask := range s.Masks {
		if _, err := os.Lstat(mask.To); err == nil {
			flags = append(flags, "--ro-bind", mask.From, mask.To)
		}
	}
	return flags
}

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
