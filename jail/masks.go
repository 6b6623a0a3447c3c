package jail

import "os"

// masks returns the flags that show the files of the build in place of those of
// /proc that name the host. A kernel may lack one of them, and bubblewrap cannot
// make it. The /proc of this process is the same kernel's.
func (s *Spec) masks() []string {
	var flags []string
	for _, mask := range s.Masks {
		if _, err := os.Lstat(mask.To); err == nil {
			flags = append(flags, "--ro-bind", mask.From, mask.To)
		}
	}
	return flags
}
