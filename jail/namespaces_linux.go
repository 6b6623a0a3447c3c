package jail

import (
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Switches by which a system forbids user namespaces, without which there is
// no jail. Each is a file that holds a number, absent where it does not apply.
const (
	switchMax      = "/proc/sys/user/max_user_namespaces"
	switchDebian   = "/proc/sys/kernel/unprivileged_userns_clone"
	switchAppArmor = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
)

// namespacesAllowed says which switch forbids user namespaces, so that the
// answer is a sentence and not bubblewrap's "Permission denied".
func namespacesAllowed(bubblewrap string) error {
	if readSwitch(switchMax) == "0" {
		return refuseNamespaces("user.max_user_namespaces is 0",
			"sysctl -w user.max_user_namespaces=15000")
	}
	if unix.Geteuid() == 0 {
		return nil
	}
	if readSwitch(switchDebian) == "0" {
		return refuseNamespaces("kernel.unprivileged_userns_clone is 0",
			"sysctl -w kernel.unprivileged_userns_clone=1")
	}
	// AppArmor forbids them to all but the programs that a profile names,
	// and only a try shows whether bubblewrap is one of these.
	if readSwitch(switchAppArmor) == "1" && !namespacesWork(bubblewrap) {
		return refuseNamespaces("kernel.apparmor_restrict_unprivileged_userns is 1 and no profile names "+bubblewrap,
			"sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")
	}
	return nil
}

func refuseNamespaces(why, mend string) error {
	return &Refusal{
		Problem: "this system forbids user namespaces: " + why,
		Hint:    "an administrator allows them with: " + mend,
	}
}

func readSwitch(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// namespacesWork tries the smallest jail; it prints nothing and is gone
// within milliseconds, either way.
func namespacesWork(bubblewrap string) bool {
	try := exec.Command(bubblewrap, "--unshare-user", "--ro-bind", "/", "/", "--", bubblewrap, "--version")
	try.Env = []string{}
	return try.Run() == nil
}
