package jail

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// rule is an s-expression of a profile: a word, a string, or a list.
type rule struct {
	word, text string
	list       []rule
}

// parseRules reads the rules of a profile of macOS.
func parseRules(text string) (rules []rule, err error) {
	for {
		text = strings.TrimLeft(text, " \n")
		switch {
		case text == "" || text[0] == ')':
			return rules, nil
		case text[0] == '(':
			depth, end, quoted := 0, -1, false
			for i, r := range text {
				switch {
				case r == '"':
					quoted = !quoted
				case quoted:
				case r == '(':
					depth++
				case r == ')':
					if depth--; depth == 0 {
						end = i
					}
				}
				if end > 0 {
					break
				}
			}
			if end < 0 {
				return nil, errors.New("a list has no end")
			}
			list, err := parseRules(text[1:end])
			if err != nil {
				return nil, err
			}
			rules, text = append(rules, rule{list: list}), text[end+1:]
		case text[0] == '"':
			inside, rest, found := strings.Cut(text[1:], `"`)
			if !found || strings.Contains(inside, `\`) {
				return nil, errors.New("a string has no end, or a backslash")
			}
			rules, text = append(rules, rule{text: inside}), rest
		default:
			end := strings.IndexAny(text, " \n()\"")
			if end < 0 {
				end = len(text)
			}
			rules, text = append(rules, rule{word: text[:end]}), text[end:]
		}
	}
}

// allowed are the operations that a program may do, with the paths for which it may.
var allowed = map[string][]string{
	"process-exec":       {"/nix/store/"},
	"sysctl-read":        nil,
	"file-read-metadata": {"/", "/nix", "/nix/store", "/dev"},
	"file-read*":         {"/nix/store/", "/usr/lib", "/System/Library", "/System/Volumes/Preboot/Cryptexes", "/dev/random", "/dev/urandom", "/dev/null", "/dev/fd"},
	"file-write-data":    {"/dev/null", "/dev/fd"},
}

// checkRules refuses a profile that allows anything else.
func checkRules(text string) error {
	rules, err := parseRules(text)
	if err != nil {
		return err
	}
	head := func(i int, words ...string) bool {
		return len(rules) > i && slices.EqualFunc(rules[i].list, words, func(r rule, word string) bool { return r.word == word })
	}
	if !head(0, "version", "1") || !head(1, "deny", "default") {
		return errors.New("it does not begin with (version 1) and (deny default)")
	}
	for _, r := range rules[2:] {
		if len(r.list) < 2 || r.list[0].word != "allow" {
			return fmt.Errorf("%+v allows nothing", r)
		}
		var operations, paths []string
		for _, part := range r.list[1:] {
			switch {
			case part.word != "":
				operations = append(operations, part.word)
			case len(part.list) != 2 || part.list[0].word != "literal" && part.list[0].word != "subpath" || !strings.HasPrefix(part.list[1].text, "/"):
				return fmt.Errorf("%+v is no path", part)
			case part.list[0].word == "subpath" && strings.Count(part.list[1].text, "/") < 2:
				return fmt.Errorf("%+v is too much", part)
			default:
				paths = append(paths, part.list[1].text)
			}
		}
		for _, operation := range operations {
			for _, path := range paths {
				if !slices.ContainsFunc(allowed[operation], func(ok string) bool {
					return path == ok || strings.HasSuffix(ok, "store/") && strings.HasPrefix(path, ok) && len(path) > len(ok)+33
				}) {
					return fmt.Errorf("%s is allowed for %s", operation, path)
				}
			}
			if _, known := allowed[operation]; !known || len(paths) == 0 && allowed[operation] != nil {
				return fmt.Errorf("%s is allowed", operation)
			}
		}
	}
	return nil
}

// The profile of a Mac, which tests/nix compares with the one that Nix makes, allows what it should and no more.
func TestSeatbelt_AllowsLittle(t *testing.T) {
	text := string(must.Get(os.ReadFile("testdata/machine.sb"))(t))
	if err := checkRules(text); err != nil {
		t.Error(err)
	}
	for _, more := range []string{
		"(allow network*)", "(allow default)", "(allow file-read* (subpath \"/\"))", "(allow file-read* (subpath \"/nix/store\"))",
		"(allow file-read* (subpath \"/Users\"))", "(allow file-write* (subpath \"/dev/fd\"))", "(allow process-fork)", "(allow process-exec)",
		"(allow file-read*)", "(allow mach-lookup (global-name \"x\"))", "(allow file-read* (regex \"^/\"))", "(import \"system.sb\")", "(allow file-read* (literal \"/a\\\"\"))",
		"(allow file-write-data (literal \"/etc/hosts\"))", "(allow",
	} {
		if checkRules(text+more) == nil {
			t.Errorf("%s is accepted", more)
		}
	}
	if checkRules(strings.Replace(text, "(deny default)", "", 1)) == nil {
		t.Error("a profile that denies nothing is accepted")
	}
}
