// Package outputs copies what code wrote to /workspace/outputs into a folder of the user's, when
// the call ends.
//
// It promises that code chooses neither where its files go nor what becomes of others. A file is
// new and appears whole: one with its name stays, and the new one has a number, unless both have
// the same content. Names that programs of the user obey are left out, by the policy for patches;
// no file is executable, and no link is made or followed out of the folder. Numbers, sizes and
// times are bounded. What is left out is listed with reasons.
package outputs

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// Limits bound what is copied.
type Limits struct {
	// Files and CallBytes are for one call, FileBytes for each of its files.
	Files                int
	FileBytes, CallBytes int64
	// FolderBytes and Entries bound the folder with everything in it.
	FolderBytes int64
	Entries     int
	// Measure is the least time between two measurements of a full folder.
	Measure time.Duration
	// Time bounds the copying of one call, which its answer waits for.
	Time time.Duration
}

// DefaultLimits hold for a server.
var DefaultLimits = Limits{Files: 256, FileBytes: 256 << 20, CallBytes: 512 << 20, FolderBytes: 16 << 30, Entries: 200_000, Measure: 10 * time.Second, Time: 20 * time.Second}

const (
	// partial begins the name of a file that is being written. Names from a sandbox begin with no
	// dot.
	partial = ".nix-sandbox-mcp-"
	// maxVersions bounds the files of one name.
	maxVersions = 1000
	// maxDepth bounds the folders of a path.
	maxDepth = 8
	// maxListed bounds the files of a note that are left out with their reasons.
	maxListed = 8
)

// Folder is the user's folder. Its methods may be called at the same time.
type Folder struct {
	name   string
	root   *os.Root
	limits Limits
	log    *slog.Logger

	mu       sync.Mutex
	all      usage            // of the folder, as far as this process knows
	each     map[string]usage // of the folders in it
	measured time.Time
}

// usage is what a folder has, or may have.
type usage struct {
	bytes   int64
	entries int
}

func (u usage) plus(bytes int64, entries int) usage {
	return usage{u.bytes + bytes, u.entries + entries}
}

// shares is how many principals at a time have room in the folder, whatever the others have: half of
// it is kept for their shares.
const shares = 32

var _ session.Part = (*Folder)(nil)

// Open returns the folder with this absolute path, which exists.
func Open(name string, limits Limits, log *slog.Logger) (*Folder, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	f := &Folder{name: name, root: root, limits: limits, log: log}
	f.measure()
	return f, nil
}

// measure counts what is in the folder, and removes what killed servers left there half
// written. A folder with more entries than allowed counts as full.
func (f *Folder) measure() {
	f.all, f.each, f.measured = usage{}, map[string]usage{}, time.Now()
	count := func(name string, bytes int64, entries int) {
		first, _, _ := strings.Cut(name, "/")
		f.count(first, bytes, entries)
	}
	err := fs.WalkDir(f.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if count(name, 0, 1); f.all.entries > f.limits.Entries {
			return fs.SkipAll
		}
		if err != nil || entry.IsDir() {
			return nil // what cannot be read is not counted
		}
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			return nil
		}
		if strings.HasPrefix(entry.Name(), partial) && time.Since(info.ModTime()) > time.Hour {
			_ = f.root.Remove(name)
			return nil
		}
		count(name, info.Size(), 0)
		return nil
	})
	if err != nil {
		f.log.Warn("the folder of outputs cannot be measured", "error", err)
	}
}

// reserve counts a file of this size, and reports whether the folder may have it. The file is of a
// principal's folder, or of no one's if there is one principal.
func (f *Folder) reserve(owner string, size int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.hasRoom(owner, size) && time.Since(f.measured) >= f.limits.Measure {
		f.measure() // the user may have removed something
	}
	if !f.hasRoom(owner, size) {
		return false
	}
	f.count(owner, size, 1)
	return true
}

func (f *Folder) count(owner string, bytes int64, entries int) {
	f.all, f.each[owner] = f.all.plus(bytes, entries), f.each[owner].plus(bytes, entries)
}

