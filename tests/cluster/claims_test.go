package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// volumes is how many volumes the cluster has for claims.
const volumes = 8

// claims is how many servers are claimed, one after another.
const claims = 40

// startAgentSandbox starts the controller of agent-sandbox.
func (c *cluster) startAgentSandbox() {
	c.Helper()
	c.installAgentSandbox()
	c.start("agent-sandbox", "bin/agent-sandbox-controller", "--extensions", "--leader-elect=false", "--enable-webhook=false",
		"--metrics-bind-address=127.0.0.1:18080", "--health-probe-bind-address=127.0.0.1:18081")
}

// TestClaims measures how long a claim of a warm pool takes. There is no node: the test says in
// its place that each pod is ready, so that the time is that of the control plane alone.
func TestClaims(t *testing.T) {
	c := startAPI(t)
	c.startControllers()
	c.startAgentSandbox()
	c.kubectl("", "apply", "-k", deploy("agent-sandbox"))
	c.kubectl("", "patch", "sandboxwarmpool", "nix-sandbox-mcp", "--type=merge", "-p", `{"spec":{"replicas":5}}`)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.runPods(ctx)
	}()
	// Before the cluster ends.
	defer func() { stop(); <-ended }()
	var took []time.Duration
	for i := range claims {
		c.poolReady(5)
		name := fmt.Sprint("claim-", i)
		took = append(took, c.claim(name))
		c.kubectl("", "delete", "sandboxclaim", name, "--wait=false")
	}
	slices.Sort(took)
	t.Logf("%d claims were ready after %v to %v: half of them within %v, 95 %% within %v", claims, took[0], took[claims-1], took[claims/2-1], took[claims*95/100-1])
}

// runPods says of every pod that it runs, as a kubelet does.
func (c *cluster) runPods(ctx context.Context) {
	for n := 0; ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
		names, err := c.try("", "get", "pods", "--field-selector=status.phase=Pending", "-o", "jsonpath={.items[*].metadata.name}")
		for name := range strings.FieldsSeq(names) {
			if err != nil {
				break
			}
			n++
			status := fmt.Sprintf(`{"status":{"phase":"Running","podIP":"10.244.1.%d","podIPs":[{"ip":"10.244.1.%[1]d"}],
 "conditions":[{"type":"Ready","status":"True","lastTransitionTime":%[2]q}]}}`, n%250+1, time.Now().UTC().Format(time.RFC3339))
			_, _ = c.try("", "patch", "pod", name, "--subresource=status", "--type=merge", "-p", status) // it may have ended
		}
	}
}

func (c *cluster) makeVolumes() {
	c.Helper()
	var text strings.Builder
	for i := range volumes {
		fmt.Fprintf(&text, `{apiVersion: v1, kind: PersistentVolume, metadata: {name: volume-%d}, spec: {capacity: {storage: 4Gi}, accessModes: [ReadWriteOnce],
 persistentVolumeReclaimPolicy: Retain, hostPath: {path: /state/volume-%d}}}
---
`, i, i)
	}
	c.kubectl(text.String(), "apply", "-f", "-")
}

// poolReady waits until the pool has as many servers.
func (c *cluster) poolReady(servers int) {
	c.Helper()
	c.wait("the pool is not ready", func() bool {
		ready, err := c.try("", "get", "sandboxwarmpool", "nix-sandbox-mcp", "-o", "jsonpath={.status.readyReplicas}")
		return err == nil && ready == fmt.Sprint(servers)
	})
}

// claim makes a claim, and returns the time until the API server says that it is Ready.
func (c *cluster) claim(name string) time.Duration {
	c.Helper()
	const path = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxclaims"
	claim := object{
		"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": object{"name": name},
		"spec": object{"warmPoolRef": object{"name": "nix-sandbox-mcp"}},
	}
	ctx, cancel := context.WithTimeout(c.Context(), 5*patience.Long)
	defer cancel()
	began := time.Now()
	response := c.ask(ctx, http.MethodPost, path, must.Get(json.Marshal(claim))(c))
	must.Do(c, response.Body.Close())
	watch := c.ask(ctx, http.MethodGet, path+"?watch=1&fieldSelector=metadata.name%3D"+name, nil)
	defer watch.Body.Close()
	for decoder := json.NewDecoder(watch.Body); ; {
		var event struct{ Object claimed }
		must.Do(c, decoder.Decode(&event))
		if event.Object.isReady() {
			return time.Since(began).Round(time.Millisecond)
		}
	}
}

