package cluster

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// bridge is the interface by which the nodes are reached.
const bridge = "nodes"

// imageVariable names the program that prints the image of a server.
const imageVariable = "NIX_SANDBOX_TEST_IMAGE"

// The nodes of a cluster, each with the addresses of its pods.
var nodes = [2]struct{ name, address, pods string }{
	{"node1", "10.77.0.2", "10.244.0.0/24"},
	{"node2", "10.77.0.3", "10.244.1.0/24"},
}

// startNodes starts the cluster's name server and its nodes: containerd, kubelet and kube-proxy in
// namespaces of their own. It returns when the nodes are Ready.
func (c *cluster) startNodes() {
	c.Helper()
	began := time.Now()
	c.startNames()
	c.writeImages()
	c.Logf("the images are written after %.1f s", time.Since(began).Seconds())
	for i := range nodes {
		c.startNode(i)
	}
	for _, node := range nodes {
		c.wait(node.name+" is not Ready", func() bool {
			_, err := c.try("", "wait", "--for=condition=Ready", "--timeout=10s", "node/"+node.name)
			return err == nil
		})
	}
	c.Logf("the nodes are Ready after %.1f s", time.Since(began).Seconds())
}

// startNames starts the name server of the cluster.
func (c *cluster) startNames() {
	c.Helper()
	must.Write(c, c.path("Corefile"), `.:53 {
  errors
  cache 30
  kubernetes cluster.local {
    kubeconfig `+c.path("admin.conf")+` c
  }
}
`, 0o600)
	c.start("coredns", "bin/coredns", "-conf", c.path("Corefile"))
}

func (c *cluster) startNode(i int) {
	c.Helper()
	node, other := nodes[i], nodes[1-i]
	folder := c.path(node.name)
	copied := func(from string, to ...string) {
		to = append([]string{folder}, to...)
		path := filepath.Join(to...)
		must.Do(c, os.MkdirAll(filepath.Dir(path), 0o755))
		text := strings.ReplaceAll(string(must.Get(os.ReadFile(from))(c)), "SUBNET", node.pods)
		must.Write(c, path, text, 0o600)
	}
	for _, name := range []string{"ca.crt", "admin.conf"} {
		copied(c.path(name), "keys", name)
	}
	copied(c.path(node.name+"-kubelet.crt"), "keys", "kubelet.crt")
	copied(c.path(node.name+"-kubelet.key"), "keys", "kubelet.key")
	copied(c.path(node.name+".conf"), "keys", "node.conf")
	for _, name := range []string{"containerd.toml", "kubelet.yaml", "proxy.yaml"} {
		copied(filepath.Join("node", name), name)
	}
	copied(filepath.Join("node", "pods.conflist"), "cni", "pods.conflist")
	copied(deploy("seccomp.json"), "kubelet", "seccomp", "nix-sandbox-mcp.json")
	c.Cleanup(func() { removeGroups(c, filepath.Join(folder, "groups")) })
	start := must.Get(filepath.Abs(filepath.Join("node", "start")))(c)
	c.launch(node.name, syscall.SIGKILL, exec.Command(start, filepath.Join(c.parts, "debian"), folder,
		node.name, node.address, other.pods+" via "+other.address))
}

// removeGroups removes the control groups of a node, which has ended.
func removeGroups(t testing.TB, list string) {
	text, _ := os.ReadFile(list)
	for group := range strings.FieldsSeq(string(text)) {
		var folders []string
		_ = filepath.WalkDir(group, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				folders = append(folders, path)
			}
			return nil
		})
		for _, folder := range slices.Backward(folders) {
			for deadline := time.Now().Add(patience.Long); ; time.Sleep(10 * time.Millisecond) {
				err := os.Remove(folder)
				if err == nil || errors.Is(err, os.ErrNotExist) {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("a control group of a node stays: %v", err)
					return
				}
			}
		}
	}
}

// writeImages writes the images that nodes import: the server's, as Nix made it, HAProxy's, and
// the one whose process keeps the namespaces of a pod.
func (c *cluster) writeImages() {
	c.Helper()
	shared := c.path("shared")
	must.Do(c, os.MkdirAll(filepath.Join(shared, "images"), 0o755))
	printer := exec.CommandContext(c.Context(), os.Getenv(imageVariable))
	file := must.Get(os.Create(filepath.Join(shared, "images", "server.tar")))(c)
	printer.Stdout = file
	must.Do(c, printer.Run())
	must.Do(c, file.Close())
	pause := c.path("pause")
	must.Do(c, os.Mkdir(pause, 0o755))
	must.Write(c, filepath.Join(pause, "busybox"), string(must.Get(os.ReadFile(filepath.Join(c.parts, "debian/usr/bin/busybox")))(c)), 0o755)
	c.archive("pause:1", pause, object{"Entrypoint": []string{"/busybox", "sleep", "2147483647"}})
	// As the image that HAProxy's project publishes: its user, and the signal at which it ends when
	// its connections do.
	c.archive("haproxy:3.2", filepath.Join(c.parts, "haproxy"), object{
		"Entrypoint": []string{"/usr/sbin/haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"},
		"User":       "99", "StopSignal": "SIGUSR1",
	})
}

// archive writes an image of one layer, a folder, in the form of `docker save`.
func (c *cluster) archive(name, folder string, config object) {
	c.Helper()
	base := filepath.Join(c.path("shared"), "images", strings.ReplaceAll(name, ":", "-"))
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
}
