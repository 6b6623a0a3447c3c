// Differential runs programs in sandboxes of a server and beside them, by the same
// interpreters without the agent, its drivers and the system call filter, and reports
// where the two differ. README.md says what a case is.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// settings are the command line.
type settings struct {
	server  string
	bare    string
	report  string
	jobs    int
	timeout time.Duration
	repeat  bool
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == workerArgument {
		os.Exit(work(os.Stdin, os.Stdout))
	}
	var s settings
	flag.StringVar(&s.server, "server", "", "`FILE` bin/nix-sandbox-mcp of the server under test")
	flag.StringVar(&s.bare, "bare", "", "the server whose environments run beside it; the same if left out")
	flag.StringVar(&s.report, "report", "", "`FILE` that gets a line of JSON for each case")
	flag.IntVar(&s.jobs, "jobs", 1, "cases at once")
	flag.DurationVar(&s.timeout, "timeout", 30*time.Second, "of one call")
	flag.BoolVar(&s.repeat, "repeat", true, "run a case that differs again, to find out whether it is stable")
	flag.Parse()
	if s.server == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: differential --server FILE [--jobs N] [--report FILE] CASES...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	outcomes, spent, err := compareAll(ctx, s, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "differential:", err)
		os.Exit(1)
	}
	fmt.Print(summary(outcomes))
	fmt.Printf("processor time: %s in sandboxes, with their start and what waits at the end, %s beside them, ratio %.2f\n",
		spent.ours.Round(time.Millisecond), spent.theirs.Round(time.Millisecond), float64(spent.ours)/float64(max(spent.theirs, 1)))
}

// spent is the processor time of each side.
type spent struct{ ours, theirs time.Duration }

// compareAll runs the cases below some paths. The outcomes are in the order of the cases.
func compareAll(ctx context.Context, s settings, paths []string) (outcomes []outcome, spent spent, err error) {
	// A jail's first process may outlive the one that would wait for it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, spent, err
	}
	before := ofChildren()
	stage, err := os.MkdirTemp("", "differential-")
	if err != nil {
		return nil, spent, err
	}
	defer func() { _ = os.RemoveAll(stage) }()
	// The user of a sandbox reads it.
	if err := os.Chmod(stage, 0o755); err != nil {
		return nil, spent, err
	}
	cases, err := load(paths, stage)
	if err != nil {
		return nil, spent, err
	}
	server, err := startServer(ctx, s.server, stage)
	if err != nil {
		return nil, spent, err
	}
	defer func() {
		server.close()
		spent.ours = ofChildren() - spent.theirs - before
	}()
	if s.bare == "" {
		s.bare = s.server
	}
	environments, err := readEnvironments(s.bare)
	if err != nil {
		return nil, spent, err
	}

	var report *json.Encoder
	if s.report != "" {
		file, err := os.Create(s.report)
		if err != nil {
			return nil, spent, err
		}
		defer func() { _ = file.Close() }()
		report = json.NewEncoder(file)
	}
	outcomes = make([]outcome, len(cases))
	next := make(chan int)
	var mu sync.Mutex
	var group sync.WaitGroup
	for range max(s.jobs, 1) {
		group.Go(func() {
			b := bare{environments: environments, stage: stage, workers: map[string]*worker{}}
			defer func() {
				time := b.close()
				mu.Lock()
				spent.theirs += time
				mu.Unlock()
			}()
			for i := range next {
				o := compareCase(ctx, s, server, &b, cases[i])
				mu.Lock()
				outcomes[i] = o
				if report != nil {
					_ = report.Encode(o)
				}
				if o.Verdict != same && o.Verdict != bothFail {
					fmt.Fprintf(os.Stderr, "%s %s: %s\n", o.Verdict, o.Name, o.Difference)
				}
				mu.Unlock()
			}
		})
	}
	for i := range cases {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	group.Wait()
	return outcomes, spent, ctx.Err()
}

// ofChildren waits for all children that have ended, and returns the processor time of all so far.
// It is called where no other function waits for one.
func ofChildren() time.Duration {
	for {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// compareCase runs one case on both sides.
func compareCase(ctx context.Context, s settings, server *server, b *bare, c testCase) outcome {
	o := outcome{Name: c.name, Language: c.language}
	theirs, err := b.run(c, s.timeout)
	if err != nil {
		o.Verdict, o.Difference = broken, err.Error()
		return o
	}
	ours, err := server.run(ctx, c, s.timeout)
	if err != nil {
		o.Verdict, o.Difference = broken, err.Error()
		return o
	}
	o.judge(c, ours, theirs)
	// Another run of either side tells what the program itself does otherwise each time.
	if o.Verdict == differs || o.Verdict == oursFails {
		first := o
		if again, err := b.run(c, s.timeout); s.repeat && err == nil && !equal(c, theirs, again) {
			o.Verdict = unstable
		} else if again, err := server.run(ctx, c, s.timeout); s.repeat && err == nil {
			if o.judge(c, again, theirs); o.Verdict != first.Verdict || o.Difference != first.Difference {
				o.Difference = first.Difference
				if o.Verdict == same {
					o.Verdict = unstable
				}
			}
		}
	}
	return o
}

// metadata returns what a server says of its environments.
func metadata(program string) (environments map[string]described, err error) {
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(program), "..", "share", "nix-sandbox-mcp", "metadata.json"))
	if err != nil {
		return nil, err
	}
	var read struct{ Environments map[string]described }
	err = json.Unmarshal(text, &read)
	return read.Environments, err
}

type described struct {
	Exec            string `json:"exec"`
	InterpreterType string `json:"interpreter_type"`
	// Usual and Most are the limits of a call, in seconds.
	Usual float64 `json:"timeout_seconds"`
	Most  float64 `json:"max_timeout_seconds"`
	name  string
}

// readEnvironments returns the bare environments, by the interpreter's type.
func readEnvironments(program string) (map[string]environment, error) {
	all, err := metadata(program)
	found := map[string]environment{}
	for name, e := range all {
		if found[e.InterpreterType], err = readEnvironment(name, e.Exec); err != nil {
			return nil, err
		}
	}
	return found, err
}
