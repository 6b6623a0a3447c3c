package gitpatch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

// File is the change of one file in a patch that [Write] wrote.
type File struct {
	Name          string
	Before, After Mode
	// BeforeID and AfterID name the contents, as [State.ID] does.
	BeforeID, AfterID string
	Lines             Lines
	patch             *gitdiff.File
}

// sectionStart begins the change of a file. No other line begins so, because lines of text
// begin with a sign and base 85 has no spaces.
var sectionStart = []byte("diff --git ")

// Read calls f with each file of a patch that [Write] wrote, and ends with its error. A
// file is in memory at a time.
func Read(r io.Reader, f func(File) error) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	var section bytes.Buffer
	end := func() error {
		if section.Len() == 0 {
			return nil
		}
		file, err := parse(section.Bytes())
		section.Reset()
		if err != nil {
			return err
		}
		return f(file)
	}
	for {
		line, err := lines.ReadBytes('\n')
		if bytes.HasPrefix(line, sectionStart) {
			if err := end(); err != nil {
				return err
			}
		}
		section.Write(line)
		switch {
		case errors.Is(err, io.EOF):
			return end()
		case err != nil:
			return fmt.Errorf("read the patch: %w", err)
		}
	}
}

// parse reads the change of one file.
func parse(section []byte) (File, error) {
	fail := func(err error) (File, error) {
		first, _, _ := bytes.Cut(section, []byte("\n"))
		return File{}, fmt.Errorf("read the patch at %.200q: %w", first, err)
	}
	files, _, err := gitdiff.Parse(bytes.NewReader(section))
	if err != nil {
		return fail(err)
	}
	if len(files) != 1 {
		return fail(fmt.Errorf("it has %d files where one is expected", len(files)))
	}
	p := files[0]
	file := File{
		Name: p.NewName, Before: Mode(p.OldMode), After: Mode(p.NewMode),
		BeforeID: p.OldOIDPrefix, AfterID: p.NewOIDPrefix, patch: p,
	}
	switch {
	case p.IsDelete:
		file.Name, file.After = p.OldName, Absent
	case p.IsNew:
		file.Before = Absent
	case file.After == Absent:
		file.After = file.Before
	}
	if p.IsRename || p.IsCopy || len(file.BeforeID) != len(absentID) || len(file.AfterID) != len(absentID) || !isName(file.Name) {
		return fail(errors.New("it is not of the form that this program writes"))
	}
	for _, fragment := range p.TextFragments {
		file.Lines.Added += int(fragment.LinesAdded)
		file.Lines.Deleted += int(fragment.LinesDeleted)
	}
	return file, nil
}

// isName reports whether a name stays below the folder that a patch is applied to, and is
// not git's own.
func isName(name string) bool {
	if name == "" || strings.ContainsRune(name, 0) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git") {
			return false
		}
	}
	return true
}

// IsText reports whether the change is one of lines.
func (f File) IsText() bool { return !f.patch.IsBinary }

// NewLines returns the lines of the text after the change that it did not have before.
func (f File) NewLines() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, fragment := range f.patch.TextFragments {
			for _, line := range fragment.Lines {
				if line.Op == gitdiff.OpAdd && !yield([]byte(line.Line)) {
					return
				}
			}
		}
	}
}

// Hunks returns the changes of lines one by one, as they are in the patch.
func (f File) Hunks() []string {
	var hunks []string
	for _, hunk := range f.patch.TextFragments {
		hunks = append(hunks, hunk.String())
	}
	return hunks
}

// Only returns the change with those of its hunks that are wanted, by their places in [File.Hunks]. What it
// makes has no name: AfterID is empty.
func (f File) Only(wanted []int) File {
	patch := *f.patch
	patch.TextFragments = nil
	for _, i := range wanted {
		patch.TextFragments = append(patch.TextFragments, f.patch.TextFragments[i])
	}
	f.patch, f.AfterID = &patch, ""
	return f
}

// Undo takes back the hunks that a content has, and returns these by their places in [File.Hunks]. It is false unless
// that makes the content before the change.
func (f File) Undo(now []byte) (before []byte, have []int, ok bool) {
	left := bytes.SplitAfter(now, []byte("\n"))
	at := 0 // lines of the content before the change that are made
	for i, hunk := range f.patch.TextFragments {
		start := int(hunk.OldPosition)
		if hunk.OldLines > 0 {
			start--
		}
		if start < at || start-at > len(left) {
			return nil, nil, false
		}
		before = append(before, bytes.Join(left[:start-at], nil)...)
		left = left[start-at:]
		var old, changed []byte
		for _, line := range hunk.Lines {
			if line.Old() {
				old = append(old, line.Line...)
			}
			if line.New() {
				changed = append(changed, line.Line...)
			}
		}
		begins := func(lines int64, text []byte) bool {
			return bytes.Equal(bytes.Join(left[:min(int64(len(left)), lines)], nil), text)
		}
		// The shorter one may be the beginning of the longer one.
		lines, isOld := int(hunk.OldLines), begins(hunk.OldLines, old)
		switch {
		case begins(hunk.NewLines, changed) && (hunk.NewLines > hunk.OldLines || !isOld):
			have, lines = append(have, i), int(hunk.NewLines)
		case !isOld:
			return nil, nil, false
		}
		before = append(before, old...)
		left = left[min(len(left), lines):]
		at = start + int(hunk.OldLines)
	}
	before = append(before, bytes.Join(left, nil)...)
	return before, have, (State{Mode: f.Before, Content: before}).ID() == f.BeforeID
}

// Apply makes the content after the change of the one before. It returns an error unless
// both are exactly the contents of the change.
func (f File) Apply(before []byte) ([]byte, error) {
	if f.Before != Absent && (State{Mode: f.Before, Content: before}).ID() != f.BeforeID {
		return nil, fmt.Errorf("%s is not what it was when the patch was made", Quote(f.Name))
	}
	if f.After == Absent {
		return nil, nil
	}
	var after bytes.Buffer
	if err := gitdiff.Apply(&after, bytes.NewReader(before), f.patch); err != nil {
		return nil, fmt.Errorf("apply the patch of %s: %w", Quote(f.Name), err)
	}
	if f.AfterID != "" && (State{Mode: f.After, Content: after.Bytes()}).ID() != f.AfterID {
		return nil, fmt.Errorf("the patch of %s makes another content than it names", Quote(f.Name))
	}
	return after.Bytes(), nil
}
