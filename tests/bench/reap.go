package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// reapVerb is the first argument with which the benchmark starts itself to run
// [reap].
const reapVerb = "reap"

// reportVariable names the descriptor for the processor time of a command
// under [reap], in the form of [time.Duration].
const reportVariable = "NIX_SANDBOX_BENCH_REPORT"

// reap runs a command and waits for everything that it leaves behind, so that
// the processor time of a sandbox that was killed is counted too: it would go
// to the machine's first process otherwise. It writes that time
// to the descriptor that [reportVariable] names, where it is set, and ends
// with the command's exit status.
func reap(argv []string) int {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER of linux/prctl.h
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		fmt.Fprintf(os.Stderr, "bench: error: become the reaper of orphans: %v\n", errno)
		return 1
	}
	var report *os.File
	if number, err := strconv.Atoi(os.Getenv(reportVariable)); err == nil {
		report = os.NewFile(uintptr(number), "report")
		syscall.CloseOnExec(number)
		os.Unsetenv(reportVariable)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: error: %v\n", err)
		return 1
	}
	// Only the command may have its streams open.
	os.Stdin.Close()
	os.Stdout.Close()
	status := 1
	for {
		var ended syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ended, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // none is left
			if report != nil {
				fmt.Fprint(report, childrenCPU())
			}
			return status
		case pid == cmd.Process.Pid:
			status = ended.ExitStatus()
		}
	}
}

// childrenCPU is the processor time of all children that were waited for, and
// of theirs.
func childrenCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
