package tool

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// metaPrefix is before the name of every fact in a result's _meta.
const metaPrefix = "nix-sandbox-mcp/"

// answer is a call with its result, and everything else that its text reports.
type answer struct {
	call   call.Call
	result call.Result
	err    error // of the Executor
}

// remarking is an Executor that adds the remarks to results.
type remarking struct{ *Tool }

func (t remarking) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	result, err := t.Executor.Answer(ctx, c)
	a := answer{c, result, err}
	if a.ran() {
		text := ""
		if a.failed() {
			text = t.list().hint(a)
		}
		result.Remarks = a.remarks(text)
	}
	return result, err
}

// ran reports whether the code ran, at least in part.
func (a answer) ran() bool { return a.err == nil || call.DiedDuring(a.err) != nil }

// failed reports whether the model should take the answer for an error.
func (a answer) failed() bool {
	return a.err != nil || a.result.Outcome != frame.OutcomeOK || a.result.ExitCode != 0
}

// toolResult returns the answer in MCP's form: content only, because clients that see structured
// content show the model nothing else.
func (a answer) toolResult() *mcp.CallToolResult {
	files, _ := a.files(base64.StdEncoding.EncodeToString)
	facts := a.facts()
	var content []mcp.Content
	kinds := []string{}
	for _, p := range a.parts() {
		content = append(content, mcp.NewTextContent(p.text))
		kinds = append(kinds, p.kind)
	}
	facts[metaPrefix+"content"] = kinds
	return &mcp.CallToolResult{
		Result:  mcp.Result{Meta: mcp.NewMetaFromMap(facts)},
		Content: append(append(content, files...), a.changes()...),
		IsError: a.failed(),
	}
}

// part is a text of the answer with one author: the code, through one of its streams, or the
// server. Each is an item of content of its own, which the code cannot leave, and the fact
// "content" names their kinds.
type part struct{ kind, text string }

// The kinds of parts, in their order.
const (
	stdoutPart  = "stdout"
	stderrPart  = "stderr"
	remarksPart = "remarks"
)

// parts returns the texts of the answer. Clients join them in different ways, or not at all: each
// but the last ends its line, so that the answer reads the same if a client joins them without a
// separator.
func (a answer) parts() []part {
	if !a.ran() {
		return []part{{remarksPart, a.problem()}}
	}
	var parts []part
	if stdout := a.output(stdoutPart, a.result.Stdout); stdout != "" {
		parts = append(parts, part{stdoutPart, stdout})
	}
	if stderr := a.output(stderrPart, a.result.Stderr); stderr != "" {
		parts = append(parts, part{stderrPart, stderr})
	}
	lines := slices.Clone(a.result.Remarks)
	image := func(file sandbox.File) bool { return file.Content != nil }
	if len(parts)+len(lines) == 0 && !slices.ContainsFunc(a.result.Files, image) {
		lines = []string{remark{opening: noOutput}.String()}
	}
	if len(lines) > 0 {
		parts = append(parts, part{remarksPart, strings.Join(lines, "\n")})
	}
	if a.call.Verbatim {
		return parts
	}
	for i := range len(parts) - 1 {
		parts[i].text = endLine(parts[i].text)
	}
	return parts
}

// problem says why there is no result, and what to do.
func (a answer) problem() string {
	var otherEnv *call.OtherEnvError
	var full *call.FullError
	var start *call.StartError
	var inUse *call.InUseError
	var quoting interface{ Quoted() (program, text string) }
	var calls *call.CallsError
	var memory *call.MemoryError
	var busy *call.BusyError
	var refused *call.BranchError
	switch {
	case errors.As(a.err, &refused):
		return notBranched(refused)
	case errors.As(a.err, &calls):
		return fmt.Sprintf("not run: %d calls of yours run or wait already, which are as many as you may have: call again when one of them has been answered", calls.Max)
	case errors.As(a.err, &memory):
		return fmt.Sprintf("not run: your sandboxes may use %d of the %d MB that you may have, and this one would be %d more: go on in a session that there is, or call again when one has ended", memory.Used>>20, memory.Max>>20, memory.Wanted>>20)
	case errors.As(a.err, &busy) && busy.Calls > 0:
		return fmt.Sprintf("the server is busy: %d calls or %d bytes of code wait already; call again when some have been answered", busy.Calls, busy.Bytes)
	case errors.As(a.err, &busy):
		return "the server is busy with other calls: call again when some have been answered"
	case errors.As(a.err, &inUse):
		return usedElsewhere(inUse)
	case errors.As(a.err, &otherEnv) && otherEnv.Changed:
		return fmt.Sprintf("session %q has changed files of the project, which its sandbox with further packages would not have: go on in env %q, or use another session name for %q", otherEnv.Session, otherEnv.Has, otherEnv.Wanted)
	case errors.As(a.err, &otherEnv):
		return fmt.Sprintf("session %q belongs to env %q: call it with that env, or use another session name for %q (the operator's option shared_files would let both have its files)", otherEnv.Session, otherEnv.Has, otherEnv.Wanted)
	case errors.As(a.err, &full):
		return noFurtherSession(full)
	case errors.As(a.err, &start):
		advice := ""
		if !strings.Contains(start.Err.Error(), "hint: ") { // the launcher's own
			advice = ": ask the user to run nix-sandbox-mcp doctor"
		}
		return fmt.Sprintf("the sandbox of env %q did not start: %v%s", start.Env, start.Err, advice)
	case errors.Is(a.err, context.Canceled), errors.Is(a.err, context.DeadlineExceeded):
		return "cancelled before it ran"
	case errors.Is(a.err, sandbox.ErrClosed):
		return "not run: the server is ending"
	}
	problem := a.err.Error()
	if errors.As(a.err, &quoting) {
		if program, text := quoting.Quoted(); text != "" {
			problem += "\n" + markImitations(program, text)
		}
	}
	return problem
}

