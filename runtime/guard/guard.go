// Package guard keeps the panic of one goroutine from ending the server, with the sessions of
// everybody: the goroutine's owner gets an error, and the log the stack.
//
// Each goroutine that handles bytes of code, of a tool server, of a network or of a client has it,
// because some of them reach code of libraries. A test lists those that do without.
package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// ErrPanic is the error in place of a panic, whose words may be of foreign bytes.
var ErrPanic = errors.New("the server failed to handle this; its log says more")

// Recover ends a panic. It is deferred itself, and calls failed after a panic, unless failed is nil.
func Recover(failed func(error)) {
	if cause := recover(); cause != nil {
		slog.Error("a goroutine panicked", "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
		if failed != nil {
			failed(ErrPanic)
		}
	}
}

// Run calls f. The error is [ErrPanic] if f panics.
func Run(f func()) (err error) {
	defer Recover(func(problem error) { err = problem })
	f()
	return nil
}
