// Package gitpatch writes the difference between two states of a file as git does
// (git-diff(1), "Generating patch text with -p"), and applies it again.
//
// git apply accepts the patches, inside and outside of a repository: text with three
// lines of context, other files as a binary patch with its reverse, modes, symbolic links,
// and names of any bytes. A rename is a deletion and a creation. The index line has the
// whole ids of both states, so that the patch is never applied to another content.
//
// The time that a difference takes is bounded by the sizes of the two states: beyond
// a number of differing lines the search for common lines ends, and the rest becomes
// one replacement.
package gitpatch

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

// Mode is the mode of a file as git knows it.
type Mode uint32

// The modes of files that a patch can carry. Git knows no other permissions.
const (
	Absent     Mode = 0
	Regular    Mode = 0o100644
	Executable Mode = 0o100755
	Link       Mode = 0o120000 // its content is the path that it leads to
)

// State is a file at one moment. The zero value means that there is no file.
type State struct {
	Mode    Mode
	Content []byte
}

// ID names the content of a file as git does: 40 hexadecimal digits, all zero if there is
// no file.
func (s State) ID() string {
	if s.Mode == Absent {
		return absentID
	}
	hash := sha1.New()
	fmt.Fprintf(hash, "blob %d\x00", len(s.Content))
	hash.Write(s.Content)
	return hex.EncodeToString(hash.Sum(nil))
}

var absentID = strings.Repeat("0", 2*sha1.Size)

// Equal reports whether a patch between the states would be empty.
func (s State) Equal(other State) bool {
	return s.Mode == other.Mode && bytes.Equal(s.Content, other.Content)
}

// Lines counts the lines that a patch changes. A binary patch changes no lines.
type Lines struct {
	Added   int `json:"added"`
	Deleted int `json:"deleted"`
}

const (
	// Files of more than maxText bytes or maxLines lines are patched as binary files.
	maxText  = 4 << 20
	maxLines = 100_000
	// context is the number of equal lines before and after a change.
	context = 3
)

// Write writes the patch that makes after of before, a file of a name with slashes.
// If both are equal, the patch is empty.
func Write(w io.Writer, name string, before, after State) (Lines, error) {
	if before.Equal(after) {
		return Lines{}, nil
	}
	// Git changes no file into a link: it deletes the one and creates the other.
	if before.Mode != Absent && after.Mode != Absent && (before.Mode == Link) != (after.Mode == Link) {
		deleted, err := Write(w, name, before, State{})
		if err != nil {
			return deleted, err
		}
		created, err := Write(w, name, State{}, after)
		return Lines{created.Added, deleted.Deleted}, err
	}
	file := gitdiff.File{
		OldName: name, NewName: name, OldMode: os.FileMode(before.Mode), NewMode: os.FileMode(after.Mode),
		OldOIDPrefix: before.ID(), NewOIDPrefix: after.ID(),
	}
	switch {
	case before.Mode == Absent:
		file.IsNew, file.OldName = true, ""
	case after.Mode == Absent:
		file.IsDelete, file.NewName = true, ""
	case before.Mode == after.Mode:
		file.NewMode = 0 // the same
	}
	a, isText := splitLines(before.Content)
	b, isTextToo := splitLines(after.Content)
	var lines Lines
	switch {
	case bytes.Equal(before.Content, after.Content):
	case isText && isTextToo:
		file.TextFragments = fragments(a, b)
		for _, f := range file.TextFragments {
			lines.Added += int(f.LinesAdded)
			lines.Deleted += int(f.LinesDeleted)
		}
	default:
		file.IsBinary, file.BinaryFragment, file.ReverseBinaryFragment = true, literal(after.Content), literal(before.Content)
	}
	// The parser of names takes \" and \\ for the end of a name in some places. Numbers, which
	// git reads too, are the same to both. Base 85 has neither character.
	head, hunks, isText := strings.Cut(file.String(), "\n@@ ")
	head = strings.NewReplacer(`\\`, `\134`, `\"`, `\042`).Replace(head)
	// Git takes what follows a space and begins with a slash for a name without its prefix.
	if header := "diff --git a/" + name + " b/" + name + "\n"; strings.Contains(name, " /") && strings.HasPrefix(head, header) {
		head = fmt.Sprintf("diff --git \"a/%s\" \"b/%s\"\n", name, name) + head[len(header):]
	}
	if isText {
		head += "\n@@ " + hunks
	}
	_, err := io.WriteString(w, head)
	return lines, err
}

