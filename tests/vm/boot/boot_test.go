package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// machineTime is what a test waits for one machine, on a busy host too.
const machineTime = 3 * time.Minute

// The test program is also what the machines run: NIX_SANDBOX_TEST_PROGRAM says
// what it does there.
func TestMain(m *testing.M) {
	switch os.Getenv("NIX_SANDBOX_TEST_PROGRAM") {
	case "":
		os.Exit(m.Run())
	case "leave":
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
		child := exec.Command("/proc/self/exe")
		child.Env = []string{"NIX_SANDBOX_TEST_PROGRAM=stay"}
		if err := child.Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		status, _ := strconv.Atoi(os.Args[1])
		os.Exit(status)
	case "stay":
		time.Sleep(time.Hour)
	case "flood":
		line := bytes.Repeat([]byte{'x'}, 1<<20)
		for {
			os.Stdout.Write(line)
		}
	}
}

// vm is tests/vm/run with this test program as the command.
func vm(t *testing.T, program string, options []string, arguments ...string) *exec.Cmd {
	t.Helper()
	artifact := undertest.ArtifactOfType(t, "bash")
	own := must.Get(os.Executable())(t)
	files := t.TempDir()
	must.Get(command(t.Context(), []string{"cp", own, filepath.Join(files, "program")}))(t)
	ctx, cancel := context.WithTimeout(context.Background(), machineTime)
	t.Cleanup(cancel)
	words := append([]string{"--memory", "512", "--store", artifact, "--files", files, "--verbose",
		"--console", filepath.Join(files, "console.log"), "--env", "NIX_SANDBOX_TEST_PROGRAM=" + program}, options...)
	words = append(append(words, "/tests/program"), arguments...)
	cmd := exec.CommandContext(ctx, "../run", words...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// up reads the output of the runner until the command runs, and returns QEMU's
// process id.
func up(t *testing.T, cmd *exec.Cmd, errs io.Reader) int {
	t.Helper()
	lines := bufio.NewScanner(errs)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), ": up after ") {
			continue
		}
		for _, p := range procfs.All() {
			if p.Parent == cmd.Process.Pid && strings.HasPrefix(p.Name(), "qemu-system") {
				return p.PID
			}
		}
	}
	t.Fatal("the machine did not come up")
	return 0
}

func TestCommandEnds(t *testing.T) {
	for _, test := range []struct{ own, status int }{{3, 3}, {0, statusLeft}} {
		t.Run(strconv.Itoa(test.own), func(t *testing.T) {
			cmd := vm(t, "leave", nil, strconv.Itoa(test.own))
			var output, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &output, &errs
			err := cmd.Run()
			if status := cmd.ProcessState.ExitCode(); status != test.status {
				t.Errorf("%v, want exit status %d", err, test.status)
			}
			if want := "to stdout\nto stderr\n"; output.String() != want {
				t.Errorf("it printed %q, want %q", &output, want)
			}
			if want := "vm: the command left process "; !strings.Contains(errs.String(), want) {
				t.Errorf("it says %q, want %q in it", &errs, want)
			}
		})
	}
}

func TestTimeLimit(t *testing.T) {
	cmd := vm(t, "stay", []string{"--time-limit", "12"})
	output, err := cmd.CombinedOutput()
	if status := cmd.ProcessState.ExitCode(); status != statusTimeLimit {
		t.Errorf("%v, want exit status %d", err, statusTimeLimit)
	}
	if want := "the time limit of 12s passed"; !strings.Contains(string(output), want) {
		t.Errorf("it says %q, want %q in it", output, want)
	}
}

// However the runner ends, QEMU ends with it.
func TestRunnerEnds(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"asked": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			cmd := vm(t, "stay", nil)
			errs := must.Get(cmd.StderrPipe())(t)
			must.Do(t, cmd.Start())
			qemu := up(t, cmd, errs)
			must.Do(t, cmd.Process.Signal(signal))
			cmd.Wait()
			patience.Gone(t, qemu)
		})
	}
}

func TestOutputIsBounded(t *testing.T) {
	cmd := vm(t, "flood", nil)
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Discard, &errs
	err := cmd.Run()
	if status := cmd.ProcessState.ExitCode(); status != statusMachine {
		t.Errorf("%v, want exit status %d", err, statusMachine)
	}
	if want := fmt.Sprintf("the command printed more than %d MB", outputLimit>>20); !strings.Contains(errs.String(), want) {
		t.Errorf("it says %q, want %q in it", &errs, want)
	}
}
