// Package audit keeps a record of every call: the principal, the environment, a hash of the
// code, and the outcome.
//
// It promises that the record is written before the answer leaves, even if the call is refused
// or cancelled; that each record has the hash of the previous one; and that a call continues
// if its record cannot be written. The failure is logged, and the next record counts the
// missing ones. A record has neither code nor output, but their hash and sizes.
//
// Several servers may write to one log. A record is not forced to the disk: it outlives the
// server, but not a power failure.
package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

const (
	// MaxFile is how large a file of a log becomes, in bytes, and Files how many there
	// are: PATH with the newest records, PATH.1 and so on up to the oldest.
	MaxFile = 64 << 20
	Files   = 10

	// lockTimeout bounds how long a record waits for another server that writes.
	lockTimeout = time.Second
	lockPause   = time.Millisecond
)

// Log is a log of calls. It is safe for concurrent use, and an Observer of calls.
type Log struct {
	path    string
	log     *slog.Logger
	maxFile int64

	mu     sync.Mutex
	lock   *os.File // locked by the server that writes; beside the log, because that is rotated
	file   *os.File // nil if it could not be opened
	size   int64    // of the file after the last record of this server
	seq    uint64   // of the last record in the file
	hash   string   // of that record; empty if there is none
	lost   uint64   // records that could not be written since
	failed error    // of the last write
	state  State
	charge func(ctx context.Context, principal string, bytes int) // may be nil
}

// State is the state of a log.
type State struct {
	Path    string
	Records uint64 // that this server has written
	Lost    uint64 // that this server could not write
	Seq     uint64 // of the last record
	Hash    string // of the last record
	Failure string // of the last write; empty if it succeeded
}

// Open opens a log, or begins it. The file is readable for its owner alone.
func Open(path string, log *slog.Logger) (*Log, error) {
	l := &Log{path: path, log: log, maxFile: MaxFile, state: State{Path: path}}
	var err error
	if l.lock, err = openFile(path + ".lock"); err != nil {
		return nil, err
	}
	release, err := l.acquire()
	if err == nil {
		err = l.catchUp()
		release()
	}
	if err != nil {
		l.close()
		return nil, err
	}
	log.Info("audit log", "file", path, "seq", l.seq, "hash", l.hash)
	return l, nil
}

// Close closes the log, and logs the end of its chain.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log.Info("audit log ends", "file", l.path, "seq", l.seq, "hash", l.hash, "lost", l.state.Lost)
	l.close()
}

func (l *Log) close() {
	if l.file != nil {
		l.file.Close()
	}
	l.lock.Close()
}

// State returns the state of the log.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
	s.Seq, s.Hash = l.seq, l.hash
	if l.failed != nil {
		s.Failure = l.failed.Error()
	}
	return s
}

// Charge sets a function that is called before each record of a call is written, and that waits
// until the principal may have so many bytes. Call it before the first call begins.
func (l *Log) Charge(record func(ctx context.Context, principal string, bytes int)) {
	l.charge = record
}

// Begin implements [call.Observer].
func (l *Log) Begin(c call.Call) (end func(call.Result, error)) {
	began := time.Now()
	return func(result call.Result, err error) {
		r := recordOf(c, result, err, time.Since(began))
		if l.charge != nil {
			l.charge(context.Background(), r.Who, r.size())
		}
		l.Write(r)
	}
}

// Write gives a record its number, its time and the hash of the one before it, and
// appends it. A failure is logged.
func (l *Log) Write(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.write(r)
	switch {
	case err != nil:
		l.lost++
		l.state.Lost++
		if l.failed == nil {
			l.log.Error("the audit log misses records from now on", "file", l.path, "error", err)
		}
	case l.failed != nil:
		l.log.Info("the audit log is written again", "file", l.path)
	}
	if err == nil {
		l.state.Records++
	}
	l.failed = err
}