// claimed is what the tests read of a claim.
type claimed struct {
	Status struct {
		Sandbox    struct{ PodIPs []string }
		Conditions []struct{ Type, Status string }
	}
}

func (one claimed) isReady() bool {
	return slices.Contains(one.Status.Conditions, struct{ Type, Status string }{"Ready", "True"})
}

// ask sends a request to the API server. Kubectl would take longer to start than a claim to be
// ready.
func (c *cluster) ask(ctx context.Context, method, path string, body []byte) *http.Response {
	c.Helper()
	certificate := must.Get(tls.LoadX509KeyPair(c.path("admin.crt"), c.path("admin.key")))(c)
	authority := x509.NewCertPool()
	authority.AppendCertsFromPEM(must.Get(os.ReadFile(c.path("ca.crt")))(c))
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: authority}}
	c.Cleanup(transport.CloseIdleConnections)
	request := must.Get(http.NewRequestWithContext(ctx, method, apiserver+path, bytes.NewReader(body)))(c)
	request.Header.Set("Content-Type", "application/json")
	response := must.Get((&http.Client{Transport: transport}).Do(request))(c)
	if response.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		c.Fatalf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return response
}

// A server of a pool is claimed and suspended, and has the files of its principal when it runs
// again.
func testSuspension(t *testing.T, c *cluster, _ string) {
	c.startAgentSandbox()
	c.makeVolumes()
	// A sandbox takes longer to start where instructions are emulated.
	folder := c.kustomization("claimed", images+`resources: [deploy/agent-sandbox]
patches:
  - target: {kind: SandboxTemplate}
    patch: |
      - {op: add, path: /spec/podTemplate/spec/containers/0/env/-, value: {name: NIX_SANDBOX_START_SECONDS, value: "120"}}
`)
	began := time.Now()
	c.kubectl("", "apply", "-k", folder)
	c.poolReady(2)
	t.Logf("the pool is ready after %.1f s", time.Since(began).Seconds())
	t.Logf("a claim is ready after %v", c.claim("alice"))
	testSuspend(t, c, "alice")
	// The node is small.
	c.kubectl("", "delete", "sandboxclaim/alice", "sandboxwarmpool/nix-sandbox-mcp")
}

func testSuspend(t *testing.T, c *cluster, name string) {
	sandbox := c.kubectl("", "get", "sandboxclaim", name, "-o", "jsonpath={.status.sandbox.name}")
	run := func(code string) string {
		t.Helper()
		addresses := c.kubectl("", "get", "sandboxclaim", name, "-o", "jsonpath={.status.sandbox.podIPs[0]}")
		answer, err := at("sandbox.internal", addresses+":8080", tokenOf(0)).Run(t.Context(), mcpclient.Arguments{Env: "bash", Session: "work", Code: code})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Text()
	}
	if text := run("echo of the first call >note; cat note"); text != "of the first call\n" {
		t.Fatalf("the first call answered %q", text)
	}
	began := time.Now()
	c.operate(sandbox, "Suspended")
	c.wait("the pod has not ended", func() bool {
		_, err := c.try("", "wait", "--for=condition=Suspended", "--timeout=30s", "sandbox/"+sandbox)
		return err == nil
	})
	t.Logf("suspended after %.1f s", time.Since(began).Seconds())
	began = time.Now()
	c.operate(sandbox, "Running")
	c.wait("the claim is not ready", func() bool {
		text, err := c.try("", "get", "sandboxclaim", name, "-o", "json")
		var one claimed
		return err == nil && json.Unmarshal([]byte(text), &one) == nil && len(one.Status.Sandbox.PodIPs) > 0 && one.isReady()
	})
	t.Logf("ready again after %.1f s", time.Since(began).Seconds())
	if text := run("cat note"); !strings.HasPrefix(text, "of the first call\n") {
		t.Errorf("after the suspension the session has %q", text)
	}
}

func (c *cluster) operate(sandbox, mode string) {
	c.Helper()
	c.kubectl("", "patch", "sandbox", sandbox, "--type=merge", "-p", `{"spec":{"operatingMode":"`+mode+`"}}`)
}
