package tool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// metaPrefix is before the name of every fact in a result's _meta.
const metaPrefix = "nix-sandbox-mcp/"

// answer is a call with its result, and everything else that its text reports.
type answer struct {
	call   call.Call
	result call.Result
	err    error  // of the Executor
	hint   string // what to do where an error of the code does not say it
}

// failed reports whether the model should take the answer for an error.
func (a answer) failed() bool {
	return a.err != nil || a.result.Outcome != frame.OutcomeOK || a.result.ExitCode != 0
}

// toolResult is the answer as MCP carries it: content only, for clients that
// see structured content show the model nothing else.
func (a answer) toolResult() *mcp.CallToolResult {
	content, remarks := a.files()
	return &mcp.CallToolResult{
		Result:  mcp.Result{Meta: mcp.NewMetaFromMap(a.facts())},
		Content: append([]mcp.Content{mcp.NewTextContent(a.text(remarks))}, content...),
		IsError: a.failed(),
	}
}

// text is what the code wrote and, in brackets, what there is to know of it.
// Remarks are those about files.
func (a answer) text(remarks []string) string {
	if a.err != nil && call.DiedDuring(a.err) == nil {
		return a.problem()
	}
	var text strings.Builder
	write(&text, a.result.Stdout)
	if a.result.Stderr.Len() > 0 || a.result.Stderr.Cut > 0 {
		newLine(&text)
		text.WriteString("--- stderr ---\n")
		write(&text, a.result.Stderr)
	}
	for _, remark := range a.remarks(remarks) {
		newLine(&text)
		text.WriteString("[" + remark + "]")
	}
	if text.Len() == 0 {
		return "[no output]"
	}
	return text.String()
}

// problem is why there is no result, and what to do.
func (a answer) problem() string {
	var otherEnv *call.OtherEnvError
	var full *call.FullError
	var start *call.StartError
	switch {
	case errors.As(a.err, &otherEnv):
		return fmt.Sprintf("session %q belongs to env %q: call it with that env, or use another session id for %q", otherEnv.Session, otherEnv.Has, otherEnv.Wanted)
	case errors.As(a.err, &full):
		return noFurtherSession(full)
	case errors.As(a.err, &start):
		return fmt.Sprintf("the sandbox of env %q did not start: %v", start.Env, start.Err)
	case errors.Is(a.err, context.Canceled), errors.Is(a.err, context.DeadlineExceeded):
		return "cancelled before it ran"
	case errors.Is(a.err, sandbox.ErrClosed):
		return "not run: the server is ending"
	}
	dead := call.DiedDuring(a.err)
	if dead == nil {
		return a.err.Error()
	}
	lost := ""
	if a.call.Session != "" {
		lost = "; the session's variables and files are lost, and its next call starts a new one"
	}
	if dead.Limit != "" {
		return "stopped: " + a.crossed(dead.Limit) + lost
	}
	return fmt.Sprintf("the sandbox ended during the call: %v%s", dead, lost)
}

// maxIdleNamed is how many idle sessions a refusal names.
const maxIdleNamed = 8

// noFurtherSession refuses a session beyond the bound and names the ones that
// are idle.
func noFurtherSession(full *call.FullError) string {
	text := fmt.Sprintf("all %d sessions are in use", full.Max)
	if len(full.Idle) == 0 {
		return text + " and none is idle: wait until a call has ended, or call without session"
	}
	var names []string
	for _, s := range full.Idle[:min(len(full.Idle), maxIdleNamed)] {
		names = append(names, fmt.Sprintf("%s (%s, %.0f s)", s.ID, s.Env, s.Idle.Seconds()))
	}
	if more := len(full.Idle) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%s; idle: %s: go on in one of these, or call without session", text, strings.Join(names, ", "))
}

