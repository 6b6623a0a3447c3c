package desk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// suffix ends the name of a socket, which begins with the server's process id.
const suffix = ".desk"

// bindTime is longer than a server takes between bind(2) and listen(2): an older socket that
// refuses connections is of a server that was killed.
const bindTime = 10 * time.Second

var errNoFolder = errors.New("there is no folder for it: neither HOME nor XDG_RUNTIME_DIR is set")

// listen returns a listener in the first folder that can be used, beneath none of those that
// sandboxes show. Its end removes the socket.
func listen(folders, shown []string) (*net.UnixListener, error) {
	err := errNoFolder
	for _, folder := range folders {
		if err = prepare(folder, shown); err != nil {
			continue
		}
		path := filepath.Join(folder, strconv.Itoa(os.Getpid())+suffix)
		_ = os.Remove(path) // of an earlier process with this id
		var listener *net.UnixListener
		if listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
			continue
		}
		if err = os.Chmod(path, 0o600); err == nil {
			return listener, nil
		}
		listener.Close()
	}
	return nil, err
}

// Usable returns the first of the folders in which a server can listen, or says why there is none.
func Usable(folders, shown []string) (string, error) {
	err := errNoFolder
	for _, folder := range folders {
		if err = prepare(folder, shown); err == nil {
			return folder, nil
		}
	}
	return "", err
}

// Unseen says why [Find] may miss servers: there is no folder to look in, or one is not of this user alone.
func Unseen(folders []string) error {
	if len(folders) == 0 {
		return errNoFolder
	}
	for _, folder := range folders {
		if err := Check(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// prepare makes a folder, or checks it, and removes the sockets of servers that were killed.
func prepare(folder string, shown []string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	if err := Check(folder); err != nil {
		return err
	}
	if err := checkHidden(folder, shown); err != nil {
		return err
	}
	for _, server := range sockets(folder) {
		conn, err := net.Dial("unix", server.Path)
		if err == nil {
			conn.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) && time.Since(server.Since) > bindTime {
			_ = os.Remove(server.Path)
		}
	}
	return nil
}

// Check says why a folder is not safe for sockets: it must be of this user alone.
func Check(folder string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(folder, &stat); err != nil {
		return &os.PathError{Op: "examine", Path: folder, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o077 != 0 {
		return fmt.Errorf("%s is not a folder of this user alone: it has the owner %d and the mode %#o, and needs 0700", folder, stat.Uid, stat.Mode&0o7777)
	}
	return nil
}

// checkHidden says that sandboxes show a folder, in which their code would find the socket.
func checkHidden(folder string, shown []string) error {
	path, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return err
	}
	for _, other := range shown {
		root, err := filepath.EvalSymlinks(other)
		if err != nil {
			continue // it is not there, and no sandbox starts with it
		}
		if beneath, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(beneath) {
			return fmt.Errorf("%s is in %s, which sandboxes show: set XDG_RUNTIME_DIR to a folder outside of it", folder, other)
		}
	}
	return nil
}

// Server is a server's socket.
type Server struct {
	Path  string
	PID   int
	Since time.Time
}

// sockets returns the sockets in a folder, also of killed servers.
func sockets(folder string) (found []Server) {
	paths, _ := filepath.Glob(filepath.Join(folder, "*"+suffix)) // an error only for a bad pattern
	for _, path := range paths {
		info, err := os.Lstat(path)
		pid, wrong := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), suffix))
		if err == nil && wrong == nil && info.Mode().Type() == os.ModeSocket {
			found = append(found, Server{path, pid, info.ModTime()})
		}
	}
	return found
}

// Find returns the servers of this user that run, the newest first.
func Find(folders []string) (found []Server) {
	for _, folder := range folders {
		if Check(folder) != nil {
			continue
		}
		for _, server := range sockets(folder) {
			if conn, err := net.Dial("unix", server.Path); err == nil {
				conn.Close()
				found = append(found, server)
			}
		}
	}
	slices.SortFunc(found, func(a, b Server) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Path, b.Path)) })
	return found
}
