package builder

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// rig is a builder with programs in place of Nix. tests/e2e has it with Nix.
type rig struct {
	*Builder
	t                *testing.T
	folder, programs string
	socket           string
	log              safe
	again            chan struct{}
	end              func()
}

// safe is a buffer for several goroutines.
type safe struct {
	sync.Mutex
	bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.Lock()
	defer s.Unlock()
	return s.Buffer.Write(p)
}

func (s *safe) text() string {
	s.Lock()
	defer s.Unlock()
	return s.String()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, folder: t.TempDir(), programs: t.TempDir(), again: make(chan struct{}, 8)}
	t.Setenv("PATH", r.programs+":"+os.Getenv("PATH"))
	t.Setenv("PROGRAMS", r.programs)
	// What Nix plans of an order; a test holds it.
	r.program("nix", `for last; do case $last in */request.json) request=$last; esac; done
while [ -e $PROGRAMS/held ]; do sleep 0.01; done
cat "$request" >>$PROGRAMS/asked; echo >>$PROGRAMS/asked
cat $PROGRAMS/plan`)
	r.says("plan", "build /nix/store/x.drv")
	must.Write(t, filepath.Join(r.programs, "artifact", "metadata.json"), `{"closure_bytes": 2097152}`, 0o644)
	r.program("nix-store", `case $2 in
--dry-run) cat $PROGRAMS/dry >&2; exit;;
esac
cat $PROGRAMS/said >&2
ln -sfn $PROGRAMS/artifact "$4"`)
	r.says("dry", "")
	r.says("said", "")
	// A path that is longer than an address of a socket.
	folder := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	must.Do(t, os.MkdirAll(folder, 0o700))
	r.socket = filepath.Join(folder, ".orders")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	r.Builder = New(&Nix{Start: "start.nix", Log: &r.log}, r.folder, func() { r.again <- struct{}{} })
	listener := must.Get(order.Listen(r.socket))(t)
	go func() { served <- r.Serve(ctx, listener) }()
	r.end = sync.OnceFunc(func() {
		cancel()
		must.Do(t, <-served)
	})
	t.Cleanup(r.end)
	return r
}

func (r *rig) program(name, text string) {
	must.Write(r.t, filepath.Join(r.programs, name), "#!/bin/sh\n"+text+"\n", 0o755)
}

func (r *rig) says(file, text string) {
	must.Write(r.t, filepath.Join(r.programs, file), text+"\n", 0o644)
}

func (r *rig) hold() { r.says("held", "") }

func (r *rig) release() { must.Do(r.t, os.Remove(filepath.Join(r.programs, "held"))) }

// asked are the packages of the requests that Nix has read, in their order.
func (r *rig) asked() (all []string) {
	text, _ := os.ReadFile(filepath.Join(r.programs, "asked"))
	for line := range strings.Lines(string(text)) {
		_, name, _ := strings.Cut(line, `"packages":["`)
		name, _, _ = strings.Cut(name, `"`)
		all = append(all, name)
	}
	return all
}

var bounds = order.Bounds{MaxClosureMB: 100, KeepMB: 1000, BuildSeconds: 60, MaxBuilds: 1, KeepDays: 30}

// of is an order of a package.
func of(principal, name string) order.Order {
	return order.Order{
		Kind: order.Environment, Principal: principal, Key: fmt.Sprintf("%064x", []byte(name)),
		Base: "python", Recipe: "/recipe.json", Packages: []string{name}, Bounds: bounds,
	}
}

func (r *rig) place(o order.Order) error {
	_, err := order.Place(r.t.Context(), r.socket, o, nil)
	return err
}

