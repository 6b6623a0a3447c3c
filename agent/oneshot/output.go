package oneshot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// pipes returns the files that replace stdout and stderr for the code. For a regular file
// the code gets a pipe, and Run copies from it: with the file itself, code could read its
// old contents, truncate it and change its mode. If both are the same file they get the
// same pipe, so that the order of the output stays.
//
// finish waits until everything is copied, once the code has ended.
func pipes(stdout, stderr *os.File) (out, log *os.File, finish func() error, err error) {
	var copies []func() error
	finish = func() error {
		var failed error
		for _, wait := range copies {
			failed = errors.Join(failed, wait())
		}
		return failed
	}
	first, regular := fileInfo(stdout)
	out = stdout
	if regular {
		var wait func() error
		if out, wait, err = pipeTo(stdout); err != nil {
			return nil, nil, nil, err
		}
		copies = append(copies, wait)
	}
	second, alsoRegular := fileInfo(stderr)
	switch {
	case regular && alsoRegular && os.SameFile(first, second):
		return out, out, finish, nil
	case alsoRegular:
		var wait func() error
		if log, wait, err = pipeTo(stderr); err != nil {
			return nil, nil, nil, errors.Join(err, finish())
		}
		copies = append(copies, wait)
		return out, log, finish, nil
	}
	return out, stderr, finish, nil
}

// fileInfo describes a file and reports whether it is a regular one.
func fileInfo(file *os.File) (os.FileInfo, bool) {
	if file == nil {
		return nil, false
	}
	info, err := file.Stat()
	return info, err == nil && info.Mode().IsRegular()
}

// pipeTo returns the write end of a new pipe that is copied to a file, and a function that
// closes it and waits for the rest. If the file takes no more, writers find the pipe closed.
func pipeTo(file *os.File) (*os.File, func() error, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make a pipe for the output: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(file, r)
		r.Close()
		done <- err
	}()
	return w, func() error {
		w.Close()
		// Outside of a sandbox, a process may have survived and have the pipe open.
		_ = r.SetReadDeadline(time.Now().Add(grace))
		if err := <-done; err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("write the output: %w", err)
		}
		return nil
	}, nil
}
