package jail

import "os"

// Child holds the arguments and descriptors for [Spec.StartChild].
type Child struct {
	// Args are appended to the command of the description.
	Args []string
	// Stdin is the standard input of the command; nil means /dev/null.
	Stdin *os.File
	// Files become the command's descriptors from 3 on; nil means a closed one. The
	// caller closes its own.
	Files []*os.File
	// Stderr is the standard error of the command and of bubblewrap.
	Stderr *os.File
}

// inputs returns the command's standard input, and /dev/null, which the caller closes.
func (c Child) inputs() (stdin, null *os.File, err error) {
	if null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, nil, err
	}
	if c.Stdin != nil {
		return c.Stdin, null, nil
	}
	return null, null, nil
}

// Confined is a program in a sandbox that was started by [Spec.StartChild].
type Confined struct {
	*os.Process
	hold *os.File // ends the program when it is closed
}

// Wait waits for the program's end.
func (c *Confined) Wait() (*os.ProcessState, error) {
	state, err := c.Process.Wait()
	c.hold.Close() // also, so that it is not collected, and closed, before
	return state, err
}

// Kill ends the program.
func (c *Confined) Kill() error { return c.hold.Close() }
