package live

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"io"
	"mime"
	"net"
	"net/http"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/ask"
)

const (
	// keyHeader has the key, without which a page neither sees nor answers questions. A page of
	// another origin can send no such header, because the server answers no preflight.
	keyHeader = "Nix-Sandbox-Key"
	// maxAnswer bounds the body of an answer, in bytes.
	maxAnswer = 1 << 10
)

// Answers has a page answer the questions of all principals. Everybody on this machine reaches the
// page, and the key is for the server's user alone.
type Answers struct {
	book ask.Questions
	key  string
}

// NewAnswers returns Answers with a key of their own, which nothing logs.
func NewAnswers(book ask.Questions) *Answers { return &Answers{book, rand.Text()} }

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

// answer takes an answer of the page.
func (a *Answers) answer(w http.ResponseWriter, r *http.Request) {
	var reply ask.Reply
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAnswer))
	switch {
	case !a.isUsers(r) || r.Header.Get("Origin") != "http://"+r.Host:
		http.Error(w, "only the page that nix-sandbox-mcp approve gives the link of can answer", http.StatusForbidden)
	case kind != "application/json":
		http.Error(w, "an answer is application/json", http.StatusUnsupportedMediaType)
	case err != nil || json.Unmarshal(text, &reply) != nil:
		http.Error(w, "an answer is a JSON object with id and choice, of at most 1 KB", http.StatusBadRequest)
	case a.book.Answer(ask.Everyone, reply.ID, reply.Choice) != nil:
		http.Error(w, ask.ErrAnswered.Error(), http.StatusConflict)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
