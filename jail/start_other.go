//go:build !linux

package jail

// Start says that this system has no jails.
func (s *Spec) Start(Project) error { return ErrPlatform }
