package sessions

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// maxPicked bounds what is picked by hand: more files than a person looks at.
const maxPicked = 1000

// picker asks a user about the files of a patch, as git add --patch does.
type picker struct {
	answers *bufio.Scanner
	out     io.Writer
	picked  map[string][]int // as for [changes.ApplyPicked]
}

// errQuit ends the questions.
var errQuit = errors.New("no further question")

// pickChanges asks for each file what to apply of it, and applies that.
func pickChanges(ctx context.Context, std cli.Streams, entry *changes.Entry) error {
	if err := entry.MarkShown(); err != nil {
		return err
	}
	p := &picker{answers: bufio.NewScanner(std.In), out: terminal.Visible(std.Out), picked: map[string][]int{}}
	fmt.Fprintln(p.out, headline(entry))
	files := 0
	err := gitpatch.Read(entry.Patch(), func(file gitpatch.File) error {
		if policy.Cache(path.Dir(file.Name)) {
			return nil
		}
		// The second half of a link that becomes a file goes with the first.
		if _, second := p.picked[file.Name]; second {
			return nil
		}
		if files++; files > maxPicked {
			return &config.Error{Problem: fmt.Sprintf("the patch has more than %d files", maxPicked), Hint: "give the paths to --apply"}
		}
		return p.file(file)
	})
	if err != nil && !errors.Is(err, errQuit) {
		return err
	}
	if len(p.picked) == 0 {
		fmt.Fprintln(p.out, "nothing was applied")
		return nil
	}
	applied, err := changes.ApplyPicked(ctx, entry, p.picked)
	return report(std, entry, applied, err)
}

// file asks about one file.
func (p *picker) file(file gitpatch.File) error {
	hunks := file.Hunks()
	fmt.Fprintf(p.out, "\n%s\n", gitpatch.Quote(file.Name))
	for _, hunk := range hunks {
		fmt.Fprint(p.out, hunk)
	}
	if !file.IsText() {
		fmt.Fprintln(p.out, "(binary)")
	}
	choices := "ynq?"
	if len(hunks) > 1 && file.Before != gitpatch.Absent && file.After != gitpatch.Absent {
		choices = "ynhq?"
	}
	answer, err := p.ask("apply it", choices)
	switch {
	case err != nil:
		return err
	case answer == 'y':
		p.picked[file.Name] = nil
	case answer == 'h':
		return p.hunks(file.Name, hunks)
	}
	return nil
}

// hunks asks about the hunks of a file one by one.
func (p *picker) hunks(name string, hunks []string) error {
	var wanted []int
	defer func() {
		if len(wanted) > 0 {
			p.picked[name] = wanted
		}
	}()
	for i, hunk := range hunks {
		fmt.Fprintf(p.out, "\n%s, %d of %d\n%s", gitpatch.Quote(name), i+1, len(hunks), hunk)
		answer, err := p.ask("apply this hunk", "ynq?")
		if err != nil {
			return err
		}
		if answer == 'y' {
			wanted = append(wanted, i)
		}
	}
	return nil
}

// meanings explains the answers.
var meanings = map[byte]string{
	'y': "apply this", 'n': "leave this out", 'h': "ask about each hunk", 'q': "leave this and the rest out", '?': "show this list",
}

// ask returns the answer 'y', 'n' or 'h'. It returns errQuit for 'q' and at the end of the input.
func (p *picker) ask(what, choices string) (byte, error) {
	for {
		fmt.Fprintf(p.out, "%s [%s]? ", what, strings.Join(strings.Split(choices, ""), ","))
		if !p.answers.Scan() {
			fmt.Fprintln(p.out)
			return 0, errors.Join(errQuit, p.answers.Err())
		}
		answer := strings.ToLower(strings.TrimSpace(p.answers.Text()))
		switch {
		case answer == "q":
			return 0, errQuit
		case len(answer) == 1 && answer != "?" && strings.Contains(choices, answer):
			return answer[0], nil
		}
		for i := range len(choices) {
			fmt.Fprintf(p.out, "%c  %s\n", choices[i], meanings[choices[i]])
		}
	}
}
