package network

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
)

// tableVariable names the file to which TestPrograms writes its table.
const tableVariable = "NIX_SANDBOX_TEST_TABLE"

// programs are the ways in which programs reach a network. Each has a library, a resolver
// and a TLS of its own. None is told that there is a proxy.
var programs = []struct {
	name  string
	needs string // bash code that succeeds where the sandbox has the program
	code  string // of bash
	want  string // in what it prints
}{
	{"curl, HTTPS", "curl --version", `curl -sS https://files.example/small`, "hello files.example"},
	{"curl, HTTP", "curl --version", `curl -sS http://files.example/small`, "hello files.example"},
	{"wget", "wget --version", `wget -q -O - --ca-certificate=$CA https://files.example/small`, "hello files.example"},
	{"git clone, HTTPS", "git --version", `git clone -q https://git.host.example/hello.git && cat hello/greeting`, networld.Greeting},
	{"git clone, SSH", "git --version && type ssh", `GIT_SSH_COMMAND="ssh -F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR" git clone -q ssh://git@git.example/hello.git && cat hello/greeting`, networld.Greeting},
	{"ssh", "type ssh", `ssh -F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR git@git.example greet`, networld.Greeting},
	{"pip install", "python3 -m pip --version", `python3 -m pip install -q --no-cache-dir --target here --index-url https://pypi.host.example/simple networld-hello && PYTHONPATH=here python3 -c 'import networld_hello; print(networld_hello.hello())'`, networld.Greeting},
	{"npm install", "npm --version", `npm install --silent --no-audit --no-fund --registry https://npm.host.example/ networld-hello && node -e 'console.log(require("networld-hello").hello())'`, networld.Greeting},
	{"go mod download", "go version", `export GOPROXY=https://go.host.example GONOSUMDB='*' GONOSUMCHECK=1 GOFLAGS=-mod=mod GOTOOLCHAIN=local GOPATH=/tmp/go GOCACHE=/tmp/cache; mkdir m && cd m && go mod init m.example/m 2>/dev/null && go get hello.host.example/hello@v1.0.0 2>/dev/null && cat $GOPATH/pkg/mod/hello.host.example/hello@v1.0.0/hello.go`, networld.Greeting},
	{"Python, urllib", "python3 --version", `python3 -c 'import urllib.request as u; print(u.urlopen("https://files.example/small").read())'`, "hello files.example"},
	{"Python, http.client", "python3 --version", `python3 -c 'import http.client as h; c = h.HTTPSConnection("files.example"); c.request("GET", "/small"); print(c.getresponse().read())'`, "hello files.example"},
	{"Python, requests", "python3 -c 'import requests'", `python3 -c 'import requests; print(requests.get("https://files.example/small").text)'`, "hello files.example"},
	{"Python, requests of pip", "python3 -m pip --version", `python3 -c 'from pip._vendor import requests; print(requests.get("https://files.example/small").text)'`, "hello files.example"},
	{"Python, httplib2", "python3 -c 'import httplib2'", `python3 -c 'import httplib2, os; print(httplib2.Http(ca_certs=os.environ["CA"]).request("https://files.example/small")[1])'`, "hello files.example"},
	{"Python, httpx", "python3 -c 'import httpx'", `python3 -c 'import httpx; print(httpx.get("https://files.example/small").text)'`, "hello files.example"},
	{"Python, aiohttp", "python3 -c 'import aiohttp'", `python3 -c '
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession() as session, session.get("https://files.example/small") as answer:
        print(await answer.text())
asyncio.run(main())'`, "hello files.example"},
	{"Python, asyncio", "python3 --version", `python3 -c '
import asyncio
async def main():
    reader, writer = await asyncio.open_connection("files.example", 443, ssl=True)
    writer.write(b"GET /small HTTP/1.0\r\nHost: files.example\r\n\r\n")
    print(await reader.read())
asyncio.run(main())'`, "hello files.example"},
	{"Python, socket", "python3 --version", `python3 -c 'import socket; c = socket.create_connection(("files.example", 80)); c.send(b"GET /small HTTP/1.0\r\nHost: files.example\r\n\r\n"); print(c.makefile().read())'`, "hello files.example"},
	{"Python, IPv6 socket", "python3 --version", `python3 -c 'import socket; a = socket.getaddrinfo("files.example", 80, socket.AF_INET6, socket.SOCK_STREAM, 0, socket.AI_V4MAPPED)[0][4]; c = socket.socket(socket.AF_INET6); c.connect(a); c.send(b"GET /small HTTP/1.0\r\nHost: files.example\r\n\r\n"); print(c.makefile().read())'`, "hello files.example"},
	{"getaddrinfo", "getent --version", `getent hosts files.example`, "files.example"},
	{"Node, fetch", "node --version", `node -e 'fetch("https://files.example/small").then((r) => r.text()).then(console.log)'`, "hello files.example"},
	{"Node, https", "node --version", `node -e 'require("https").get("https://files.example/small", (r) => r.pipe(process.stdout))'`, "hello files.example"},
	{"Node, dns.resolve4", "node --version", `node -e 'require("dns").resolve4("files.example", (e, a) => console.log(e ? e.code : "address " + a))'`, "address "},
	{"bash, /dev/tcp", "true", `exec 9<>/dev/tcp/files.example/80; printf 'GET /small HTTP/1.0\r\nHost: files.example\r\n\r\n' >&9; cat <&9`, "hello files.example"},
	{"Perl, IO::Socket", "perl --version", `perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new("files.example:80") or die $@; print $s "GET /small HTTP/1.0\r\nHost: files.example\r\n\r\n"; print <$s>'`, "hello files.example"},
	{"Perl, HTTP::Tiny", "perl -MHTTP::Tiny -e 1", `perl -MHTTP::Tiny -e 'print HTTP::Tiny->new->get("http://files.example/small")->{content}'`, "hello files.example"},
	{"dig", "dig -v", `dig +short +tries=1 +time=5 files.example`, "198.18."},
	{"dig at 8.8.8.8", "dig -v", `dig @8.8.8.8 +short +tries=1 +time=5 files.example`, "198.18."},
	{"dig, TCP", "dig -v", `dig +tcp +short +tries=1 +time=5 files.example`, "198.18."},
	{"openssl s_client", "openssl version", `printf 'GET /small HTTP/1.0\r\nHost: files.example\r\n\r\n' | openssl s_client -quiet -CAfile $CA -connect files.example:443 -servername files.example 2>/dev/null`, "hello files.example"},
	{"static program", "true", `/project/static`, "hello files.example\necho"},
	{"Go, net of cgo", "true", `GODEBUG=netdns=cgo /project/static`, "hello files.example\necho"},
}

