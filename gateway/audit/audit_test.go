package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
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

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// onFullDisk is set in a process with a small file system of its own.
const onFullDisk = "NIX_SANDBOX_TEST_FULL_DISK"

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
	return l, path, lines
}

// records reads a log. Lines that were cut are counted.
func records(text []byte) (all []Record, cut int) {
	for line := range bytes.Lines(text) {
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			cut++
		} else {
			all = append(all, r)
		}
	}
	return all, cut
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
	text := string(must.Get(os.ReadFile(path))(t))
	if all, cut := records([]byte(text)); len(all) != 3 || cut != 0 || l.State().Records != 3 {
		t.Errorf("%d records and %d cut lines, state %+v", len(all), cut, l.State())
	}
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

// A line that was cut stays apart from the next record, and a file that another program has renamed
// is followed by a new one, for its owner alone.
func TestLog_GoesOnWhereTheFileEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	must.Do(t, os.WriteFile(path, []byte(`{"time":"20`), 0o600))
	l := must.Get(Open(path, slog.New(slog.DiscardHandler)))(t)
	l.Write(Record{Env: "a"})
	if all, cut := records(must.Get(os.ReadFile(path))(t)); len(all) != 1 || cut != 1 || all[0].Env != "a" {
		t.Errorf("%+v and %d cut lines", all, cut)
	}
	must.Do(t, os.Rename(path, path+".1"))
	l.Write(Record{Env: "b"})
	if all, cut := records(must.Get(os.ReadFile(path))(t)); len(all) != 1 || cut != 0 || all[0].Env != "b" {
		t.Errorf("%+v and %d cut lines in the new file", all, cut)
	}
	if mode := must.Get(os.Stat(path))(t).Mode(); mode != 0o600 {
		t.Errorf("the new file has mode %v", mode)
	}
	must.Do(t, os.Remove(path))
	must.Do(t, os.Mkdir(path, 0o700))
	l.Write(Record{})
	if s := l.State(); s.Lost != 1 || s.Records != 2 || s.Failure == "" {
		t.Errorf("a folder is in the way: %+v", s)
	}
}

// Several servers write whole lines to one file.
func TestLog_IsSharedByServers(t *testing.T) {
	const writers, each = 4, 60
	first, path, _ := opened(t)
	logs := []*Log{first}
	for range writers - 1 {
		logs = append(logs, must.Get(Open(path, slog.New(slog.DiscardHandler)))(t))
	}
	var wait sync.WaitGroup
	for _, l := range logs {
		wait.Go(func() {
			for range each {
				l.Write(Record{Env: "bash", Reason: strings.Repeat("x", maxReason)})
			}
		})
	}
	wait.Wait()
	if all, cut := records(must.Get(os.ReadFile(path))(t)); len(all) != writers*each || cut != 0 {
		t.Errorf("%d records and %d cut lines, want %d", len(all), cut, writers*each)
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
	const written = 200
	for range written {
		l.Write(Record{Env: "bash"})
	}
	full := l.State()
	if full.Lost == 0 || full.Records == 0 || full.Failure == "" || full.Lost+full.Records != written {
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
	all, _ := records(text)
	if last := all[len(all)-1]; last.Lost != full.Lost || uint64(len(all)) != full.Records+1 || l.State().Failure != "" {
		return fmt.Errorf("%d records, the last one %+v, after %+v, and now %+v", len(all), last, full, l.State())
	}
	if n := strings.Count(lines.String(), "misses records from now on"); n != 1 {
		return fmt.Errorf("the failure is logged %d times: %s", n, lines.String())
	}
	return nil
}

// Names of control characters, which JSON escapes sixfold, take no more than their bytes,
// and a principal is charged for each record before it is written.
func TestLog_ChargesForRecords(t *testing.T) {
	l, path, _ := opened(t)
	size := func() int { return int(must.Get(os.Stat(path))(t).Size()) }
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
		before := size()
		call.ReportRefusal(c, errors.New("because "+odd), l)
		if size := size() - before; size > 2<<10 || charged[c.Principal] < size || charged[c.Principal] > size+200 {
			t.Errorf("%s: a record of %d bytes is charged as %d", c.Principal, size, charged[c.Principal])
		}
	}
}