// restarted says why a session is a new one.
func restarted(why *call.Restart) string {
	switch why.Cause {
	case call.Idle:
		return fmt.Sprintf("new session: the earlier one ended after %g s idle", why.After.Seconds())
	case call.Lifetime:
		return fmt.Sprintf("new session: the earlier one ended at its lifetime of %g s", why.After.Seconds())
	default:
		return "new session: the earlier one ended because its sandbox died"
	}
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

// remarks are the lines in brackets; those about files come from the caller.
func (a answer) remarks(files []string) []string {
	var remarks []string
	if a.result.Restart != nil {
		remarks = append(remarks, restarted(a.result.Restart))
	}
	if a.err != nil {
		remarks = append(remarks, a.problem())
	} else if ending := a.ending(); ending != "" {
		remarks = append(remarks, ending)
	}
	if cut := a.result.Stdout.Cut + a.result.Stderr.Cut; cut > 0 {
		remarks = append(remarks, fmt.Sprintf("%s of output cut; %s", size(cut), a.storedOutput()))
	}
	remarks = append(remarks, files...)
	if a.hint != "" {
		remarks = append(remarks, "hint: "+a.hint)
	}
	return remarks
}

// ending says how the code ended, where that needs words.
func (a answer) ending() string {
	switch a.result.Outcome {
	case frame.OutcomeTimeout:
		return fmt.Sprintf("timed out after %g s%s", a.call.Env.Timeout.Seconds(), a.state())
	case frame.OutcomeCancelled:
		return "cancelled" + a.state()
	case frame.OutcomeMemory, frame.OutcomeLimit:
		return "stopped: " + a.crossed(a.result.Limit.Name) + a.state()
	case frame.OutcomeCrashed:
		return fmt.Sprintf("the interpreter died with exit status %d%s", a.result.ExitCode, a.state())
	}
	if a.result.Limit != nil && a.result.State == frame.StateLost {
		return "stopped before this call: " + a.crossed(a.result.Limit.Name) + a.lost()
	}
	if a.result.ExitCode != 0 {
		return fmt.Sprintf("exit status %d%s", a.result.ExitCode, a.lost())
	}
	return strings.TrimPrefix(a.lost(), "; ")
}

// crossed says which limit was crossed. The figure is the operator's and not
// the sandbox's own.
func (a answer) crossed(limit string) string {
	value := map[string]int64{
		frame.Memory: a.call.Env.MemoryMB, frame.PIDs: a.call.Env.PIDs,
		frame.FileLocks: frame.MaxFileLocks, frame.Terminals: frame.MaxTerminals,
	}[limit]
	return frame.Limit{Name: limit, Value: value}.String()
}

// state says what became of a session's state when a call was cut short.
func (a answer) state() string {
	if a.call.Session != "" && a.result.State == frame.StateKept {
		return "; the session's state was kept"
	}
	return a.lost()
}

// lost says that a session's state is gone, if it is.
func (a answer) lost() string {
	if a.call.Session != "" && a.result.State == frame.StateLost {
		return "; the session's variables are lost, its files in /workspace are kept"
	}
	return ""
}

// storedOutput says where all of the output is.
func (a answer) storedOutput() string {
	var files []string
	if a.call.Session != "" {
		for _, stored := range a.result.Stored {
			file := "all of it is in " + stored.Path
			if !stored.All {
				file = fmt.Sprintf("its first %s are in %s", size(stored.Bytes), stored.Path)
			}
			files = append(files, file)
		}
	}
	if len(files) == 0 {
		return "print less of it"
	}
	return strings.Join(files, "; ")
}

// facts are for programs; they cost the model nothing.
func (a answer) facts() map[string]any {
	sum := sha256.Sum256([]byte(a.call.Code))
	cut := a.result.Stdout.Cut + a.result.Stderr.Cut
	facts := map[string]any{
		metaPrefix + "outcome":     call.Outcome(a.result, a.err),
		metaPrefix + "code_sha256": hex.EncodeToString(sum[:]),
		metaPrefix + "truncated":   cut > 0,
	}
	if a.err == nil {
		facts[metaPrefix+"exit_code"] = a.result.ExitCode
		facts[metaPrefix+"duration_ms"] = a.result.Duration.Milliseconds()
	}
	if a.call.Env.Closure != "" {
		facts[metaPrefix+"closure"] = a.call.Env.Closure
	}
	if a.call.Session != "" && a.result.State != "" {
		facts[metaPrefix+"state"] = a.result.State
	}
	if a.result.EnforcedBy != "" {
		facts[metaPrefix+"limits_by"] = a.result.EnforcedBy
	}
	if limit := a.result.Limit; limit != nil {
		facts[metaPrefix+"limit"] = limit.Name
		facts[metaPrefix+"limit_used"] = limit.Used
	}
	if dead := call.DiedDuring(a.err); dead != nil && dead.Limit != "" {
		facts[metaPrefix+"limit"] = dead.Limit
	}
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
