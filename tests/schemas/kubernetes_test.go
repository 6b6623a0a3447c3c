// Package schemas_test checks files of deploy/ against the types of the programs that read
// them: the manifests against the Kubernetes API, the profile of system calls against
// Docker. It is a module of its own, so that these are no dependencies of the program.
package schemas_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const manifests = "../../dist/deploy/kubernetes.yaml"

const autoscaler = "../../dist/deploy/autoscaling/autoscaler.yaml"

// object returns an empty object of a kind, nil where the test knows none.
func object(kind string) any {
	switch kind {
	case "v1/ConfigMap":
		return new(corev1.ConfigMap)
	case "v1/Service":
		return new(corev1.Service)
	case "apps/v1/Deployment":
		return new(appsv1.Deployment)
	case "apps/v1/StatefulSet":
		return new(appsv1.StatefulSet)
	case "autoscaling/v2/HorizontalPodAutoscaler":
		return new(autoscalingv2.HorizontalPodAutoscaler)
	case "policy/v1/PodDisruptionBudget":
		return new(policyv1.PodDisruptionBudget)
	}
	return nil
}

func documents(t *testing.T, file string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.SplitAfter(text, []byte("\n---\n"))
}

// strict decodes a manifest into the type of its kind. A field that the type lacks, or
// that is there twice, is an error.
func strict(t *testing.T, text []byte) (any, error) {
	t.Helper()
	var kind struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(text, &kind); err != nil {
		t.Fatal(err)
	}
	value := object(kind.APIVersion + "/" + kind.Kind)
	if value == nil {
		t.Fatalf("the test does not know %s of %s", kind.Kind, kind.APIVersion)
	}
	return value, yaml.UnmarshalStrict(text, value)
}

func TestManifests_HaveFieldsOfTheAPI(t *testing.T) {
	for _, file := range []string{manifests, autoscaler} {
		for i, text := range documents(t, file) {
			if _, err := strict(t, text); err != nil {
				t.Errorf("document %d of %s: %v", i+1, file, err)
			}
			// The control: a field that there is not.
			wrong := bytes.Replace(text, []byte("\nmetadata:"), []byte("\nmetadate: {}\nmetadata:"), 1)
			if _, err := strict(t, wrong); err == nil {
				t.Errorf("document %d of %s is accepted with the field metadate", i+1, file)
			}
		}
	}
}

// servers returns the StatefulSet of the manifests.
func servers(t *testing.T) *appsv1.StatefulSet {
	t.Helper()
	for _, text := range documents(t, manifests) {
		if value, err := strict(t, text); err == nil {
			if set, ok := value.(*appsv1.StatefulSet); ok {
				return set
			}
		}
	}
	t.Fatal("there is no StatefulSet")
	return nil
}

// proxyConfiguration returns the configuration of HAProxy in the manifests.
func proxyConfiguration(t *testing.T) string {
	t.Helper()
	for _, text := range documents(t, manifests) {
		if value, err := strict(t, text); err == nil {
			if configuration, ok := value.(*corev1.ConfigMap); ok {
				return configuration.Data["haproxy.cfg"]
			}
		}
	}
	t.Fatal("there is no ConfigMap")
	return ""
}

// HAProxy has room for as many servers as the autoscaler makes.
func TestManifests_HaveRoomForAllServers(t *testing.T) {
	value, err := strict(t, documents(t, autoscaler)[0])
	if err != nil {
		t.Fatal(err)
	}
	most := value.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MaxReplicas
	if room := fmt.Sprintf("server-template pod %d ", most); !strings.Contains(proxyConfiguration(t), room) {
		t.Errorf("the autoscaler makes %d servers, and HAProxy's configuration has no %q", most, room)
	}
}

// The server takes the names by which pods reach the Service of HAProxy.
func TestManifests_NameTheService(t *testing.T) {
	for _, one := range servers(t).Spec.Template.Spec.Containers[0].Env {
		if one.Name != "NIX_SANDBOX_HOSTS" {
			continue
		}
		const want = "nix-sandbox-mcp-proxy,nix-sandbox-mcp-proxy.$(NAMESPACE),nix-sandbox-mcp-proxy.$(NAMESPACE).svc,nix-sandbox-mcp-proxy.$(NAMESPACE).svc.cluster.local"
		if one.Value != want {
			t.Errorf("NIX_SANDBOX_HOSTS is %q, want %q", one.Value, want)
		}
		return
	}
	t.Error("NIX_SANDBOX_HOSTS is not set: the server refuses each request that comes by the Service")
}

// What the tests of the image in containers show to be needed.
func TestManifests_GiveServersWhatSandboxesNeed(t *testing.T) {
	pod := servers(t).Spec.Template.Spec
	context := pod.Containers[0].SecurityContext
	switch {
	case pod.HostUsers == nil || *pod.HostUsers:
		t.Error("hostUsers is not false, without which procMount is refused")
	case *pod.SecurityContext.RunAsUser != 1000:
		t.Error("the server does not run as user 1000")
	case *context.ProcMount != corev1.UnmaskedProcMount:
		t.Error("parts of /proc are covered")
	case context.SeccompProfile.Type != corev1.SeccompProfileTypeLocalhost:
		t.Error("the server has not the seccomp profile of deploy/")
	case *context.AllowPrivilegeEscalation || context.Capabilities.Drop[0] != "ALL" || context.Capabilities.Add != nil:
		t.Error("the server has privileges that it does not need")
	}
}

// HAProxy reads its configuration; the names of the cluster are looked up later.
func TestManifests_ConfigureHAProxy(t *testing.T) {
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Skip("haproxy is not installed")
	}
	t.Setenv("NAMESPACE", "default")
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(proxyConfiguration(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), "haproxy", "-c", "-f", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}
