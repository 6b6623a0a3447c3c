package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// routing is the manifest's HAProxy over servers that run on this machine, where nothing is
// emulated. The cluster's names lead to them; the test starts and ends them as a StatefulSet
// does pods, each with an address of its own.
type routing struct {
	*cluster
	servers   [2]*server
	started   int
	stopProxy func()
}

type server struct {
	cmd     *exec.Cmd
	address string
	ended   chan struct{}
}

// TestRouting has ten principals call 50 times a second through all that happens to servers.
func TestRouting(t *testing.T) {
	r := &routing{cluster: startAPI(t)}
	undertest.Server(t) // which skips the test if there is none
	r.kubectl(`{apiVersion: v1, kind: Service, metadata: {name: nix-sandbox-mcp}, spec: {clusterIP: None, ports: [{name: http, port: 8080}]}}`, "apply", "-f", "-")
	r.startNames()
	must.Write(t, r.path("tokens"), tokens(), 0o600)
	for i := range r.servers {
		r.servers[i] = r.serve()
	}
	r.publish()
	r.startProxy()
	t.Run("HAProxy's end", func(t *testing.T) {
		traffic := startTraffic(t.Context(), service, "127.0.0.1:8800", 50)
		time.Sleep(5 * time.Second)
		t.Log(traffic.end())
		// It knows both servers, not only the first that it has heard of.
		r.restartProxy()
		time.Sleep(5 * time.Second)
		traffic = startTraffic(t.Context(), service, "127.0.0.1:8800", 50)
		time.Sleep(5 * time.Second)
		t.Log(traffic.end())
		if traffic.anew > 0 || traffic.answered == 0 || len(traffic.wrong) > 0 {
			t.Errorf("a HAProxy without a table led %d principals to another server; %q", traffic.anew, traffic.wrong)
		}
	})
	minReady := r.minReady()
	for _, one := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"rollout", func(t *testing.T) {
			for i := range r.servers {
				r.replace(t, i, syscall.SIGTERM)
				time.Sleep(minReady)
			}
		}},
		{"death", func(t *testing.T) { r.replace(t, 0, syscall.SIGKILL) }},
	} {
		t.Run(one.name, func(t *testing.T) {
			traffic := startTraffic(t.Context(), service, "127.0.0.1:8800", 50)
			time.Sleep(5 * time.Second)
			one.do(t)
			time.Sleep(10 * time.Second)
			t.Log(traffic.end())
			for _, wrong := range traffic.wrong[:min(len(traffic.wrong), 5)] {
				t.Errorf("%d are wrong: %s", len(traffic.wrong), wrong)
			}
			if one.name == "rollout" && len(traffic.refused) > 0 {
				t.Errorf("a rollout refuses calls: %v", traffic.refused)
			}
		})
	}
}

// minReady returns the manifest's minReadySeconds.
func (r *routing) minReady() time.Duration {
	r.Helper()
	var seconds int
	text := string(must.Get(os.ReadFile(deploy("kubernetes.yaml")))(r))
	_, rest, _ := strings.Cut(text, "\n  minReadySeconds: ")
	if _, err := fmt.Sscan(rest, &seconds); err != nil {
		r.Fatal(err)
	}
	return time.Duration(seconds) * time.Second
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

// serve starts a server with an address that no server had before.
func (r *routing) serve() *server {
	r.Helper()
	r.started++
	s := &server{address: fmt.Sprintf("10.244.1.%d", r.started), ended: make(chan struct{})}
	r.run("ip", "address", "add", s.address+"/32", "dev", "lo")
	state := r.path(s.address)
	must.Do(r, os.Mkdir(state, 0o700))
	log := must.Get(os.Create(state + ".log"))(r)
	s.cmd = exec.Command(undertest.Server(r), "serve", "--http", s.address+":8080")
	s.cmd.Env = append(os.Environ(), "HOME="+state, "XDG_STATE_HOME="+state, "XDG_CACHE_HOME="+state, "NIX_SANDBOX_DIR="+state,
		"NIX_SANDBOX_TOKENS="+r.path("tokens"), "NIX_SANDBOX_HOSTS="+service)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	must.Do(r, s.cmd.Start())
	go func() {
		_ = s.cmd.Wait()
		log.Close()
		close(s.ended)
	}()
	r.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.ended:
		case <-time.After(30 * time.Second):
			_ = s.cmd.Process.Kill()
			<-s.ended
		}
	})
	r.wait("the server at "+s.address+" is not ready", func() bool {
		select {
		case <-s.ended:
			r.Fatalf("the server has ended: %s", must.Get(os.ReadFile(log.Name()))(r))
		default:
		}
		response, err := http.Get("http://" + s.address + ":8080/readyz")
		if err == nil {
			response.Body.Close()
		}
		return err == nil && response.StatusCode == http.StatusOK
	})
	return s
}

