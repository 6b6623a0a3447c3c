package process

import (
	"errors"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/bpf"
)

// onThread runs a function on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// Package syscall starts a process by fork where it is given forceFork, and by
// vfork where it is not. The kernel tells: a filter refuses vfork.
func TestForceFork_MakesSyscallFork(t *testing.T) {
	err := onThread(func() error {
		program, err := bpf.Compile(0, []bpf.Rule{
			bpf.On(unix.SYS_CLONE, bpf.Check{Test: bpf.AnyBit, Values: []uint32{unix.CLONE_VFORK}, Then: bpf.Errno(unix.EXDEV)}),
			// clone3(2) has its flags in memory, which a filter cannot read.
			bpf.On(unix.SYS_CLONE3, bpf.Check{Then: bpf.Errno(unix.EXDEV)}),
		}, nil)
		if err != nil {
			return err
		}
		if err := bpf.Install(program, 0); err != nil {
			return err
		}
		if err := confine(); err != nil {
			return err
		}
		for flags, want := range map[uintptr]error{0: unix.EXDEV, forceFork: nil} {
			pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{
				Sys: &syscall.SysProcAttr{Unshareflags: flags},
			})
			if !errors.Is(err, want) {
				t.Errorf("with the flags %#x: process %d, error %v, want %v", flags, pid, err, want)
			}
			// The table of this test's program reaps the process.
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// No kernel has given the mask a meaning: without the filter it is refused.
func TestForceFork_IsRefusedByTheKernel(t *testing.T) {
	err := onThread(func() error { return unix.Unshare(forceFork) })
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("error %v, want EINVAL", err)
	}
}

func TestConfine_AllowsCallsForItselfAlone(t *testing.T) {
	var limit unix.Rlimit
	attempts := map[string]func(pid int) error{
		"prlimit":           func(pid int) error { return unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &limit) },
		"setpriority":       func(pid int) error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 19) },
		"sched_setaffinity": func(pid int) error { var set unix.CPUSet; set.Set(0); return unix.SchedSetaffinity(pid, &set) },
	}
	other := start(t, nil, "sleep 99")
	defer other.Kill()
	err := onThread(func() error {
		for name, attempt := range attempts {
			if err := attempt(other.Pid); err != nil {
				t.Errorf("%s of another process without the filter: %v", name, err)
			}
		}
		if err := confine(); err != nil {
			return err
		}
		for name, attempt := range attempts {
			if err := attempt(other.Pid); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s of another process: error %v, want EPERM", name, err)
			}
			if err := attempt(0); err != nil {
				t.Errorf("%s of itself: %v", name, err)
			}
		}
		if err := bpf.Install([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}, 0); !errors.Is(err, unix.EINVAL) {
			t.Errorf("a further filter: error %v, want EINVAL", err)
		}
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); !errors.Is(err, unix.EINVAL) {
			t.Errorf("become the parent of others' children: error %v, want EINVAL", err)
		}
		// A group's priority is that of its processes.
		if err := unix.Setpriority(unix.PRIO_PGRP, 0, 19); !errors.Is(err, unix.EPERM) {
			t.Errorf("setpriority of the group: error %v, want EPERM", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