func TestBuilder_BuildsAndReports(t *testing.T) {
	r := newRig(t)
	r.says("dry", "these 2 paths will be fetched (1.0 MiB download, 3.5 MiB unpacked):\n  /nix/store/a\n  /nix/store/b")
	r.says("said", "copying path '/nix/store/a' from somewhere\nbuilding '/nix/store/b.drv'...\n\x1b[31mtext")
	var seen []string
	progress := func(done, total int) { seen = append(seen, fmt.Sprintf("%d/%d", done, total)) }
	o := of("ada", "six")
	report := must.Get(order.Place(t.Context(), r.socket, o, progress))(t)
	if report.Folder != filepath.Join(r.folder, o.Key) || report.Bytes != 2<<20 {
		t.Errorf("the last report: %+v", report)
	}
	// Reports that come faster than they are read are left out, but for their order.
	if len(seen) == 0 || !slices.IsSorted(seen) || seen[0] > "0/2" {
		t.Errorf("progress %v", seen)
	}
	at := filepath.Join(r.folder, o.Key)
	if got := must.Get(os.Readlink(filepath.Join(at, order.ResultLink)))(t); got != filepath.Join(r.programs, "artifact") {
		t.Errorf("the result is %s", got)
	}
	if diff := cmp.Diff(`{"base":"python","packages":["six"],"recipe":"/recipe.json"}`, string(must.Get(os.ReadFile(filepath.Join(at, order.RequestFile)))(t))); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(at, order.BuildingFile)); err == nil {
		t.Error("it is still said to be built")
	}
	if log := r.log.text(); !strings.Contains(log, "nix-sandbox-mcp: packages 000000000000: [31mtext\n") {
		t.Errorf("the log: %q", log)
	}
	// It is there, so that Nix is not asked again.
	must.Do(t, r.place(o))
	if asked := r.asked(); len(asked) != 1 {
		t.Errorf("Nix was asked for %v", asked)
	}
}

func TestBuilder_Failures(t *testing.T) {
	r := newRig(t)
	for i, test := range []struct {
		file, text string
		want       order.Failure
	}{
		{"plan", "absent six", order.Failure{Kind: order.Absent, Package: "six"}},
		{"plan", "refused six it is marked as broken", order.Failure{Kind: order.Refused, Package: "six", Text: "it is marked as broken"}},
		{"dry", "this path will be fetched (1 MiB download, 2.5 GiB unpacked):\n  /nix/store/a", order.Failure{Kind: order.TooLarge, Size: 5 << 29}},
		{"artifact/metadata.json", `{"closure_bytes": 104857601}`, order.Failure{Kind: order.TooLarge, Size: 104857601}},
		{"nix-store", "#!/bin/sh\necho before >&2; echo 'error: builder failed' >&2; echo after >&2; exit 1", order.Failure{Kind: order.Failed, Text: "error: builder failed\nafter"}},
		{"nix-store", "#!/bin/sh\nexit 1", order.Failure{Kind: order.Failed, Text: "nix-store ended without a word: exit status 1"}},
		{"nix", "#!/bin/sh\nfor i in $(seq 100); do echo line $i >&2; done; exit 1", order.Failure{Kind: order.Failed, Text: "line 81\n" + lines(82, 100)}},
	} {
		path := filepath.Join(r.programs, test.file)
		before := must.Get(os.ReadFile(path))(t)
		r.says(test.file, test.text)
		o := of("ada", fmt.Sprint("six", i))
		err := r.place(o)
		var failure *order.Failure
		if !errors.As(err, &failure) || *failure != test.want {
			t.Errorf("%s %q: %+v", test.file, test.text, err)
		}
		if _, err := os.Stat(filepath.Join(r.folder, o.Key, order.FailedFile)); err != nil {
			t.Error(err)
		}
		must.Do(t, os.WriteFile(path, before, 0o755))
		// The next one may succeed, and then the failure is forgotten.
		must.Do(t, r.place(o))
		if _, err := os.Stat(filepath.Join(r.folder, o.Key, order.FailedFile)); err == nil {
			t.Error("it is still said to have failed")
		}
	}
}

func lines(from, to int) string {
	var all []string
	for i := from; i <= to; i++ {
		all = append(all, fmt.Sprint("line ", i))
	}
	return strings.Join(all, "\n")
}

