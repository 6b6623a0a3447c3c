package process

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

var table = NewTable()

func start(t *testing.T, files []*os.File, script string) *Process {
	t.Helper()
	p := must.Get(table.Start(Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: os.Environ(), Dir: "/", Files: files}))(t)
	return p
}

func wait(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience.Long):
		t.Fatalf("process %d runs for more than %v", p.Pid, patience.Long)
	}
}

func TestProcess_HasItsStatus(t *testing.T) {
	for script, want := range map[string]struct {
		code      int
		signalled bool
	}{
		"exit 0":       {0, false},
		"exit 3":       {3, false},
		"kill -9 $$":   {137, true},
		"kill -TERM 0": {143, true},
	} {
		p := start(t, nil, script)
		wait(t, p)
		if p.ExitCode() != want.code || p.Signalled() != want.signalled {
			t.Errorf("%s: exit code %d, signalled %v", script, p.ExitCode(), p.Signalled())
		}
	}
}

// A hundred processes that end at once give a hundred statuses.
func TestTable_ReapsManyAtOnce(t *testing.T) {
	var all []*Process
	for i := range 100 {
		all = append(all, start(t, nil, "exit "+strconv.Itoa(i)))
	}
	for i, p := range all {
		wait(t, p)
		if p.ExitCode() != i {
			t.Errorf("exit code %d, want %d", p.ExitCode(), i)
		}
	}
}

// An orphan is reaped too.
func TestTable_ReapsOrphans(t *testing.T) {
	must.Do(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := start(t, []*os.File{nil, w}, "/bin/sh -c 'echo $$; sleep 0.1' &")
	w.Close()
	wait(t, p)
	var buf [32]byte
	n := must.Get(r.Read(buf[:]))(t)
	orphan := strings.TrimSpace(string(buf[:n]))
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat("/proc/" + orphan); os.IsNotExist(err) {
			return
		}
		if time.Since(begin) > patience.Long {
			t.Fatalf("orphan %s is still there", orphan)
		}
	}
}

func TestSignal_ReachesTheGroup(t *testing.T) {
	p := start(t, nil, "sleep 99 | sleep 99")
	time.Sleep(50 * time.Millisecond)
	p.Signal(unix.SIGKILL)
	wait(t, p)
	// The process is gone; signals to its number reach nobody.
	p.Signal(unix.SIGKILL)
	p.SignalAlone(unix.SIGKILL)
}

func TestStart_PassesFiles(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	files := make([]*os.File, 252)
	files[1], files[251] = w, w
	p := start(t, files, "for n in 0 1 2 3 250 251 252; do [ ! -e /proc/$$/fd/$n ] || echo $n; done")
	w.Close()
	wait(t, p)
	var buf [256]byte
	n, _ := r.Read(buf[:])
	if got := string(buf[:n]); got != "1\n251\n" {
		t.Errorf("descriptors %q", got)
	}
}

func TestStart_NamesTheProgramThatFails(t *testing.T) {
	_, err := table.Start(Command{Path: "/nowhere/sh", Args: []string{"sh"}})
	if err == nil || !strings.Contains(err.Error(), "/nowhere/sh") {
		t.Errorf("error %v, want one that names the program", err)
	}
}