// replace ends a server by a signal, and starts another in its place.
func (r *routing) replace(t *testing.T, i int, signal syscall.Signal) {
	t.Helper()
	began := time.Now()
	must.Do(t, r.servers[i].cmd.Process.Signal(signal))
	<-r.servers[i].ended
	r.run("ip", "address", "delete", r.servers[i].address+"/32", "dev", "lo")
	took := time.Since(began)
	r.servers[i] = r.serve()
	r.publish()
	t.Logf("a server ended within %.1f s, and another was ready after %.1f s", took.Seconds(), time.Since(began).Seconds())
}

// publish has the cluster's names lead to the servers.
func (r *routing) publish() {
	r.Helper()
	var endpoints []object
	for i, s := range r.servers {
		endpoints = append(endpoints, object{"addresses": []string{s.address}, "hostname": fmt.Sprint("nix-sandbox-mcp-", i), "conditions": object{"ready": true}})
	}
	r.kubectl(string(must.Get(json.Marshal(object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  object{"name": "nix-sandbox-mcp", "labels": object{"kubernetes.io/service-name": "nix-sandbox-mcp"}},
		"endpoints": endpoints, "ports": []object{{"name": "http", "port": 8080, "protocol": "TCP"}},
	}))(r)), "apply", "-f", "-")
}

// startProxy starts HAProxy of the parts with the manifest's configuration.
func (r *routing) startProxy() {
	r.Helper()
	names := r.path("resolv.conf")
	must.Write(r, names, "nameserver "+hostAddress+"\n", 0o644)
	// In the mount namespace of the tests.
	r.run("mount", "--bind", names, "/etc/resolv.conf")
	configuration := r.kubectl("", "create", "--dry-run=client", "-o", "jsonpath={.data.haproxy\\.cfg}", "-f", deploy("kubernetes.yaml"))
	must.Write(r, r.path("haproxy.cfg"), configuration+"\n", 0o600)
	r.restartProxy()
}

// restartProxy ends HAProxy, if it runs, and starts it.
func (r *routing) restartProxy() {
	r.Helper()
	if r.stopProxy != nil {
		r.stopProxy()
	}
	root := filepath.Join(r.parts, "haproxy")
	log := must.Get(os.Create(r.path("haproxy.log")))(r)
	// Its libraries are newer than this machine's.
	cmd := exec.Command(filepath.Join(root, "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"),
		filepath.Join(root, "usr/sbin/haproxy"), "-db", "-f", r.path("haproxy.cfg"))
	cmd.Env = append(os.Environ(), "NAMESPACE=default")
	cmd.Stdout, cmd.Stderr = log, log
	must.Do(r, cmd.Start())
	r.stopProxy = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
	})
	r.Cleanup(r.stopProxy)
	r.wait("HAProxy knows no server", func() bool {
		response, err := http.Get("http://127.0.0.1:8801/readyz")
		if err == nil {
			response.Body.Close()
		}
		return err == nil && response.StatusCode == http.StatusOK
	})
}
