package live

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
)

const (
	// keyHeader has the key, without which a page neither sees nor answers questions. A page of
	// another origin can send no such header, because the server answers no preflight.
	keyHeader = "Nix-Sandbox-Key"
	// maxAnswer bounds the body of an answer, in bytes.
	maxAnswer = 1 << 10
)

// Answers has a page answer the questions of all principals, and reach ports of the user's own
// sessions. Everybody on this machine reaches the page, and the key is for the server's user alone.
type Answers struct {
	// Forward listens at this machine until ctx ends, and connects whoever comes to a port of a session.
	Forward func(ctx context.Context, session string, port uint16) (address string, err error)

	book ask.Questions
	key  string
}

// NewAnswers returns Answers with a key of their own, which nothing logs.
func NewAnswers(book ask.Questions) *Answers { return &Answers{book: book, key: rand.Text()} }

// Link returns the address of the page with the key. A browser does not send this part of an address.
// Link is empty if no browser reaches the page.
func (a *Answers) Link(address net.Addr) string {
	if address.Network() == "unix" {
		return ""
	}
	return "http://" + address.String() + "/#key=" + a.key
}

// isUsers reports whether a request has the key.
func (a *Answers) isUsers(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get(keyHeader)), []byte(a.key)) == 1
}

// listen returns the questions for a page with the key, until stop is called. For another one,
// changed has no element ever.
func (a *Answers) listen(r *http.Request) (changed <-chan struct{}, stop func()) {
	if a == nil || !a.isUsers(r) {
		return nil, func() {}
	}
	return a.book.Listen(ask.Everyone)
}

// read takes what a page with the key sends. If it is of anything else, or too large, read refuses it.
func (a *Answers) read(w http.ResponseWriter, r *http.Request, v any) bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAnswer))
	switch {
	case !a.isUsers(r) || r.Header.Get("Origin") != "http://"+r.Host:
		http.Error(w, "only the page that nix-sandbox-mcp approve gives the link of can do this", http.StatusForbidden)
	case kind != "application/json":
		http.Error(w, "the body is application/json", http.StatusUnsupportedMediaType)
	case err != nil || json.Unmarshal(text, v) != nil:
		http.Error(w, "the body is a JSON object of at most 1 KB", http.StatusBadRequest)
	default:
		return true
	}
	return false
}

// answer takes an answer of the page.
func (a *Answers) answer(w http.ResponseWriter, r *http.Request) {
	var reply ask.Reply
	switch {
	case !a.read(w, r, &reply):
	case a.book.Answer(ask.Everyone, reply.ID, reply.Choice) != nil:
		http.Error(w, ask.ErrAnswered.Error(), http.StatusConflict)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// forward leads to a port of a session while the page reads the answer, which begins with a line that
// says where.
func (a *Answers) forward(w http.ResponseWriter, r *http.Request) {
	var to struct {
		Session string `json:"session"`
		Port    uint16 `json:"port"`
	}
	if !a.read(w, r, &to) {
		return
	}
	address, err := a.Forward(r.Context(), to.Session, to.Port)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // that of the server is for the request
	fmt.Fprintln(w, address)
	_ = out.Flush()
	<-r.Context().Done()
}
