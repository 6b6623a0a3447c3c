package changes

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/layer"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// scan lists the changes in an overlay at one moment, without contents.
type scan struct {
	// present are the files and links of the upper layer.
	present map[string]layer.Entry
	// deleted are the files and links of the project that the overlay does not show any
	// more.
	deleted map[string]bool
	leftOut leftOut
	// isEmpty says that the upper layer has no entries.
	isEmpty bool
}

// LeftOut is a path that a patch does not have although it may have changed.
type LeftOut struct {
	Path   string `json:"path"` // as git quotes it, and not too long
	Reason string `json:"reason"`
}

// leftOut collects such paths. It has the first of them and counts all.
type leftOut struct {
	first []LeftOut
	count int
}

// GitsOwn is the reason to leave out a .git folder.
const GitsOwn = "it is git's own"

// maxNames bounds the total length of the paths in the upper layer, and of the project's
// paths below one folder, in bytes.
const maxNames = 16 << 20

// maxLeftOut bounds the paths that are named.
const maxLeftOut = 20

func (l *leftOut) add(name, reason string) {
	l.count++
	if len(l.first) < maxLeftOut {
		l.first = append(l.first, LeftOut{shown(name), bounded.Head(strings.ToValidUTF8(reason, "\ufffd"), maxShown)})
	}
}

// isGit reports whether a name is one by which git finds its own files, on some file
// system (verify_path and is_ntfs_dotgit of git): git apply refuses a patch with it.
func isGit(name string) bool {
	name = strings.ToLower(name)
	if end := strings.IndexAny(name, `:\`); end >= 0 {
		name = name[:end]
	}
	name = strings.TrimRight(name, " .")
	return name == ".git" || name == "git~1"
}

// scanLayers finds the paths that the upper layer changes. It visits at most budget entries
// of both trees. If there are more, or their paths have more than [maxNames] bytes, it
// returns [layer.ErrTooMany] with the scan so far. hidden caches the project's paths below
// each path that the upper layer hides, and is updated.
func scanLayers(upper, base *layer.Tree, budget int, hidden map[string]below) (*scan, error) {
	s := &scan{present: make(map[string]layer.Entry, len(hidden)), deleted: map[string]bool{}, isEmpty: true}
	now := make(map[string]bool, len(hidden)) // the paths that hide something
	var inner error
	names := 0
	// hide marks all that the project has at a path as deleted.
	hide := func(at string) {
		now[at] = true
		found, known := hidden[at]
		if !known {
			if found, inner = beneath(base, at, &budget); inner != nil {
				return
			}
			hidden[at] = found
		}
		for _, name := range found.names {
			s.deleted[name] = true
		}
		for _, left := range found.leftOut {
			s.leftOut.add(left.Path, left.Reason)
		}
	}
	err := upper.Walk(".", &budget, func(entry layer.Entry) bool {
		s.isEmpty = false
		if names += len(entry.Path); names > maxNames && inner == nil {
			inner = layer.ErrTooMany
		}
		if inner != nil {
			return false
		}
		if isGit(path.Base(entry.Path)) {
			s.leftOut.add(entry.Path, GitsOwn)
			return false
		}
		switch entry.Kind {
		case layer.Folder:
			if entry.Unread != nil {
				s.leftOut.add(entry.Path, "it cannot be read: "+entry.Unread.Error())
				return false
			}
			if entry.Opaque {
				hide(entry.Path)
			}
			return true
		case layer.Whiteout:
			hide(entry.Path)
		case layer.Other:
			s.leftOut.add(entry.Path, "it is neither a file nor a link")
			hide(entry.Path)
		default:
			s.present[entry.Path] = entry
			if entry.Kind == layer.File && entry.SetID {
				s.leftOut.add(entry.Path, "its set-id bit")
			}
			hide(entry.Path)
		}
		return false
	})
	for at := range hidden {
		if !now[at] {
			delete(hidden, at)
		}
	}
	for name := range s.present {
		delete(s.deleted, name)
	}
	if err == nil {
		err = inner
	}
	return s, err
}

// below lists the project's files at a path and below.
type below struct {
	entry   *layer.Entry // the file or link at the path itself, or nil
	names   []string     // files and links
	leftOut []LeftOut
}

// beneath finds the project's files at a path and below.
func beneath(base *layer.Tree, at string, budget *int) (below, error) {
	unread := func(err error) below {
		return below{leftOut: []LeftOut{{at, "the project's cannot be read: " + err.Error()}}}
	}
	found, err := base.Find(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return below{}, nil
	case err != nil:
		return unread(err), nil
	case found.Kind == layer.File || found.Kind == layer.Link:
		return below{entry: &found, names: []string{at}}, nil
	case found.Kind != layer.Folder:
		return below{}, nil
	}
	var b below
	names := 0
	err = base.Walk(at, budget, func(entry layer.Entry) bool {
		switch names += len(entry.Path); {
		case names > maxNames:
			*budget = 0
		case isGit(path.Base(entry.Path)):
			b.leftOut = append(b.leftOut, LeftOut{entry.Path, GitsOwn})
		case entry.Kind == layer.File || entry.Kind == layer.Link:
			b.names = append(b.names, entry.Path)
		case entry.Kind == layer.Folder && entry.Unread == nil:
			return true
		case entry.Kind == layer.Folder:
			b.leftOut = append(b.leftOut, LeftOut{entry.Path, "the project's cannot be read: " + entry.Unread.Error()})
		}
		return false
	})
	if err != nil && !errors.Is(err, layer.ErrTooMany) {
		return unread(err), nil
	}
	return b, err
}