// died says that the sandbox ended during the call.
func (a answer) died(dead *sandbox.DeadError) remark {
	lost := ""
	if a.call.Session != "" {
		lost = "; the session's variables and files are lost, and its next call starts a new one"
		if survived := call.Find[call.Survived](a.result.Notes); survived != nil && survived.Earlier {
			lost = "; the session's variables and what this call wrote are lost, and its next call has its files as they were before"
		} else if survived != nil {
			lost = "; " + openings[stateLost] + variablesLost
		}
	}
	if dead.Limit != "" {
		return remark{opening: stopped, rest: ": " + a.crossed(dead.Limit) + lost}
	}
	return remark{opening: sandboxEnded, rest: fmt.Sprintf(" during the call: %v%s", dead, lost)}
}

const maxIdleNamed = 8

// noFurtherSession refuses a session beyond the bound and names the idle ones.
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

// notBranched refuses a session that would begin as a copy of another one.
func notBranched(refused *call.BranchError) string {
	switch refused.Reason {
	case call.Busy:
		return fmt.Sprintf("session %q is running a call: wait for its answer, or interrupt it, and call again with from", refused.From)
	case call.Unknown:
		return fmt.Sprintf("there is no session %q of env %q to begin from: call without from, or name one that there is", refused.From, refused.Env)
	case call.Existing:
		return fmt.Sprintf("session %q exists already: leave from out to go on in it, or use a new session name for a copy of %q", refused.Session, refused.From)
	case call.Branchless:
		return fmt.Sprintf("a session of env %q cannot begin as a copy of another one: leave from out", refused.Env)
	}
	return fmt.Sprintf("session %q was not copied, and goes on: %v", refused.From, refused.Problem)
}

// usedElsewhere refuses a session because another server has its files.
func usedElsewhere(inUse *call.InUseError) string {
	who := ""
	if inUse.PID > 0 {
		who = fmt.Sprintf(" (process %d%s)", inUse.PID, strings.TrimSuffix(", "+inUse.About, ", "))
	}
	return fmt.Sprintf("session %q and its kept files are in use by another server of this user%s: use another session name, or end that server", inUse.Session, who)
}

// output returns the shown part of a stream, with a remark if a part is left out. It returns "" if
// nothing is shown.
func (a answer) output(name string, stream sandbox.Text) (text string) {
	mark := markImitations
	if a.call.Verbatim {
		mark = func(_, text string) string { return text }
	} else if isBinary(stream) {
		stream = sandbox.Text{Head: readable(stream)}
	}
	if stream.Len() == 0 && stream.Cut == 0 {
		return ""
	}
	if name == stderrPart && !a.call.Verbatim {
		text = separator + "\n"
	}
	text += mark(name, stream.Head)
	if stream.Cut == 0 {
		return text
	}
	cut := remark{opening: cutHere, rest: fmt.Sprintf(" %s cut here ...", size(stream.Cut))}
	return endLine(text) + cut.String() + "\n" + mark(name, stream.Tail)
}

// binary returns the names of the streams that are not text, and so not shown.
func (a answer) binary() (names []string) {
	if a.call.Verbatim {
		return nil
	}
	if isBinary(a.result.Stdout) {
		names = append(names, stdoutPart)
	}
	if isBinary(a.result.Stderr) {
		names = append(names, stderrPart)
	}
	return names
}

// endLine ends a text's last line, unless the text is empty or the line is ended.
func endLine(text string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}

