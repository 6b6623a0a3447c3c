package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	_ "embed"
)

// cellsProgram runs cells as a notebook does, without anything of this project.
//
//go:embed cells.py
var cellsProgram string

const (
	workerArgument = "--bare-worker"
	noEnvironment  = "no environment runs "
)

// result is what a side made of a case: one run for a program, one for each cell.
type result struct {
	runs  []run
	took  time.Duration
	bytes int // of what a reader gets as text
	marks int // of these, the server's remarks and separators
}

type run struct {
	stdout, stderr string
	status         int
	images         int
	known          bool // images were counted
}

// environment is where programs of one interpreter run: the file tree, the variables and
// the namespaces of its sandboxes.
type environment struct {
	name       string
	bubblewrap string
	flags      []string
}

// readEnvironment reads the description that bin/run of an artifact has for its launcher.
func readEnvironment(name, program string) (environment, error) {
	text, err := os.ReadFile(program)
	if err != nil {
		return environment{}, err
	}
	_, text, _ = bytes.Cut(text, []byte("\n"))
	var known struct {
		Bubblewrap string   `json:"bubblewrap"`
		Flags      []string `json:"flags"`
	}
	if err := json.Unmarshal(text, &known); err != nil {
		return environment{}, fmt.Errorf("%s is no jail's (name a server with jails with --bare): %w", program, err)
	}
	return environment{name: name, bubblewrap: known.Bubblewrap, flags: known.Flags}, nil
}

// bare runs cases without the project. It belongs to one goroutine.
type bare struct {
	environments map[string]environment
	stage        string
	workers      map[string]*worker
}

// close ends the workers and returns the processor time of all that they ran.
func (b *bare) close() (spent time.Duration) {
	for _, w := range b.workers {
		w.close()
		spent += processorTime(w.cmd)
	}
	return spent
}