func (l *Log) write(r Record) error {
	release, err := l.acquire()
	if err != nil {
		return err
	}
	defer release()
	if err := l.catchUp(); err != nil {
		return err
	}
	if l.size >= l.maxFile {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	return l.append(r)
}

// append writes a record at the end of the file. If the disk is full, it removes the part that
// was written.
func (l *Log) append(r Record) error {
	r.Seq, r.Time, r.Lost, r.Prev = l.seq+1, time.Now().UTC(), l.lost, l.hash
	line, hash, err := r.line()
	if err != nil {
		return err
	}
	if n, err := l.file.Write(line); err != nil {
		if n > 0 {
			err = errors.Join(err, l.file.Truncate(l.size))
		}
		return err
	}
	l.size += int64(len(line))
	l.seq, l.hash, l.lost = r.Seq, hash, 0
	return nil
}

func (l *Log) open() error {
	file, err := openFile(l.path)
	if err != nil {
		return err
	}
	l.file, l.size = file, -1
	return nil
}

// openFile opens a file to append to it. It creates the file for its owner alone.
func openFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", path)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// acquire keeps other servers from writing until release is called. If another file is at the
// log's path now, it opens that.
func (l *Log) acquire() (release func(), err error) {
	for end := time.Now().Add(lockTimeout); ; time.Sleep(lockPause) {
		err = unix.Flock(int(l.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EINTR && err != unix.EWOULDBLOCK || !time.Now().Before(end) {
			return nil, fmt.Errorf("lock %s: %w", l.lock.Name(), err)
		}
	}
	release = func() { _ = unix.Flock(int(l.lock.Fd()), unix.LOCK_UN) }
	if l.file != nil {
		at, err := os.Stat(l.path)
		mine, problem := l.file.Stat()
		if err == nil && problem == nil && os.SameFile(at, mine) {
			return release, nil
		}
		l.file.Close()
		l.file = nil
	}
	if err := l.open(); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// catchUp reads the last record if another server wrote it.
func (l *Log) catchUp() error {
	info, err := l.file.Stat()
	if err != nil || info.Size() == l.size {
		return err
	}
	r, hash, cut, err := lastOf(l.file, info.Size())
	if err != nil {
		return l.replace(err)
	}
	l.size = info.Size() - cut
	if l.size == 0 {
		// The chain goes on from the file before.
		if r, hash, err = lastOfPath(l.name(1)); err != nil {
			l.log.Error("the audit log cannot be continued, and a new one begins", "file", l.name(1), "because", err)
		}
	}
	l.seq, l.hash = r.Seq, hash
	if cut == 0 {
		return nil
	}
	if err := l.file.Truncate(l.size); err != nil {
		return fmt.Errorf("remove a line that was not written whole: %w", err)
	}
	l.log.Warn("the audit log ended with a line that was not written whole", "file", l.path, "bytes", cut)
	return l.append(Record{Event: Recovered})
}

// lastOf returns the last record of a file and its hash, which are empty for an empty file. cut
// is the length of an incomplete line at the end, in bytes.
func lastOf(file *os.File, size int64) (r Record, hash string, cut int64, err error) {
	end := make([]byte, min(size, 2*maxLine))
	if _, err := file.ReadAt(end, size-int64(len(end))); err != nil && err != io.EOF {
		return r, "", 0, fmt.Errorf("read the last record: %w", err)
	}
	whole := bytes.LastIndexByte(end, '\n') + 1
	cut = int64(len(end) - whole)
	if whole == 0 {
		if cut < size {
			err = errors.New("it has no record at its end")
		}
		return r, "", cut, err
	}
	begin := bytes.LastIndexByte(end[:whole-1], '\n') + 1
	r, hash, err = parse(end[begin:whole])
	return r, hash, cut, err
}

// lastOfPath is lastOf of a file that may not exist.
func lastOfPath(path string) (r Record, hash string, err error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return r, "", nil
	}
	if err != nil {
		return r, "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return r, "", err
	}
	r, hash, _, err = lastOf(file, info.Size())
	return r, hash, err
}

// replace begins a new chain, because the last record of the file is damaged. It keeps the
// file.
func (l *Log) replace(why error) error {
	l.log.Error("the audit log cannot be continued, and a new one begins", "file", l.path, "because", why)
	if err := l.rotate(); err != nil {
		return err
	}
	l.seq, l.hash = 0, ""
	return l.append(Record{Event: Begun, Reason: why.Error()})
}

// name is the path of the log's file of a number; 0 is the newest.
func (l *Log) name(n int) string {
	if n == 0 {
		return l.path
	}
	return fmt.Sprintf("%s.%d", l.path, n)
}

// rotate gives each file of the log the next number, removes the oldest, and begins a new one.
// The chain continues there.
func (l *Log) rotate() error {
	for n := Files - 1; n > 0; n-- {
		if err := os.Rename(l.name(n-1), l.name(n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("rotate the log: %w", err)
		}
	}
	l.file.Close()
	l.file = nil
	if err := l.open(); err != nil {
		return err
	}
	l.size = 0
	return nil
}
