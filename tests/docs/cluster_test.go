package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// A patch replaces the whole value of a variable: that of the page keeps the names under which
// pods reach the Service, and adds one. It names the
// namespace itself: kustomize moves a patched variable before NAMESPACE, which is then not expanded.
func TestCluster_PatchKeepsTheServicesNames(t *testing.T) {
	shipped := hostsOf(t, strings.Split(string(must.Get(os.ReadFile(filepath.Join(root(t), "dist/deploy/kubernetes.yaml")))(t)), "\n---\n"))
	var patches []string
	for _, b := range must.Get(parse(string(must.Get(os.ReadFile(filepath.Join(root(t), "docs/cluster.md")))(t))))(t).blocks {
		var kustomization struct {
			Namespace string
			Patches   []struct{ Patch string }
		}
		if b.language != "yaml" {
			continue
		}
		must.Do(t, yaml.Unmarshal([]byte(b.text), &kustomization))
		for _, p := range kustomization.Patches {
			patches = append(patches, p.Patch)
			shipped = strings.ReplaceAll(shipped, "$(NAMESPACE)", kustomization.Namespace)
		}
	}
	if shown := hostsOf(t, patches); shown != shipped+",sandbox.example" {
		t.Errorf("the page's patch sets %q, dist/deploy/kubernetes.yaml %q", shown, shipped)
	}
}

// hostsOf returns the one value of NIX_SANDBOX_HOSTS in StatefulSets.
func hostsOf(t *testing.T, objects []string) string {
	t.Helper()
	var values []string
	for _, text := range objects {
		var object struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Env []struct{ Name, Value string }
						}
					}
				}
			}
		}
		must.Do(t, yaml.Unmarshal([]byte(text), &object))
		for _, container := range object.Spec.Template.Spec.Containers {
			for _, variable := range container.Env {
				if object.Kind == "StatefulSet" && variable.Name == "NIX_SANDBOX_HOSTS" {
					values = append(values, variable.Value)
				}
			}
		}
	}
	if len(values) != 1 {
		t.Fatalf("NIX_SANDBOX_HOSTS has the values %q, want one", values)
	}
	return values[0]
}
