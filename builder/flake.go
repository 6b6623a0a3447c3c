package builder

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// A flake of code's own files is foreign from its first byte. It is unpacked below a folder that no link leads out of,
// evaluated in a jail without a network, and only the path of a derivation comes out. Nix then builds that in its own
// sandbox, and no part of it may fetch: a derivation with a hash of its output would have the network of the host.

const (
	// maxFiles and maxSource bound the files of a flake and their bytes.
	maxFiles  = 20_000
	maxSource = 64 << 20
	// maxDerivation bounds the text of a derivation, in bytes.
	maxDerivation = 16 << 20
)

// AllowFlakes has flakes built, which a command evaluates (nix/wrapper/project.sh). Private is a folder of the
// builder alone.
func (b *Builder) AllowFlakes(command []string, private string) {
	b.evaluate, b.private = command, private
}

// ofFlake is what an evaluation says, and the request for the program that adds it to a sandbox.
type ofFlake struct {
	Derivation string   `json:"drv"`
	Outputs    []string `json:"outputs"`
	Name       string   `json:"name"`
	// Program is a name among the programs of the outputs, or a path.
	Program  string   `json:"program"`
	Packages []string `json:"packages"`
}

// wrong is the failure of a flake, in a sentence for the code.
func wrong(text string) *order.Failure { return &order.Failure{Kind: order.Wrong, Text: text} }

// derivationPath matches the paths of derivations.
var derivationPath = regexp.MustCompile(`^/nix/store/[0-9a-z]{32}-[A-Za-z0-9+._?=-]{1,211}\.drv$`)

// flake builds a package, program or shell of a flake.
func (b *Builder) flake(ctx context.Context, name string, o order.Order, progress func(done, total int)) error {
	if len(b.evaluate) == 0 || !o.Bounds.Flakes {
		return errors.New("flakes are not built here")
	}
	if err := b.isConfined(ctx, name); err != nil {
		return err
	}
	found, err := b.evaluated(ctx, name, o)
	if err != nil {
		return err
	}
	folder, err := b.made.open(o)
	if err != nil {
		return err
	}
	request, err := json.Marshal(found)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, order.RequestFile), request, 0o600)
	}
	if err != nil {
		return err
	}
	plan, err := b.nix.Eval(ctx, name, "ofFlake", "--argstr", "request", filepath.Join(folder, order.RequestFile))
	if err != nil {
		return err
	}
	derivation, is := strings.CutPrefix(strings.TrimSpace(plan), "build ")
	if !is {
		return wrong("the flake's derivation cannot be read")
	}
	env, arguments, err := confined(filepath.Join(b.private, ".nix.conf"))
	if err != nil {
		return err
	}
	return b.realise(ctx, command{name: name, env: env, words: arguments}, o, folder, derivation, progress)
}

// evaluated evaluates a flake.
func (b *Builder) evaluated(ctx context.Context, name string, o order.Order) (found ofFlake, err error) {
	source, err := os.MkdirTemp(b.private, ".flake.")
	if err != nil {
		return found, err
	}
	defer os.RemoveAll(source)
	archive, err := os.Open(o.Source)
	if err != nil {
		return found, err
	}
	defer archive.Close()
	if err := unpack(archive, filepath.Join(source, "source")); err != nil {
		return found, wrong("the archive of the flake: " + err.Error())
	}
	var said bytes.Buffer
	err = b.nix.run(ctx, command{
		name: name, out: &said,
		words: slices.Concat(b.evaluate, []string{"flake", filepath.Join(source, "source"), filepath.Join(source, "home"), o.Want, o.Attribute}),
	})
	what, text, _ := strings.Cut(strings.TrimSpace(said.String()), " ")
	switch {
	case what == "problem":
		return found, wrong(text)
	case err != nil:
		return found, err
	}
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return found, wrong("its evaluation is no package: name another attribute")
	}
	found.Packages = []string{"flake"}
	isOther := !derivationPath.MatchString(found.Derivation) || len(found.Outputs) == 0 || len(found.Outputs) > 16 || len(found.Program) > 512
	for _, output := range found.Outputs {
		isOther = isOther || !regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString(output)
	}
	if isOther {
		return found, wrong("its evaluation is no package: name another attribute")
	}
	return found, nil
}

// isConfined reports an error unless Nix builds in a sandbox of its own: a derivation looks for folders that every
// machine has, and no sandbox.
func (b *Builder) isConfined(ctx context.Context, name string) error {
	b.probing.Lock()
	defer b.probing.Unlock()
	if b.isClosed {
		return nil
	}
	folder, err := os.MkdirTemp(b.private, ".probe.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	env, arguments, err := confined(filepath.Join(b.private, ".nix.conf"))
	if err != nil {
		return err
	}
	link := filepath.Join(folder, "result")
	err = b.nix.Build(ctx, command{name: name, env: env}, link, append(arguments, "--impure", "-f", b.nix.Start, "--argstr", "seed", filepath.Base(folder), "probe")...)
	if err != nil {
		return fmt.Errorf("the sandbox of Nix cannot be used: %w", err)
	}
	if text, err := bounded.ReadFile(link, 64); err != nil || strings.TrimSpace(string(text)) != "closed" {
		return wrong("this Nix builds without a sandbox of its own, so that flakes of code are refused: have the user set sandbox = true in nix.conf")
	}
	b.isClosed = true
	return nil
}

// fetches reports whether a derivation states the hash of its output: such a builder reaches the network.
func fetches(derivation string) (bool, error) {
	text, err := bounded.ReadFile(derivation, maxDerivation)
	if err != nil {
		return false, err
	}
	// Derive([("out","/nix/store/…","sha256","…")],[…
	outputs, _, found := bytes.Cut(text, []byte(")],["))
	if !found || !bytes.HasPrefix(outputs, []byte("Derive([(")) {
		return false, fmt.Errorf("%s is no derivation that this builder reads", derivation)
	}
	for _, output := range strings.Split(strings.TrimPrefix(string(outputs), "Derive([("), "),(") {
		if fields := strings.Split(output, ","); len(fields) != 4 || fields[2] != `""` || fields[3] != `""` {
			return true, nil
		}
	}
	return false, nil
}

// unpack writes the files of an archive into a new folder.
func unpack(archive io.Reader, folder string) error {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	in, left := tar.NewReader(archive), int64(maxSource)
	for count := 0; ; count++ {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(header.Name)
		if left -= header.Size; left < 0 || count == maxFiles {
			return fmt.Errorf("it has more than %d MiB or %d files: leave out what the flake does not need", maxSource>>20, maxFiles)
		}
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%.100q leads out of the folder", header.Name)
		}
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			err = writeFile(root, name, header, in)
		case tar.TypeSymlink:
			err = root.Symlink(header.Linkname, name)
		default:
			err = fmt.Errorf("%.100q is no file, folder or link", header.Name)
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(root *os.Root, name string, header *tar.Header, in io.Reader) error {
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644|os.FileMode(header.Mode)&0o111)
	if err != nil {
		return err
	}
	_, err = io.CopyN(file, in, header.Size)
	return errors.Join(err, file.Close())
}
