package jail

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Ubuntu, since 23.10, gives a user namespace no capabilities unless AppArmor has a profile for the program that makes
// it. The build writes one for each launcher ([Spec.AppArmor]), and an administrator loads it.

// profileNames begins the names of the profiles of launchers.
const profileNames = "nix-sandbox-"

// triedVariable marks a launcher that was executed by its own path.
const triedVariable = "NIX_SANDBOX_TRIED_PROFILE"

// EnterProfile executes this program again by its own path if that may give it its AppArmor profile. AppArmor
// chooses a profile by the path that was executed, and the launcher is the interpreter of that file. It returns if
// that changes no profile, and if it fails.
func EnterProfile() {
	tried := os.Getenv(triedVariable) != ""
	_ = os.Unsetenv(triedVariable)
	label := appArmorProfile()
	if tried || label == "" || strings.HasPrefix(label, profileNames) || label == unconfined && !isRestricted() {
		return
	}
	if launcher, err := os.Executable(); err == nil {
		_ = unix.Exec(launcher, os.Args, append(os.Environ(), triedVariable+"=1"))
	}
}

// unconfined is the label of processes without a profile.
const unconfined = "unconfined"

func isRestricted() bool {
	text, err := os.ReadFile(filepath.Join("/proc/sys", sysctlAppArmor))
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// appArmorProfile returns the profile that confines this process, or "".
func appArmorProfile() string {
	text, err := os.ReadFile("/proc/self/attr/current")
	if err != nil {
		return ""
	}
	profile, _, _ := strings.Cut(strings.TrimRight(string(text), "\x00\n"), " (")
	return profile
}

// loadProfile is the hint that has a profile of the store loaded. Without a file it allows user namespaces to
// every program.
func loadProfile(file string) string {
	if file == "" {
		return "an administrator allows them with: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	}
	// The store's names begin with a hash.
	_, name, _ := strings.Cut(filepath.Base(file), "-")
	loaded := "/etc/apparmor.d/" + name
	return fmt.Sprintf("an administrator allows them to the launcher of these sandboxes, and to no other program, with: sudo install -m 644 %s %s && sudo apparmor_parser --replace %s", file, loaded, loaded)
}
