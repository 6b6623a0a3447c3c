package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

const (
	// slice is how long a contender works before the next one's turn. Calls that run then are
	// awaited, and count.
	slice = 2 * time.Second
	// crowdLimit is how long one call in a crowd may take: where 128 interpreters load a large
	// library at once, all of them take as long as one after the other.
	crowdLimit = 2 * time.Minute
)

// heavy loads a large library.
var heavy = workload{"import pandas; print(1+1)", "2", "import pandas, time; print(2, flush=True); time.sleep(1)"}

// rate is how many calls a second one contender answers to a number of callers.
type rate struct {
	Code    string  `json:"code"`
	Callers int     `json:"callers"`
	Name    string  `json:"name"`
	Gap     string  `json:"gap,omitempty"`
	Calls   int     `json:"calls,omitempty"`
	Rate    float64 `json:"calls_per_second,omitempty"` // the median of the slices
	Ratio   float64 `json:"ratio,omitempty"`            // to the first row of the same code and callers
	P50     float64 `json:"p50_ms,omitempty"`
	P99     float64 `json:"p99_ms,omitempty"`
	CPU     float64 `json:"cpu_ms,omitempty"`     // a call, of the whole machine
	Memory  float64 `json:"memory_mib,omitempty"` // the most that all its processes had together
}

// A crowd is the series of measurements of one contender with one number of callers.
type crowd struct {
	contender
	beside []*crowd // all contenders
	times  []time.Duration
	rates  []float64
	most   int64         // bytes
	spent  time.Duration // on all processors, until the contender rested
}

// throughput measures every way to run the smallest code, and code that loads pandas, with each
// number of callers. An error of a contender is a gap in its row.
func (b *bench) throughput(ctx context.Context, say func(string, ...any)) ([]rate, error) {
	var list []rate
	var failed error
	a := b.found["python"]
	for _, w := range []workload{small["python"], heavy} {
		for _, callers := range b.callers {
			say("python: %s, %d callers", w.code, callers)
			rows, err := b.crowd(ctx, a, w, callers)
			list = append(list, rows...)
			failed = errors.Join(failed, err)
		}
	}
	return list, errors.Join(failed, ctx.Err())
}

// crowd measures all contenders with one number of callers, in turns.
func (b *bench) crowd(ctx context.Context, a artifact, w workload, callers int) ([]rate, error) {
	plain, jail := b.plain(a, w), b.jail(a, w)
	list := []*crowd{{contender: plain}, {contender: jail}}
	builds := map[string]build{"": b.build}
	if b.other != nil {
		builds[", of the other build"] = *b.other
	}
	for _, suffix := range slices.Sorted(maps.Keys(builds)) {
		for name, session := range map[string]string{"run, one sandbox waiting": "", "run in a session for each caller": "bench"} {
			of := *b
			of.build = builds[suffix]
			c := of.call(of.found["python"], name+suffix, of.warm, session, w.code, w.want)
			c.launch.env = append([]string{fmt.Sprint("SESSION_MAX=", max(callers, 64))}, c.launch.env...)
			list = append(list, &crowd{contender: c})
		}
	}
	slices.SortStableFunc(list[2:], func(a, b *crowd) int { return len(a.Name()) - len(b.Name()) })
	rows := make([]rate, len(list))
	var failed error
	gap := func(i int, err error) {
		rows[i].Gap = err.Error()
		failed = errors.Join(failed, fmt.Errorf("throughput, %s, %d callers: %s: %w", w.code, callers, list[i].Name(), err))
	}
	for i, c := range list {
		c.beside = list
		rows[i] = rate{Code: w.code, Callers: callers, Name: c.Name()}
		if err := bounded(ctx, c.Prepare); err != nil {
			gap(i, err)
			continue
		}
		defer c.Close()
		s, served := c.contender.(*served)
		first := 1
		if served && s.session != "" {
			first = callers // each starts a sandbox, and loads the library
		}
		if err := c.rush(ctx, first, 0); err != nil {
			gap(i, err)
		}
		if served {
			s.Settle(ctx)
		}
		c.times, c.rates, c.most = nil, nil, 0
	}
	for range max(1, int(b.duration/slice)) {
		for i, c := range list {
			if rows[i].Gap != "" {
				continue
			}
			before := machineCPU()
			if err := c.rush(ctx, callers, slice); err != nil {
				gap(i, err)
			}
			if s, ok := c.contender.(settler); ok {
				s.Settle(ctx)
			}
			c.spent += machineCPU() - before
		}
	}
	for i, c := range list {
		if rows[i].Gap != "" {
			continue
		}
		slices.Sort(c.times)
		rows[i].Calls, rows[i].Rate = len(c.times), median(c.rates)
		rows[i].P50, rows[i].P99 = milliseconds(quantile(c.times, 0.5)), milliseconds(quantile(c.times, 0.99))
		rows[i].CPU, rows[i].Memory = milliseconds(c.spent)/float64(len(c.times)), mebibytes(c.most)
		if rows[0].Rate > 0 {
			rows[i].Ratio = rows[i].Rate / rows[0].Rate
		}
	}
	return rows, failed
}

