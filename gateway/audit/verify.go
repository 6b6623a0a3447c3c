package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"
)

// Chain is the result of verifying all files of a log.
type Chain struct {
	Records     int
	First, Last uint64 // numbers of records
	Begin, End  time.Time
	// Hash is that of the last record.
	Hash string
	// Lost is how many records could not be written, for example because the disk was full.
	// Cut is how often an incomplete line was removed.
	Lost uint64
	Cut  int
	// Wanted is a hash, and Found says that a record has it.
	Wanted string
	Found  bool
}

// BrokenError reports a line that was changed.
type BrokenError struct {
	Line   int // from 1 on
	Reason string
}

func (e *BrokenError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Reason) }

// Verify reads one file of a log and adds it to the chain. The files of a log are read
// from the oldest on. The error is a [*BrokenError] or a read error.
//
// The hashes show every change to a record and every record that was removed, inserted or
// moved, except at the end: if the last records are cut off, the chain is shorter but whole.
// Only a later hash shows that.
func (c *Chain) Verify(file io.Reader) error {
	lines := bufio.NewReaderSize(file, maxLine)
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		switch {
		case err == io.EOF && len(line) == 0:
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			return &BrokenError{n, fmt.Sprintf("it is longer than the %d bytes of a record", maxLine)}
		case err != nil && err != io.EOF:
			return err
		}
		r, hash, err := parse(line)
		if err != nil {
			return &BrokenError{n, err.Error()}
		}
		if reason := c.misplaced(r); reason != "" {
			return &BrokenError{n, reason}
		}
		c.add(r, hash)
	}
}

// misplaced returns why a record does not follow the last one, or "" if it does.
func (c *Chain) misplaced(r Record) string {
	switch {
	case c.Records == 0 && r.Seq == 1 && r.Prev != "":
		return "record 1 follows another one"
	case c.Records == 0: // earlier files may have been removed
		return ""
	case r.Seq == c.Last:
		return fmt.Sprintf("record %d is there twice", r.Seq)
	case r.Seq != c.Last+1:
		return fmt.Sprintf("record %d follows record %d", r.Seq, c.Last)
	case r.Prev != c.Hash:
		return fmt.Sprintf("record %d does not follow the record %d that is there", r.Seq, c.Last)
	}
	return ""
}

func (c *Chain) add(r Record, hash string) {
	if c.Records == 0 {
		c.First, c.Begin = r.Seq, r.Time
	}
	c.Records++
	c.Last, c.End, c.Hash = r.Seq, r.Time, hash
	c.Lost += r.Lost
	c.Found = c.Found || hash == c.Wanted
	if r.Event == Recovered {
		c.Cut++
	}
}
