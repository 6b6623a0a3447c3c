package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// deploy returns the path of a file of dist/deploy.
func deploy(name string) string { return filepath.Join("..", "..", "dist", "deploy", name) }

// kustomization writes a kustomization of its own, as a user does, over copies of the
// project's folder.
func (c *cluster) kustomization(name, text string) string {
	c.Helper()
	folder := c.path(name)
	must.Do(c, os.CopyFS(filepath.Join(folder, "deploy"), os.DirFS(deploy(""))))
	must.Write(c, filepath.Join(folder, "kustomization.yaml"), "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"+text, 0o600)
	return folder
}

// pageKustomization writes the kustomization that docs/cluster.md shows.
func (c *cluster) pageKustomization() string {
	c.Helper()
	folder := c.path("docs")
	must.Do(c, os.CopyFS(filepath.Join(folder, "nix-sandbox-mcp", "dist", "deploy"), os.DirFS(deploy(""))))
	_, block, found := strings.Cut(string(must.Get(os.ReadFile("../../docs/cluster.md"))(c)), "```yaml elsewhere: it names a registry and a cluster\n")
	if !found {
		c.Fatal("docs/cluster.md shows no kustomization")
	}
	block, _, _ = strings.Cut(block, "```\n")
	must.Write(c, filepath.Join(folder, "kustomization.yaml"), block, 0o600)
	return folder
}

// installAgentSandbox installs the kinds of agent-sandbox. Theirs are converted between
// versions by a webhook, which would have to be a pod.
func (c *cluster) installAgentSandbox() {
	c.Helper()
	folder := c.path("crds")
	must.Do(c, os.CopyFS(folder, os.DirFS(filepath.Join(c.parts, "crds"))))
	var files []string
	for _, file := range must.Get(filepath.Glob(folder + "/*.yaml"))(c) {
		files = append(files, filepath.Base(file))
	}
	must.Write(c, filepath.Join(folder, "kustomization.yaml"), `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [`+strings.Join(files, ", ")+`]
patches:
  - target: {kind: CustomResourceDefinition}
    patch: |
      - {op: replace, path: /spec/conversion, value: {strategy: None}}
`, 0o600)
	c.kubectl("", "apply", "--server-side", "-k", folder)
	c.kubectl("", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
}

// The API server takes every object, field by field, and has no warning.
func TestObjects(t *testing.T) {
	c := startAPI(t)
	c.installAgentSandbox()
	components := c.kustomization("components", "resources: [deploy]\ncomponents: [dist/deploy/autoscaling, dist/deploy/baseline]\n")
	c.kubectl("", "create", "namespace", "sandboxes")
	for name, source := range map[string][]string{
		"one file":      {"-f", deploy("kubernetes.yaml")},
		"kustomization": {"-k", deploy("")},
		"components":    {"-k", components},
		"docs":          {"-k", c.pageKustomization()},
		"agent-sandbox": {"-k", deploy("agent-sandbox")},
		"claim":         {"-f", deploy("agent-sandbox/claim.yaml")},
	} {
		t.Run(name, func(t *testing.T) {
			said, err := c.try("", append([]string{"apply", "--dry-run=server", "--validate=strict"}, source...)...)
			if err != nil || strings.Contains(said, "Warning") {
				t.Errorf("%v\n%s", err, said)
			}
			t.Logf("accepted:\n%s", said)
			// The control: a field that there is not.
			text := c.kubectl("", render(source)...)
			wrong := strings.Replace(text, "\nspec:\n", "\nspec:\n  unheard: of\n", 1)
			if _, err := c.try(wrong, "apply", "--dry-run=server", "--validate=strict", "-f", "-"); err == nil || !strings.Contains(err.Error(), "unheard") {
				t.Errorf("with a field spec.unheard: %v", err)
			}
		})
	}
}

// render returns the arguments with which kubectl prints a source of objects.
func render(source []string) []string {
	if source[0] == "-k" {
		return []string{"kustomize", source[1]}
	}
	return []string{"create", "--dry-run=client", "-o", "yaml", "-f", source[1]}
}

// object is a part of an object of the cluster.
type object = map[string]any

// podOf returns a pod as the StatefulSet or Deployment of the manifests makes it.
func (c *cluster) podOf(kind string) object {
	c.Helper()
	var list struct{ Items []object }
	must.Do(c, json.Unmarshal([]byte(c.kubectl("", "apply", "--dry-run=server", "-o", "json", "-f", deploy("kubernetes.yaml"))), &list))
	for _, one := range list.Items {
		if one["kind"] == kind {
			template := one["spec"].(object)["template"].(object)
			return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "pod"}, "spec": template["spec"]}
		}
	}
	c.Fatalf("there is no %s among %d objects", kind, len(list.Items))
	return nil
}