// rush has callers call for a while, each without a pause and at least once, and weighs all processes
// in the middle of it.
func (c *crowd) rush(ctx context.Context, callers int, duration time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, crowdLimit)
	defer cancel()
	var mu sync.Mutex
	var wait sync.WaitGroup
	errs := make([]error, callers)
	began := time.Now()
	calls := 0
	for i := range callers {
		mine := c.contender
		if s, ok := mine.(*served); ok && s.session != "" {
			// A session answers one caller at a time: each has its own.
			own := *s
			own.session += fmt.Sprint(i)
			mine = &own
		}
		wait.Go(func() {
			for again := true; again && errs[i] == nil; again = time.Since(began) < duration {
				var took time.Duration
				if took, errs[i] = mine.Call(ctx); errs[i] == nil {
					mu.Lock()
					c.times = append(c.times, took)
					calls++
					mu.Unlock()
				}
			}
		})
	}
	if duration > 0 {
		wait.Go(func() {
			time.Sleep(duration / 2)
			// What ends meanwhile has no memory.
			if bytes, err := procfs.Memory(c.processes()...); err == nil {
				c.most = max(c.most, bytes)
			}
		})
	}
	wait.Wait()
	c.rates = append(c.rates, float64(calls)/time.Since(began).Seconds())
	// Where one fails, all do, for the same reason.
	return cmp.Or(errs...)
}

// processes are those of the contender: of a server its own, and of a command those that no server has
// started.
func (c *crowd) processes() []int {
	if s, ok := c.contender.(*served); ok {
		return procfs.Descendants(s.server.PID())
	}
	var servers []int
	for _, other := range c.beside {
		if s, ok := other.contender.(*served); ok && s.server != nil {
			servers = append(servers, procfs.Tree(s.server.PID())...)
		}
	}
	return slices.DeleteFunc(procfs.Descendants(os.Getpid()), func(pid int) bool { return slices.Contains(servers, pid) })
}

// machineCPU is the time that all processors have worked since the machine's start. It has what no
// process is charged with: the kernel's own work, and that of interpreters which the kernel ended with
// the first process of their sandbox, and for which nothing waited. What else the machine does is in it
// too.
func machineCPU() time.Duration {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	const hertz = 100 // USER_HZ, of all architectures of Go
	var ticks time.Duration
	for i, word := range strings.Fields(line) {
		// cpu user nice system idle iowait irq softirq; see proc_stat(5).
		if n, err := strconv.ParseInt(word, 10, 64); err == nil && i < 8 && i != 4 && i != 5 {
			ticks += time.Duration(n)
		}
	}
	return ticks * time.Second / hertz
}

// rateTable is the table of all rows, with a line for each code.
func rateTable(list []rate) table {
	t := table{{"python, callers without a pause", "callers", "calls/s", "ratio", "p50 ms", "p99", "CPU ms", "MiB in all"}}
	for i, r := range list {
		if i == 0 || r.Code != list[i-1].Code {
			t = append(t, []string{r.Code, ""})
		}
		if r.Gap != "" {
			t = append(t, []string{r.Name, "gap: " + r.Gap})
			continue
		}
		t = append(t, []string{
			r.Name, fmt.Sprint(r.Callers), number(r.Rate), times(r.Ratio), number(r.P50), number(r.P99), number(r.CPU), number(r.Memory),
		})
	}
	return t
}