// A build that takes too long ends with all that it started.
func TestBuilder_EndsSlowBuilds(t *testing.T) {
	r := newRig(t)
	r.program("nix", "trap '' TERM; sleep 900 & echo $! >$PROGRAMS/child; wait; sleep 900")
	o := of("ada", "six")
	o.Bounds.BuildSeconds = 1
	var failure *order.Failure
	if err := r.place(o); !errors.As(err, &failure) || failure.Kind != order.TooSlow {
		t.Errorf("%v", err)
	}
	child := strings.TrimSpace(string(must.Get(os.ReadFile(filepath.Join(r.programs, "child")))(t)))
	patience.Until(t, "the child is gone", func() bool {
		text, err := os.ReadFile("/proc/" + child + "/cmdline")
		return err != nil || len(text) == 0
	})
}

// The end of the server ends what is built, and its orders.
func TestBuilder_EndsWithTheServer(t *testing.T) {
	r := newRig(t)
	r.program("nix", "echo $$ >$PROGRAMS/pid; sleep 900")
	result := make(chan error, 1)
	go func() { result <- r.place(of("ada", "six")) }()
	var pid string
	patience.Until(t, "it is built", func() bool {
		text, _ := os.ReadFile(filepath.Join(r.programs, "pid"))
		pid = strings.TrimSpace(string(text))
		return pid != ""
	})
	r.end()
	if err := <-result; err == nil {
		t.Error("there is a result")
	}
	if _, err := os.Stat("/proc/" + pid); err == nil {
		t.Error("Nix runs on")
	}
}

// One principal's orders leave turns to another, several orders of one thing are one build, and those
// without a waiting call are not begun.
func TestBuilder_TakesTurns(t *testing.T) {
	r := newRig(t)
	r.hold()
	ctx, hangUp := context.WithCancel(t.Context())
	var all sync.WaitGroup
	placed := func(ctx context.Context, o order.Order) {
		reported := make(chan struct{}, 100)
		all.Go(func() { _, _ = order.Place(ctx, r.socket, o, func(int, int) { reported <- struct{}{} }) })
		<-reported
	}
	placed(t.Context(), of("alice", "first"))
	for i := range 20 {
		placed(ctx, of("alice", fmt.Sprint("a", i)))
	}
	placed(t.Context(), of("bob", "b"))
	placed(t.Context(), of("bob", "b"))
	placed(t.Context(), of("alice", "last"))
	hangUp()
	patience.Until(t, "those that hung up are gone", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.waiting) == 2
	})
	r.release()
	all.Wait()
	if diff := cmp.Diff([]string{"first", "b", "last"}, r.asked()); diff != "" {
		t.Error(diff)
	}
}

func TestBuilder_BoundsWhatWaits(t *testing.T) {
	r := newRig(t)
	r.hold()
	ctx, hangUp := context.WithCancel(t.Context())
	var all sync.WaitGroup
	reported := make(chan struct{}, 1000)
	for i := range maxEach + 1 { // the first is being built
		all.Go(func() {
			_, _ = order.Place(ctx, r.socket, of("greedy", fmt.Sprint("g", i)), func(int, int) { reported <- struct{}{} })
		})
	}
	for range maxEach + 1 {
		<-reported
	}
	var failure *order.Failure
	if err := r.place(of("greedy", "more")); !errors.As(err, &failure) || failure.Kind != order.Crowded {
		t.Errorf("one more: %v", err)
	}
	all.Go(func() {
		if _, err := order.Place(ctx, r.socket, of("modest", "m"), func(int, int) { reported <- struct{}{} }); !errors.Is(err, context.Canceled) {
			t.Errorf("another's: %v", err)
		}
	})
	<-reported
	hangUp()
	r.release()
	all.Wait()
}

// What a sandbox gets while it runs is of no environment, and one build for all orders of it.
func TestBuilder_AddsAndTells(t *testing.T) {
	r := newRig(t)
	o := order.Order{Kind: order.Addition, Principal: "ada", Packages: []string{"six"}, Bounds: bounds}
	first := must.Get(order.Place(t.Context(), r.socket, o, nil))(t)
	o.Principal, o.Base, o.Key = "bob", "bash", strings.Repeat("f", 64)
	second := must.Get(order.Place(t.Context(), r.socket, o, nil))(t)
	if first.Folder == "" || first.Folder != second.Folder || len(r.asked()) != 1 {
		t.Errorf("%+v, %+v, Nix was asked for %v", first, second, r.asked())
	}
	o.Kind = order.Facts
	r.says("plan", `{"six": {"version": "1"}}`)
	for range 2 {
		if report := must.Get(order.Place(t.Context(), r.socket, o, nil))(t); string(report.Value) != `{"six":{"version":"1"}}` {
			t.Errorf("facts: %s", report.Value)
		}
	}
	if asked := r.asked(); len(asked) != 2 {
		t.Errorf("Nix was asked for %v", asked)
	}
	o.Packages = []string{"seven"}
	r.says("plan", "no JSON")
	if err := r.place(o); err == nil {
		t.Error("what is no JSON is told")
	}
}

