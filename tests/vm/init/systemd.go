package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/system"
)

const (
	// service is the argument with which systemd starts this program again.
	service = "service"
	program = "/vm-init"
)

// unit runs the command once the user's services are managed. It is the target of
// the boot, so that nothing starts that the command does not need.
const unit = `[Unit]
Wants=dbus.socket systemd-logind.service user@1000.service
After=dbus.socket systemd-logind.service user@1000.service
[Service]
ExecStart=` + program + ` ` + service + `
StandardError=kmsg
TasksMax=infinity
`

// becomeSystemd lays a file system in memory over Debian's, adds the user and the
// service, and becomes systemd. It returns only if that fails.
func becomeSystemd(request guest.Request, devices devices) error {
	const (
		base  = "/debian"
		root  = base + "/root"
		quiet = unix.MS_NOSUID | unix.MS_NODEV
	)
	if err := system.Mount("layer", base, "tmpfs", 0, "mode=0755,size=256m"); err != nil {
		return err
	}
	for _, folder := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(base, folder), 0o755); err != nil {
			return err
		}
	}
	if err := system.Mount(devices.debian, base+"/lower", "erofs", unix.MS_RDONLY, ""); err != nil {
		return err
	}
	layers := "lowerdir=" + base + "/lower,upperdir=" + base + "/upper,workdir=" + base + "/work"
	if err := system.Mount("debian", root, "overlay", 0, layers); err != nil {
		return err
	}
	if err := system.Mount(devices.store, root+"/nix/store", "erofs", quiet|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	if request.Files {
		if err := system.Mount(devices.files, root+"/tests", "erofs", quiet|unix.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	for path, line := range map[string]string{
		"/etc/passwd": "user:x:1000:1000:user:" + home + ":/bin/sh\n",
		"/etc/group":  "user:x:1000:\n",
		"/etc/shadow": "user:!:1::::::\n",
	} {
		if err := extend(root+path, line); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(root+home, 0o700); err != nil {
		return err
	}
	if err := os.Chown(root+home, guest.ID, guest.ID); err != nil {
		return err
	}
	for _, file := range []struct {
		from, to string
		mode     os.FileMode
	}{{"/init", program, 0o700}, {guest.RequestFile, guest.RequestFile, 0o600}} {
		data, err := os.ReadFile(file.from)
		if err == nil {
			err = os.WriteFile(root+file.to, data, file.mode)
		}
		if err != nil {
			return err
		}
	}
	started := unit
	for path, text := range request.Places {
		if err := os.MkdirAll(filepath.Dir(root+path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(root+path, []byte(text), 0o644); err != nil {
			return err
		}
		if filepath.Ext(path) == ".socket" {
			name := filepath.Base(path)
			started = "[Unit]\nWants=" + name + "\nAfter=" + name + "\n" + started
		}
	}
	if err := os.WriteFile(root+"/etc/systemd/system/vm.service", []byte(started), 0o644); err != nil {
		return err
	}
	if err := system.Enter(root); err != nil {
		return err
	}
	const systemd = "/lib/systemd/systemd"
	err := unix.Exec(systemd, []string{systemd, "--unit=vm.service", "--log-target=kmsg", "--show-status=no"}, []string{"TERM=dumb"})
	return fmt.Errorf("becoming %s: %w", systemd, err)
}

// extend adds a line to a file.
func extend(path, line string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := file.WriteString(line); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// serveAgain carries out the request as a service of systemd.
func serveAgain() error {
	data, err := os.ReadFile(guest.RequestFile)
	if err != nil {
		return err
	}
	var request guest.Request
	if err := json.Unmarshal(data, &request); err != nil {
		return fmt.Errorf("%s: %w", guest.RequestFile, err)
	}
	port, err := openPort(system.Port(guest.Port))
	if err != nil {
		return err
	}
	defer port.Close()
	messages := json.NewEncoder(port)
	var ended guest.Ended
	own, err := os.ReadFile("/proc/self/cgroup")
	if err == nil {
		_, group, _ := strings.Cut(strings.TrimSpace(string(own)), "::")
		ended, err = run(request, cgroups+group, messages)
	}
	return finish(port, messages, ended, err)
}