// fragments are the hunks that make one text of another one.
func fragments(a, b []string) (hunks []*gitdiff.TextFragment) {
	for rest := lcs.DiffLines(a, b); len(rest) > 0; {
		// Changes are one hunk if their contexts touch.
		n := 1
		for n < len(rest) && rest[n].Start-rest[n-1].End <= 2*context {
			n++
		}
		hunks = append(hunks, hunk(a, b, rest[:n]))
		rest = rest[n:]
	}
	return hunks
}

// hunk is the hunk of changes that belong together.
func hunk(a, b []string, changes []lcs.Diff) *gitdiff.TextFragment {
	first, last := changes[0], changes[len(changes)-1]
	start, end := max(0, first.Start-context), min(len(a), last.End+context)
	h := &gitdiff.TextFragment{}
	add := func(op gitdiff.LineOp, lines []string) {
		for _, line := range lines {
			h.Lines = append(h.Lines, gitdiff.Line{Op: op, Line: line})
		}
	}
	at := start
	for _, change := range changes {
		add(gitdiff.OpContext, a[at:change.Start])
		add(gitdiff.OpDelete, a[change.Start:change.End])
		add(gitdiff.OpAdd, b[change.ReplStart:change.ReplEnd])
		h.LinesDeleted += int64(change.End - change.Start)
		h.LinesAdded += int64(change.ReplEnd - change.ReplStart)
		at = change.End
	}
	add(gitdiff.OpContext, a[at:end])
	h.OldLines = int64(end - start)
	h.NewLines = h.OldLines - h.LinesDeleted + h.LinesAdded
	h.OldPosition, h.NewPosition = int64(start), int64(first.ReplStart-(first.Start-start))
	// The first line is number 1, but an empty range names the line before it.
	if h.OldLines > 0 {
		h.OldPosition++
	}
	if h.NewLines > 0 {
		h.NewPosition++
	}
	return h
}

// splitLines returns the lines of a text with their ends. isText is false if the file needs
// a binary patch.
func splitLines(content []byte) (lines []string, isText bool) {
	if len(content) > maxText || bytes.IndexByte(content, 0) >= 0 || bytes.Count(content, []byte("\n")) >= maxLines {
		return nil, false
	}
	return slices.Collect(strings.Lines(string(content))), true
}

// literal is a content as a binary patch has it.
func literal(content []byte) *gitdiff.BinaryFragment {
	var packed bytes.Buffer
	packer, err := zlib.NewWriterLevel(&packed, zlib.BestSpeed)
	if err == nil {
		_, err = packer.Write(content)
	}
	if err := errors.Join(err, packer.Close()); err != nil {
		panic(err) // memory takes all that is written
	}
	return &gitdiff.BinaryFragment{Method: gitdiff.BinaryPatchLiteral, Size: int64(len(content)), RawData: packed.Bytes()}
}

// Quote returns a name as git writes it: in quotation marks with escapes if it has spaces,
// quotation marks, backslashes, control characters or bytes that are not UTF-8.
func Quote(name string) string {
	odd := func(r rune) bool { return strings.ContainsRune(" \"\\\ufffd", r) || !strconv.IsPrint(r) }
	if !strings.ContainsFunc(name, odd) {
		return name
	}
	escapes := map[byte]string{'\a': `\a`, '\b': `\b`, '\t': `\t`, '\n': `\n`, '\v': `\v`, '\f': `\f`, '\r': `\r`}
	// Git writes \" and \\ too. The numbers that it takes as well need no parser to know
	// whether a quotation mark is the last.
	var quoted strings.Builder
	quoted.WriteByte('"')
	for i := range len(name) {
		c := name[i]
		switch escape, found := escapes[c]; {
		case found:
			quoted.WriteString(escape)
		case c < ' ' || c == '"' || c == '\\' || c >= 0x7f:
			fmt.Fprintf(&quoted, `\%03o`, c)
		default:
			quoted.WriteByte(c)
		}
	}
	quoted.WriteByte('"')
	return quoted.String()
}