// hasRoom reports whether there is room for a file. A principal with more than its share takes
// nothing of what is kept for the shares of others.
func (f *Folder) hasRoom(owner string, size int64) bool {
	after := f.all.plus(size, 1)
	if after.bytes > f.limits.FolderBytes || after.entries > f.limits.Entries {
		return false
	}
	share := usage{f.limits.FolderBytes / (2 * shares), f.limits.Entries / (2 * shares)}
	own := f.each[owner].plus(size, 1)
	if owner == "" || own.bytes <= share.bytes && own.entries <= share.entries {
		return true
	}
	kept := usage{share.bytes * int64(max(0, shares-len(f.each))), share.entries * max(0, shares-len(f.each))}
	for other, has := range f.each {
		if other != owner {
			kept = kept.plus(max(0, share.bytes-has.bytes), max(0, share.entries-has.entries))
		}
	}
	return after.bytes+kept.bytes <= f.limits.FolderBytes && after.entries+kept.entries <= f.limits.Entries
}

// Start implements [session.Part].
func (f *Folder) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	begun, err := next(ctx, s)
	if err != nil {
		return nil, err
	}
	return &member{begun, f}, nil
}

type member struct {
	session.Member
	folder *Folder
}

// Call implements [session.Member].
func (m *member) Call(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error) {
	result, err := m.Member.Call(ctx, c, request)
	if err == nil && len(result.Files) > 0 {
		folder := c.Session
		if strings.HasPrefix(folder, "-") {
			folder = "_" + folder // is no option of a command
		}
		result.Notes = append(result.Notes, m.folder.Copy(ctx, owner(c.Principal), folder, m.Sandbox(), result.Files))
	}
	return result, err
}

// OfCalls returns one that copies the files of a call to a folder of the call's own, and then has
// next keep them.
func (f *Folder) OfCalls(next session.CallFiles) session.CallFiles { return &calls{next, f} }

type calls struct {
	next   session.CallFiles
	folder *Folder
}

// Keep implements [session.CallFiles].
func (k *calls) Keep(ctx context.Context, principal string, box sandbox.Sandbox, files []sandbox.File) (notes []call.Note) {
	if len(files) > 0 {
		to := path.Join("calls", time.Now().UTC().Format("2006-01-02T150405Z-")+strings.ToLower(rand.Text()[:6]))
		notes = append(notes, k.folder.Copy(ctx, owner(principal), to, box, files))
	}
	return append(notes, k.next.Keep(ctx, principal, box, files)...)
}

var plainName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// owner returns the name of a principal's folder, or "" for the only one.
func owner(principal string) string {
	if principal == "" || plainName.MatchString(principal) {
		return principal
	}
	sum := sha256.Sum256([]byte(principal))
	return "principal-" + hex.EncodeToString(sum[:12])
}

// Copy copies files of a sandbox into a folder below that of a principal, or below this one if the
// owner is empty, as many as the limits allow.
func (f *Folder) Copy(ctx context.Context, owner, to string, box sandbox.Sandbox, files []sandbox.File) call.Copied {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.limits.Time)
	defer cancel()
	to = path.Join(owner, to)
	note := call.Copied{To: path.Join(f.name, to)}
	left := f.limits.CallBytes
	for _, file := range files {
		name := file.Name()
		err := errors.New("the call has more files than are copied")
		if note.Files < f.limits.Files {
			var size int64
			size, err = f.copy(ctx, owner, to, name, box, file, left)
			left -= size
		}
		if err == nil {
			note.Files++
			continue
		}
		if note.LeftOutCount++; len(note.LeftOut) < maxListed {
			note.LeftOut = append(note.LeftOut, call.LeftOut{Path: name, Reason: err.Error()})
		}
	}
	if note.LeftOutCount > 0 {
		f.log.Warn("outputs are left out", "to", to, "files", note.LeftOutCount, "first", note.LeftOut[0].Path, "because", note.LeftOut[0].Reason)
	}
	return note
}

