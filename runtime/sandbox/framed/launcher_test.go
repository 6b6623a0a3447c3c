package framed

import (
	"io"
	"os"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// A program's reports add up, and its number has bounds. The end of the stream, and what makes no
// sense, end the reports.
func TestLauncher_TakesReports(t *testing.T) {
	for _, test := range []struct {
		text             string
		isolation, start string
		factor           int
	}{
		{`{"start_factor":12}` + "\n" + `{"isolation":"emulated","start":"copy"}` + "\n", "emulated", "copy", 12},
		{`{"isolation":"kvm","start":"cold"}` + "\n" + `nonsense` + "\n" + `{"isolation":"emulated"}` + "\n", "kvm", "cold", 1},
		{`{"start_factor":101}` + "\n" + `{"start":"cold"}` + "\n", "", "cold", maxStartFactor},
		{`{"start_factor":-1}` + "\n", "", "", 1},
		{`{"isolation":1,"start":"cold"}` + "\n", "", "", 1},
		{`{"isolation":"kvm"}`, "", "", 1}, // it has no end
	} {
		reports, theirs, err := os.Pipe()
		must.Do(t, err)
		must.Get(io.WriteString(theirs, test.text))(t)
		must.Do(t, theirs.Close())
		l := &launcher{slower: make(chan struct{}, 1)}
		l.follow(reports)
		if said := l.said(); said.Isolation != test.isolation || said.Start != test.start || int(l.slowness()) != test.factor {
			t.Errorf("from %q come %+v and the factor %d", test.text, said, l.slowness())
		}
	}
}
