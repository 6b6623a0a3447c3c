package framed

import (
	"io"
	"os"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// What a program reports is taken where it is one of a few words, and a number in its
// bounds. The end of the stream, and what makes no sense, end the reports.
func TestLauncher_TakesReports(t *testing.T) {
	for _, test := range []struct {
		text             string
		isolation, start string
		factor           int
	}{
		{`{"start_factor":12}` + "\n" + `{"isolation":"emulated","start":"copy"}` + "\n", "emulated", "copy", 12},
		{`{"isolation":"kvm","start":"cold"}` + "\n" + `nonsense` + "\n" + `{"isolation":"emulated"}` + "\n", "kvm", "cold", 1},
		{`{"isolation":"magic","start":"warm","start_factor":101}` + "\n", "", "", 1},
		{`{"isolation":"kvm"}`, "", "", 1}, // it has no end
	} {
		reports, theirs, err := os.Pipe()
		must.Do(t, err)
		must.Get(io.WriteString(theirs, test.text))(t)
		must.Do(t, theirs.Close())
		l := &launcher{reports: reports, slower: make(chan struct{}, 1), factor: 1}
		l.follow()
		if isolation, start := l.isolated(); isolation != test.isolation || start != test.start || int(l.slowness()) != test.factor {
			t.Errorf("from %q come %q, %q and the factor %d", test.text, isolation, start, l.slowness())
		}
	}
}
