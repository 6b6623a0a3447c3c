package ask

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// maxQuoted bounds a quoted text in a question, in bytes. Of a longer one, head and tail are shown.
const maxQuoted = 2000

// minQuoted is how much of each argument's value is shown at least, in bytes.
const minQuoted = 120

// quotedColumns is the length of a quoted line, in bytes.
const quotedColumns = 76

// words are those of each kind: what is about to happen, what once and longer choices cover.
var words = map[call.MatterKind]struct{ happens, once, more string }{
	call.ToHost:   {"connects to", "Allow connections to it that begin in this call", "every connection to this host and port"},
	call.ToTool:   {"calls the tool", "Allow this one call, with these arguments", "every call of this tool, with any arguments"},
	call.Packages: {"builds and adds packages to", "Allow these packages for this call", "these packages"},
}

// word makes the question of a matter. What code chose stands on lines of its own, and quoted.
func word(c call.Call, m call.Matter) call.Question {
	w := words[m.Kind]
	q := call.Question{Principal: c.Principal, Session: c.Session, Env: c.Env.Name, Kind: m.Kind}
	where := fmt.Sprintf("environment %s", c.Env.BaseName())
	if c.Session != "" {
		where += fmt.Sprintf(", session %s", c.Session)
	}
	subject := Quote(m.Name)
	if m.Kind == call.ToHost {
		subject = inLines(m.Name, maxQuoted) // a line could end where the name of another host begins
	}
	if m.Arguments != "" {
		subject += "\nwith\n" + quoteArguments(m.Arguments)
	}
	q.Text = fmt.Sprintf("Code in a sandbox (%s) %s\n%s", where, w.happens, subject)
	q.Choices = []call.Labelled{{Choice: call.Once, Label: w.once}}
	if c.Session != "" {
		q.Choices = append(q.Choices, call.Labelled{Choice: call.ForSession, Label: "Allow " + w.more + " until this session ends"})
	}
	q.Choices = append(q.Choices,
		call.Labelled{Choice: call.Always, Label: "Allow " + w.more + " in this environment until the server ends"},
		call.Labelled{Choice: call.No, Label: "No"})
	if m.Option != "" {
		q.Lines = m.Table + "\n" + m.Option
		q.Text += fmt.Sprintf("\nTo be asked no more, add to %s of the configuration: %s", m.Table, m.Option)
	}
	return q
}

// Quote returns a text on lines that each begin with "> ", with escapes for each character that a
// reader does not see for what it is, or sees elsewhere. Of a long text it shows head and tail, and
// the hash of the whole.
func Quote(text string) string {
	if len(text) <= maxQuoted {
		return lines(text)
	}
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%s\n(%d bytes are not shown; all %d have the SHA-256 %s)\n%s",
		lines(text[:maxQuoted/2]), len(text)-maxQuoted, len(text), hex.EncodeToString(sum[:]), lines(text[len(text)-maxQuoted/2:]))
}

// quoteArguments quotes each member of an object in JSON for itself, with its name, so that a long
// value hides no other member. Of a long value it shows the head. Other texts are quoted as a whole.
func quoteArguments(object string) string {
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(object), &members) != nil || len(members) == 0 {
		return Quote(object)
	}
	most := max(maxQuoted/len(members), minQuoted)
	var all []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		value := string(members[name])
		shown, rest := bounded.Head(value, most), ""
		if len(shown) < len(value) {
			sum := sha256.Sum256([]byte(value))
			rest = fmt.Sprintf("\n(%d of %d bytes are shown; all have the SHA-256 %s)", len(shown), len(value), hex.EncodeToString(sum[:]))
		}
		all = append(all, lines(strconv.Quote(name)+": "+shown)+rest)
	}
	return strings.Join(all, "\n")
}

func lines(text string) string { return inLines(text, quotedColumns) }

// inLines quotes a text on lines of at most so many bytes.
func inLines(text string, columns int) string {
	quoted := "> "
	for column := 0; text != ""; {
		_, size := utf8.DecodeRuneInString(text)
		shown := hostile.Escape(text[:size], func(r rune) bool { return r == utf8.RuneError || isRightToLeft(r) })
		text = text[size:]
		if column += len(shown); column > columns {
			quoted += "\n> "
			column = len(shown)
		}
		quoted += shown
	}
	return quoted
}

// isRightToLeft reports whether a character is of a script that is written from right to left, so
// that its neighbours change their places.
func isRightToLeft(r rune) bool {
	return 0x590 <= r && r < 0x900 || 0xfb1d <= r && r < 0xfe00 || 0xfe70 <= r && r < 0xff00 || 0x10800 <= r && r < 0x11000 || 0x1e800 <= r && r < 0x1f000
}