// A question does not wait for a build.
func TestBuilder_TellsWhileItBuilds(t *testing.T) {
	r := newRig(t)
	r.program("nix", `for last; do :; done
case $last in
derived) while [ -e $PROGRAMS/held ]; do sleep 0.01; done; echo build none;;
facts) echo '{}';;
esac`)
	r.hold()
	var all sync.WaitGroup
	reported := make(chan struct{}, 100)
	all.Go(func() {
		if _, err := order.Place(t.Context(), r.socket, of("ada", "six"), func(int, int) { reported <- struct{}{} }); err != nil {
			t.Error(err)
		}
	})
	<-reported
	must.Do(t, r.place(order.Order{Kind: order.Facts, Packages: []string{"six"}, Bounds: bounds}))
	r.release()
	all.Wait()
}

// A panic ends one order, and not the builder.
func TestBuilder_OutlastsAPanic(t *testing.T) {
	r := newRig(t)
	r.says("plan", "{}")
	set := func(facts map[string]json.RawMessage) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.facts = facts
	}
	set(nil) // which cannot be written to
	o := order.Order{Kind: order.Facts, Packages: []string{"six"}, Bounds: bounds}
	var failure *order.Failure
	if err := r.place(o); !errors.As(err, &failure) || failure.Text != "the builder failed to handle this; the server's log says more" {
		t.Errorf("%v", err)
	}
	if log := r.log.text(); !strings.Contains(log, "the builder panicked") {
		t.Errorf("the log: %s", log)
	}
	set(map[string]json.RawMessage{})
	must.Do(t, r.place(o))
}

func TestBuilder_BuildsAgain(t *testing.T) {
	r := newRig(t)
	must.Do(t, r.place(order.Order{Kind: order.Again}))
	<-r.again
}

// What is no order gets no answer, and hinders no other.
func TestBuilder_HostileOrders(t *testing.T) {
	r := newRig(t)
	for _, text := range []string{"", "\n", "{\n", "null\n", "{}\n", `{"kind":"environment","key":"../../x"}` + "\n", strings.Repeat("x", 2*order.MaxLine), `{"kind":"environment","key":"` + strings.Repeat("A", 64) + `"}` + "\n"} {
		conn := must.Get(net.Dial("unix", r.short()))(t)
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.UnixConn).CloseWrite()
		answer, _ := io.ReadAll(conn)
		if strings.Contains(string(answer), `"over"`) {
			t.Errorf("%.40q: %s", text, answer)
		}
		conn.Close()
	}
	if entries := must.Get(os.ReadDir(r.folder))(t); len(entries) > 0 {
		t.Errorf("left: %v", entries)
	}
	must.Do(t, r.place(of("ada", "six")))
}

// short is a name of the socket that fits into an address.
func (r *rig) short() string {
	link := filepath.Join(r.t.TempDir(), "l")
	must.Do(r.t, os.Symlink(filepath.Dir(r.socket), link))
	return filepath.Join(link, ".orders")
}

func FuzzReadPlan(f *testing.F) {
	f.Add([]byte("config\x00file\x00base\x00default\x001\x00own\x00python\x00\x00/\x00"))
	f.Add([]byte("\x00\x00\x00\x00-1\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		plan, err := ReadPlan(bufio.NewReader(bytes.NewReader(text)))
		if err == nil && bytes.Count(text, []byte{0}) < 5+4*len(plan.Items) {
			t.Errorf("%q is %+v", text, plan)
		}
	})
}
