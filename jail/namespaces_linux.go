package jail

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Switches by which a system forbids user namespaces, without which there is
// no jail: files below /proc/sys that hold a number, absent where they do
// not apply.
const (
	switchMax      = "user/max_user_namespaces"
	switchDebian   = "kernel/unprivileged_userns_clone"
	switchAppArmor = "kernel/apparmor_restrict_unprivileged_userns"
)

// namespacesAllowed says which switch forbids user namespaces, so that the
// answer is a sentence and not bubblewrap's "Permission denied".
func namespacesAllowed(bubblewrap string) error {
	return checkSwitches("/proc/sys", unix.Geteuid() == 0, func() bool { return namespacesWork(bubblewrap) })
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

// namespacesWork tries the smallest jail; it prints nothing and is gone
// within milliseconds, either way.
func namespacesWork(bubblewrap string) bool {
	try := exec.Command(bubblewrap, "--unshare-user", "--ro-bind", "/", "/", "--", bubblewrap, "--version")
	try.Env = []string{}
	return try.Run() == nil
}
