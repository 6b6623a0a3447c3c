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

// Switches by which a system forbids user namespaces, without which there is
// no jail: files below /proc/sys that hold a number, absent where they do
// not apply.
const (
	switchMax      = "user/max_user_namespaces"
	switchDebian   = "kernel/unprivileged_userns_clone"
	switchAppArmor = "kernel/apparmor_restrict_unprivileged_userns"
)

// Check says why no sandbox that this bubblewrap makes would start here, in
// the sentences with which the start would be refused.
func Check(ctx context.Context, bubblewrap string) error {
	user, err := hostUser()
	if err != nil {
		return err
	}
	if user != 0 {
		if err := capable(); err != nil {
			return err
		}
	}
	said, works := namespacesWork(ctx, bubblewrap, user)
	if err := checkSwitches("/proc/sys", unix.Geteuid() == 0 && user == 0, func() bool { return works }); err != nil {
		return err
	}
	if !works {
		return &Refusal{
			Problem: fmt.Sprintf("%s makes no sandbox here: %s", bubblewrap, said),
			Hint:    "a container needs user namespaces of its own: start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined",
		}
	}
	return nil
}

// namespacesAllowed says which switch forbids user namespaces, so that the
// answer is a sentence and not bubblewrap's "Permission denied".
func namespacesAllowed(bubblewrap string) error {
	return checkSwitches("/proc/sys", unix.Geteuid() == 0, func() bool {
		_, works := namespacesWork(context.Background(), bubblewrap, 0)
		return works
	})
}

// checkSwitches reads the switches in a folder. It asks `works` only where
// they leave the question open.
func checkSwitches(folder string, root bool, works func() bool) error {
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
	case is(switchMax, "0"):
		return refuse(switchMax, "0", "15000")
	case root:
		return nil
	case is(switchDebian, "0"):
		return refuse(switchDebian, "0", "1")
	// AppArmor forbids them to all but the programs that a profile names,
	// and only a try shows whether bubblewrap is one of these.
	case is(switchAppArmor, "1") && !works():
		return refuse(switchAppArmor, "1", "0")
	}
	return nil
}

// tryWithin bounds the smallest jail, which is gone within milliseconds.
const tryWithin = 10 * time.Second

// maxSaid bounds what is repeated of bubblewrap's words, in bytes.
const maxSaid = 300

// namespacesWork tries the smallest jail, as a user where that is not 0, and
// returns what bubblewrap says of it. It prints nothing.
func namespacesWork(ctx context.Context, bubblewrap string, user int) (said string, works bool) {
	ctx, stop := context.WithTimeout(ctx, tryWithin)
	defer stop()
	try := exec.CommandContext(ctx, bubblewrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--", bubblewrap, "--version")
	try.Env = []string{}
	try.Dir = "/"
	// All of it ends with what gave up: bubblewrap's child, which waits for its
	// parent before it would end with it, would wait for ever and keep the
	// output open.
	try.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	try.Cancel = func() error { return unix.Kill(-try.Process.Pid, unix.SIGKILL) }
	if user != 0 {
		try.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
	}
	out, err := try.CombinedOutput()
	if err == nil {
		return "", true
	}
	said = strings.Join(strings.Fields(string(out)), " ")
	if said == "" {
		said = err.Error()
	}
	return bounded.Head(said, maxSaid), false
}
