package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// onFullDisk is set in a process with a small file system of its own.
const onFullDisk = "NIX_SANDBOX_TEST_FULL_DISK"

// realSize has a test fill a file up to [MaxFile].
const realSize = "NIX_SANDBOX_TEST_AUDIT_SIZE"

func TestMain(m *testing.M) {
	if folder := os.Getenv(onFullDisk); folder != "" {
		if err := fillDisk(folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// opened returns a log in a new folder, and what it logs.
func opened(t *testing.T) (l *Log, path string, lines *bytes.Buffer) {
	t.Helper()
	path, lines = filepath.Join(t.TempDir(), "audit.jsonl"), &bytes.Buffer{}
	l = must.Get(Open(path, slog.New(slog.NewTextHandler(lines, nil))))(t)
	t.Cleanup(l.Close)
	return l, path, lines
}

// verified verifies files as one log.
func verified(t *testing.T, paths ...string) (Chain, error) {
	t.Helper()
	var c Chain
	for _, path := range paths {
		if err := c.Verify(bytes.NewReader(must.Get(os.ReadFile(path))(t))); err != nil {
			return c, err
		}
	}
	return c, nil
}

func TestLog_RecordsWhatCameOfACall(t *testing.T) {
	l, path, _ := opened(t)
	run := func(c call.Call, result call.Result, err error) { l.Begin(c)(result, err) }
	c := call.Call{Principal: "alice", Trace: "4bf92f3577b34da6a3ce929d0e0e4736", Env: registry.Environment{Name: "python", Closure: "sha256:abc"}, Session: "s", Code: "print(1)",
		Given: &frame.Given{Stdin: []byte("secret"), Files: map[string][]byte{"b": []byte("secret"), "a": nil}}}
	result := call.Result{Result: sandbox.Result{Outcome: frame.OutcomeMemory, ExitCode: 137, Stdout: sandbox.Text{Head: "12", Cut: 40}, Stderr: sandbox.Text{Tail: "345"}, Limit: &frame.Limit{Name: frame.Memory}}}
	run(c, result, nil)
	run(call.Call{Env: registry.Environment{Name: strings.Repeat("\x00", 1000)}}, call.Result{}, errors.New(strings.Repeat("<", 10_000)))
	run(call.Call{}, call.Result{}, context.Canceled)
	chain := must.Get(verified(t, path))(t)
	if chain.Records != 3 || chain.First != 1 || chain.Last != 3 || chain.Hash != l.State().Hash {
		t.Errorf("chain %+v, state %+v", chain, l.State())
	}
	text := string(must.Get(os.ReadFile(path))(t))
	for _, want := range []string{
		`"who":"alice","trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","env":"python","session":"s","closure":"sha256:abc","code_sha256":"`,
		fmt.Sprintf(`"code_sha256":"%x"`, sha256.Sum256([]byte("print(1)"))), `"code_bytes":8,"given":{`, `"outcome":"memory","limit":"memory_mb","exit_code":137,"ms":`,
		fmt.Sprintf(`"given":{"stdin_bytes":6,"variables":0,"files":2,"sha256":"%x"}`, sha256.Sum256([]byte(`{"stdin":"c2VjcmV0","files":{"a":null,"b":"c2VjcmV0"}}`))),
		`"stdout_bytes":42,"stderr_bytes":3,"files":0`, `"outcome":"refused"`, `"outcome":"cancelled"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "print(1)") || strings.Contains(text, "secret") || strings.Contains(text, "c2VjcmV0") {
		t.Error("the log has the code, or what it was given")
	}
}

// Every change of a byte is found, and every record that is missing, doubled or moved.
func TestVerify_FindsWhatWasChanged(t *testing.T) {
	l, path, _ := opened(t)
	for range 4 {
		l.Write(Record{Env: "bash"})
	}
	whole := must.Get(os.ReadFile(path))(t)
	broken := func(text []byte) *BrokenError {
		var broken *BrokenError
		errors.As((&Chain{}).Verify(bytes.NewReader(text)), &broken)
		return broken
	}
	if err := broken(whole); err != nil {
		t.Fatalf("a log that nobody changed: %v", err)
	}
	for i := range whole {
		changed := bytes.Clone(whole)
		changed[i] ^= 1
		if broken(changed) == nil {
			t.Errorf("byte %d was changed, in line %d", i, 1+bytes.Count(whole[:i], []byte("\n")))
		}
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	for name, test := range map[string]struct {
		text []byte
		want string
	}{
		"missing": {bytes.Join([][]byte{lines[0], lines[1], lines[3]}, nil), "line 3: record 4 follows record 2"},
		"doubled": {bytes.Join([][]byte{lines[0], lines[1], lines[1], lines[2]}, nil), "line 3: record 2 is there twice"},
		"moved":   {bytes.Join([][]byte{lines[0], lines[2], lines[1]}, nil), "line 2: record 3 follows record 1"},
		"cut":     {whole[:len(whole)-5], "line 4: the line is cut"},
		"changed": {bytes.Replace(whole, []byte("bash"), []byte("Bash"), 1), "line 1: the record was changed: it has another hash than it says"},
		"other":   {append(bytes.Clone(whole), "{}\n"...), "line 5: the line is no record"},
		"long":    {bytes.Repeat([]byte("x"), 3*maxLine), "line 1: it is longer than the 8192 bytes of a record"},
	} {
		if err := broken(test.text); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
	// A record with a new hash of its own does not fit to the next one.
	r, _, _ := parse(lines[1])
	r.Env = "python"
	forged, _, _ := r.line()
	if err := broken(bytes.Join([][]byte{lines[0], forged, lines[2]}, nil)); err == nil || err.Line != 3 {
		t.Errorf("forged: %v, want line 3", err)
	}
}

func TestLog_GoesOnWhereTheFileEnds(t *testing.T) {
	l, path, _ := opened(t)
	l.Write(Record{Env: "a"})
	l.Close()
	next := must.Get(Open(path, slog.New(slog.DiscardHandler)))(t)
	next.Write(Record{Env: "b"})
	next.Close()
	if chain := must.Get(verified(t, path))(t); chain.Last != 2 {
		t.Errorf("%+v, want 2 records", chain)
	}
	// The server ended while it wrote.
	text := must.Get(os.ReadFile(path))(t)
	must.Do(t, os.WriteFile(path, text[:len(text)-10], 0o600))
	next = must.Get(Open(path, slog.New(slog.DiscardHandler)))(t)
	next.Write(Record{Env: "c"})
	next.Close()
	if chain := must.Get(verified(t, path))(t); chain.Last != 3 || chain.Cut != 1 {
		t.Errorf("%+v, want 3 records and a line that was cut", chain)
	}
	// What cannot be continued is kept beside a new log.
	must.Do(t, os.WriteFile(path, []byte("something else\n"), 0o600))
	next = must.Get(Open(path, slog.New(slog.DiscardHandler)))(t)
	next.Close()
	if chain := must.Get(verified(t, path))(t); chain.First != 1 || chain.Last != 1 {
		t.Errorf("%+v, want a new log", chain)
	}
	if got := must.Get(os.ReadFile(path + ".1"))(t); string(got) != "something else\n" {
		t.Errorf("%q is kept", got)
	}
}

func TestLog_Rotates(t *testing.T) {
	l, path, _ := opened(t)
	l.maxFile = 4 << 10
	for range 150 {
		l.Write(Record{Env: "bash"})
	}
	var paths []string
	for n := Files; n > 0; n-- {
		if name := fmt.Sprintf("%s.%d", path, n); exists(name) {
			paths = append(paths, name)
		}
	}
	if len(paths) != Files-1 {
		t.Fatalf("there are %q beside the newest file, want %d", paths, Files-1)
	}
	chain := must.Get(verified(t, append(paths, path)...))(t)
	if chain.First == 1 || chain.Last != 150 || chain.Records != int(chain.Last-chain.First)+1 {
		t.Errorf("%+v, want records up to 150 without the oldest", chain)
	}
}

// A file becomes as large as [MaxFile] says, and the chain goes on in the next one, also
// for a server that starts then.
func TestLog_RotatesAtItsRealSize(t *testing.T) {
	if os.Getenv(realSize) == "" {
		t.Skipf("%s is not set: a file of %d MiB is written and read", realSize, MaxFile>>20)
	}
	l, path, _ := opened(t)
	size := func(path string) int64 { return must.Get(os.Stat(path))(t).Size() }
	// Few large records fill a file sooner than many small ones.
	large := Record{Env: "bash", Reason: strings.Repeat("x", 7<<10)}
	l.Write(large)
	record, written := size(path), uint64(1)
	for ; size(path) < MaxFile; written++ {
		l.Write(large)
	}
	if exists(path + ".1") {
		t.Fatalf("the log rotated before it had %d bytes", MaxFile)
	}
	l.Write(large)
	// Later records are longer by the digits of their numbers.
	if got := size(path + ".1"); got < MaxFile || got > MaxFile+2*record {
		t.Errorf("the full file has %d bytes, want %d and at most a record more", got, MaxFile)
	}
	l.Close()
	must.Get(Open(path, slog.New(slog.DiscardHandler)))(t).Close()
	chain := must.Get(verified(t, path+".1", path))(t)
	if chain.First != 1 || chain.Last != written+1 || chain.Records != int(written)+1 || size(path) > 2*record {
		t.Errorf("%+v, want the records 1 to %d, and one in the newest file", chain, written+1)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Several servers write one chain, also while the files rotate.
func TestLog_IsSharedByServers(t *testing.T) {
	const writers, records = 4, 60
	first, path, _ := opened(t)
	logs := []*Log{first}
	for range writers - 1 {
		l := must.Get(Open(path, slog.New(slog.DiscardHandler)))(t)
		t.Cleanup(l.Close)
		logs = append(logs, l)
	}
	var wait sync.WaitGroup
	for _, l := range logs {
		l.maxFile = 16 << 10
		wait.Go(func() {
			for range records {
				l.Write(Record{Env: "bash"})
			}
		})
	}
	wait.Wait()
	var paths []string
	for n := Files; n > 0; n-- {
		if name := fmt.Sprintf("%s.%d", path, n); exists(name) {
			paths = append(paths, name)
		}
	}
	chain := must.Get(verified(t, append(paths, path)...))(t)
	if chain.Records != writers*records || len(paths) == 0 {
		t.Errorf("%+v in %d files, want %d records in several", chain, 1+len(paths), writers*records)
	}
}

// A log whose disk is full loses records and no call. The next record says how many.
func TestLog_OutlastsAFullDisk(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), onFullDisk+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func fillDisk(folder string) error {
	if err := unix.Mount("none", folder, "tmpfs", 0, "size=64k"); err != nil {
		return err
	}
	var lines bytes.Buffer
	path := filepath.Join(folder, "audit.jsonl")
	l, err := Open(path, slog.New(slog.NewTextHandler(&lines, nil)))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "other"), make([]byte, 48<<10), 0o600); err != nil {
		return err
	}
	const records = 100
	for range records {
		l.Write(Record{Env: "bash"})
	}
	full := l.State()
	if full.Lost == 0 || full.Records == 0 || full.Failure == "" || full.Lost+full.Records != records {
		return fmt.Errorf("on a full disk: %+v", full)
	}
	if err := os.Remove(filepath.Join(folder, "other")); err != nil {
		return err
	}
	l.Write(Record{Env: "bash"})
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var chain Chain
	if err := chain.Verify(bytes.NewReader(text)); err != nil {
		return err
	}
	if chain.Lost != full.Lost || uint64(chain.Records) != full.Records+1 || l.State().Failure != "" {
		return fmt.Errorf("%+v after %+v, and now %+v", chain, full, l.State())
	}
	if n := strings.Count(lines.String(), "misses records from now on"); n != 1 {
		return fmt.Errorf("the failure is logged %d times: %s", n, lines.String())
	}
	return nil
}

func FuzzVerify(f *testing.F) {
	a, hash, _ := Record{Seq: 1, Env: "bash"}.line()
	b, _, _ := Record{Seq: 2, Prev: hash}.line()
	whole := append(a, b...)
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c Chain
		err := c.Verify(bytes.NewReader(text))
		if err == nil && c.Records != bytes.Count(text, []byte("\n")) {
			t.Errorf("%d records in %d lines", c.Records, bytes.Count(text, []byte("\n")))
		}
		// Whatever stands in a file, a log can be written to it.
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Open(path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		before := l.State().Seq
		l.Write(Record{Env: "bash"})
		if s := l.State(); s.Lost > 0 || s.Seq != before+1 {
			t.Errorf("%+v", s)
		}
	})
}

// Names of control characters, which JSON escapes sixfold, take no more than their bytes,
// and a principal is charged for each record before it is written.
func TestLog_ChargesForRecords(t *testing.T) {
	l := must.Get(Open(filepath.Join(t.TempDir(), "audit"), slog.New(slog.DiscardHandler)))(t)
	defer l.Close()
	charged := map[string]int{}
	l.Charge(func(_ context.Context, principal string, bytes int) {
		if l.State().Records != uint64(len(charged)) {
			t.Error("the record was written before its principal was charged")
		}
		charged[principal] += bytes
	})
	odd := strings.Repeat("\x01", 200)
	for _, c := range []call.Call{
		{Principal: "plain", Code: "x"},
		{Principal: "odd", Code: "x", Session: odd, Trace: odd, Env: registry.Environment{Name: odd}},
	} {
		before := l.size
		call.ReportRefusal(c, errors.New("because "+odd), l)
		if size := int(l.size - max(before, 0)); size > 2<<10 || charged[c.Principal] < size || charged[c.Principal] > size+200 {
			t.Errorf("%s: a record of %d bytes is charged as %d", c.Principal, size, charged[c.Principal])
		}
	}
}
