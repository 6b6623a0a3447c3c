package callfiles_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/callfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

// fixture is Files with a sandbox to fill them from. Its time is a bubble's.
type fixture struct {
	*callfiles.Files
	t   *testing.T
	box *sandboxtest.Sandbox
}

func inBubble(t *testing.T, limits callfiles.Limits, test func(*testing.T, *fixture)) {
	t.Helper()
	if limits == (callfiles.Limits{}) {
		limits = callfiles.Limits{Idle: time.Minute, Lifetime: time.Hour, Calls: 100, Bytes: 1 << 30}
	}
	before := must.Get(procfs.Descriptors(os.Getpid()))(t)
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		machine := &sandboxtest.Machine{}
		box := must.Get(machine.Start(t.Context(), sandbox.Spec{}))(t)
		f := &fixture{callfiles.New(limits, folder, slog.New(slog.DiscardHandler)), t, box.(*sandboxtest.Sandbox)}
		test(t, f)
		f.Close()
		if entries := must.Get(os.ReadDir(folder))(t); len(entries) > 0 {
			t.Errorf("the folder has %v", entries)
		}
		machine.Close(0)
		synctest.Wait()
	})
	if after := must.Get(procfs.Descriptors(os.Getpid()))(t); after > before+2 { // the runtime's own poller
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// call makes files in the sandbox and has them kept. The result is what a call
// reports.
func (f *fixture) call(principal string, sizes ...int) []sandbox.File {
	f.t.Helper()
	var files []sandbox.File
	for i, size := range sizes {
		name := fmt.Sprintf("outputs/%d", i)
		f.box.WriteFile(name, bytes.Repeat([]byte{byte('a' + i)}, size))
		files = append(files, sandbox.File{Path: "/workspace/" + name, Size: int64(size)})
	}
	f.Keep(f.t.Context(), principal, f.box, files)
	return files
}

// reads fails the test unless a file is kept for a principal, or is not.
func (f *fixture) reads(principal string, file sandbox.File, want bool) {
	f.t.Helper()
	data, err := f.Read(principal, file.Kept, file.Path)
	var gone *call.GoneError
	switch {
	case want && (err != nil || len(data) != int(file.Size)):
		f.t.Errorf("%+v: %d bytes, error %v", file, len(data), err)
	case !want && !errors.As(err, &gone):
		f.t.Errorf("%+v: %d bytes, error %v", file, len(data), err)
	}
}

func TestKeep_OutlivesTheSandbox(t *testing.T) {
	inBubble(t, callfiles.Limits{}, func(t *testing.T, f *fixture) {
		files := f.call("alice", 3, 0, 1<<20)
		f.box.Kill()
		for i, file := range files {
			data, err := f.Read("alice", file.Kept, file.Path)
			if err != nil || !bytes.Equal(data, bytes.Repeat([]byte{byte('a' + i)}, int(file.Size))) {
				t.Errorf("%+v: %d bytes, error %v", file, len(data), err)
			}
			f.reads("bob", file, false)
		}
		if _, err := f.Read("alice", files[0].Kept, "/workspace/outputs/other"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
		f.reads("alice", sandbox.File{Path: files[0].Path, Kept: "0123456789abcdef"}, false)
	})
}

// Files end when nobody has read one for the idle time, and at their lifetime.
func TestKeep_EndsLikeASession(t *testing.T) {
	inBubble(t, callfiles.Limits{}, func(t *testing.T, f *fixture) {
		read, unread := f.call("", 5)[0], f.call("", 5)[0]
		for range 61 {
			time.Sleep(59 * time.Second)
			f.reads("", read, true)
		}
		f.reads("", unread, false)
		time.Sleep(2 * time.Second) // an hour since they were made
		f.reads("", read, false)
	})
}

// What is too large, too much or too many is left out, and so is what is shown
// already, has gone, or has grown since.
func TestKeep_IsBoundedByCall(t *testing.T) {
	inBubble(t, callfiles.Limits{}, func(t *testing.T, f *fixture) {
		files := f.call("", callfiles.MaxFileBytes, callfiles.MaxFileBytes+1, callfiles.MaxFileBytes-1, 2, 1)
		for i, want := range []bool{true, false, true, false, true} {
			if got := files[i].Kept != ""; got != want {
				t.Errorf("file %d of %d bytes: kept %v", i, files[i].Size, got)
			}
		}
		sizes := make([]int, callfiles.MaxFiles+4)
		count := 0
		for _, file := range f.call("", sizes...) {
			if file.Kept != "" {
				count++
			}
		}
		if count != callfiles.MaxFiles {
			t.Errorf("%d files of %d are kept, want %d", count, len(sizes), callfiles.MaxFiles)
		}
		f.box.WriteFile("outputs/grown", []byte("longer"))
		odd := []sandbox.File{
			{Path: "/workspace/outputs/shown", Size: 1, Content: []byte("x")},
			{Path: "/workspace/outputs/gone", Size: 1},
			{Path: "/workspace/outputs/grown", Size: 1},
		}
		f.Keep(t.Context(), "", f.box, odd)
		for _, file := range odd {
			if file.Kept != "" {
				t.Errorf("%+v is kept", file)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f.box.Kill()
		late := []sandbox.File{{Path: "/workspace/outputs/0", Size: 1}}
		if f.Keep(ctx, "", f.box, late); late[0].Kept != "" {
			t.Error("a file of a sandbox that ended is kept")
		}
	})
}

// Where there are too many, those of the principal with the most go first, and of
// these the ones that nobody has used for longest.
func TestKeep_IsBoundedInAll(t *testing.T) {
	inBubble(t, callfiles.Limits{Idle: time.Hour, Lifetime: time.Hour, Calls: 4, Bytes: 1000}, func(t *testing.T, f *fixture) {
		bob := f.call("bob", 10)[0]
		time.Sleep(time.Second)
		first, second := f.call("alice", 300)[0], f.call("alice", 300)[0]
		time.Sleep(time.Second)
		f.reads("alice", first, true)
		third := f.call("alice", 400)[0]
		f.reads("alice", second, false)
		f.reads("alice", third, true)
		time.Sleep(time.Second)
		f.reads("alice", first, true)
		// By their number.
		f.call("carol", 1)
		f.call("carol", 1)
		f.reads("bob", bob, true)
		f.reads("alice", third, false)
		if large := f.call("alice", 1001)[0]; large.Kept != "" {
			t.Errorf("%+v is kept", large)
		}
		f.reads("bob", bob, true)
	})
}

// Many calls with little in them do not cost another principal its files, and files
// without content are dropped too.
func TestKeep_IsBoundedInNumber(t *testing.T) {
	inBubble(t, callfiles.Limits{Idle: time.Hour, Lifetime: time.Hour, Calls: 4, Bytes: 1000}, func(t *testing.T, f *fixture) {
		bob := f.call("bob", 500)[0]
		for range 10 {
			time.Sleep(time.Second)
			last := f.call("alice", 0)[0]
			f.reads("alice", last, true)
		}
		f.reads("bob", bob, true)
		// By their bytes.
		f.call("carol", 600)
		f.reads("bob", bob, false)
	})
	inBubble(t, callfiles.Limits{Idle: time.Hour, Lifetime: time.Hour, Calls: 2, Bytes: 1000}, func(t *testing.T, f *fixture) {
		for range 4 {
			last := f.call("alice", 0)[0]
			f.reads("alice", last, true)
		}
	})
}

func TestClose_DropsEverything(t *testing.T) {
	inBubble(t, callfiles.Limits{}, func(t *testing.T, f *fixture) {
		file := f.call("", 5)[0]
		f.Close()
		f.reads("", file, false)
		if later := f.call("", 5)[0]; later.Kept != "" {
			t.Error("a file is kept after the end")
		}
	})
}

// Where no file can be made, nothing is kept, and calls go on.
func TestKeep_WithoutAFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine := &sandboxtest.Machine{}
		box := must.Get(machine.Start(t.Context(), sandbox.Spec{}))(t).(*sandboxtest.Sandbox)
		f := &fixture{callfiles.New(callfiles.Limits{Idle: time.Hour, Lifetime: time.Hour, Calls: 1, Bytes: 10}, "/nowhere", slog.New(slog.DiscardHandler)), t, box}
		for range 3 {
			if file := f.call("", 5)[0]; file.Kept != "" {
				t.Errorf("%+v is kept", file)
			}
		}
		f.Close()
		machine.Close(0)
	})
}
