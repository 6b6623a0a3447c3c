// Package gitpatch writes the difference between two states of a file as git does
// (git-diff(1), "Generating patch text with -p"), and applies it again.
//
// What it writes is taken by git apply, inside of a repository and outside of one:
// text with three lines of context, everything else as a binary patch with its
// reverse, modes, symbolic links, and names of any bytes. A rename is a deletion and
// a creation. The index line has the whole ids of both states, so that whoever
// applies a patch knows whether a file is the one that it was made for.
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
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
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

// State is a file at one moment; the zero value is none.
type State struct {
	Mode    Mode
	Content []byte
}

// ID names the content of a file as git does: 40 hexadecimal digits, all of them zero
// where there is no file.
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

// Lines counts what a patch does to lines of text. Binary files have none.
type Lines struct {
	Added   int `json:"added"`
	Deleted int `json:"deleted"`
}

const (
	// maxText and maxLines bound what is compared line by line, in bytes and in lines
	// of one state; larger files are patched as binary ones.
	maxText  = 4 << 20
	maxLines = 100_000
	// context is the number of equal lines before and after a change.
	context = 3
)

// Write writes the patch that makes after of before, a file of a name with slashes.
// It writes nothing where both are equal.
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
	p := &printer{w: w}
	from, to := Quote("a/"+name), Quote("b/"+name)
	p.printf("diff --git %s %s\n", from, to)
	mode := ""
	switch {
	case before.Mode == Absent:
		p.printf("new file mode %06o\n", after.Mode)
		from = "/dev/null"
	case after.Mode == Absent:
		p.printf("deleted file mode %06o\n", before.Mode)
		to = "/dev/null"
	case before.Mode != after.Mode:
		p.printf("old mode %06o\nnew mode %06o\n", before.Mode, after.Mode)
	default:
		mode = fmt.Sprintf(" %06o", after.Mode)
	}
	// Git leaves this line out where the mode alone changes, and takes it.
	p.printf("index %s..%s%s\n", before.ID(), after.ID(), mode)
	var lines Lines
	if !bytes.Equal(before.Content, after.Content) {
		lines = p.content(from, to, before, after)
	}
	return lines, p.err
}

// printer writes until the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) write(text string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, text)
	}
}

// content writes what makes the content of after of that of before.
func (p *printer) content(from, to string, before, after State) Lines {
	a, isText := splitLines(before.Content)
	b, isTextToo := splitLines(after.Content)
	if !isText || !isTextToo {
		p.write("GIT binary patch\n")
		p.literal(after.Content)
		p.literal(before.Content)
		return Lines{}
	}
	p.printf("--- %s\n+++ %s\n", from, to)
	var lines Lines
	for rest := lcs.DiffLines(a, b); len(rest) > 0; {
		// Changes whose contexts touch are one hunk.
		n := 1
		for n < len(rest) && rest[n].Start-rest[n-1].End <= 2*context {
			n++
		}
		hunk := p.hunk(a, b, rest[:n])
		lines.Added += hunk.Added
		lines.Deleted += hunk.Deleted
		rest = rest[n:]
	}
	return lines
}

// hunk writes changes that belong together.
func (p *printer) hunk(a, b []string, changes []lcs.Diff) (lines Lines) {
	first, last := changes[0], changes[len(changes)-1]
	lead := min(context, first.Start)
	trail := min(context, len(a)-last.End)
	p.printf("@@ -%s +%s @@\n",
		lineRange(first.Start-lead, last.End+trail), lineRange(first.ReplStart-lead, last.ReplEnd+trail))
	at := first.Start - lead
	for _, change := range changes {
		p.lines(" ", a[at:change.Start])
		p.lines("-", a[change.Start:change.End])
		p.lines("+", b[change.ReplStart:change.ReplEnd])
		lines.Deleted += change.End - change.Start
		lines.Added += change.ReplEnd - change.ReplStart
		at = change.End
	}
	p.lines(" ", a[at:at+trail])
	return lines
}

// lineRange is the range of lines of a hunk, from the index start up to end. Of an
// empty range it names the line before.
func lineRange(start, end int) string {
	switch end - start {
	case 0:
		return fmt.Sprintf("%d,0", start)
	case 1:
		return strconv.Itoa(start + 1)
	}
	return fmt.Sprintf("%d,%d", start+1, end-start)
}

func (p *printer) lines(sign string, lines []string) {
	for _, line := range lines {
		p.write(sign)
		p.write(line)
		if !strings.HasSuffix(line, "\n") {
			p.write("\n\\ No newline at end of file\n")
		}
	}
}

// splitLines returns the lines of a text, each with its end. It is false for what is
// patched as a binary file.
func splitLines(content []byte) (lines []string, isText bool) {
	if len(content) > maxText || bytes.IndexByte(content, 0) >= 0 || bytes.Count(content, []byte("\n")) >= maxLines {
		return nil, false
	}
	if len(content) == 0 {
		return nil, true
	}
	lines = strings.SplitAfter(string(content), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines, true
}

// literal writes a content as a binary patch has it: its size, then what zlib makes of
// it in lines of base 85.
func (p *printer) literal(content []byte) {
	p.printf("literal %d\n", len(content))
	lines := &base85Writer{p: p}
	packer, err := zlib.NewWriterLevel(lines, zlib.BestSpeed)
	if err == nil {
		_, err = packer.Write(content)
	}
	if err == nil {
		err = packer.Close()
	}
	if p.err == nil {
		p.err = err
	}
	lines.flush()
	p.write("\n")
}

// base85 are the digits of git's base 85 (base85.c of git); those of encoding/ascii85
// are others.
const base85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

// base85Writer writes lines of at most 52 bytes in base 85, each after a letter that
// says how many bytes it has.
type base85Writer struct {
	p    *printer
	line [52]byte
	used int
}

func (w *base85Writer) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		n := copy(w.line[w.used:], rest)
		w.used += n
		rest = rest[n:]
		if w.used == len(w.line) {
			w.flush()
		}
	}
	return len(data), w.p.err
}

// flush writes the line, if it has any bytes.
func (w *base85Writer) flush() {
	if w.used == 0 {
		return
	}
	text := make([]byte, 0, 2+len(w.line)/4*5)
	if w.used <= 26 {
		text = append(text, byte('A'+w.used-1))
	} else {
		text = append(text, byte('a'+w.used-27))
	}
	clear(w.line[w.used:])
	for i := 0; i < w.used; i += 4 {
		n := uint32(w.line[i])<<24 | uint32(w.line[i+1])<<16 | uint32(w.line[i+2])<<8 | uint32(w.line[i+3])
		var digits [5]byte
		for d := 4; d >= 0; d-- {
			digits[d] = base85[n%85]
			n /= 85
		}
		text = append(text, digits[:]...)
	}
	w.used = 0
	w.p.write(string(append(text, '\n')))
}

// Quote returns a name as git writes it: as it is, or in quotation marks with escapes
// where it has spaces, quotation marks, backslashes, control characters or bytes that
// are not UTF-8.
func Quote(name string) string {
	plain := true
	for _, r := range name {
		if r <= ' ' || r == '"' || r == '\\' || r == 0x7f || r == '\ufffd' || !strconv.IsPrint(r) {
			plain = false
			break
		}
	}
	if plain {
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
