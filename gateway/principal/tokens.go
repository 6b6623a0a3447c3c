package principal

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
)

const (
	// tokenPrefix begins every token, so that scanners of secrets find a published token.
	tokenPrefix = "nsm_"
	// maxTokenFile bounds the file, in bytes.
	maxTokenFile = 1 << 20
	hashPrefix   = "sha256:"
	classPrefix  = "class="
)

// validName matches the names of principals in the file. Names from an authorization server or
// a proxy contain a colon, so that they cannot be the same.
var validName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$`)

// validClass matches the names of classes; see the options.
var validClass = lazyregexp.New(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// NewToken returns a new token, and the line of the file that gives it to a principal. class may
// be empty. The token has 130 random bits, so a hash without salt hides it.
func NewToken(name, class string) (token, line string, err error) {
	if !validName.MatchString(name) {
		return "", "", fmt.Errorf("%.80q cannot be the name of a principal: use at most 64 letters, digits, _, ., @ and -, with a letter or a digit first", name)
	}
	if class != "" && !validClass.MatchString(class) {
		return "", "", fmt.Errorf("%.80q cannot be the name of a class: use at most 64 of a-z, 0-9, _ and -, with a letter or a digit first", class)
	}
	token = tokenPrefix + strings.ToLower(rand.Text())
	hash := sha256.Sum256([]byte(token))
	line = name + " " + hashPrefix + hex.EncodeToString(hash[:])
	if class != "" {
		line += " " + classPrefix + class
	}
	return token, line, nil
}

// Tokens finds principals by the hashes of their tokens, which are in a file:
//
//	# a comment
//	NAME sha256:HASH [class=CLASS]
//
// A principal may have several lines, and so several tokens, of one class.
type Tokens struct {
	path  string
	known atomic.Pointer[knownTokens]
}

// knownTokens are the principals of a file by the hashes of their tokens, and their
// classes by name.
type knownTokens struct {
	byHash  map[[sha256.Size]byte]string
	classes map[string]string
}

var _ Authenticator = (*Tokens)(nil)

// ReadTokens reads the file. It must be writable only for its owner, and the owner must be root
// or the user of this process.
func ReadTokens(path string) (*Tokens, error) {
	t := &Tokens{path: path}
	return t, t.Reload()
}

// Reload reads the file again. If that fails, the tokens do not change.
func (t *Tokens) Reload() error {
	text, err := readOwn(t.path)
	if err != nil {
		return err
	}
	known, err := parseTokens(text)
	if err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}
	t.known.Store(known)
	return nil
}

// Classes are the classes that the file names.
func (t *Tokens) Classes() []string {
	return slices.DeleteFunc(slices.Compact(slices.Sorted(maps.Values(t.known.Load().classes))), func(class string) bool { return class == "" })
}

// Class returns the class of a principal of the file; empty for every other.
func (t *Tokens) Class(name string) string { return t.known.Load().classes[name] }

// Count is how many tokens there are.
func (t *Tokens) Count() int { return len(t.known.Load().byHash) }

// readOwn reads a file that only its owner can write.
func readOwn(path string) ([]byte, error) {
	// The opened file is checked, because another one may be at the path later. Without
	// O_NONBLOCK, opening a pipe would wait for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		var problem *fs.PathError
		if errors.As(err, &problem) {
			err = problem.Err
		}
		return nil, fmt.Errorf("%s cannot be read: %w", path, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", path, err)
	}
	if err := checkFile(info); err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return nil, fmt.Errorf("%s belongs to user %d, and neither to root nor to the server's user %d: chown it", path, owner, os.Geteuid())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", path, err)
	}
	return text, nil
}

// checkFile returns an error if a file cannot have tokens. It does not check the owner.
func checkFile(info fs.FileInfo) error {
	switch {
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("can be written by others than its owner (mode %04o): chmod go-w it", info.Mode().Perm())
	case info.Size() > maxTokenFile:
		return fmt.Errorf("has %d bytes, more than %d", info.Size(), maxTokenFile)
	}
	return nil
}

// UnusableError reports a file of tokens to which no line can be added, because no server
// could use it then.
type UnusableError struct{ Cause error }

func (e *UnusableError) Error() string { return e.Cause.Error() }
func (e *UnusableError) Unwrap() error { return e.Cause }

// AddLine adds a line of [NewToken] to a file. It creates the file for its owner alone if there
// is none. If no server could use the result, it changes nothing and returns an
// [*UnusableError].
func AddLine(path, line string) error {
	// A pipe without a reader would not be opened otherwise.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
	var problem *fs.PathError
	if errors.As(err, &problem) {
		err = problem.Err
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := checkFile(info); err != nil {
		return &UnusableError{fmt.Errorf("the file %w", err)}
	}
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	if err != nil {
		return err
	}
	line += "\n"
	// The last line may lack its end.
	if len(text) > 0 && text[len(text)-1] != '\n' {
		line = "\n" + line
	}
	text = append(text, line...)
	if _, err := parseTokens(text); err != nil {
		return &UnusableError{err}
	}
	if len(text) > maxTokenFile {
		return &UnusableError{fmt.Errorf("the file would have %d bytes, more than %d", len(text), maxTokenFile)}
	}
	_, err = io.WriteString(file, line)
	return errors.Join(err, file.Close())
}

// parseTokens reads the lines of the file.
func parseTokens(text []byte) (*knownTokens, error) {
	known := &knownTokens{map[[sha256.Size]byte]string{}, map[string]string{}}
	number := 0
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // of an editor
	for line := range bytes.Lines(text) {
		number++
		fields := strings.Fields(string(line))
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		hash, class, err := parseLine(fields)
		name := fields[0]
		if err == nil {
			other, twice := known.byHash[hash]
			before, again := known.classes[name]
			switch {
			case twice:
				err = fmt.Errorf("it has the hash of another line, of %s: make a token of its own for each", other)
			case again && before != class:
				err = fmt.Errorf("%s has another class in an earlier line: use one class in all of its lines", name)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		known.byHash[hash], known.classes[name] = name, class
	}
	return known, nil
}

// parseLine reads the fields of a line after the name. The error does not quote them, because a
// line may have a token by mistake.
func parseLine(fields []string) (hash [sha256.Size]byte, class string, err error) {
	malformed := errors.New("it is not NAME sha256:HASH, with class=CLASS or nothing after it, as nix-sandbox-mcp token new NAME prints it")
	if len(fields) < 2 || len(fields) > 3 || !validName.MatchString(fields[0]) {
		return hash, "", malformed
	}
	digits, isHash := strings.CutPrefix(fields[1], hashPrefix)
	if n, err := hex.Decode(hash[:], []byte(digits[:min(len(digits), 2*len(hash))])); !isHash || len(digits) != 2*len(hash) || err != nil || n != len(hash) {
		return hash, "", malformed
	}
	if len(fields) == 3 {
		var isClass bool
		if class, isClass = strings.CutPrefix(fields[2], classPrefix); !isClass || !validClass.MatchString(class) {
			return hash, "", malformed
		}
	}
	return hash, class, nil
}

// Authenticate implements [Authenticator]. It finds a token by its hash, so that the
// time that it takes does not depend on other tokens.
func (t *Tokens) Authenticate(r *http.Request) (string, error) {
	token, err := Bearer(r)
	if err != nil {
		return "", err
	}
	if name, found := t.known.Load().byHash[sha256.Sum256([]byte(token))]; found {
		return name, nil
	}
	return "", ErrNone
}

// Bearer returns the token of a request (RFC 6750, section 2.1). Other ways to send one
// are not read: addresses end up in logs.
func Bearer(r *http.Request) (string, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return "", ErrNone
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	switch {
	case len(values) > 1:
		return "", &Refusal{Reason: "the request has several fields Authorization"}
	case !strings.EqualFold(scheme, "Bearer"):
		return "", &Refusal{Reason: "the request's Authorization is not of the scheme Bearer"}
	case token == "" || strings.ContainsAny(token, " ,"):
		return "", &Refusal{Reason: "the request's Authorization is not one token"}
	}
	return token, nil
}
