package page

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// maxConfiguration bounds the user's configuration, in bytes.
const maxConfiguration = 1 << 20

// edit is one changed line of a configuration, which the user looks at before it is written.
type edit struct {
	File string `json:"file"`
	// Table is the line above it that begins its table. Before is empty for a new line.
	Table  string `json:"table"`
	Before string `json:"before"`
	After  string `json:"after"`
	// Sum is that of the file before the edit.
	Sum string `json:"sum"`

	text string // of the whole file, after it
}

// remember shows how the user's configuration would be edited so that a question is not asked again, or, if the
// sum of the file that the user has seen comes with it, writes that.
func (s *site) remember(w http.ResponseWriter, r *http.Request) {
	var what struct {
		Lines string `json:"lines"`
		Sum   string `json:"sum"`
	}
	if !read(w, r, &what) {
		return
	}
	change, err := newEdit(s.configuration, what.Lines)
	switch {
	case err != nil:
	case what.Sum == "":
		writeJSON(w, change)
		return
	case what.Sum != change.Sum:
		err = fmt.Errorf("%s has changed since, and nothing was written: look again", change.File)
	default:
		err = change.write()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

var (
	// wanted are the lines of a question: a table, and an option with one word in a list, or true or false.
	wanted = regexp.MustCompile(`^(\[[A-Za-z0-9_.-]+\])\n([a-z_]+) = (?:\[("[A-Za-z0-9*:_.-]+")\]|(true|false))$`)
	// listed is a list of words on one line: before it, its words, and after it.
	listed = regexp.MustCompile(`^([^=]*=\s*\[)\s*((?:"[^"\\]*"(?:\s*,\s*"[^"\\]*")*)?)\s*,?\s*(\]\s*(?:#.*)?)$`)
	plain  = regexp.MustCompile(`^([^=]*=\s*)(?:true|false)(\s*(?:#.*)?)$`)
)

// newEdit makes an edit of a configuration from the lines of a question. The errors are sentences for the user.
func newEdit(file, lines string) (*edit, error) {
	if file == "" {
		return nil, errors.New("there is no folder for a configuration of yours: set HOME or XDG_CONFIG_HOME")
	}
	parts := wanted.FindStringSubmatch(lines)
	if parts == nil {
		return nil, errors.New("these lines cannot be added here: add them to the configuration by hand")
	}
	table, option, word, value := parts[1], parts[2], parts[3], parts[4]
	content, err := bounded.ReadFile(file, maxConfiguration)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	byHand := fmt.Errorf("%s cannot be edited here: add the lines to it by hand", file)
	if strings.Contains(string(content), `"""`) || strings.Contains(string(content), "'''") {
		return nil, byHand
	}
	sum := sha256.Sum256(content)
	e := &edit{File: file, Table: table, Sum: hex.EncodeToString(sum[:])}
	all := strings.SplitAfter(string(content), "\n")
	at := -1 // of the table
	for i, line := range all {
		if head, _, _ := strings.Cut(line, "#"); strings.TrimSpace(head) == table {
			at = i
			break
		}
	}
	if at < 0 {
		return nil, fmt.Errorf("%s has no %s, so that the environment is described elsewhere: add the lines there by hand", file, table)
	}
	place := at + 1
	for ; place < len(all) && !strings.HasPrefix(strings.TrimSpace(all[place]), "["); place++ {
		if name, _, is := strings.Cut(all[place], "="); is && strings.TrimSpace(name) == option {
			e.Before = strings.TrimRight(all[place], "\r\n")
			break
		}
	}
	switch {
	case e.Before == "" && value != "":
		e.After = option + " = " + value
	case e.Before == "":
		e.After = option + " = [" + word + "]"
	case value != "":
		old := plain.FindStringSubmatch(e.Before)
		if old == nil {
			return nil, byHand
		}
		e.After = old[1] + value + old[2]
	default:
		old := listed.FindStringSubmatch(e.Before)
		if old == nil {
			return nil, byHand
		}
		if old[2] != "" {
			word = old[2] + ", " + word
		}
		e.After = old[1] + word + old[3]
	}
	if e.Before == "" {
		if !strings.HasSuffix(all[at], "\n") {
			all[at] += "\n"
		}
		all[at] += e.After + "\n"
	} else {
		all[place] = strings.Replace(all[place], e.Before, e.After, 1)
	}
	e.text = strings.Join(all, "")
	return e, nil
}

// write writes the file as a whole, also if links lead to it.
func (e *edit) write() error {
	file, err := filepath.EvalSymlinks(e.File)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), ".config.toml-")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.WriteString(e.text)
	if err = errors.Join(err, temp.Chmod(info.Mode().Perm()), temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), file)
}
