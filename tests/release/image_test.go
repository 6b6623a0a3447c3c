package release

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// registryVariable names a registry of images, cmd/registry of go-containerregistry.
const registryVariable = "NIX_SANDBOX_TEST_REGISTRY"

// label is the one that the registry of MCP servers compares with the name in server.json.
const label = "io.modelcontextprotocol.server.name"

// architectures are those of OCI, by Nix's names.
var architectures = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}

// startRegistry returns the address of an empty registry that ends with the test.
func startRegistry(t *testing.T) string {
	t.Helper()
	program := os.Getenv(registryVariable)
	if program == "" {
		t.Skip(registryVariable + " does not name a registry of images")
	}
	if os.Geteuid() != 0 {
		t.Skip("for other users, podman asks more of a machine")
	}
	for _, needed := range []string{"podman", "skopeo"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skip(needed + " is not installed")
		}
	}
	cmd := exec.CommandContext(t.Context(), program, "-port", "0")
	log := must.Get(cmd.StderrPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(log)
	line := must.Get(lines.ReadString('\n'))(t)
	port := regexp.MustCompile(`serving on port (\d+)`).FindStringSubmatch(line)
	if port == nil {
		t.Fatalf("the registry printed %q", line)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return "localhost:" + port[1]
}

// writeImage writes an image as `docker save` does, with one layer.
func writeImage(t *testing.T, path, architecture string) {
	t.Helper()
	file := func(files map[string]string) []byte {
		var text bytes.Buffer
		archive := tar.NewWriter(&text)
		for name, content := range files {
			must.Do(t, archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}))
			must.Get(archive.Write([]byte(content)))(t)
		}
		must.Do(t, archive.Close())
		return text.Bytes()
	}
	layer := file(map[string]string{"machine": architecture})
	config := fmt.Sprintf(`{"architecture": %q, "os": "linux", "config": {"Labels": {%q: "a"}}, "rootfs": {"type": "layers", "diff_ids": ["sha256:%x"]}}`,
		architecture, label, sha256.Sum256(layer))
	must.Do(t, os.WriteFile(path, file(map[string]string{
		"layer.tar": string(layer), "config.json": config,
		"manifest.json": `[{"Config": "config.json", "RepoTags": ["nix-sandbox-mcp:1"], "Layers": ["layer.tar"]}]`,
	}), 0o600))
}

// pushImage runs the script with a store of Podman of its own, and returns the digest it prints.
func pushImage(t *testing.T, from, image string) (string, error) {
	t.Helper()
	home := t.TempDir()
	host, _, _ := strings.Cut(image, "/")
	for name, text := range map[string]string{
		"registries.conf": fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", host),
		"policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"storage.conf":    fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", home+"/graph", home+"/run"),
	} {
		must.Write(t, filepath.Join(home, ".config/containers", name), text, 0o600)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "dist/release/push-image"), from, image)
	cmd.Env = []string{
		"HOME=" + home, "XDG_RUNTIME_DIR=" + home, "PATH=" + os.Getenv("PATH"),
		"CONTAINERS_REGISTRIES_CONF=" + home + "/.config/containers/registries.conf",
		"CONTAINERS_STORAGE_CONF=" + home + "/.config/containers/storage.conf",
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, &log)
	}
	digest, ok := strings.CutPrefix(strings.TrimSpace(string(output)), "digest=")
	if !ok {
		t.Fatalf("the script printed %q", output)
	}
	return digest, nil
}

// get returns something that the registry has, and its digest.
func get(t *testing.T, address string, into any) (digest string) {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil))(t)
	response := must.Get(http.DefaultClient.Do(request))(t)
	defer func() { _ = response.Body.Close() }()
	body := must.Get(io.ReadAll(response.Body))(t)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", address, response.Status, body)
	}
	must.Do(t, json.Unmarshal(body, into))
	return fmt.Sprintf("sha256:%x", sha256.Sum256(body))
}

// One name has the image of each architecture, with its label, and a second run after a step that
// failed pushes the same.
func TestPushImage_PushesBothArchitectures(t *testing.T) {
	registry, version, from := startRegistry(t), undertest.Version(t), t.TempDir()
	for machine, architecture := range architectures {
		writeImage(t, filepath.Join(from, "nix-sandbox-mcp-"+version+"-"+machine+"-linux.image.tar"), architecture)
	}
	digest := must.Get(pushImage(t, from, registry+"/a/b"))(t)
	if again := must.Get(pushImage(t, from, registry+"/a/b"))(t); again != digest {
		t.Errorf("a second run pushed %s, the first one %s", again, digest)
	}
	at := "http://" + registry + "/v2/a/b"
	var list struct {
		Manifests []struct {
			Digest   string
			Platform struct{ Architecture, OS string }
		}
	}
	if has := get(t, at+"/manifests/"+version, &list); has != digest {
		t.Errorf("the registry has %s, and the script printed %s", has, digest)
	}
	found := map[string]string{}
	for _, one := range list.Manifests {
		var manifest struct{ Config struct{ Digest string } }
		get(t, at+"/manifests/"+one.Digest, &manifest)
		var config struct {
			Architecture string
			Config       struct{ Labels map[string]string }
		}
		get(t, at+"/blobs/"+manifest.Config.Digest, &config)
		if config.Architecture != one.Platform.Architecture || one.Platform.OS != "linux" || config.Config.Labels[label] != "a" {
			t.Errorf("the list has %+v for the image %+v", one, config)
		}
		for machine, architecture := range architectures {
			if architecture == config.Architecture {
				found[machine] = architecture
			}
		}
	}
	if len(list.Manifests) != len(architectures) || !maps.Equal(found, architectures) {
		t.Errorf("the list has %v", list.Manifests)
	}
}

func TestPushImage_NeedsBothArchitectures(t *testing.T) {
	from, version := t.TempDir(), undertest.Version(t)
	writeImage(t, filepath.Join(from, "nix-sandbox-mcp-"+version+"-x86_64-linux.image.tar"), "amd64")
	// No registry answers there.
	if digest, err := pushImage(t, from, "localhost:1/a/b"); err == nil || !strings.Contains(err.Error(), "aarch64-linux.image.tar is missing") {
		t.Errorf("%q, %v", digest, err)
	}
}
