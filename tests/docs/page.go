// Package docs tests the pages of this project: it runs every command, evaluates
// every configuration, makes every call of a transcript and follows every link.
//
// After its language, the info string of a fenced block says how it is tested:
//
//	sh run                a shell runs it in the page's folder; it must succeed
//	sh run=user           the same, as an ordinary user with the right to make namespaces
//	text output           the output of the previous run; "…" stands for any text,
//	                      a line "…" for any lines
//	LANGUAGE file=NAME    it is written to NAME in the page's folder
//	toml config           a configuration file that fromToml accepts
//	toml config=nixpkgs   the same, with packages that only nixpkgs has: tests/nixpkgs evaluates it
//	text call             calls of the tool, each with its answer
//	text call=SERVER      the same, of a server that the page built
//	json client=NAME      the configuration of a client, whose command is started
//	text                  a drawing
//	LANGUAGE elsewhere: REASON
//	                      it cannot run in the tests, because of REASON
//
// A block with the last word needs=PROGRAM,… is skipped where a program is missing, where npm
// reaches no registry, or where a variable that begins with NIX_SANDBOX_TEST_ is not set; claude and
// codex are those of tests/clients. The blocks of a page run in order.
package docs

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// block is a fenced block of a page.
type block struct {
	line     int
	language string
	// verb is run, output, file, config, call, client, drawing, elsewhere or, if
	// the info string is empty, nothing. value is the text after the verb.
	verb, value string
	needs       string // programs, with commas between them
	text        string
}

// page is a parsed page.
type page struct {
	blocks []block
	// anchors are the headings that a link may name.
	anchors map[string]bool
	links   []link
	// code is the text between backticks outside of fenced blocks.
	code []codeSpan
}

// codeSpan is the text between two backticks, by the line that it is in.
type codeSpan struct {
	line int
	text string
}

// link is a link, by the line that it is in.
type link struct {
	line   int
	target string
}

var (
	heading  = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
	linked   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	code     = regexp.MustCompile("`([^`]*)`")
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// parse parses the text of a page. The error names the line.
func parse(text string) (page, error) {
	p := page{anchors: map[string]bool{}}
	var open *block
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case open != nil && fence && info == "":
			p.blocks = append(p.blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case fence:
			b, err := parseInfo(info)
			if err != nil {
				return page{}, fmt.Errorf("line %d: %w", i+1, err)
			}
			b.line = i + 1
			open = &b
		default:
			if title := heading.FindStringSubmatch(line); title != nil {
				p.addAnchor(title[1])
			}
			for _, found := range code.FindAllStringSubmatch(line, -1) {
				p.code = append(p.code, codeSpan{i + 1, found[1]})
			}
			for _, found := range linked.FindAllStringSubmatch(code.ReplaceAllString(line, ""), -1) {
				p.links = append(p.links, link{i + 1, found[1]})
			}
		}
	}
	if open != nil {
		return page{}, fmt.Errorf("line %d: the block does not end", open.line)
	}
	return p, nil
}

// addAnchor adds the anchor that GitHub makes for a heading.
func (p page) addAnchor(title string) {
	anchor := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
	name := anchor
	for i := 1; p.anchors[name]; i++ {
		name = fmt.Sprintf("%s-%d", anchor, i)
	}
	p.anchors[name] = true
}

// parseInfo parses an info string.
func parseInfo(info string) (block, error) {
	if language, reason, ok := strings.Cut(info, " elsewhere: "); ok {
		if len(strings.Fields(reason)) < 3 {
			return block{}, fmt.Errorf("%q does not say why it cannot be run", info)
		}
		return block{language: language, verb: "elsewhere", value: reason}, nil
	}
	words := strings.Fields(info)
	b := block{verb: "nothing"}
	if n := len(words); n > 0 && strings.HasPrefix(words[n-1], "needs=") {
		b.needs, words = strings.TrimPrefix(words[n-1], "needs="), words[:n-1]
	}
	switch len(words) {
	case 1:
		b.language, b.verb = words[0], "drawing"
	case 2:
		b.language = words[0]
		b.verb, b.value, _ = strings.Cut(words[1], "=")
	}
	known := map[string]bool{
		" nothing": true, // an error in the pages whose blocks run
		"sh run":   true, "text output": true, "toml config": true, "text call": true, "json client": true, "toml client": true, "text drawing": true,
	}
	if b.verb == "run" && b.value != "" && b.value != "user" {
		return block{}, fmt.Errorf("the info string %q names %s: a block runs as whoever runs the tests, or with run=user as an ordinary user", info, b.value)
	}
	if !known[b.language+" "+b.verb] && (b.verb != "file" || b.value == "") {
		return block{}, fmt.Errorf("the info string %q does not say how the block is tested: see tests/docs/page.go", info)
	}
	return b, nil
}

// matches reports whether output is what a page shows, where … stands for any
// text and a line of it for any lines.
func matches(shown, output string) bool {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for _, line := range strings.Split(strings.TrimRight(shown, "\n"), "\n") {
		if line == "…" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		var parts []string
		for _, part := range strings.Split(line, "…") {
			parts = append(parts, regexp.QuoteMeta(part))
		}
		pattern.WriteString(strings.Join(parts, `.*`) + ` *\n`)
	}
	pattern.WriteString(`\z`)
	return regexp.MustCompile(pattern.String()).MatchString(strings.TrimRight(output, "\n") + "\n")
}

// call is one call of a transcript.
type call struct {
	args   map[string]any
	answer string
}

var (
	callStart = regexp.MustCompile(`^run\((.*)\)$`)
	argument  = regexp.MustCompile(`^(\w+): ("(?:[^"\\]|\\.)*")(?:, |$)`)
)

// calls parses a transcript: lines run(env: "…", code: "…"), each followed by an
// empty line and its answer. The strings are JSON strings.
func calls(text string) ([]call, error) {
	var all []call
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		found := callStart.FindStringSubmatch(line)
		if found == nil {
			if len(all) == 0 {
				return nil, fmt.Errorf("%q is before the first call", line)
			}
			all[len(all)-1].answer += line + "\n"
			continue
		}
		c := call{args: map[string]any{}}
		for rest := found[1]; rest != ""; {
			part := argument.FindStringSubmatch(rest)
			if part == nil {
				return nil, fmt.Errorf("%q is not NAME: \"TEXT\", …", rest)
			}
			value, err := unquote(part[2])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", part[2], err)
			}
			c.args[part[1]] = value
			rest = rest[len(part[0]):]
		}
		all = append(all, c)
	}
	for i := range all {
		all[i].answer = strings.Trim(all[i].answer, "\n") + "\n"
	}
	return all, nil
}

// unquote parses a JSON string.
func unquote(text string) (string, error) {
	var value string
	err := json.Unmarshal([]byte(text), &value)
	return value, err
}
