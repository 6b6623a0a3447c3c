package networld

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Package is the name of the package that the mirrors of pip and npm have, in version
// 1.0.0. Its function hello returns [Greeting].
const Package = "networld-hello"

// Greeting is what the package and the repository say.
const Greeting = "hello from the mirror"

// Module is the module that the mirror of Go's modules has, in version 1.0.0.
const Module = "hello.host.example/hello"

// mirrors are an index of Python packages (PEP 503), a registry of npm, and a proxy of Go's
// modules, each with one package.
type mirrors struct {
	wheel, tarball, module []byte
}

const wheelName = "networld_hello-1.0.0-py3-none-any.whl"

func newMirrors() (*mirrors, error) {
	wheel, err := makeWheel()
	if err != nil {
		return nil, err
	}
	tarball, err := makeTarball()
	if err != nil {
		return nil, err
	}
	module, err := makeModule()
	return &mirrors{wheel, tarball, module}, err
}

const goMod = "module " + Module + "\n\ngo 1.20\n"

func makeModule() ([]byte, error) {
	var buffer bytes.Buffer
	archive := zip.NewWriter(&buffer)
	const folder = Module + "@v1.0.0/"
	err := errors.Join(
		addToZip(archive, folder+"go.mod", goMod),
		addToZip(archive, folder+"hello.go", fmt.Sprintf("package hello\n\nconst Greeting = %q\n", Greeting)),
		archive.Close(),
	)
	return buffer.Bytes(), err
}

func makeWheel() ([]byte, error) {
	const info = "networld_hello-1.0.0.dist-info/"
	var buffer bytes.Buffer
	archive := zip.NewWriter(&buffer)
	record := ""
	for _, file := range [][2]string{
		{"networld_hello.py", fmt.Sprintf("def hello():\n    return %q\n", Greeting)},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + Package + "\nVersion: 1.0.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: networld\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	} {
		sum := sha256.Sum256([]byte(file[1]))
		record += fmt.Sprintf("%s,sha256=%s,%d\n", file[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(file[1]))
		if err := addToZip(archive, file[0], file[1]); err != nil {
			return nil, err
		}
	}
	record += info + "RECORD,,\n"
	err := errors.Join(addToZip(archive, info+"RECORD", record), archive.Close())
	return buffer.Bytes(), err
}

func addToZip(archive *zip.Writer, name, content string) error {
	file, err := archive.Create(name)
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, content)
	return err
}

func makeTarball() ([]byte, error) {
	var buffer bytes.Buffer
	packed := gzip.NewWriter(&buffer)
	archive := tar.NewWriter(packed)
	for _, file := range [][2]string{
		{"package/package.json", `{"name":"` + Package + `","version":"1.0.0","main":"index.js"}`},
		{"package/index.js", fmt.Sprintf("exports.hello = () => %q;\n", Greeting)},
	} {
		if err := archive.WriteHeader(&tar.Header{Name: file[0], Mode: 0o644, Size: int64(len(file[1]))}); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(archive, file[1]); err != nil {
			return nil, err
		}
	}
	err := errors.Join(archive.Close(), packed.Close())
	return buffer.Bytes(), err
}

// ServeHTTP implements [http.Handler].
func (m *mirrors) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	switch path := request.URL.Path; path {
	case "/simple/" + Package + "/":
		sum := sha256.Sum256(m.wheel)
		out.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(out, "<!DOCTYPE html><html><body><a href=\"/files/%s#sha256=%s\">%s</a></body></html>\n", wheelName, hex.EncodeToString(sum[:]), wheelName)
	case "/files/" + wheelName:
		out.Write(m.wheel)
	case "/" + Package:
		sum := sha512.Sum512(m.tarball)
		_ = json.NewEncoder(out).Encode(map[string]any{
			"name":      Package,
			"dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": map[string]any{
				"name": Package, "version": "1.0.0",
				"dist": map[string]string{
					"tarball":   "https://npm.host.example/" + Package + ".tgz",
					"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
				},
			}},
		})
	case "/" + Package + ".tgz":
		out.Write(m.tarball)
	case "/" + Module + "/@v/list":
		io.WriteString(out, "v1.0.0\n")
	case "/" + Module + "/@v/v1.0.0.info":
		io.WriteString(out, `{"Version":"v1.0.0"}`)
	case "/" + Module + "/@v/v1.0.0.mod":
		io.WriteString(out, goMod)
	case "/" + Module + "/@v/v1.0.0.zip":
		out.Write(m.module)
	default:
		http.NotFound(out, request)
	}
}

// makeRepository makes the repository that git can clone and push to, with one file, and returns the
// folder that has it as hello.git.
func (w *World) makeRepository() (string, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return "", err
	}
	tree, folder := filepath.Join(w.dir, "tree"), filepath.Join(w.dir, "git")
	if err := errors.Join(os.Mkdir(tree, 0o755), os.Mkdir(folder, 0o755),
		os.WriteFile(filepath.Join(tree, "greeting"), []byte(Greeting+"\n"), 0o644)); err != nil {
		return "", err
	}
	for _, words := range []string{
		"init -q -b main .", "add greeting", "-c user.name=test -c user.email=test@host.example commit -q -m greeting",
		"clone -q --bare . " + filepath.Join(folder, "hello.git"),
		"-C " + filepath.Join(folder, "hello.git") + " config http.receivepack true",
	} {
		cmd := exec.CommandContext(w.stopped, git, strings.Fields(words)...)
		cmd.Dir = tree
		cmd.Env = gitEnvironment(w.dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("git %s: %w: %s", words, err, out)
		}
	}
	return folder, nil
}

// gitEnvironment keeps git from the settings of whoever runs the tests.
func gitEnvironment(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GIT_CONFIG_NOSYSTEM=1"}
}

// serveGit serves the repository over HTTP.
func (w *World) serveGit(out http.ResponseWriter, request *http.Request) {
	folder, err := w.repository()
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	git, err := exec.LookPath("git")
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	(&cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Dir: folder, Stderr: io.Discard,
		Env: append(gitEnvironment(w.dir), "GIT_PROJECT_ROOT="+folder, "GIT_HTTP_EXPORT_ALL=1"),
	}).ServeHTTP(out, request)
}
