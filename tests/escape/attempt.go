package escape

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/tools/txtar"
)

//go:embed attempts/*.txtar
var families embed.FS

// A language is what an attempt is written in, by its file's extension.
type language string

const (
	python language = "py"
	bash   language = "sh"
	node   language = "js"
)

// languages holds the language of each interpreter_type of an artifact's
// metadata. Artifacts of type command have none: no attempt is written in a
// language that only its operator knows.
var languages = map[string]language{"python": python, "bash": bash, "node": node}

// comment starts a line of prose in the language, and a directive when a
// colon follows.
func (l language) comment() string {
	if l == node {
		return "//"
	}
	return "#"
}

// A control is where an attempt is run to show that it would succeed if
// there were no sandbox.
type control string

const (
	controlHost   control = "host"   // as the user who runs the suite
	controlRoot   control = "root"   // the same, and only root can succeed
	controlUserns control = "userns" // as root of namespaces of its own
	controlNone   control = "none"   // nothing to show; the reason is given
)

// What the rounds of an attempt share.
const (
	roundsAfter   = "after"   // the second sandbox starts when the first has ended
	roundsBeside  = "beside"  // the second runs while the first still does
	roundsSession = "session" // two calls of one session, in one sandbox
)

// maxTimeout bounds one run of one attempt.
const maxTimeout = 10 * time.Second

// An attempt is one try to get out: a few lines of code and what they need.
type attempt struct {
	name     string // family/name.extension
	language language
	code     string

	control control
	reason  string   // why there is no control
	baits   []string // what the host offers: names of [baits]
	tags    []string
	needs   []string // modules or commands that the interpreter must have
	session bool     // through bin/session-run instead of bin/run
	timeout time.Duration
	// backstop is what a session may take beyond its calls' times.
	backstop time.Duration
	rounds   string // empty for one round
	ends     bool   // the sandbox may end it before it has run to its end
	isolated bool   // it is about sandboxes without a network only
}

// load reads the families, in alphabetical order.
func load(files fs.FS) ([]attempt, error) {
	names, err := fs.Glob(files, "attempts/*.txtar")
	if err != nil {
		return nil, err
	}
	var all []attempt
	seen := map[string]bool{}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		family := strings.TrimSuffix(path.Base(name), ".txtar")
		attempts, err := parse(family, string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, a := range attempts {
			if seen[a.name] {
				return nil, fmt.Errorf("%s: two attempts are called %s", name, a.name)
			}
			seen[a.name] = true
		}
		all = append(all, attempts...)
	}
	return all, nil
}

// parse reads one family: an archive of package txtar, in which prose comes
// first and each file is an attempt.
func parse(family, text string) ([]attempt, error) {
	for number, line := range strings.Split(text, "\n") {
		for _, char := range line {
			if char >= 0x7f || char < ' ' && char != '\t' {
				return nil, fmt.Errorf("line %d: %q is not printable ASCII", number+1, char)
			}
		}
	}
	archive := txtar.Parse([]byte(text))
	if strings.TrimSpace(string(archive.Comment)) == "" {
		return nil, fmt.Errorf("it does not explain what the family tries: start it with a paragraph")
	}
	if len(archive.Files) == 0 {
		return nil, fmt.Errorf("no attempt: start one with a line \"-- name.py --\"")
	}
	var all []attempt
	for _, file := range archive.Files {
		a, err := parseAttempt(family, file.Name, strings.Split(string(file.Data), "\n"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file.Name, err)
		}
		all = append(all, a)
	}
	return all, nil
}

// parseAttempt reads one section: comment lines that say what is tried and,
// after "Held:", why it must fail; directives; code.
func parseAttempt(family, name string, lines []string) (attempt, error) {
	base, extension, _ := strings.Cut(name, ".")
	a := attempt{name: family + "/" + name, language: language(extension), timeout: maxTimeout}
	if base == "" || strings.Trim(base, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return a, fmt.Errorf("a name is lower case letters, digits and dashes")
	}
	if a.language != python && a.language != bash && a.language != node {
		return a, fmt.Errorf("extension %q: use py, sh or js", extension)
	}
	comment := a.language.comment()
	held := false
	for len(lines) > 0 && strings.HasPrefix(lines[0], comment) {
		line := strings.TrimPrefix(lines[0], comment)
		if directive, ok := strings.CutPrefix(line, ": "); ok {
			if err := a.direct(directive); err != nil {
				return a, err
			}
		}
		held = held || strings.Contains(line, "Held:")
		lines = lines[1:]
	}
	a.code = strings.TrimSpace(strings.Join(lines, "\n")) + "\n"
	switch {
	case !held:
		return a, fmt.Errorf("it does not say why it must fail: add a comment %q", "Held: …")
	case strings.TrimSpace(a.code) == "":
		return a, fmt.Errorf("no code")
	case a.control == "":
		return a, fmt.Errorf("no control: add %q, userns, root, or none and the reason", comment+": control host")
	case a.control == controlNone && a.reason == "":
		return a, fmt.Errorf("control none needs its reason")
	case a.rounds == roundsSession && !a.session:
		return a, fmt.Errorf("rounds session needs via session")
	case a.rounds == roundsBeside && a.session:
		return a, fmt.Errorf("rounds beside works through bin/run only")
	}
	return a, nil
}

// direct obeys one directive.
func (a *attempt) direct(directive string) error {
	words := strings.Fields(directive)
	if len(words) < 2 {
		return fmt.Errorf("directive %q lacks a value", directive)
	}
	values := words[1:]
	switch words[0] {
	case "control":
		a.control, a.reason = control(values[0]), strings.Join(values[1:], " ")
		if !slices.Contains([]control{controlHost, controlRoot, controlUserns, controlNone}, a.control) {
			return fmt.Errorf("control %q: use host, userns, root or none", values[0])
		}
	case "with":
		for _, name := range values {
			if _, ok := baits[name]; !ok {
				return fmt.Errorf("with %q: there is no such bait", name)
			}
		}
		a.baits = values
	case "tags":
		a.tags = values
	case "needs":
		a.needs = values
	case "via":
		if values[0] != "session" {
			return fmt.Errorf("via %q: bin/run is the default, the other is session", values[0])
		}
		a.session = true
	case "timeout":
		timeout, err := time.ParseDuration(values[0])
		if err != nil || timeout <= 0 || timeout > maxTimeout {
			return fmt.Errorf("timeout %q: use a duration of at most %v", values[0], maxTimeout)
		}
		a.timeout = timeout
	case "rounds":
		if !slices.Contains([]string{roundsAfter, roundsBeside, roundsSession}, values[0]) {
			return fmt.Errorf("rounds %q: use after, beside or session", values[0])
		}
		a.rounds = values[0]
	case "ends":
		if values[0] != "early" {
			return fmt.Errorf("ends %q: the only value is early", values[0])
		}
		a.ends = true
	case "network":
		if values[0] != "none" {
			return fmt.Errorf("network %q: the only value is none", values[0])
		}
		a.isolated = true
	default:
		return fmt.Errorf("unknown directive %q", words[0])
	}
	return nil
}

// shared returns the first tag of the attempt that tags contains.
func (a *attempt) shared(tags []string) (string, bool) {
	for _, tag := range a.tags {
		if slices.Contains(tags, tag) {
			return tag, true
		}
	}
	return "", false
}
