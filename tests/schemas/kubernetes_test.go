// Package schemas_test checks files of deploy/ against the types of the programs that read
// them: the manifests against the Kubernetes API, the profile of system calls against
// Docker. It is a module of its own, so that these are no dependencies of the program.
package schemas_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const manifests = "../../deploy/kubernetes.yaml"

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
	}
	return nil
}

func documents(t *testing.T) [][]byte {
	t.Helper()
	text, err := os.ReadFile(manifests)
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
	for i, text := range documents(t) {
		if _, err := strict(t, text); err != nil {
			t.Errorf("document %d of %s: %v", i+1, manifests, err)
		}
		// The control: a field that there is not.
		wrong := bytes.Replace(text, []byte("\nmetadata:"), []byte("\nmetadate: {}\nmetadata:"), 1)
		if _, err := strict(t, wrong); err == nil {
			t.Errorf("document %d of %s is accepted with the field metadate", i+1, manifests)
		}
	}
}

// What the tests of the image in containers show to be needed.
func TestManifests_GiveServersWhatSandboxesNeed(t *testing.T) {
	var found bool
	for _, text := range documents(t) {
		value, err := strict(t, text)
		set, ok := value.(*appsv1.StatefulSet)
		if err != nil || !ok {
			continue
		}
		found = true
		pod := set.Spec.Template.Spec
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
	if !found {
		t.Error("there is no StatefulSet")
	}
}

// HAProxy reads its configuration; the names of the cluster are looked up later.
func TestManifests_ConfigureHAProxy(t *testing.T) {
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Skip("haproxy is not installed")
	}
	for _, text := range documents(t) {
		value, err := strict(t, text)
		configuration, ok := value.(*corev1.ConfigMap)
		if err != nil || !ok {
			continue
		}
		file := filepath.Join(t.TempDir(), "haproxy.cfg")
		if err := os.WriteFile(file, []byte(configuration.Data["haproxy.cfg"]), 0o600); err != nil {
			t.Fatal(err)
		}
		if output, err := exec.CommandContext(t.Context(), "haproxy", "-c", "-f", file).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	t.Error("there is no ConfigMap")
}