// A level of Pod Security, and what it says to a pod of the manifests that was changed.
type admission struct {
	name   string
	kind   string // that makes the pod
	change func(pod, container object)
	// A part of the refusal by level; accepted where it is empty.
	privileged, baseline, restricted string
}

func admissions() []admission {
	runtimeDefault := object{"type": "RuntimeDefault"}
	unset := func(fields ...string) func(object, object) {
		return func(_, container object) {
			for _, field := range fields {
				delete(container, field)
			}
		}
	}
	const (
		noUnmasked  = "`hostUsers` must be false to use `Unmasked`"
		appArmor    = "forbidden AppArmor profile"
		procMount   = "procMount"
		noLocalhost = "localhostProfile"
	)
	return []admission{
		{"servers", "StatefulSet", unset(), "", appArmor, appArmor},
		{"servers without an AppArmor profile", "StatefulSet", unset("appArmorProfile"), "", "", procMount},
		{"servers with AppArmor's default", "StatefulSet", func(_, container object) { container["appArmorProfile"] = runtimeDefault }, "", "", procMount},
		{"servers with a masked /proc and no AppArmor profile", "StatefulSet", unset("appArmorProfile", "procMount"), "", "", ""},
		{"servers in the host's user namespace", "StatefulSet", func(pod, _ object) { delete(pod, "hostUsers") }, noUnmasked, noUnmasked, noUnmasked},
		{"servers with a misspelt procMount", "StatefulSet", func(_, container object) { container["procMount"] = "unmasked" }, procMount, procMount, procMount},
		{"servers without the name of a seccomp profile", "StatefulSet", func(_, container object) { container["seccompProfile"] = object{"type": "Localhost"} }, noLocalhost, noLocalhost, noLocalhost},
		{"HAProxy", "Deployment", unset(), "", "", ""},
		{"HAProxy that may become root", "Deployment", func(pod, _ object) { delete(pod["securityContext"].(object), "runAsNonRoot") }, "", "", "runAsNonRoot"},
	}
}

// What docs/cluster.md says of the levels of Pod Security, and of procMount.
func TestAdmission(t *testing.T) {
	c := startAPI(t)
	for _, level := range []string{"privileged", "baseline", "restricted"} {
		c.kubectl("", "create", "namespace", level)
		c.kubectl("", "label", "namespace", level, "pod-security.kubernetes.io/enforce="+level)
		// A controller would make it, which does not run here.
		c.kubectl("", "create", "serviceaccount", "default", "-n", level)
	}
	for _, test := range admissions() {
		t.Run(test.name, func(t *testing.T) {
			pod := c.podOf(test.kind)
			spec := pod["spec"].(object)
			container := spec["containers"].([]any)[0].(object)
			test.change(spec, container["securityContext"].(object))
			text := string(must.Get(json.Marshal(pod))(t))
			for level, want := range map[string]string{"privileged": test.privileged, "baseline": test.baseline, "restricted": test.restricted} {
				said, err := c.try(text, "create", "--dry-run=server", "-n", level, "-f", "-")
				switch {
				case want == "" && err != nil:
					t.Errorf("%s refuses it: %v", level, err)
				case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
					t.Errorf("%s: %v %s, want a refusal that has %q", level, err, said, want)
				case want != "":
					t.Logf("%s: %.300v", level, err)
				}
			}
		})
	}
}
