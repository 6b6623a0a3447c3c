package tool

import (
	"fmt"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// metaPrefix is before the name of every fact in a result's _meta.
const metaPrefix = "nix-sandbox-mcp/"

// answer is everything that a call came to.
type answer struct {
	args   arguments
	code   string // hash
	fresh  string // why the session is a new one
	began  bool   // a sandbox took the call
	ended  sandbox.Result
	stdout sandbox.Text
	stderr sandbox.Text
	files  collection
	// enforcer is what holds the sandbox to its limits, limit the one for
	// which the kernel ended it.
	enforcer string
	limit    string
	// trouble is why there is no result; empty where there is one.
	trouble string
	// hint is what to do where the error does not say it.
	hint string
}

// outcome is the call's in one word.
func (a answer) outcome() string {
	switch {
	case a.trouble == "":
		return a.ended.Outcome
	case a.began:
		return "died"
	default:
		return "refused"
	}
}

// failed says whether the model should take the answer for an error.
func (a answer) failed() bool {
	return a.trouble != "" || a.ended.Outcome != frame.OutcomeOK || a.ended.ExitCode != 0
}

// size is the text's, in bytes.
func (a answer) size() int {
	return len(a.stdout.Head) + len(a.stdout.Tail) + len(a.stderr.Head) + len(a.stderr.Tail)
}

// result is the answer as MCP carries it: content only, for clients that see
// structured content show the model nothing else.
func (a answer) result() *mcp.CallToolResult {
	content := []mcp.Content{mcp.NewTextContent(a.text())}
	result := &mcp.CallToolResult{
		Content: append(content, a.files.content...),
		IsError: a.failed(),
	}
	result.Meta = mcp.NewMetaFromMap(a.facts())
	return result
}

// text is what the code wrote and, in brackets, what there is to say of it.
func (a answer) text() string {
	if !a.began {
		return a.trouble
	}
	var text strings.Builder
	write(&text, a.stdout)
	if a.stderr.Head != "" || a.stderr.Cut > 0 {
		newLine(&text)
		text.WriteString("--- stderr ---\n")
		write(&text, a.stderr)
	}
	for _, remark := range a.remarks() {
		newLine(&text)
		text.WriteString("[" + remark + "]")
	}
	if text.Len() == 0 {
		return "[no output]"
	}
	return text.String()
}

// write writes a stream with a mark where something is left out.
func write(text *strings.Builder, stream sandbox.Text) {
	text.WriteString(stream.Head)
	if stream.Cut == 0 {
		return
	}
	newLine(text)
	fmt.Fprintf(text, "[... %s cut here ...]\n", size(stream.Cut))
	text.WriteString(stream.Tail)
}

// newLine ends a line that is not ended.
func newLine(text *strings.Builder) {
	if text.Len() > 0 && !strings.HasSuffix(text.String(), "\n") {
		text.WriteByte('\n')
	}
}

// remarks are the lines in brackets.
func (a answer) remarks() []string {
	var remarks []string
	if a.fresh != "" {
		remarks = append(remarks, "new session: the earlier one "+a.fresh)
	}
	if a.trouble != "" {
		remarks = append(remarks, a.trouble)
	} else if how := a.how(); how != "" {
		remarks = append(remarks, how)
	}
	if cut := a.stdout.Cut + a.stderr.Cut; cut > 0 {
		remarks = append(remarks, fmt.Sprintf("%s of output cut; %s", size(cut), a.whole()))
	}
	remarks = append(remarks, a.files.remarks...)
	if a.hint != "" {
		remarks = append(remarks, "hint: "+a.hint)
	}
	return remarks
}

// how says how the code ended, if there is something to say.
func (a answer) how() string {
	switch a.ended.Outcome {
	case frame.OutcomeTimeout:
		return fmt.Sprintf("timed out after %g s%s", a.args.environment.Timeout.Seconds(), a.state())
	case frame.OutcomeCancelled:
		return "cancelled" + a.state()
	case frame.OutcomeMemory, frame.OutcomeLimit:
		return "stopped: " + a.crossed(a.ended.Limit.Name) + a.state()
	case frame.OutcomeCrashed:
		return fmt.Sprintf("the interpreter died with exit status %d%s", a.ended.ExitCode, a.state())
	}
	if a.ended.Limit != nil && a.ended.State == frame.StateLost {
		return "stopped before this call: " + a.crossed(a.ended.Limit.Name) + a.lost()
	}
	if a.ended.ExitCode != 0 {
		return fmt.Sprintf("exit status %d%s", a.ended.ExitCode, a.lost())
	}
	return strings.TrimPrefix(a.lost(), "; ")
}

// crossed says which limit was crossed. The figure is the operator's and not
// the sandbox's own.
func (a answer) crossed(limit string) string {
	switch limit {
	case sandbox.PIDs:
		return fmt.Sprintf("more than %d processes and threads", a.args.environment.PIDs)
	case frame.FileLocks:
		return fmt.Sprintf("held more than %d locks on files", frame.MaxFileLocks)
	case frame.Terminals:
		return fmt.Sprintf("opened more than %d terminals", frame.MaxTerminals)
	}
	return fmt.Sprintf("used more than %d MB of memory", a.args.environment.MemoryMB)
}

// state says what became of a session's state when a call was cut short.
func (a answer) state() string {
	if a.args.Session != "" && a.ended.State == frame.StateKept {
		return "; the session's state was kept"
	}
	return a.lost()
}

// lost says that a session's state is gone, if it is.
func (a answer) lost() string {
	if a.args.Session != "" && a.ended.State == frame.StateLost {
		return "; the session's variables are lost, its files in /workspace are kept"
	}
	return ""
}

// whole says where all of the output is.
func (a answer) whole() string {
	var places []string
	if a.args.Session != "" {
		for _, stored := range a.ended.Stored {
			place := "all of it is in " + stored.Path
			if !stored.All {
				place = fmt.Sprintf("its first %s are in %s", size(stored.Bytes), stored.Path)
			}
			places = append(places, place)
		}
	}
	if len(places) == 0 {
		return "print less of it"
	}
	return strings.Join(places, "; ")
}

// facts are for programs; they cost the model nothing.
func (a answer) facts() map[string]any {
	facts := map[string]any{
		metaPrefix + "outcome":     a.outcome(),
		metaPrefix + "code_sha256": a.code,
	}
	if a.trouble == "" {
		facts[metaPrefix+"exit_code"] = a.ended.ExitCode
		facts[metaPrefix+"duration_ms"] = a.ended.Duration.Milliseconds()
	}
	if a.args.environment.Closure != "" {
		facts[metaPrefix+"closure"] = a.args.environment.Closure
	}
	if a.args.Session != "" && a.ended.State != "" {
		facts[metaPrefix+"state"] = a.ended.State
	}
	if a.enforcer != "" {
		facts[metaPrefix+"limits_by"] = a.enforcer
	}
	switch limit := a.ended.Limit; {
	case a.limit != "":
		facts[metaPrefix+"limit"] = a.limit
	case limit != nil:
		facts[metaPrefix+"limit"] = limit.Name
		facts[metaPrefix+"limit_used"] = limit.Used
	}
	cut := a.stdout.Cut + a.stderr.Cut
	facts[metaPrefix+"truncated"] = cut > 0
	if cut > 0 {
		facts[metaPrefix+"cut_bytes"] = cut
	}
	return facts
}

// size words a number of bytes.
func size(bytes int64) string {
	switch {
	case bytes < 1000:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < 1000*1000:
		return fmt.Sprintf("%.1f KB", float64(bytes)/1000)
	case bytes < 1000*1000*1000:
		return fmt.Sprintf("%.1f MB", float64(bytes)/1000/1000)
	default:
		return fmt.Sprintf("%.1f GB", float64(bytes)/1000/1000/1000)
	}
}