// remarks returns the remarks about a call: the last one is a hint, unless that is "".
func (a answer) remarks(advice string) (lines []string) {
	remarks := a.notes()
	if a.result.ProjectChanged {
		remarks = append(remarks, remark{opening: projectChanged, rest: ": this session shows them as they were when it began, and a new session shows them as they are"})
	}
	if dead := call.DiedDuring(a.err); dead != nil {
		remarks = append(remarks, a.died(dead))
	} else if ending, found := a.ending(); found {
		remarks = append(remarks, ending)
	}
	for _, sentence := range a.network() {
		remarks = append(remarks, remark{opening: onNetwork, rest: sentence})
	}
	if cut := a.result.Stdout.Cut + a.result.Stderr.Cut; cut > 0 {
		remarks = append(remarks, remark{amount: size(cut), opening: outputCut, rest: "; " + a.storedOutput()})
	}
	for _, stream := range a.binary() {
		remarks = append(remarks, remark{opening: binaryOutput, rest: stream + " is not UTF-8 text: decode it, or write it to a file in /workspace/outputs"})
	}
	if sentence := a.unshown(); sentence != "" {
		remarks = append(remarks, remark{opening: unshown, rest: sentence})
	}
	_, files := a.files(func([]byte) string { return "" })
	remarks = append(remarks, files...)
	if advice != "" {
		remarks = append(remarks, remark{opening: hint, rest: advice})
	}
	for _, remark := range remarks {
		lines = append(lines, remark.String())
	}
	return lines
}

// Remarks are the remarks that the model would read about a call.
func Remarks(c call.Call, result call.Result, err error) []string {
	return answer{c, result, err}.remarks("")
}

// ending says how the code ended. found is false if that needs no remark.
func (a answer) ending() (_ remark, found bool) {
	switch a.result.Outcome {
	case frame.OutcomeTimeout:
		return remark{opening: timedOut, rest: fmt.Sprintf("%g s%s", a.call.TimeLimit().Seconds(), a.state())}, true
	case frame.OutcomeCancelled:
		return remark{opening: cancelled, rest: a.state()}, true
	case frame.OutcomeMemory, frame.OutcomeLimit:
		return remark{opening: stopped, rest: ": " + a.crossed(a.result.Limit.Name) + a.state()}, true
	case frame.OutcomeCrashed:
		return remark{opening: crashed, rest: fmt.Sprintf(" with exit status %d%s", a.result.ExitCode, a.state())}, true
	}
	switch {
	case a.result.Limit != nil && a.result.State == frame.StateLost:
		return remark{opening: stopped, rest: " before this call: " + a.crossed(a.result.Limit.Name) + a.lost()}, true
	case a.result.ExitCode != 0:
		return remark{opening: exitStatus, rest: fmt.Sprint(a.result.ExitCode, a.lost())}, true
	case a.lost() != "":
		return remark{opening: stateLost, rest: variablesLost}, true
	}
	return remark{}, false
}

// crossed says which limit was crossed. The figure is the operator's and not
// the sandbox's own.
func (a answer) crossed(limit string) string {
	if limit == sandbox.MemoryUsed {
		return "your sandboxes together used more memory than you may have"
	}
	value := map[string]int64{
		frame.Memory: a.call.Env.MemoryMB, frame.PIDs: a.call.Env.PIDs,
		frame.FileLocks: frame.MaxFileLocks, frame.EpollWatches: frame.MaxEpollWatches, frame.Terminals: frame.MaxTerminals,
	}[limit]
	return frame.Limit{Name: limit, Value: value}.String()
}

// state says whether a session kept its state when a call was cut short.
func (a answer) state() string {
	if a.call.Session != "" && a.result.State == frame.StateKept {
		return "; the session's state was kept"
	}
	return a.lost()
}

// lost says that a session's state is gone, if it is.
func (a answer) lost() string {
	if a.call.Session != "" && a.result.State == frame.StateLost {
		return "; " + openings[stateLost] + variablesLost
	}
	return ""
}

// variablesLost describes a session that was started again.
const variablesLost = "variables are lost, its files in /workspace are kept"

// storedOutput says which files contain all of the output.
func (a answer) storedOutput() string {
	var files []string
	if a.call.Session != "" {
		for _, stored := range a.result.Stored {
			file := "all of it is in " + quoteName(stored.Path)
			if !stored.All {
				file = fmt.Sprintf("its first %s are in %s", size(stored.Bytes), quoteName(stored.Path))
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
	texts := map[string]string{
		"closure": a.call.Env.Closure, "limits_by": a.result.EnforcedBy, "isolation": a.result.Isolation, "start": a.result.Start,
	}
	if a.call.Session != "" {
		texts["state"] = a.result.State
	}
	for name, text := range texts {
		if text != "" {
			facts[metaPrefix+name] = text
		}
	}
	if a.result.ProjectChanged {
		facts[metaPrefix+"project_changed"] = true
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
	if n := a.result.Network; n != nil {
		facts[metaPrefix+"network"] = n
	}
	for _, note := range a.result.Notes {
		_, more := a.words(note)
		for name, fact := range more {
			facts[metaPrefix+name] = fact
		}
	}
	return facts
}
