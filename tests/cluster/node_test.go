package cluster

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// tap is the interface by which the node is reached.
const tap = "tap0"

// imageVariable names the program that prints the image of a server.
const imageVariable = "NIX_SANDBOX_TEST_IMAGE"

// startNode boots the node and starts the cluster's name server. It returns when the node is
// Ready.
func (c *cluster) startNode() {
	c.Helper()
	began := time.Now()
	c.startNames()
	c.stateDisk()
	c.Logf("the disk of images is made after %.1f s", time.Since(began).Seconds())
	began = time.Now()
	c.boot()
	c.wait("the node is not there", func() bool { _, err := c.try("", "get", "node", "node"); return err == nil })
	c.wait("the node is not Ready", func() bool {
		_, err := c.try("", "wait", "--for=condition=Ready", "--timeout=60s", "node/node")
		return err == nil
	})
	c.Logf("the node is Ready after %.1f s", time.Since(began).Seconds())
}

// boot starts the virtual machine. Without KVM: where it is there, it does not start every
// kernel.
func (c *cluster) boot() {
	c.Helper()
	info := must.Get(os.ReadFile("/proc/cpuinfo"))(c)
	var mhz float64
	if match := regexp.MustCompile(`cpu MHz\s*: ([0-9.]+)`).FindSubmatch(info); match != nil {
		fmt.Sscan(string(match[1]), &mhz)
	}
	// Otherwise the kernel measures its clock by another, which takes seconds.
	clock := fmt.Sprintf("tsc=reliable tsc_early_khz=%.0f now=%d", mhz*1000, time.Now().Unix())
	program := must.Get(exec.LookPath("qemu-system-x86_64"))(c)
	c.start("qemu", program, "-M", "microvm,accel=tcg,pic=on", "-cpu", "max", "-m", "6144", "-smp", "2",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", filepath.Join(c.parts, "vmlinuz"), "-initrd", filepath.Join(c.parts, "initrd"),
		"-append", "console=ttyS0 loglevel=4 reboot=t panic=-1 mitigations=off "+clock,
		"-drive", "if=none,format=raw,snapshot=on,id=system,file="+filepath.Join(c.parts, "system.ext4"),
		"-device", "virtio-blk-device,drive=system",
		"-drive", "if=none,format=raw,cache=unsafe,id=state,file="+c.path("state.ext4"), "-device", "virtio-blk-device,drive=state",
		"-netdev", "tap,id=net,ifname="+tap+",script=no,downscript=no", "-device", "virtio-net-device,netdev=net")
}

// stateDisk makes the node's second disk: its keys, and the images in the store of its
// containerd. They are imported here, where nothing is emulated.
func (c *cluster) stateDisk() {
	c.Helper()
	state := c.path("state")
	must.Do(c, os.MkdirAll(filepath.Join(state, "keys"), 0o755))
	for _, name := range []string{"ca.crt", "kubelet.crt", "kubelet.key", "node.conf", "admin.conf"} {
		must.Write(c, filepath.Join(state, "keys", name), string(must.Get(os.ReadFile(c.path(name)))(c)), 0o600)
	}
	// What a claim of a volume gets: a folder.
	for i := range volumes {
		must.Do(c, os.MkdirAll(filepath.Join(state, fmt.Sprint("volume-", i)), 0o755))
		must.Do(c, os.Chmod(filepath.Join(state, fmt.Sprint("volume-", i)), 0o777))
	}
	must.Do(c, os.MkdirAll(filepath.Join(state, "containerd"), 0o711))
	c.importImages(filepath.Join(state, "containerd"))
	c.run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", state, c.path("state.ext4"), "6G")
	must.Do(c, os.RemoveAll(state))
}

// run runs a program of this machine.
func (c *cluster) run(program string, args ...string) {
	c.Helper()
	if output, err := exec.CommandContext(c.Context(), program, args...).CombinedOutput(); err != nil {
		c.Fatalf("%s: %v: %s", program, err, output)
	}
}

func (c *cluster) importImages(root string) {
	c.Helper()
	server := c.path("server.tar")
	printer := exec.CommandContext(c.Context(), os.Getenv(imageVariable))
	file := must.Get(os.Create(server))(c)
	printer.Stdout = file
	must.Do(c, printer.Run())
	must.Do(c, file.Close())
	pause := c.path("pause")
	must.Write(c, filepath.Join(pause, "busybox"), string(must.Get(os.ReadFile(filepath.Join(c.parts, "system/usr/bin/busybox")))(c)), 0o755)
	// As the image of HAProxy that its project publishes: its user, and the signal at which it
	// ends when its connections do.
	archives := []string{
		server,
		c.archive("haproxy:3.2", filepath.Join(c.parts, "haproxy"), object{
			"Entrypoint": []string{"/usr/sbin/haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"},
			"User":       "99", "StopSignal": "SIGUSR1",
		}),
		c.archive("pause:1", pause, object{"Entrypoint": []string{"/busybox", "sleep", "2147483647"}}),
	}
	must.Write(c, c.path("import.toml"), fmt.Sprintf(`version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", "io.containerd.nri.v1.nri"]
`, root, c.path("import")), 0o600)
	socket := c.path("import.sock")
	log := must.Get(os.Create(c.path("import.log")))(c)
	defer log.Close()
	containerd := exec.CommandContext(c.Context(), filepath.Join(c.parts, "debian/usr/bin/containerd"), "--config", c.path("import.toml"), "--address", socket)
	containerd.Stdout, containerd.Stderr = log, log
	must.Do(c, containerd.Start())
	defer func() {
		_ = containerd.Process.Signal(os.Interrupt)
		_ = containerd.Wait()
	}()
	ctr := filepath.Join(c.parts, "debian/usr/bin/ctr")
	c.wait("containerd does not answer", func() bool {
		return exec.CommandContext(c.Context(), ctr, "--address", socket, "version").Run() == nil
	})
	for _, archive := range archives {
		c.run(ctr, "--address", socket, "--namespace", "k8s.io", "images", "import", "--snapshotter", "overlayfs", archive)
		must.Do(c, os.Remove(archive))
	}
}

// archive makes an image of one layer, a folder, in the form of `docker save`.
func (c *cluster) archive(name, folder string, config object) string {
	c.Helper()
	base := c.path(strings.ReplaceAll(name, ":", "-"))
	layer := base + ".layer"
	c.run("tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-cf", layer, "-C", folder, ".")
	text := must.Get(os.ReadFile(layer))(c)
	must.Do(c, os.Remove(layer))
	file := must.Get(os.Create(base + ".tar"))(c)
	archive := tar.NewWriter(file)
	write := func(name string, text []byte) {
		must.Do(c, archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
		must.Get(archive.Write(text))(c)
	}
	write("layer.tar", text)
	write("config.json", must.Get(json.Marshal(object{
		"architecture": "amd64", "os": "linux", "config": config,
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(text))}},
	}))(c))
	write("manifest.json", must.Get(json.Marshal([]object{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}}))(c))
	must.Do(c, archive.Close())
	must.Do(c, file.Close())
	return file.Name()
}
