package watch

import (
	"fmt"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// toolCalls describes the calls of tools that the code of a call made, a line for each of the first.
func toolCalls(result call.Result) string {
	used := call.Find[call.Tools](result.Notes)
	if used == nil {
		return ""
	}
	var text strings.Builder
	for _, use := range used.First {
		fmt.Fprintf(&text, "%s.%s %s, %d ms, %d bytes\n", use.Server, use.Tool, use.Outcome, use.Took.Milliseconds(), use.Bytes)
	}
	if more := used.Calls - len(used.First); more > 0 {
		fmt.Fprintf(&text, "and %d more; %d of all were not ok\n", more, used.Failed)
	}
	return text.String()
}
