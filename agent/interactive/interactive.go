// Package interactive connects users to programs in a sandbox beside its calls: terminals, shells that run a text,
// code, and connections to ports.
//
// The terminal of a program is made inside the sandbox. The sandbox has no descriptor of
// the user's own terminal, so code cannot type into it or change its settings.
package interactive

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// shells are tried in this order.
var shells = []string{"bash", "/bin/sh"}

// prompt is bash's PS1: a word that tells the sandbox from other machines, and the folder.
const prompt = `sandbox:$PWD\$ `

// program returns the path and the arguments of a shell or, if own is set, of the
// interpreter.
func program(spec interpreter.Spec, own bool) (string, []string, error) {
	if own {
		args := slices.Clone(spec.Command)
		// Code would follow these options.
		if last := args[len(args)-1]; len(args) > 1 && (last == "-c" || last == "-e") {
			args = args[:len(args)-1]
		}
		path, err := exec.LookPath(args[0])
		if err != nil {
			return "", nil, fmt.Errorf("interpreter %s: %w", args[0], err)
		}
		return path, args, nil
	}
	for _, shell := range shells {
		if path, err := exec.LookPath(shell); err == nil {
			return path, []string{shell}, nil
		}
	}
	return program(spec, true)
}

// resize sets the size of a terminal; the kernel sends SIGWINCH to its programs.
func resize(terminal *os.File, t frame.Terminal) error {
	size := unix.Winsize{Row: t.Rows, Col: t.Columns}
	if err := control(terminal, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &size) }); err != nil {
		return fmt.Errorf("set the terminal's size: %w", err)
	}
	return nil
}

// control does something to the descriptor of a file, which stays non-blocking; File.Fd changes that.
func control(file *os.File, do func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) { err = do(int(fd)) }); failed != nil {
		return failed
	}
	return err
}

// set returns variables of the environment with one of them set.
func set(variables []string, name, value string) []string {
	kept := slices.DeleteFunc(slices.Clone(variables), func(v string) bool { return strings.HasPrefix(v, name+"=") })
	return append(kept, name+"="+value)
}
