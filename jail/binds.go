package jail

import (
	"fmt"
	"os"
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
