//go:build !linux

package jail

import "context"

// Check says that this system has no jails.
func Check(context.Context, string) error { return ErrPlatform }

// Start says that this system has no jails.
func (s *Spec) Start(Project) error { return ErrPlatform }
