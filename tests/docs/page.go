// Package docs holds the pages of this project to what they say: it runs every
// command, evaluates every configuration, replays every transcript and follows
// every link.
//
// A fenced block's info string says what is done with it, after its language:
//
//	sh run                a shell runs it in the page's folder; it must succeed
//	text output           what the run before printed; "…" stands for any text,
//	                      a line "…" for any lines
//	LANGUAGE file=NAME    it is written to NAME in the page's folder
//	toml config           a configuration file that fromToml takes
//	text call             calls of the tool, each with its answer
//	json client=NAME      the configuration of a client, whose command is started
//	text                  a drawing
//	LANGUAGE elsewhere: REASON
//	                      it cannot be run here, because of REASON
//
// The word needs=claude after any of them leaves it out where the clients of
// tests/clients are not installed. Blocks of a page run in their order.
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
	// verb is run, output, file, config, call, client, drawing, elsewhere or,
	// where the info string is empty, nothing; value is what stands after it.
	verb, value string
	needs       string
	text        string
}

// page is a parsed page.
type page struct {
	blocks []block
	// anchors are the places that a link may name.
	anchors map[string]bool
	links   []link
}

// link is a link to somewhere.
type link struct {
	line   int
	target string
}

var (
	heading  = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
	linked   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	code     = regexp.MustCompile("`[^`]*`")
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// parse reads a page. The error names the line.
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

// addAnchor adds the place of a heading as GitHub calls it.
func (p page) addAnchor(title string) {
	anchor := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
	name := anchor
	for i := 1; p.anchors[name]; i++ {
		name = fmt.Sprintf("%s-%d", anchor, i)
	}
	p.anchors[name] = true
}

// parseInfo reads an info string.
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
		" nothing": true, // an error in the pages that are played
		"sh run":   true, "text output": true, "toml config": true, "text call": true, "json client": true, "toml client": true, "text drawing": true,
	}
	if !known[b.language+" "+b.verb] && (b.verb != "file" || b.value == "") {
		return block{}, fmt.Errorf("a block %q says not what is done with it: see tests/docs/page.go", info)
	}
	return b, nil
}

// matches says whether what was printed is what a page shows, in which …
// stands for any text and a line of it for any lines.
func matches(shown, printed string) bool {
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
	return regexp.MustCompile(pattern.String()).MatchString(strings.TrimRight(printed, "\n") + "\n")
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

// calls reads a transcript: lines run(env: "…", code: "…"), each with its
// answer after an empty line. The strings are JSON's.
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

// unquote reads a string of JSON.
func unquote(text string) (string, error) {
	var value string
	err := json.Unmarshal([]byte(text), &value)
	return value, err
}
