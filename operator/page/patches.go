package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
)

const (
	// maxPatches bounds the patches that are listed, maxFiles the files of a patch that is shown, and
	// maxText the text of all of them, in bytes.
	maxPatches = 50
	maxFiles   = 500
	maxText    = 2 << 20
)

// patchOf is a patch in the list.
type patchOf struct {
	ID      string `json:"id"`
	Sum     string `json:"sum"`
	Session string `json:"session"`
	Env     string `json:"env"`
	Project string `json:"project"`
	Files   int    `json:"files"`
}

// stamp is another text if the list of patches may be another one. To read the list is to read all
// patches.
func (s *site) stamp() string {
	files, _ := os.ReadDir(s.changes) // there may be none yet
	stamp := fmt.Sprintln(len(files))
	for _, file := range files {
		if info, err := file.Info(); err == nil {
			stamp += fmt.Sprintln(info.Name(), info.Size(), info.ModTime().UnixNano())
		}
	}
	return stamp
}

// patches returns what sessions changed in projects and the user has not applied, the newest first.
func (s *site) patches() []patchOf {
	list := []patchOf{}
	entries, _ := changes.List(s.changes) // `changes` says what is damaged
	for _, entry := range entries {
		if !entry.IsDone() && len(list) < maxPatches {
			list = append(list, patchOf{entry.ID, entry.Sum, entry.Session, entry.Env, entry.Project, entry.Summary.Files() - entry.Summary.Caches})
		}
		entry.Close()
	}
	return list
}

// open returns a patch, which the caller closes.
func (s *site) open(id, sum string) (*changes.Entry, error) {
	entries, _ := changes.List(s.changes)
	var found *changes.Entry
	for _, entry := range entries {
		if entry.ID == id {
			found = entry
		} else {
			entry.Close()
		}
	}
	switch {
	case found == nil:
		return nil, errors.New("there is no such patch any more")
	case sum != "" && sum != found.Sum:
		found.Close()
		return nil, errors.New("the session has changed more since you saw this patch, and nothing was applied: look at it again")
	}
	return found, nil
}

// fileOf is the change of a file.
type fileOf struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"` // added, changed, deleted
	Added   int    `json:"added"`
	Deleted int    `json:"deleted"`
	Text    string `json:"text"` // empty if there is no room for it, or it is binary
	// Hunks is how many there are of a file that is changed, and 0 for others.
	Hunks int `json:"hunks"`
}

// patch shows a patch, file by file.
func (s *site) patch(w http.ResponseWriter, r *http.Request) {
	entry, err := s.open(r.PathValue("id"), "")
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer entry.Close()
	text, err := io.ReadAll(io.LimitReader(entry.Patch(), maxText))
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	// A section is the change of one file; the last one may be cut.
	sections := bytes.Split(append([]byte("\n"), text...), []byte("\ndiff --git "))[1:]
	if int64(len(text)) < entry.Size {
		sections = sections[:max(0, len(sections)-1)]
	}
	shown := []fileOf{}
	more := 0
	err = gitpatch.Read(entry.Patch(), func(file gitpatch.File) error {
		one := fileOf{Name: file.Name, Kind: "changed", Added: file.Lines.Added, Deleted: file.Lines.Deleted}
		switch {
		case file.Before == gitpatch.Absent:
			one.Kind = "added"
		case file.After == gitpatch.Absent:
			one.Kind = "deleted"
		}
		if at := len(shown); file.IsText() && at < len(sections) {
			_, one.Text, _ = strings.Cut(string(sections[at]), "\n")
			if one.Kind == "changed" {
				one.Hunks = len(file.Hunks())
			}
		}
		if len(shown) == maxFiles {
			more++
		} else {
			shown = append(shown, one)
		}
		return nil
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	left := []string{}
	for _, one := range entry.Summary.LeftOut {
		left = append(left, one.Path+": "+one.Reason)
	}
	if err := entry.MarkShown(); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	writeJSON(w, map[string]any{"sum": entry.Sum, "files": shown, "more": more, "left_out": left})
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // to a browser that may have gone
}

// apply applies files of a patch that the user has seen, or without paths all that [changes.Apply]
// applies without their names.
func (s *site) apply(w http.ResponseWriter, r *http.Request) {
	var what struct {
		ID    string   `json:"id"`
		Sum   string   `json:"sum"`
		Paths []string `json:"paths"`
		// Hunks are hunks of files by their paths, counted from 0, in place of whole files.
		Hunks map[string][]int `json:"hunks"`
	}
	if !read(w, r, &what) {
		return
	}
	if what.Sum == "" {
		http.Error(w, "the sum of the patch is needed", http.StatusBadRequest)
		return
	}
	entry, err := s.open(what.ID, what.Sum)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer entry.Close()
	var applied *changes.Applied
	if len(what.Hunks) > 0 {
		applied, err = changes.ApplyPicked(r.Context(), entry, what.Hunks)
	} else {
		applied, err = changes.Apply(r.Context(), entry, what.Paths)
	}
	var conflict *changes.ConflictError
	switch {
	case errors.As(err, &conflict):
		var lines []string
		for _, file := range conflict.Files {
			lines = append(lines, fmt.Sprintf("%s: %s", gitpatch.Quote(file.Path), file.Reason))
		}
		http.Error(w, "nothing was applied: "+strings.Join(lines, "; "), http.StatusConflict)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	if applied.Left == 0 {
		_ = entry.MarkApplied() // else the list shows it again
	}
	refused, conflicts := []string{}, []string{}
	for _, one := range applied.Refused {
		refused = append(refused, one.Path)
	}
	for _, one := range applied.Conflicts {
		conflicts = append(conflicts, one.Path+": "+one.Reason)
	}
	writeJSON(w, map[string]any{"written": len(applied.Written), "deleted": len(applied.Deleted), "refused": refused, "conflicts": conflicts})
}

// discard takes a patch that the user does not want from the list.
func (s *site) discard(w http.ResponseWriter, r *http.Request) {
	var what struct {
		ID  string `json:"id"`
		Sum string `json:"sum"`
	}
	if !read(w, r, &what) {
		return
	}
	entry, err := s.open(what.ID, what.Sum)
	if err == nil {
		defer entry.Close()
		err = entry.MarkDiscarded()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
