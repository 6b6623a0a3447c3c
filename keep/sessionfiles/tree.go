package sessionfiles

import (
	"fmt"
	"io"
	"maps"
	"path"
	"slices"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
)

// tree has the entries of a log as they are after its last save, without the
// contents of files.
type tree struct {
	entries map[string]entry
	// Of the file whose pieces come.
	current string
	end     int64 // of its last piece
	valid   bool  // whether a piece may come
}

// entry is what the last record of a path says, and where that is.
type entry struct {
	filetree.Record
	at position
}

// position is a record of a log.
type position struct{ save, record int }

// readTree reads and checks a whole log.
func readTree(file io.ReaderAt, head *Head) (*tree, error) {
	t := &tree{entries: map[string]entry{}}
	at := position{save: -1}
	err := readLog(file, head, func(save int, r filetree.Record) error {
		if save != at.save {
			at, t.valid = position{save: save}, false
		}
		at.record++
		return t.add(r, at)
	})
	if err != nil {
		return nil, err
	}
	return t, t.check()
}

// add applies a record.
func (t *tree) add(r filetree.Record, at position) error {
	switch r.Kind {
	case filetree.Data:
		if !t.valid || r.Offset < t.end || r.Offset+int64(len(r.Data)) > t.entries[t.current].Size {
			return damaged("its log has a piece of no file")
		}
		t.end = r.Offset + int64(len(r.Data))
		return nil
	case filetree.Gone:
		delete(t.entries, r.Path)
	default:
		t.entries[r.Path] = entry{r, at}
		if len(t.entries) > filetree.MaxEntries {
			return damaged(fmt.Sprintf("its log has more than %d files", filetree.MaxEntries))
		}
	}
	t.current, t.end, t.valid = r.Path, 0, r.Kind == filetree.File
	return nil
}

// check reports whether the entries are a tree.
func (t *tree) check() error {
	for name, e := range t.entries {
		if folder := path.Dir(name); folder != "." && t.entries[folder].Kind != filetree.Folder {
			return damaged(fmt.Sprintf("%.200q lies in no folder", name))
		}
		if e.Kind == filetree.Link && t.entries[e.Target].Kind != filetree.File {
			return damaged(fmt.Sprintf("%.200q is another name of no file", name))
		}
	}
	return nil
}

// walk calls visit for the records of the tree: folders, from the top down; then files
// with their pieces, and what else there is; then further names of files.
func (t *tree) walk(file io.ReaderAt, head *Head, visit func(filetree.Record) error) error {
	names := slices.Sorted(maps.Keys(t.entries))
	of := func(kind filetree.Kind) error {
		for _, name := range names {
			if e := t.entries[name]; e.Kind == kind {
				if err := visit(e.Record); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := of(filetree.Folder); err != nil {
		return err
	}
	at := position{save: -1}
	wanted := false
	err := readLog(file, head, func(save int, r filetree.Record) error {
		if save != at.save {
			at = position{save: save}
		}
		at.record++
		if r.Kind != filetree.Data {
			wanted = r.Kind != filetree.Gone && r.Kind != filetree.Folder && r.Kind != filetree.Link && t.entries[r.Path].at == at
		}
		if !wanted {
			return nil
		}
		return visit(r)
	})
	if err != nil {
		return err
	}
	return of(filetree.Link)
}

// parts gathers records into parts and hands these to send, which must not keep them.
type parts struct {
	send func(part []byte) error
	part []byte
}

// add adds a record.
func (p *parts) add(r filetree.Record) error {
	if len(p.part) > 0 && len(p.part)+len(r.Data)+len(r.Path)+len(r.Target)+64 > filetree.MaxPart {
		if err := p.flush(); err != nil {
			return err
		}
	}
	p.part = filetree.Append(p.part, r)
	return nil
}

func (p *parts) flush() error {
	if len(p.part) == 0 {
		return nil
	}
	err := p.send(p.part)
	p.part = p.part[:0]
	return err
}
