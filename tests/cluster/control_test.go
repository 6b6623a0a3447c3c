package cluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// partsVariable names the folder of the parts of a cluster, as the program build makes it.
const partsVariable = "NIX_SANDBOX_TEST_CLUSTER"

// The addresses of the cluster, in the network namespace of the tests.
const (
	hostAddress = "10.77.0.1" // of the control plane, for the nodes
	services    = "10.96.0.0/16"
	apiserver   = "https://" + hostAddress + ":6443"
	etcd        = "http://127.0.0.1:2379"
)

// cluster is a control plane, with nodes if [cluster.startNodes] was called.
type cluster struct {
	testing.TB
	parts  string      // folder of programs and images
	folder string      // of this cluster: keys, logs, data
	lost   chan string // names of programs that have ended by themselves
}

// need returns the folder of the parts. It skips the test where there is none, and where the
// tests are not in a network namespace of their own, which ./check --cluster gives them.
func need(t testing.TB) string {
	t.Helper()
	parts := os.Getenv(partsVariable)
	if parts == "" {
		t.Skip(partsVariable + " does not name the parts of a cluster: ./check --cluster")
	}
	links, err := net.Interfaces()
	must.Do(t, err)
	for _, link := range links {
		if link.Name != "lo" && !strings.HasPrefix(link.Name, "node") {
			t.Fatalf("there is an interface %s: run these tests in a network namespace of their own, as ./check --cluster does", link.Name)
		}
	}
	return parts
}

