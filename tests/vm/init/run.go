package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
)

// How long processes may outlive the command before they count as left behind:
// a sandbox that was told to go takes that long where everything is emulated.
const grace = 2 * time.Second

// run runs the command in a cgroup as an ordinary user, sends its output, and
// waits until no process of the user is left.
func run(request guest.Request, group string, messages *json.Encoder) (guest.Ended, error) {
	var ended guest.Ended
	if len(request.Command) == 0 {
		return ended, fmt.Errorf("the request names no command")
	}
	folder := request.Folder
	if folder == "" {
		folder = home
	}
	program := request.Command[0]
	if !strings.Contains(program, "/") {
		var err error
		if program, err = lookUp(request.Path, program); err != nil {
			return ended, err
		}
	}
	groups := []uint32{guest.ID}
	if request.GPU {
		groups = append(groups, guest.RenderGroup)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return ended, err
	}
	defer reader.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return ended, err
	}
	defer null.Close()
	cgroup, err := os.Open(group)
	if err != nil {
		return ended, err
	}
	defer cgroup.Close()
	// syscall and not os/exec: this process reaps whatever ends, so it must be
	// the only one that waits.
	pid, err := syscall.ForkExec(program, request.Command, &syscall.ProcAttr{
		Dir:   folder,
		Env:   environment(request),
		Files: []uintptr{null.Fd(), writer.Fd(), writer.Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid:      true,
			Credential:  &syscall.Credential{Uid: guest.ID, Gid: guest.ID, Groups: groups},
			UseCgroupFD: true,
			CgroupFD:    int(cgroup.Fd()),
		},
	})
	writer.Close()
	if err != nil {
		return ended, fmt.Errorf("starting %s: %w", program, err)
	}
	sent := make(chan error, 1)
	go func() { sent <- send(messages, reader) }()

	status, err := reap(pid)
	if err != nil {
		return ended, err
	}
	ended.Status = status
	if os.Getpid() != 1 { // systemd's processes are the user's as well
		return ended, <-sent
	}
	ended.Left = leftBehind()
	// Every process but this one and the kernel's own.
	unix.Kill(-1, unix.SIGKILL)
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil && err != syscall.EINTR {
			break
		}
	}
	return ended, <-sent
}

// send passes the command's output on until nobody can write to it any more.
func send(messages *json.Encoder, output io.Reader) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := output.Read(buffer)
		if n > 0 {
			if err := messages.Encode(guest.Message{Output: buffer[:n]}); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// reap waits for every child process that ends until pid has ended, and returns
// the exit status of pid.
func reap(pid int) (int, error) {
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, fmt.Errorf("waiting for process %d: %w", pid, err)
		case ended == pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case ended == pid:
			return status.ExitStatus(), nil
		}
	}
}

// leftBehind names the processes of the user that did not end within the grace
// after the command.
func leftBehind() []string {
	deadline := time.Now().Add(grace)
	for {
		var left []string
		folders, _ := filepath.Glob("/proc/[0-9]*")
		for _, folder := range folders {
			pid, err := strconv.Atoi(filepath.Base(folder))
			if err != nil || pid == 1 {
				continue
			}
			// Kernel threads have no command line, and neither have
			// processes that ended and wait to be reaped.
			line, err := os.ReadFile(folder + "/cmdline")
			if err != nil || len(line) == 0 {
				continue
			}
			if len(left) < 20 {
				words := strings.TrimRight(strings.ReplaceAll(string(line), "\x00", " "), " ")
				left = append(left, fmt.Sprintf("%d %.100s", pid, words))
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func environment(request guest.Request) []string {
	return append([]string{
		"HOME=" + home,
		"LANG=C.UTF-8",
		"PATH=" + strings.Join(append(request.Path, "/bin", "/usr/bin"), ":"),
		"TMPDIR=/tmp",
		"USER=user",
		"XDG_RUNTIME_DIR=" + runtimeDir,
	}, request.Env...)
}

func lookUp(path []string, name string) (string, error) {
	for _, folder := range path {
		program := filepath.Join(folder, name)
		if info, err := os.Stat(program); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return program, nil
		}
	}
	return "", fmt.Errorf("the program %s is in none of the folders [%s]: give a --path that has it", name, strings.Join(path, ", "))
}
