package cluster

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

func TestMain(m *testing.M) { os.Exit(patience.Main(m)) }

// service is the Service's whole name.
const service = "nix-sandbox-mcp-proxy.default.svc.cluster.local"

// TestNode applies the manifests in a cluster with a node, and does to it what happens to one.
func TestNode(t *testing.T) {
	need(t)
	if os.Getenv(imageVariable) == "" {
		t.Skip(imageVariable + " does not name the program that prints the image")
	}
	c := startAPI(t)
	c.startControllers()
	c.startNode()
	began := time.Now()
	c.kubectl(tokens(), "create", "secret", "generic", "nix-sandbox-mcp-tokens", "--from-file=tokens=/dev/stdin")
	// The image's name, and less of the two emulated processors.
	folder := c.kustomization("applied", images+`resources: [deploy]
patches:
  - target: {kind: StatefulSet}
    patch: |
      - {op: replace, path: /spec/template/spec/containers/0/resources/requests, value: {cpu: 100m, memory: 256Mi}}
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: NIX_SANDBOX_START_SECONDS, value: "120"}}
`)
	c.kubectl("", "apply", "-k", folder)
	for _, what := range []string{"statefulset/nix-sandbox-mcp", "deployment/nix-sandbox-mcp-proxy"} {
		c.rolledOut(what)
		t.Logf("%s is ready after %.1f s", what, time.Since(began).Seconds())
	}
	address := c.kubectl("", "get", "service", "nix-sandbox-mcp-proxy", "-o", "jsonpath={.spec.clusterIP}") + ":8800"
	for _, one := range []struct {
		name string
		test func(*testing.T, *cluster, string)
	}{
		{"Service", testService}, {"Doctor", testDoctor}, {"Suspension", testSuspension},
		{"Rollout", testRollout}, {"Proxy", testProxy},
		{"Death", testDeath}, {"Drain", testDrain}, {"Budget", testBudget},
	} {
		t.Run(one.name, func(t *testing.T) {
			in := *c
			in.TB = t
			one.test(t, &in, address)
		})
	}
}

// rolledOut waits until all pods of something are those that are wanted.
func (c *cluster) rolledOut(what string) {
	c.Helper()
	c.wait(what+" is not rolled out", func() bool { _, err := c.try("", "rollout", "status", "--timeout=60s", what); return err == nil })
}

// A call by each of the Service's names is answered, and one by another name is not.
func testService(t *testing.T, c *cluster, address string) {
	for name := service; ; name = name[:strings.LastIndex(name, ".")] {
		for _, suffix := range []string{"", ".default", ".default.svc", ".default.svc.cluster.local"} {
			if name != "nix-sandbox-mcp-proxy"+suffix {
				continue
			}
			began := time.Now()
			answer, err := at(name, address, tokenOf(0)).Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: "echo $((6 * 7))"})
			if err != nil || answer.IsError || answer.Text() != "42\n" {
				t.Errorf("%s: %v %q", name, err, answer.Text())
			}
			t.Logf("%s: answered in %.2f s", name, time.Since(began).Seconds())
		}
		if !strings.Contains(name, ".") {
			break
		}
	}
	if _, err := at("other.example", address, tokenOf(0)).Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: "true"}); err == nil || !strings.Contains(err.Error(), "NIX_SANDBOX_HOSTS") {
		t.Errorf("by another name: %v, want a refusal that names NIX_SANDBOX_HOSTS", err)
	}
}

func testDoctor(t *testing.T, c *cluster, _ string) {
	report := c.kubectl("", "exec", "nix-sandbox-mcp-0", "--", "nix-sandbox-mcp", "doctor")
	if !strings.Contains(report, "Sandboxes work here.") || strings.Contains(report, "systemd-run") {
		t.Errorf("doctor found:\n%s", report)
	}
	t.Logf("\n%s", report)
}

// under does something to the cluster while principals call, as often as an emulated node can
// answer: TestRouting has more.
func under(t *testing.T, c *cluster, address string, do func()) *traffic {
	t.Helper()
	traffic := startTraffic(t.Context(), service, address, 1)
	time.Sleep(10 * time.Second)
	do()
	time.Sleep(10 * time.Second)
	t.Logf("%s", traffic.end())
	for _, one := range traffic.wrong[:min(len(traffic.wrong), 5)] {
		t.Errorf("%d are wrong: %s", len(traffic.wrong), one)
	}
	if traffic.answered == 0 {
		t.Error("no call was answered")
	}
	return traffic
}

func testRollout(t *testing.T, c *cluster, address string) {
	under(t, c, address, func() {
		c.kubectl("", "rollout", "restart", "statefulset/nix-sandbox-mcp")
		c.rolledOut("statefulset/nix-sandbox-mcp")
	})
}

// A HAProxy without a table leads each principal to the server that has its sessions.
func testProxy(t *testing.T, c *cluster, address string) {
	traffic := under(t, c, address, func() {
		c.kubectl("", "rollout", "restart", "deployment/nix-sandbox-mcp-proxy")
		c.rolledOut("deployment/nix-sandbox-mcp-proxy")
	})
	if traffic.anew > principals {
		t.Errorf("%d sessions began anew for %d principals", traffic.anew, principals)
	}
}

func testDeath(t *testing.T, c *cluster, address string) {
	under(t, c, address, func() {
		c.kubectl("", "delete", "pod", "nix-sandbox-mcp-0", "--grace-period=0", "--force")
		c.rolledOut("statefulset/nix-sandbox-mcp")
	})
}

// An eviction, as a drain of the pod's node asks for it.
func testDrain(t *testing.T, c *cluster, address string) {
	under(t, c, address, func() {
		c.kubectl("", "drain", "node", "--delete-emptydir-data", "--pod-selector=statefulset.kubernetes.io/pod-name=nix-sandbox-mcp-1")
		c.kubectl("", "uncordon", "node")
		c.rolledOut("statefulset/nix-sandbox-mcp")
	})
}

// A drain of the node that has both servers ends one. The other stays until there is another
// place for the first.
func testBudget(t *testing.T, c *cluster, address string) {
	_, err := c.try("", "drain", "node", "--delete-emptydir-data", "--pod-selector=app=nix-sandbox-mcp", "--timeout=90s")
	if err == nil || !strings.Contains(err.Error(), "disruption budget") {
		t.Errorf("a drain of all servers: %v, want a refusal by the budget", err)
	}
	answer, err := at(service, address, tokenOf(0)).Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: "echo here"})
	if err != nil || answer.Text() != "here\n" {
		t.Errorf("meanwhile: %v %q", err, answer.Text())
	}
	c.kubectl("", "uncordon", "node")
	c.rolledOut("statefulset/nix-sandbox-mcp")
}