// startAPI starts etcd and the API server.
func startAPI(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{TB: t, parts: need(t), folder: t.TempDir(), lost: make(chan string, 20)}
	began := time.Now()
	c.network()
	c.keys()
	c.start("etcd", "debian/usr/bin/etcd", "--data-dir", c.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd)
	c.start("apiserver", "bin/kube", "apiserver", "--secure-port=6443", "--advertise-address="+hostAddress,
		"--etcd-servers="+etcd, "--client-ca-file="+c.path("ca.crt"),
		"--tls-cert-file="+c.path("apiserver.crt"), "--tls-private-key-file="+c.path("apiserver.key"),
		"--kubelet-client-certificate="+c.path("kubelet-client.crt"), "--kubelet-client-key="+c.path("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP", "--service-cluster-ip-range="+services,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+c.path("accounts.key"), "--service-account-key-file="+c.path("accounts.crt"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		// There are no other servers of which to keep a list.
		"--endpoint-reconciler-type=none")
	c.wait("the API server is not ready", func() bool { _, err := c.try("", "get", "--raw=/readyz"); return err == nil })
	t.Logf("the API server is ready after %.1f s", time.Since(began).Seconds())
	return c
}

// startControllers starts what fills the cluster: namespaces get accounts, sets get pods,
// pods get nodes.
func (c *cluster) startControllers() {
	c.Helper()
	identity := func(name string) []string {
		file := c.path(name + ".conf")
		return []string{"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file, "--leader-elect=false", "--bind-address=127.0.0.1"}
	}
	c.start("controller-manager", "bin/kube", append([]string{"controller-manager",
		"--root-ca-file=" + c.path("ca.crt"), "--service-account-private-key-file=" + c.path("accounts.key"),
		"--use-service-account-credentials"}, identity("controller-manager")...)...)
	c.start("scheduler", "bin/kube", append([]string{"scheduler"}, identity("scheduler")...)...)
	c.wait("there is no default account", func() bool { _, err := c.try("", "get", "serviceaccount", "default"); return err == nil })
}

func (c *cluster) path(name string) string { return filepath.Join(c.folder, name) }

// network gives this network namespace its addresses.
func (c *cluster) network() {
	c.Helper()
	if _, err := net.InterfaceByName(bridge); err != nil {
		c.run("ip", "link", "add", bridge, "type", "bridge")
	}
	for _, words := range []string{
		"link set lo up",
		"address replace " + hostAddress + "/24 dev " + bridge,
		"link set " + bridge + " up",
		// Any node leads to a Service.
		"route replace " + services + " via " + nodes[0].address,
		"route replace " + nodes[0].pods + " via " + nodes[0].address,
		"route replace " + nodes[1].pods + " via " + nodes[1].address,
	} {
		c.run("ip", strings.Fields(words)...)
	}
}

// run runs a program of this machine.
func (c *cluster) run(program string, args ...string) {
	c.Helper()
	if output, err := exec.CommandContext(c.Context(), program, args...).CombinedOutput(); err != nil {
		c.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, output)
	}
}

// start starts a program of the parts, which ends with the test. Its output is in a log.
func (c *cluster) start(name, program string, args ...string) {
	c.Helper()
	c.launch(name, syscall.SIGTERM, exec.Command(filepath.Join(c.parts, program), args...))
}

// launch starts a command, which a signal ends at the test's end.
func (c *cluster) launch(name string, end syscall.Signal, cmd *exec.Cmd) {
	c.Helper()
	log := must.Get(os.Create(c.path(name + ".log")))(c)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.folder, log, log
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.path("admin.conf"))
	must.Do(c, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
		c.lost <- name
	}()
	c.Cleanup(func() {
		select {
		case <-ended:
			c.Errorf("%s has ended: %v", name, cmd.ProcessState)
		default:
		}
		_ = cmd.Process.Signal(end)
		select {
		case <-ended:
		case <-time.After(15 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		log.Close()
		if c.Failed() {
			text, _ := os.ReadFile(log.Name())
			c.Logf("the end of the log of %s:\n%s", name, text[max(0, len(text)-2000):])
		}
	})
}

// wait waits until something is true, at most for ten minutes. It asks once a second, because each
// start of kubectl takes time from the cluster.
func (c *cluster) wait(otherwise string, isTrue func() bool) {
	c.Helper()
	for deadline := time.Now().Add(10 * patience.Long); !isTrue(); {
		if time.Now().After(deadline) {
			c.Fatalf("after %v: %s", 10*patience.Long, otherwise)
		}
		select {
		case name := <-c.lost:
			c.Fatalf("%s, and %s has ended", otherwise, name)
		case <-time.After(time.Second):
		}
	}
}

// try runs kubectl with a text as its input, and returns what it printed. The error has what
// it said.
func (c *cluster) try(input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.Context(), 5*patience.Long)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.parts, "debian/usr/bin/kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.path("admin.conf"), "HOME="+c.folder)
	cmd.Stdin = strings.NewReader(input)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	// Warnings are said on the standard error of a kubectl that succeeds.
	return out.String() + said.String(), nil
}

// kubectl is try, which has to succeed.
func (c *cluster) kubectl(input string, args ...string) string {
	c.Helper()
	return strings.TrimSpace(must.Get(c.try(input, args...))(c))
}

// keys makes the keys of the cluster, their certificates, and the files by which programs
// find the API server.
func (c *cluster) keys() {
	c.Helper()
	authority := c.certificate("ca", pkix.Name{CommonName: "test"}, nil)
	c.certificate("apiserver", pkix.Name{CommonName: "kube-apiserver"}, authority, "127.0.0.1", hostAddress, "10.96.0.1", "localhost", "kubernetes.default.svc")
	c.certificate("kubelet-client", pkix.Name{CommonName: "kubelet-client", Organization: []string{"system:masters"}}, authority)
	c.certificate("accounts", pkix.Name{CommonName: "accounts"}, authority)
	subjects := map[string]pkix.Name{
		"admin":              {CommonName: "admin", Organization: []string{"system:masters"}},
		"controller-manager": {CommonName: "system:kube-controller-manager"},
		"scheduler":          {CommonName: "system:kube-scheduler"},
	}
	for _, node := range nodes {
		c.certificate(node.name+"-kubelet", pkix.Name{CommonName: node.name}, authority, node.name, node.address)
		subjects[node.name] = pkix.Name{CommonName: "system:node:" + node.name, Organization: []string{"system:nodes"}}
	}
	for name, subject := range subjects {
		c.certificate(name, subject, authority)
		must.Write(c, c.path(name+".conf"), fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
 clusters: [{name: k, cluster: {server: "%s", certificate-authority-data: %s}}],
 users: [{name: u, user: {client-certificate-data: %s, client-key-data: %s}}],
 contexts: [{name: c, context: {cluster: k, user: u}}]}
`, apiserver, c.base64("ca.crt"), c.base64(name+".crt"), c.base64(name+".key")), 0o600)
	}
}

type pair struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// certificate makes NAME.key and NAME.crt, which an authority signs, or the key itself.
func (c *cluster) certificate(name string, subject pkix.Name, authority *pair, names ...string) *pair {
	c.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(c)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, one := range names {
		if address := net.ParseIP(one); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, one)
		}
	}
	made := &pair{template, key}
	if authority == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
		authority = made
	}
	signed := must.Get(x509.CreateCertificate(rand.Reader, template, authority.certificate, &key.PublicKey, authority.key))(c)
	private := must.Get(x509.MarshalECPrivateKey(key))(c)
	must.Write(c, c.path(name+".crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})), 0o644)
	must.Write(c, c.path(name+".key"), string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})), 0o600)
	return made
}

func (c *cluster) base64(name string) string {
	c.Helper()
	return base64.StdEncoding.EncodeToString(must.Get(os.ReadFile(c.path(name)))(c))
}
