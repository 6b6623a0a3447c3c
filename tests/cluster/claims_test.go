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
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// volumes is how many volumes the cluster has for claims.
const volumes = 16

// How many servers are claimed, one after another: without nodes, and with them.
const claims, nodeClaims = 40, 8

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
 persistentVolumeReclaimPolicy: Retain, hostPath: {path: /shared/volume-%d}}}
---
`, i, i)
	}
	c.kubectl(text.String(), "apply", "-f", "-")
	// What both nodes have in common takes the place of storage on a network.
	for i := range volumes {
		folder := filepath.Join(c.path("shared"), fmt.Sprint("volume-", i))
		must.Do(c, os.Mkdir(folder, 0o777))
		must.Do(c, os.Chmod(folder, 0o777))
	}
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

// testSuspension runs the commands of docs/cluster.md for agent-sandbox: two principals have a server
// each, to which a router leads them; one is suspended, and has its files when it runs again.
func testSuspension(t *testing.T, c *cluster, _ string) {
	c.startAgentSandbox()
	c.makeVolumes()
	began := time.Now()
	c.page("claim.yaml")
	sandbox := c.kubectl("", "get", "sandboxclaim", "alice", "-o", "jsonpath={.status.sandbox.name}")
	t.Logf("%s is claimed after %.1f s, which were mostly the pool's", sandbox, time.Since(began).Seconds())
	c.rolledOut("deployment/nix-sandbox-mcp-router")
	c.kubectl(strings.ReplaceAll(string(must.Get(os.ReadFile(deploy("agent-sandbox/claim.yaml")))(t)), "alice", "bob"), "apply", "-f", "-")
	c.kubectl("", "wait", "--for=condition=Ready", "--timeout=120s", "sandboxclaim/bob")
	const host = "nix-sandbox-mcp-router.default.svc.cluster.local"
	address := c.kubectl("", "get", "service", "nix-sandbox-mcp-router", "-o", "jsonpath={.spec.clusterIP}") + ":8800"
	alice, bob := at(host, address, c.token("alice")), at(host, address, c.token("bob"))
	for client, name := range map[*httpclient.Client]string{alice: "alice", bob: "bob"} {
		c.wait("the router does not lead to "+name, func() bool { return statusOf(t, client) == 0 })
		if text := textOf(t, client, "work", "cat note 2>/dev/null; echo of "+name+" >note; cat note"); text != "of "+name+"\n" {
			t.Fatalf("the first call of %s answered %q", name, text)
		}
	}
	if status := statusOf(t, at(host, address, "nsm_made-up")); status != http.StatusUnauthorized {
		t.Errorf("a token that is not: status %d", status)
	}
	if status := statusOf(t, at(host, address, tokenOf(0))); status != http.StatusServiceUnavailable {
		t.Errorf("a principal without a claim: status %d", status)
	}
	// Each is where the claim says, and nowhere else: the server of alice knows bob's token, and
	// has nothing of bob's.
	direct := at("sandbox.internal", c.kubectl("", "get", "sandboxclaim", "alice", "-o", "jsonpath={.status.sandbox.podIPs[0]}")+":8080", c.token("alice"))
	if text := textOf(t, direct, "work", "cat note"); text != "of alice\n" {
		t.Errorf("the server of alice's claim has %q", text)
	}
	direct.Token = c.token("bob")
	if text := textOf(t, direct, "work", "cat note 2>/dev/null || echo nothing"); text != "nothing\n" {
		t.Errorf("the server of alice's claim has of bob %q", text)
	}
	began = time.Now()
	c.page(`"Suspended"`)
	c.kubectl("", "wait", "--for=condition=Suspended", "--timeout=120s", "sandbox/"+sandbox)
	t.Logf("suspended after %.1f s", time.Since(began).Seconds())
	c.wait("the router does not refuse", func() bool { return statusOf(t, alice) == http.StatusServiceUnavailable })
	if text := textOf(t, bob, "work", "cat note"); text != "of bob\n" {
		t.Errorf("meanwhile bob has %q", text)
	}
	began = time.Now()
	c.page(`"Running"`)
	c.wait("the router does not lead to alice again", func() bool { return statusOf(t, alice) == 0 })
	t.Logf("a call is answered %.1f s after the Sandbox goes on", time.Since(began).Seconds())
	if text := textOf(t, alice, "work", "cat note"); !strings.HasPrefix(text, "of alice\n") {
		t.Errorf("after the suspension the session has %q", text)
	}
	var took []time.Duration
	for i := range nodeClaims {
		c.poolReady(2)
		name := fmt.Sprint("claim-", i)
		took = append(took, c.claim(name))
		c.kubectl("", "delete", "sandboxclaim", name)
	}
	slices.Sort(took)
	t.Logf("%d more claims were ready after %v to %v, half of them within %v", nodeClaims, took[0], took[nodeClaims-1], took[nodeClaims/2-1])
}