// processorTime is that of a program that has ended, and of those for which it waited.
func processorTime(cmd *exec.Cmd) time.Duration {
	if cmd.ProcessState == nil {
		return 0
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

func (b *bare) run(c testCase, timeout time.Duration) (result, error) {
	w := b.workers[c.language]
	if w == nil {
		e, ok := b.environments[c.language]
		if !ok {
			return result{}, errors.New(noEnvironment + c.language)
		}
		var err error
		if w, err = e.start(b.stage); err != nil {
			return result{}, err
		}
		b.workers[c.language] = w
	}
	task := job{Folder: "/cases/" + c.folder, Timeout: timeout, Copy: c.hasFiles, Program: c.program()}
	file := "/workspace/" + c.program()
	cells := c.session && c.language == "python"
	switch {
	case cells:
		task.Command = []string{"python3", "/cases/cells.py", task.Folder + "/cells.json"}
		task.Program = ""
		task.Timeout *= time.Duration(len(c.calls))
	case c.language == "python":
		task.Command = []string{"python3", file}
	case c.ext == ".ts":
		task.Command = []string{"sh", "-c", "esbuild main.ts --log-level=error --outfile=main.mjs && rm main.ts && exec node main.mjs"}
	case c.language == "node":
		task.Command = []string{"node", file}
	default:
		task.Program = ""
		task.Command = []string{"bash", "-c", strings.Join(c.calls, "\n")}
	}
	d, err := w.do(task)
	if err != nil {
		w.close()
		delete(b.workers, c.language)
		return result{}, err
	}
	if !cells {
		r := run{stdout: d.Stdout, stderr: d.Stderr, status: d.Status}
		return result{runs: []run{r}, took: d.Took, bytes: len(d.Stdout) + len(d.Stderr)}, nil
	}
	return divided(c, d)
}

// divided divides the output of cells.py into that of the cells.
func divided(c testCase, d done) (result, error) {
	stdout, stderr := strings.Split(d.Stdout, "\x00"), strings.Split(d.Stderr, "\x00")
	if len(stdout) != len(c.calls)+1 || len(stderr) != len(c.calls)+1 {
		return result{}, fmt.Errorf("cells ended early: status %d, %d of %d cells, %.200s", d.Status, len(stdout)-1, len(c.calls), stderr[len(stderr)-1])
	}
	var facts []struct{ Status, Images int }
	if err := json.Unmarshal([]byte(stderr[len(c.calls)]), &facts); err != nil || len(facts) != len(c.calls) {
		return result{}, fmt.Errorf("cells reported %.200s", stderr[len(c.calls)])
	}
	all := result{took: d.Took}
	for i := range c.calls {
		all.runs = append(all.runs, run{stdout: stdout[i], stderr: stderr[i], status: facts[i].Status, images: facts[i].Images, known: true})
		all.bytes += len(stdout[i]) + len(stderr[i])
	}
	return all, nil
}

// job asks a worker to run a program in a new workspace.
type job struct {
	Folder  string
	Copy    bool   // the files of the case are in the workspace
	Program string // is in the workspace, too
	Command []string
	Timeout time.Duration
}

type done struct {
	Stdout, Stderr string
	Status         int
	Took           time.Duration
}

// worker is this program in an environment, which starts interpreters there. No package of it may
// import net or os/user: with a compiler of C beside Go these make the program need a loader, which the
// environment lacks.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (e environment) start(stage string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := append([]string{}, e.flags...)
	args = append(args, "--ro-bind", self, "/worker", "--ro-bind", stage, "/cases", "--", "/worker", workerArgument)
	w := &worker{cmd: exec.Command(e.bubblewrap, args...)}
	w.cmd.Stderr = os.Stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(out)
	return w, w.cmd.Start()
}

func (w *worker) do(j job) (done, error) {
	if err := json.NewEncoder(w.in).Encode(j); err != nil {
		return done{}, err
	}
	var d done
	line, err := w.out.ReadBytes('\n')
	if err != nil {
		return done{}, fmt.Errorf("the bare interpreter's worker: %w", err)
	}
	return d, json.Unmarshal(line, &d)
}

func (w *worker) close() {
	_ = w.in.Close()
	_ = w.cmd.Wait()
}

// work is the worker. It is process 1 of its namespace.
func work(in io.Reader, out io.Writer) int {
	requests, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var j job
		if err := requests.Decode(&j); err != nil {
			if errors.Is(err, io.EOF) {
				return 0
			}
			return 1
		}
		if replies.Encode(perform(j)) != nil {
			return 1
		}
	}
}

func perform(j job) done {
	const workspace = "/workspace"
	for _, folder := range []string{workspace, "/tmp"} {
		entries, _ := os.ReadDir(folder)
		for _, entry := range entries {
			_ = os.RemoveAll(filepath.Join(folder, entry.Name()))
		}
	}
	_ = os.Mkdir(workspace+"/outputs", 0o755)
	if j.Copy {
		_ = os.CopyFS(workspace, os.DirFS(j.Folder+"/files"))
	}
	if j.Program != "" {
		text, _ := os.ReadFile(filepath.Join(j.Folder, j.Program))
		_ = os.WriteFile(filepath.Join(workspace, j.Program), text, 0o644)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(j.Command[0], j.Command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = workspace, &stdout, &stderr
	cmd.Env = append(os.Environ(), "MPLBACKEND=Agg", "PWD="+workspace)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second // for what keeps the pipes open
	begin := time.Now()
	d := done{}
	if err := cmd.Start(); err != nil {
		return done{Stderr: err.Error(), Status: 127}
	}
	timer := time.AfterFunc(j.Timeout, func() { _ = syscall.Kill(-1, syscall.SIGKILL) })
	err := cmd.Wait()
	d.Took = time.Since(begin)
	if !timer.Stop() {
		d.Status = timedOut
	} else if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && state.Signaled() {
		d.Status = 128 + int(state.Signal())
	} else if d.Status = cmd.ProcessState.ExitCode(); err != nil && d.Status == 0 && !errors.Is(err, exec.ErrWaitDelay) {
		d.Status = 1
	}
	_ = syscall.Kill(-1, syscall.SIGKILL)
	for { // process 1 has to reap them
		if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	d.Stdout, d.Stderr = stdout.String(), stderr.String()
	return d
}