// TestPrograms tries programs that are packaged, and the machine's own in a sandbox that
// has its /usr: each reaches its host.
func TestPrograms(t *testing.T) {
	w := begin(t, networld.Options{})
	if w == nil {
		return
	}
	project := must.Get(os.MkdirTemp("", "network-project-"))(t)
	t.Cleanup(func() { os.RemoveAll(project) })
	must.Do(t, os.Chmod(project, 0o755))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(project, "static"), "./static")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("no static program can be built: %v: %s", err, out)
	}
	authority := must.Get(networld.Authority())(t)
	prefix := fmt.Sprintf(`cd "$(mktemp -d /workspace/XXXXXX)"; export CA=$PWD/ca.pem; cat >$CA <<'END'
%sEND
export SSL_CERT_FILE=$CA CURL_CA_BUNDLE=$CA GIT_SSL_CAINFO=$CA REQUESTS_CA_BUNDLE=$CA NODE_EXTRA_CA_CERTS=$CA NPM_CONFIG_CAFILE=$CA
`, authority)
	sandboxes := []struct{ name, program string }{
		{"packaged", binRun(t, "world-tools")},
		{"of this machine", withPrograms(t, binRun(t, "world-tools"))},
	}
	columns := map[string]map[string]string{} // by the sandbox and the program
	for _, sandbox := range sandboxes {
		columns[sandbox.name] = map[string]string{}
		for _, program := range programs {
			t.Run(sandbox.name+"/"+program.name, func(t *testing.T) {
				result := columns[sandbox.name]
				run := func(code string) (string, error) {
					return call{program: sandbox.program, code: prefix + code, project: project}.run(t.Context(), w)
				}
				result[program.name] = "not there"
				if _, err := run("{ " + program.needs + "; } >/dev/null 2>&1"); err != nil {
					t.Skip("this sandbox does not have it")
				}
				result[program.name] = "**does not work**"
				if output, err := run(program.code); err != nil || !strings.Contains(output, program.want) {
					t.Fatalf("%v: %s; want %q", err, output, program.want)
				}
				result[program.name] = "works"
			})
		}
	}
	table := "| program | packaged | of this machine |\n| --- | --- | --- |\n"
	for _, program := range programs {
		table += fmt.Sprintf("| %s | %s | %s |\n", program.name, columns["packaged"][program.name], columns["of this machine"][program.name])
	}
	t.Logf("%d programs\n%s", len(programs), table)
	if file := os.Getenv(tableVariable); file != "" {
		must.Do(t, os.WriteFile(file, []byte(table), 0o644))
	}
	if found := w.Violations(); len(found) > 0 {
		t.Errorf("not allowed: %q", found)
	}
}
