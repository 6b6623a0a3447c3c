package jail

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
)

// Sysctls with which a system forbids user namespaces, without which there is no
// jail: files below /proc/sys that contain a number. A file is absent where it does
// not apply.
const (
	sysctlMax      = "user/max_user_namespaces"
	sysctlDebian   = "kernel/unprivileged_userns_clone"
	sysctlAppArmor = "kernel/apparmor_restrict_unprivileged_userns"
)

// Check returns why no sandbox would start here with this bubblewrap, in the
// sentences with which the start would be refused.
func Check(ctx context.Context, bubblewrap string) error {
	user, err := hostUser(os.Getpid())
	if err != nil {
		return err
	}
	if user != 0 {
		if err := capable(); err != nil {
			return err
		}
	}
	output, works := namespacesWork(ctx, bubblewrap, user)
	if err := checkSysctls("/proc/sys", unix.Geteuid() == 0 && user == 0, func() bool { return works }); err != nil {
		return err
	}
	if works {
		output, works = mountsWork(ctx, bubblewrap, user)
	}
	if !works {
		return &Refusal{
			Problem: fmt.Sprintf("%s makes no sandbox here: %s", bubblewrap, output),
			Hint:    hintOfOutput(output),
		}
	}
	return nil
}

// hintOfOutput returns what to do where bubblewrap said this and its user may make
// user namespaces: what containers and services forbid beside them.
func hintOfOutput(output string) string {
	switch {
	case strings.Contains(output, "set hostname"):
		return "start the container with --security-opt seccomp=seccomp.json, the file of that name in the folder deploy of nix-sandbox-mcp; a service of systemd without ProtectHostname"
	case strings.Contains(output, "mount proc"):
		return "start the container with --security-opt unmask=ALL (Docker: systempaths=unconfined; Kubernetes: procMount: Unmasked), so that nothing covers a part of /proc; a service of systemd without ProtectKernelTunables, ProtectKernelLogs and ProcSubset"
	}
	return "start the container with --security-opt seccomp=seccomp.json, the file of that name in the folder deploy of nix-sandbox-mcp, and where the host has AppArmor with --security-opt apparmor=unconfined"
}

// namespacesAllowed returns which sysctl forbids user namespaces, so that the
// error is a sentence and not bubblewrap's "Permission denied".
func namespacesAllowed(bubblewrap string) error {
	return checkSysctls("/proc/sys", unix.Geteuid() == 0, func() bool {
		_, works := namespacesWork(context.Background(), bubblewrap, 0)
		return works
	})
}

// checkSysctls reads the sysctls in a folder. It calls works only where they do
// not decide the question.
func checkSysctls(folder string, root bool, works func() bool) error {
	is := func(name, value string) bool {
		text, err := os.ReadFile(filepath.Join(folder, name))
		return err == nil && strings.TrimSpace(string(text)) == value
	}
	refuse := func(name, value, allowed string) error {
		setting := strings.ReplaceAll(name, "/", ".")
		return &Refusal{
			Problem: "this system forbids user namespaces: " + setting + " is " + value,
			Hint:    "an administrator allows them with: sysctl -w " + setting + "=" + allowed,
		}
	}
	switch {
	case is(sysctlMax, "0"):
		return refuse(sysctlMax, "0", "15000")
	case root:
		return nil
	case is(sysctlDebian, "0"):
		return refuse(sysctlDebian, "0", "1")
	// AppArmor forbids them to all programs but those that a profile names, and
	// only a trial shows whether bubblewrap is one of these.
	case is(sysctlAppArmor, "1") && !works():
		return refuse(sysctlAppArmor, "1", "0")
	}
	return nil
}

// trialTimeout bounds the smallest jail, which ends within milliseconds.
const trialTimeout = 10 * time.Second

// maxOutput bounds what is repeated of bubblewrap's output, in bytes.
const maxOutput = 300

// namespacesWork tries the smallest jail, as a user where that is not 0, and
// returns bubblewrap's output if it fails. It prints nothing.
func namespacesWork(ctx context.Context, bubblewrap string, user int) (output string, works bool) {
	output, works = try(ctx, attributesOf(user), nil, bubblewrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--", bubblewrap, "--version")
	return bounded.Head(strings.Join(strings.Fields(output), " "), maxOutput), works
}

// attributesOf returns the attributes of a process of a user, and of this process's user
// where that is 0.
func attributesOf(user int) *syscall.SysProcAttr {
	if user == 0 {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
}

// mountsWork tries what the smallest jail has not and each sandbox has: a hostname and
// file systems of its own, which containers and services forbid.
func mountsWork(ctx context.Context, bubblewrap string, user int) (output string, works bool) {
	output, works = try(ctx, attributesOf(user), nil, bubblewrap, "--unshare-all", "--hostname", "sandbox",
		"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--", bubblewrap, "--version")
	return bounded.Head(strings.Join(strings.Fields(output), " "), maxOutput), works
}

// try runs a program for at most [trialTimeout], with files as its descriptors after the
// standard ones. If it fails, it returns the output, which is never empty then.
func try(ctx context.Context, attributes *syscall.SysProcAttr, files []*os.File, program string, args ...string) (output string, works bool) {
	ctx, stop := context.WithTimeout(ctx, trialTimeout)
	defer stop()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = files
	// The whole group is killed at the timeout. Bubblewrap's child first waits
	// for its parent, and only then asks to end with it: left alone, it would
	// wait for good and keep the output open.
	cmd.SysProcAttr = attributes
	cmd.SysProcAttr.Setpgid = true
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "", true
	}
	if len(out) == 0 {
		return err.Error(), false
	}
	return string(out), false
}
