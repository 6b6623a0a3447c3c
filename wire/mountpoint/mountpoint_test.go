package mountpoint

import "testing"

func TestProblem_NamesWhatIsWrong(t *testing.T) {
	const plain = "which is not a plain absolute path"
	reserved := []string{"/nix", "/workspace", "/data/x"}
	for mount, want := range map[string]string{
		"/project":        "",
		"/src/app":        "",
		"/nixos":          "",
		"/data/y":         "",
		"":                plain,
		"project":         plain,
		"./project":       plain,
		"/a/../b":         plain,
		"/project/":       plain,
		"//project":       plain,
		"/a\nb":           plain,
		"/a\x7f":          plain,
		"/":               "which overlaps the sandbox's own /nix",
		"/nix":            "which overlaps the sandbox's own /nix",
		"/workspace/code": "which overlaps the sandbox's own /workspace",
		"/data":           "which overlaps the sandbox's own /data/x",
	} {
		if got := Problem(mount, reserved); got != want {
			t.Errorf("%q: %q, want %q", mount, got, want)
		}
	}
}

// Projects may be on disks in memory and on removable ones.
func TestOfMachine_LeavesDisks(t *testing.T) {
	for path, want := range map[string]bool{
		"/proc/1/root/home": true, "/sys": true, "/dev/shm": true, "/run/user/1000": true, "/run/user": true, "/run/dbus": true,
		"/dev/shm/project": false, "/run/media/user/disk": false, "/run/user/1000/project": false, "/home/run": false, "/srv/proc": false, "/process": false,
	} {
		if got := ofMachine(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}
