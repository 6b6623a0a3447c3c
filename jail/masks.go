package jail

import "os"

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
