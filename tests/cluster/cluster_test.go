package cluster

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

func TestMain(m *testing.M) { os.Exit(patience.Main(m)) }

// service is the Service's whole name.
const service = "nix-sandbox-mcp-proxy.default.svc.cluster.local"

// TestNodes applies the manifests in a cluster of two nodes, and does to it what happens to one.
func TestNodes(t *testing.T) {
	c := startNodes(t)
	must.Do(t, os.CopyFS(c.path("page/deploy"), os.DirFS(deploy(""))))
	// A node of two processors is to have room for both servers while the other is drained.
	manifest := string(must.Get(os.ReadFile(deploy("kubernetes.yaml")))(t))
	must.Write(t, c.path("page/deploy/kubernetes.yaml"), strings.Replace(manifest, `cpu: "1"`, "cpu: 500m", 1), 0o600)
	must.Write(t, c.path("page/tokens"), tokens()+tokenLine("leaves"), 0o600)
	began := time.Now()
	c.page("token new")
	for _, what := range []string{"statefulset/nix-sandbox-mcp", "deployment/nix-sandbox-mcp-proxy"} {
		c.rolledOut(what)
		t.Logf("%s is ready after %.1f s", what, time.Since(began).Seconds())
	}
	address := c.address()
	for _, one := range []struct {
		name string
		test func(*testing.T, *cluster, string)
	}{
		{"Service", testService}, {"Doctor", testDoctor}, {"Serving", testServing}, {"Rollout", testRollout}, {"Proxy", testProxy},
		{"Death", testDeath}, {"Drain", testDrain}, {"Budget", testBudget}, {"Suspension", testSuspension},
	} {
		t.Run(one.name, func(t *testing.T) {
			in := *c
			in.TB = t
			one.test(t, &in, address)
		})
	}
}

// page runs the block of commands of docs/cluster.md that has a text.
func (c *cluster) page(has string) {
	c.Helper()
	rest := string(must.Get(os.ReadFile("../../docs/cluster.md"))(c))
	for rest != "" {
		var block string
		_, rest, _ = strings.Cut(rest, "```sh elsewhere: it needs a cluster\n")
		block, rest, _ = strings.Cut(rest, "```\n")
		if !strings.Contains(block, has) {
			continue
		}
		cmd := exec.CommandContext(c.Context(), "sh", "-euxc", block)
		cmd.Dir = c.path("page")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.path("admin.conf"), "HOME="+c.folder,
			"PATH="+filepath.Join(c.parts, "debian/usr/bin")+":"+filepath.Dir(undertest.Server(c))+":"+os.Getenv("PATH"))
		if output, err := cmd.CombinedOutput(); err != nil {
			c.Fatalf("the block with %q: %v\n%s", has, err, output)
		}
		return
	}
	c.Fatalf("docs/cluster.md has no block of commands with %q", has)
}

// token is that of a principal to whom the page gives one.
func (c *cluster) token(name string) string {
	c.Helper()
	return strings.TrimSpace(string(must.Get(os.ReadFile(c.path("page/" + name + ".token")))(c)))
}

// startNodes starts a whole cluster.
func startNodes(t *testing.T) *cluster {
	t.Helper()
	need(t)
	if os.Getenv(imageVariable) == "" {
		t.Skip(imageVariable + " does not name the program that prints the image")
	}
	c := startAPI(t)
	c.startControllers()
	c.startNodes()
	return c
}

// address is that of the Service.
func (c *cluster) address() string {
	c.Helper()
	return c.kubectl("", "get", "service", "nix-sandbox-mcp-proxy", "-o", "jsonpath={.spec.clusterIP}") + ":8800"
}

// rolledOut waits until all pods of something are those that are wanted.
func (c *cluster) rolledOut(what string) {
	c.Helper()
	c.wait(what+" is not rolled out", func() bool { _, err := c.try("", "rollout", "status", "--timeout=60s", what); return err == nil })
}

// A call by each of the Service's names is answered, and one by another name is not.
func testService(t *testing.T, c *cluster, address string) {
	for _, name := range []string{"nix-sandbox-mcp-proxy", "nix-sandbox-mcp-proxy.default", "nix-sandbox-mcp-proxy.default.svc", service} {
		began := time.Now()
		answer, err := at(name, address, tokenOf(0)).Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: "echo $((6 * 7))"})
		if err != nil || answer.IsError || answer.Text() != "42\n" {
			t.Errorf("%s: %v %q", name, err, answer.Text())
		}
		t.Logf("%s: answered in %.2f s", name, time.Since(began).Seconds())
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