// copy copies one file and returns its size. The errors continue a sentence about the file.
func (f *Folder) copy(ctx context.Context, owner, to, name string, box sandbox.Sandbox, file sandbox.File, left int64) (size int64, err error) {
	limit := min(f.limits.FileBytes, left)
	refused := policy.Result(name)
	switch {
	case !file.Readable() || path.Clean(file.Path) != file.Path:
		return 0, errors.New("it is not in " + sandbox.WorkspaceFolder)
	case refused != "":
		return 0, errors.New(refused)
	case strings.Count(name, "/") > maxDepth:
		return 0, fmt.Errorf("its path has more than %d folders", maxDepth)
	case file.Size > limit:
		return 0, fmt.Errorf("it has %d bytes, more than the %d that may still be copied", file.Size, limit)
	case ctx.Err() != nil:
		return 0, errNoTime
	case !f.reserve(owner, file.Size):
		return 0, errors.New("the folder has as many bytes or files as it may")
	}
	kept := false
	defer func() {
		if !kept {
			f.mu.Lock()
			f.count(owner, -file.Size, -1)
			f.mu.Unlock()
		}
	}()
	target := path.Join(to, name)
	if err := f.makeFolders(path.Dir(target)); err != nil {
		return 0, reason(err)
	}
	temp := path.Join(path.Dir(target), partial+rand.Text())
	out, err := f.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) // less the umask
	if err != nil {
		return 0, reason(err)
	}
	defer func() {
		if !kept {
			_ = f.root.Remove(temp)
		}
	}()
	sum := sha256.New()
	both := &writer{Writer: io.MultiWriter(out, sum)}
	if file.Content != nil {
		_, err = both.Write(file.Content)
		size = int64(len(file.Content))
	} else {
		// What has grown since is not what the call left.
		size, err = box.CopyFile(ctx, both, file.Path, file.Size)
		// The model reads the reason among the server's words, so that it has none of the agent's.
		switch {
		case err == nil || both.err != nil:
			err = both.err
		case ctx.Err() != nil:
			err = errNoTime
		default:
			f.log.Debug("an output cannot be read", "path", file.Path, "error", err)
			err = errors.New("the sandbox did not send it")
		}
	}
	if err = errors.Join(err, out.Close(), f.own(temp)); err != nil {
		return 0, reason(err)
	}
	kept, err = f.give(temp, target, size, sum.Sum(nil))
	return size, reason(err)
}

var errNoTime = errors.New("there was no time to copy it")

// writer remembers why it failed.
type writer struct {
	io.Writer
	err error
}

func (w *writer) Write(data []byte) (n int, err error) {
	n, err = w.Writer.Write(data)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// give gives a complete file its name, or that with a number if the name is taken. It is false if
// the newest file of the name has the same content.
func (f *Folder) give(temp, target string, size int64, sum []byte) (given bool, err error) {
	folder, err := f.root.Open(path.Dir(target))
	if err != nil {
		return false, err
	}
	defer folder.Close()
	dir, ext := int(folder.Fd()), path.Ext(target)
	name, newest := target, ""
	for n := 2; n <= maxVersions; n++ {
		if _, err := f.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			if newest != "" && f.has(newest, size, sum) {
				return false, nil
			}
			from, to := path.Base(temp), path.Base(name)
			if err := host.RenameNew(dir, from, to); !errors.Is(err, fs.ErrExist) {
				return err == nil, err
			}
		}
		newest, name = name, fmt.Sprintf("%s-%d%s", strings.TrimSuffix(target, ext), n, ext)
	}
	return false, fmt.Errorf("there are %d files of its name", maxVersions)
}

// has reports whether a regular file has this content.
func (f *Folder) has(name string, size int64, sum []byte) bool {
	file, err := f.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != size {
		return false
	}
	hash := sha256.New()
	_, err = io.Copy(hash, io.LimitReader(file, size))
	return err == nil && string(hash.Sum(nil)) == string(sum)
}

// makeFolders makes a folder and its parents.
func (f *Folder) makeFolders(dir string) error {
	if dir == "." {
		return nil
	}
	if err := f.makeFolders(path.Dir(dir)); err != nil {
		return err
	}
	if err := f.root.Mkdir(dir, 0o777); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil // a file has no files in it, as opening them finds
		}
		return err
	}
	f.mu.Lock()
	first, _, _ := strings.Cut(dir, "/")
	f.count(first, 0, 1)
	f.mu.Unlock()
	return f.own(dir)
}

// own gives a file to the owner of the folder, if root is the server's user.
func (f *Folder) own(name string) error {
	info, err := f.root.Stat(".")
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return f.root.Lchown(name, int(owner.Uid), int(owner.Gid))
}

// reason is an error without paths of the host.
func reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
