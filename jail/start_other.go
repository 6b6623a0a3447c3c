//go:build !linux

package jail

import "context"

// Check says that this system has no jails.
func Check(context.Context, string) error { return ErrPlatform }

// Start returns [ErrPlatform], because jails need Linux.
func (s *Spec) Start(Project) error { return ErrPlatform }
