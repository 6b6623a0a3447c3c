package jail

import (
	"fmt"
	"os"
)

// checkBinds checks that what the sandbox is to see of the host exists, so that
// the error is a sentence and not bubblewrap's.
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
		// Through a socket or a device, read-only or not, code could reach the
		// host.
		case !info.IsDir() && !info.Mode().IsRegular():
			return refuse("which is neither a folder nor a file")
		}
	}
	return nil
}
