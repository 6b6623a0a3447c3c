package jail

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// Sysctls that can forbid user namespaces, which every jail needs. Each is a
// file below /proc/sys that contains a number; not every system has all of them.
const (
	sysctlMax      = "user/max_user_namespaces"
	sysctlDebian   = "kernel/unprivileged_userns_clone"
	sysctlAppArmor = "kernel/apparmor_restrict_unprivileged_userns"
)

// Check returns the error that the start of a sandbox would return here, or nil.
func (s *Spec) Check(ctx context.Context) error {
	user, err := hostUser(os.Getpid())
	if err != nil {
		return err
	}
	output, works := try(ctx, user, s.Bubblewrap, smallest...)
	if err := s.checkSysctls("/proc/sys", unix.Geteuid() == 0 && user == 0, func() bool { return works }); err != nil {
		return err
	}
	if works {
		output, works = try(ctx, user, s.Bubblewrap, usual...)
	}
	if !works {
		return &Refusal{
			Problem: fmt.Sprintf("%s makes no sandbox here: %s", s.Bubblewrap, output),
			Hint:    hintOfOutput(output),
		}
	}
	return nil
}

// hintOfOutput returns the hint for bubblewrap's output if its user may make user
// namespaces: containers and services forbid other things too.
func hintOfOutput(output string) string {
	switch {
	case strings.Contains(output, "ENOSPC"): // bubblewrap's word for it; namespaces(7)
		return "this user has as many namespaces as it may: end programs that made some, such as browsers and containers, or have an administrator raise the limit with: sysctl -w " + strings.ReplaceAll(sysctlMax, "/", ".") + "=15000"
	case strings.Contains(output, "set hostname"):
		return "start the container with --security-opt seccomp=seccomp.json, the file of that name in the folder deploy of nix-sandbox-mcp; a service of systemd without ProtectHostname"
	case strings.Contains(output, "mount proc"):
		return "start the container with --security-opt unmask=ALL (Docker: systempaths=unconfined; Kubernetes: procMount: Unmasked), so that nothing covers a part of /proc; a service of systemd without ProtectKernelTunables, ProtectKernelLogs and ProcSubset"
	}
	return "start the container with --security-opt seccomp=seccomp.json, the file of that name in the folder deploy of nix-sandbox-mcp, and where the host has AppArmor with --security-opt apparmor=unconfined"
}

// namespacesAllowed returns an error that names the sysctl which forbids user namespaces,
// or nil. It is more useful than bubblewrap's "Permission denied".
func (s *Spec) namespacesAllowed() error {
	return s.checkSysctls("/proc/sys", unix.Geteuid() == 0, func() bool {
		_, works := try(context.Background(), 0, s.Bubblewrap, smallest...)
		return works
	})
}

// checkSysctls reads the sysctls in a folder. It calls works only if they do not decide
// the question.
func (s *Spec) checkSysctls(folder string, root bool, works func() bool) error {
	is := func(name, value string) bool {
		text, err := os.ReadFile(filepath.Join(folder, name))
		return err == nil && strings.TrimSpace(string(text)) == value
	}
	refuse := func(name, value, hint string) error {
		return &Refusal{
			Problem: "this system forbids user namespaces: " + strings.ReplaceAll(name, "/", ".") + " is " + value,
			Hint:    hint,
		}
	}
	set := func(name, allowed string) string {
		return "an administrator allows them with: sysctl -w " + strings.ReplaceAll(name, "/", ".") + "=" + allowed
	}
	switch {
	case is(sysctlMax, "0"):
		return refuse(sysctlMax, "0", set(sysctlMax, "15000"))
	case root:
		return nil
	case is(sysctlDebian, "0"):
		return refuse(sysctlDebian, "0", set(sysctlDebian, "1"))
	// AppArmor forbids them unless the program has a profile, and only a trial shows
	// whether the launcher has one.
	case is(sysctlAppArmor, "1") && !works():
		return refuse(sysctlAppArmor, "1", loadProfile(s.AppArmor))
	}
	return nil
}

// trialTimeout bounds the smallest jail, which ends within milliseconds.
const trialTimeout = 10 * time.Second

// maxOutput bounds the part of bubblewrap's output in errors, in bytes.
const maxOutput = 300

// smallest are bubblewrap's flags for the smallest jail. usual adds a hostname and file
// systems, as sandboxes have. Some containers and services forbid these.
var (
	smallest = []string{"--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/"}
	usual    = []string{"--unshare-all", "--hostname", "sandbox", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"}
)

// try makes a jail with these flags, as this user unless it is 0. It returns bubblewrap's
// output if that fails, and does not print it.
func try(ctx context.Context, user int, bubblewrap string, flags ...string) (output string, works bool) {
	attributes := &syscall.SysProcAttr{}
	if user != 0 {
		attributes.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
	}
	output, works = attempt(ctx, attributes, nil, bubblewrap, append(slices.Clone(flags), "--", bubblewrap, "--version")...)
	return bounded.Head(strings.Join(strings.Fields(output), " "), maxOutput), works
}

// attempt runs a program for at most [trialTimeout], with files as its descriptors from 3 on.
// If the program fails, output is not empty.
func attempt(ctx context.Context, attributes *syscall.SysProcAttr, files []*os.File, program string, args ...string) (output string, works bool) {
	ctx, stop := context.WithTimeout(ctx, trialTimeout)
	defer stop()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = files
	// The timeout kills the whole group. Bubblewrap's child waits for its parent before
	// it asks to end with it: left alone, it would wait forever and keep the output open.
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
