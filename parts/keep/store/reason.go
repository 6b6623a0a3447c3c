package store

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Reason words the error of a save for a model: without the paths of the host, and without what the server
// tried after the first failure.
func Reason(err error) string {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "the disk of the server is full"
	case errors.As(err, &path):
		return path.Err.Error()
	case errors.As(err, &link):
		return link.Err.Error()
	}
	return err.Error()
}
