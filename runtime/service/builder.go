package service

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// builder is the descriptor of the process that builds (nix/wrapper/build.sh, which
// documents its lines), or 0 if the server builds no environments.
type builder int

var errNoBuilder = errors.New("this server builds nothing")

// write writes a line to the builder. It does not wait: a full pipe has more lines than there are
// builds.
func (b builder) write(line string) error {
	if b == 0 {
		return nil
	}
	if err := unix.SetNonblock(int(b), true); err != nil {
		return err
	}
	_, err := unix.Write(int(b), []byte(line+"\n"))
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	return err
}

// bounds tells the builder the bounds of environments with packages.
func (b builder) bounds(o registry.Bounds) error {
	if o == (registry.Bounds{}) {
		return nil
	}
	return b.write(fmt.Sprintf("bounds %d %d %d %d %d", o.MaxBuilds, o.BuildSeconds, o.MaxClosureMB<<20, o.KeepDays, o.KeepMB<<20))
}

// derive asks for the environment with packages that has this key.
func (b builder) derive(key string) error {
	if b == 0 {
		return errNoBuilder
	}
	if err := b.write("derive " + key); err != nil {
		return fmt.Errorf("the process that builds cannot be asked: %w", err)
	}
	return nil
}
