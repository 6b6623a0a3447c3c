package page

import (
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/policy"
)

// maxFile bounds a file of a session that is saved, in bytes.
const maxFile = 256 << 20

// file sends a file of a live session for the user to save. Names that programs of the user obey are refused, as in a
// folder of outputs.
func (s *site) file(w http.ResponseWriter, r *http.Request) {
	number, wrong := strconv.Atoi(r.PathValue("server"))
	server, known := s.server(number)
	if wrong != nil || !known {
		http.NotFound(w, r)
		return
	}
	refuse := func(text string) { http.Error(w, text, http.StatusConflict) }
	args := visit.FileArgs{Place: visit.Place{Session: r.FormValue("session"), Env: r.FormValue("env")}, Path: r.FormValue("path"), Max: maxFile}
	name := path.Base(args.Path)
	if reason := policy.Result(name); reason != "" {
		refuse("not saved, because " + reason + ": nix-sandbox-mcp get copies it")
		return
	}
	client, err := server.Dial(r.Context(), visit.FileVerbName, args)
	if err != nil {
		refuse(err.Error())
		return
	}
	defer client.Close()
	out := http.NewResponseController(w)
	for begun := false; ; begun = true {
		var part visit.FilePart
		if err := client.Read(&part); err != nil {
			if begun {
				panic(http.ErrAbortHandler) // so that half a file is none
			}
			refuse(strings.TrimSpace(err.Error()))
			return
		}
		if !begun {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
		}
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write(part.Bytes); err != nil || part.Ended {
			return
		}
	}
}
