// Package callfiles keeps the files of one-shot calls after their sandboxes have ended.
//
// It promises that the files of a call are available as long as those of a session would be: until
// no file was read for the idle time, and at most for the lifetime. They lie on disk in unlinked
// files, so that they disappear with the process, however it ends. The number and bytes of files
// are bounded, for one call and for all together. If the bound is reached, the principal with the
// most files loses files, those unused for longest first.
package callfiles

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// Bounds of the files of one call.
const (
	// MaxFiles is how many are kept.
	MaxFiles = 16
	// MaxFileBytes is the largest one, MaxCallBytes all together, in bytes.
	MaxFileBytes = 8 << 20
	MaxCallBytes = 16 << 20
	// keepTimeout bounds the time that keeping them takes from the answer.
	keepTimeout = 5 * time.Second
)

// Limits are the operator's, and bounds of all files together.
type Limits struct {
	Idle     time.Duration
	Lifetime time.Duration
	// Calls is how many calls may have files at once, Bytes what these may take.
	Calls int
	Bytes int64
}

// Files are the files of calls. Their methods may be called at the same time.
type Files struct {
	limits Limits
	folder string
	log    *slog.Logger

	mu     sync.Mutex
	closed bool
	calls  map[string]*oneShot // by id
	bytes  int64               // of all of them
}

// oneShot is a call with kept files.
type oneShot struct {
	principal string
	file      *os.File // with the contents of all of them
	parts     map[string]part
	bytes     int64
	made      time.Time
	used      time.Time
	timer     *time.Timer
}

type part struct{ offset, size int64 }

// New returns Files that are stored in a folder, without names. Their owner calls [Files.Close].
func New(limits Limits, folder string, log *slog.Logger) *Files {
	return &Files{limits: limits, folder: folder, log: log, calls: map[string]*oneShot{}}
}

// Keep copies files out of a sandbox after its call has ended, as many as the bounds allow. It sets
// Kept of every file that can be read from now on. Files that include their content are left out. The
// answer needs no note about them.
func (f *Files) Keep(ctx context.Context, principal string, box sandbox.Sandbox, files []sandbox.File) []call.Note {
	f.keep(ctx, principal, box, files)
	return nil
}

func (f *Files) keep(ctx context.Context, principal string, box sandbox.Sandbox, files []sandbox.File) {
	c := &oneShot{principal: principal, parts: map[string]part{}}
	var chosen []*sandbox.File
	for i := range files {
		file := &files[i]
		if file.Content == nil && file.Size <= MaxFileBytes && c.bytes+file.Size <= MaxCallBytes && len(chosen) < MaxFiles {
			chosen = append(chosen, file)
			c.bytes += file.Size
		}
	}
	if len(chosen) == 0 || !f.reserve(c) {
		return
	}
	var err error
	if c.file, err = host.Unnamed(f.folder); err != nil {
		f.log.Error("files of a call are not kept", "error", err)
		f.unreserve(c)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	id, offset := newID(), int64(0)
	for _, file := range chosen {
		out := io.NewOffsetWriter(c.file, offset)
		// The call did not write what a file has grown by since.
		size, err := box.CopyFile(ctx, out, file.Path, file.Size)
		if err != nil {
			f.log.Warn("a file of a call is not kept", "error", err)
			continue
		}
		c.parts[file.Path] = part{offset, size}
		offset += size
		file.Kept, file.Size = id, size
	}
	if len(c.parts) == 0 || !f.add(id, c) {
		for _, file := range chosen {
			file.Kept = ""
		}
		c.file.Close()
		f.unreserve(c)
	}
}

// reserve counts the bytes that a call is about to keep, after removing the files of other calls if
// need be. It returns false if there is no room.
func (f *Files) reserve(c *oneShot) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || c.bytes > f.limits.Bytes {
		return false
	}
	for {
		tooMany := len(f.calls) >= f.limits.Calls
		if !tooMany && f.bytes+c.bytes <= f.limits.Bytes {
			break
		}
		id := f.first(tooMany)
		if id == "" { // the rest is reserved
			return false
		}
		f.end(id)
	}
	f.bytes += c.bytes
	return true
}

func (f *Files) unreserve(c *oneShot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes -= c.bytes
}

// first returns the id of the call whose files are removed first, or "" if no call has files. tooMany
// says that there are too many calls, and not too many bytes.
func (f *Files) first(tooMany bool) (id string) {
	of := map[string]int64{}
	for _, c := range f.calls {
		if tooMany {
			of[c.principal]++
		} else {
			of[c.principal] += c.bytes
		}
	}
	for other, c := range f.calls {
		if id == "" {
			id = other
			continue
		}
		first := f.calls[id]
		if more := cmp.Compare(of[c.principal], of[first.principal]); more > 0 || more == 0 && c.used.Before(first.used) {
			id = other
		}
	}
	return id
}

// add makes the files of a call readable. It returns false after Close.
func (f *Files) add(id string, c *oneShot) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	c.made = time.Now()
	f.calls[id] = c
	f.use(id, c)
	return true
}

// use has the files of a call end after the idle time from now, or at their lifetime.
func (f *Files) use(id string, c *oneShot) {
	c.used = time.Now()
	if c.timer != nil {
		c.timer.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(min(f.limits.Idle, time.Until(c.made.Add(f.limits.Lifetime))), func() {
		defer guard.Recover(nil)
		f.mu.Lock()
		defer f.mu.Unlock()
		// They may have been used while the timer fired.
		if f.calls[id] == c && c.timer == timer {
			f.end(id)
		}
	})
	c.timer = timer
}

func (f *Files) end(id string) {
	c := f.calls[id]
	c.timer.Stop()
	c.file.Close()
	f.bytes -= c.bytes
	delete(f.calls, id)
}

// Read returns a file that was kept for a principal, by its id and its path in the
// sandbox. The error is a [*call.GoneError] if there is none.
func (f *Files) Read(principal, id, path string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls[id]
	if c == nil || c.principal != principal {
		return nil, &call.GoneError{Idle: f.limits.Idle, Lifetime: f.limits.Lifetime}
	}
	at, found := c.parts[path]
	if !found {
		return nil, fs.ErrNotExist
	}
	f.use(id, c)
	data := make([]byte, at.size)
	if n, err := c.file.ReadAt(data, at.offset); n < len(data) {
		return nil, fmt.Errorf("read a kept file: %w", err)
	}
	return data, nil
}

// Close removes all files, and no more are kept.
func (f *Files) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for id := range f.calls {
		f.end(id)
	}
}

// idBytes is the length of an id before it is written in hexadecimal. It is too long to guess, and
// a restarted server does not reuse the ids of its predecessor.
const idBytes = 8

func newID() string {
	var id [idBytes]byte
	_, _ = rand.Read(id[:]) // which never fails
	return hex.EncodeToString(id[:])
}