// under does something to the cluster while principals call 50 times a second.
func under(t *testing.T, address string, do func()) *traffic {
	t.Helper()
	traffic := startTraffic(t.Context(), service, address, 50)
	time.Sleep(10 * time.Second)
	began := time.Now()
	do()
	t.Logf("it took %.0f s", time.Since(began).Seconds())
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

func tokenLine(name string) string {
	return fmt.Sprintf("%s sha256:%x\n", name, sha256.Sum256([]byte("nsm_"+name)))
}

// A rollout ends no call. Its servers read the tokens that the secret has by then.
func testRollout(t *testing.T, c *cluster, address string) {
	file := c.path("page/tokens")
	text := string(must.Get(os.ReadFile(file))(c))
	must.Write(c, file, strings.Replace(text, tokenLine("leaves"), tokenLine("comes"), 1), 0o600)
	status := func(want map[string]int) {
		t.Helper()
		for name, status := range want {
			if got := statusOf(t, at(service, address, "nsm_"+name)); got != status {
				t.Errorf("who %s: status %d, want %d", name, got, status)
			}
		}
	}
	status(map[string]int{"leaves": 0, "comes": 401})
	defer status(map[string]int{"leaves": 401, "comes": 0})
	traffic := under(t, address, func() {
		c.page("rollout restart")
		c.rolledOut("statefulset/nix-sandbox-mcp")
	})
	if len(traffic.refused) > 0 {
		t.Errorf("a rollout refuses calls: %v", traffic.refused)
	}
}

// A HAProxy without a table leads each principal to the server that has its sessions.
func testProxy(t *testing.T, c *cluster, address string) {
	traffic := under(t, address, func() {
		c.kubectl("", "rollout", "restart", "deployment/nix-sandbox-mcp-proxy")
		c.rolledOut("deployment/nix-sandbox-mcp-proxy")
	})
	if traffic.anew > principals || len(traffic.refused) > 0 {
		t.Errorf("%d sessions began anew for %d principals; refused: %v", traffic.anew, principals, traffic.refused)
	}
}

// A pod is deleted without time to end.
func testDeath(t *testing.T, c *cluster, address string) {
	under(t, address, func() {
		c.kubectl("", "delete", "pod", "nix-sandbox-mcp-0", "--grace-period=0", "--force")
		c.rolledOut("statefulset/nix-sandbox-mcp")
	})
}

// Both nodes are drained, one after the other, as for a new version of Kubernetes.
func testDrain(t *testing.T, c *cluster, address string) {
	under(t, address, func() {
		for _, node := range nodes {
			began := time.Now()
			c.kubectl("", "drain", node.name, "--delete-emptydir-data", "--ignore-daemonsets")
			t.Logf("%s is empty after %.0f s", node.name, time.Since(began).Seconds())
			c.rolledOut("statefulset/nix-sandbox-mcp")
			c.rolledOut("deployment/nix-sandbox-mcp-proxy")
			c.kubectl("", "uncordon", node.name)
		}
	})
}

// A drain of all nodes ends one server. The other stays until there is another place for the first.
func testBudget(t *testing.T, c *cluster, address string) {
	began := time.Now()
	_, err := c.try("", "drain", nodes[0].name, nodes[1].name, "--delete-emptydir-data", "--pod-selector=app=nix-sandbox-mcp", "--timeout=60s")
	if err == nil || !strings.Contains(err.Error(), "disruption budget") {
		t.Errorf("a drain of all servers: %v, want a refusal by the budget", err)
	}
	t.Logf("the drain was given up after %.0f s", time.Since(began).Seconds())
	answer, err := at(service, address, tokenOf(0)).Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: "echo here"})
	if err != nil || answer.Text() != "here\n" {
		t.Errorf("meanwhile: %v %q", err, answer.Text())
	}
	c.kubectl("", "uncordon", nodes[0].name, nodes[1].name)
	c.rolledOut("statefulset/nix-sandbox-mcp")
}
