package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// give gives a call its files, and an interpreter with a driver the rest.
func (e *executor) give(ctx context.Context, c *call, deadline time.Time) error {
	if c.Given != nil {
		if err := e.giveFiles(c.Given); err != nil {
			return err
		}
	}
	return e.giveInterpreter(ctx, c, deadline)
}

// giveFiles writes the files that a call is given. They do not count as files that the call made.
func (e *executor) giveFiles(given *frame.Given) error {
	for _, name := range slices.Sorted(maps.Keys(given.Files)) {
		if err := e.root.Write(name, given.Files[name]); err != nil {
			return fmt.Errorf("write a file that the call is given: %w", err)
		}
	}
	if len(given.Files) > 0 {
		e.root.Changed()
	}
	return nil
}

// giveProgram returns the specification of a program that starts with a call, with the call's
// stdin and with its variables in the environment, and a function to call when it has started.
func (e *executor) giveProgram(given *frame.Given) (spec interpreter.Spec, started func(), err error) {
	spec, started = e.spec, func() {}
	if given == nil {
		return spec, started, nil
	}
	spec.Env = slices.Clone(spec.Env)
	for name, value := range given.Variables {
		text := driver.Text(value)
		if strings.IndexByte(text, 0) >= 0 {
			return spec, started, fmt.Errorf("variable %s has a NUL byte, which the environment of a program cannot have", name)
		}
		spec.Env = append(spec.Env, name+"="+text)
	}
	if len(given.Stdin) > 0 {
		if spec.Pipe {
			return spec, started, errors.New("this environment reads its code from stdin, so that a call has no other stdin: give it a file")
		}
		file, err := interpreter.Memory("stdin", string(given.Stdin))
		if err != nil {
			return spec, started, err
		}
		spec.Null, started = file, func() { file.Close() }
	}
	return spec, started, nil
}

// giveInterpreter gives the interpreter the stdin and the variables of a call by code of its driver,
// which runs before the call's code and has no output.
func (e *executor) giveInterpreter(ctx context.Context, c *call, deadline time.Time) error {
	given := c.Given
	isFed := e.current != nil && e.current.Fed
	if e.spec.Driver == nil || given == nil && !isFed {
		return nil
	}
	if err := e.load(ctx, deadline); err != nil {
		return err
	}
	stdin, codes := os.DevNull, []string(nil)
	if given != nil && len(given.Stdin) > 0 {
		file, err := os.CreateTemp("/tmp", "stdin-")
		if err != nil {
			return fmt.Errorf("make a file for stdin: %w", err)
		}
		defer os.Remove(file.Name()) // the interpreter has opened it by then
		stdin = file.Name()
		_, err = file.Write(given.Stdin)
		if err = errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("write stdin to a file: %w", err)
		}
	}
	if stdin != os.DevNull || e.current.Fed {
		e.current.Fed = stdin != os.DevNull
		codes = append(codes, e.spec.Driver.StdinCode(stdin))
	}
	if given != nil {
		for _, name := range slices.Sorted(maps.Keys(given.Variables)) {
			codes = append(codes, e.spec.Driver.VariableCode(name, given.Variables[name]))
		}
	}
	if c.Keep && len(codes) > 0 {
		e.held = true
	}
	for _, code := range codes {
		status, err := e.prepare(ctx, code, deadline)
		switch {
		case err != nil: // it cannot be used any more
			return errors.Join(err, e.kill())
		case status != 0:
			return errors.New("the interpreter did not take the stdin or a variable that the call is given: a variable may need another name")
		}
	}
	return nil
}
