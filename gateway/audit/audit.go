// Package audit keeps a record of every call: the principal, the environment, a hash of the
// code, and the outcome.
//
// It promises that the record is written before the answer leaves, even if the call is refused
// or cancelled; and that a call continues if its record cannot be written. The failure is logged,
// and the next record counts the missing ones. A record has neither code nor output, but their
// hash and sizes.
//
// Several servers may write to one file, and another program may rename it between two records. A
// record is not forced to the disk: it outlives the server, but not a power failure.
package audit

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// Log is a log of calls. It is safe for concurrent use, and an Observer of calls.
type Log struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	lost   uint64 // records that could not be written since the last one
	cut    bool   // the file may end within a line
	failed error  // of the last write
	state  State
	charge func(ctx context.Context, principal string, bytes int) // may be nil
}

// State is the state of a log.
type State struct {
	Path    string
	Records uint64 // that this server has written
	Lost    uint64 // that this server could not write
	Failure string // of the last write; empty if it succeeded
}

// Open opens a log, or begins it. The file is readable for its owner alone.
func Open(path string, log *slog.Logger) (*Log, error) {
	file, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	last := []byte{'\n'}
	if end, err := file.Seek(0, io.SeekEnd); err == nil && end > 0 {
		if _, err := file.ReadAt(last, end-1); err != nil {
			return nil, err
		}
	}
	log.Info("audit log", "file", path)
	return &Log{path: path, log: log, cut: last[0] != '\n', state: State{Path: path}}, nil
}

// State returns the state of the log.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
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
		l.record(context.Background(), recordOf(c, result, err, time.Since(began)))
	}
}

// record charges for a record and writes it.
func (l *Log) record(ctx context.Context, r Record) {
	if l.charge != nil {
		l.charge(ctx, r.Who, r.size())
	}
	l.Write(r)
}

// Write appends a record. A failure is logged.
func (l *Log) Write(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Lost = l.lost
	line, err := r.line()
	if err == nil {
		err = l.append(line)
	}
	if err != nil {
		l.lost++
		l.state.Lost++
		if l.failed == nil {
			l.log.Error("the audit log misses records from now on", "file", l.path, "error", err)
		}
	} else {
		l.lost = 0
		l.state.Records++
		if l.failed != nil {
			l.log.Info("the audit log is written again", "file", l.path)
		}
	}
	l.failed = err
}

// append writes a line at the end of the file, in one write. It opens the file each time, which takes
// 10 µs: after logrotate has renamed the file, there is a new one without a signal.
func (l *Log) append(line []byte) error {
	file, err := openFile(l.path)
	if err != nil {
		return err
	}
	defer file.Close()
	if l.cut { // by a full disk or a crash: that stays a line of its own
		line = append([]byte{'\n'}, line...)
	}
	n, err := file.Write(line)
	if n > 0 {
		l.cut = n < len(line)
	}
	return err
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
