package framed

import (
	"io"
	"os"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// A program's reports add up. The end of the stream, and what makes no sense, end the reports.
func TestLauncher_TakesReports(t *testing.T) {
	for _, test := range []struct{ text, isolation, start string }{
		{`{"start":"copy"}` + "\n" + `{"isolation":"emulated"}` + "\n", "emulated", "copy"},
		{`{"isolation":"kvm","start":"cold"}` + "\n" + `nonsense` + "\n" + `{"isolation":"emulated"}` + "\n", "kvm", "cold"},
		{`{"isolation":1,"start":"cold"}` + "\n", "", ""},
		{`{"isolation":"kvm"}`, "", ""}, // it has no end
	} {
		reports, theirs, err := os.Pipe()
		must.Do(t, err)
		must.Get(io.WriteString(theirs, test.text))(t)
		must.Do(t, theirs.Close())
		l := &launcher{}
		l.follow(reports)
		if said := l.said(); said.Isolation != test.isolation || said.Start != test.start {
			t.Errorf("from %q come %+v", test.text, said)
		}
	}
}
