package jail

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The launcher makes /dev, and bubblewrap the file systems in it with the sizes and modes
// that the build gives them.
func TestWithoutDev_LeavesOtherFlags(t *testing.T) {
	for _, test := range []struct{ flags, others, fileSystems string }{
		{"", "", ""},
		{"--clearenv", "--clearenv", ""},
		{
			"--proc /proc --dev /dev --perms 1777 --size 64 --tmpfs /dev/shm --perms 0755 --size 9 --tmpfs /tmp --chdir /",
			"--proc /proc --perms 0755 --size 9 --tmpfs /tmp --chdir /",
			"--perms 1777 --size 64 --tmpfs /dev/shm",
		},
		{"--tmpfs /dev/shm --dev /dev", "", "--tmpfs /dev/shm"},
		{"--setenv A --dev --setenv B --perms --bind /dev/shm /a", "--setenv A --dev --setenv B --perms --bind /dev/shm /a", ""},
		{"--size 1 --tmpfs /devices --perms", "--size 1 --tmpfs /devices --perms", ""},
	} {
		others, fileSystems := withoutDev(strings.Fields(test.flags))
		got := []string{strings.Join(others, " "), strings.Join(fileSystems, " ")}
		if diff := cmp.Diff([]string{test.others, test.fileSystems}, got); diff != "" {
			t.Errorf("%s: %s", test.flags, diff)
		}
	}
}
