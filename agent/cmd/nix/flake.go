package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/question"
)

const (
	// maxSource bounds the files of a flake, in bytes.
	maxSource = 32 << 20
	// workspace is the folder from which the server reads an archive.
	workspace = "/workspace"
)

// local returns the folder and the attribute of an installable that is a flake of files.
func local(installable string) (folder, attribute string, is bool) {
	flake, attribute, _ := strings.Cut(installable, "#")
	flake = strings.TrimPrefix(strings.TrimPrefix(flake, "path:"), "git+file://")
	flake, _, _ = strings.Cut(flake, "?")
	switch {
	case strings.HasPrefix(flake, store):
		return "", "", false
	case flake == "" || flake == "." || flake == ".." || strings.HasPrefix(flake, "./") || strings.HasPrefix(flake, "../") || strings.HasPrefix(flake, "/"):
		return flake, attribute, true
	}
	return "", "", false
}

// ofFlake has the server build a part of a flake of files.
func ofFlake(folder, attribute, want string) ([]question.Added, error) {
	root, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	for { // as Nix looks for it, in the folders above
		if _, err := os.Stat(filepath.Join(root, "flake.nix")); err == nil {
			break
		}
		if root == "/" {
			return nil, errors.New("there is no flake.nix here or above: name packages of nixpkgs, as in nixpkgs#jq")
		}
		root = filepath.Dir(root)
	}
	archive, err := os.CreateTemp(workspace, ".nix-flake-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(archive.Name())
	if err := errors.Join(pack(root, archive), archive.Close()); err != nil {
		return nil, err
	}
	var answer struct {
		Packages []question.Added `json:"packages"`
	}
	err = ask(question.Question{Flake: &question.Flake{Source: archive.Name(), Attribute: attribute, Want: want}}, &answer)
	if err == nil && len(answer.Packages) != 1 {
		err = errors.New("the server built something else")
	}
	return answer.Packages, err
}

// pack writes an archive of a flake's files: in a git repository the files that git knows, as Nix does.
func pack(root string, to io.Writer) error {
	out := tar.NewWriter(to)
	left := int64(maxSource)
	add := func(name string) error {
		path := filepath.Join(root, name)
		info, err := os.Lstat(path)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) { // git knows a file that was removed
				return nil
			}
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		} else if !info.Mode().IsRegular() {
			return nil
		}
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		header.Name, header.Uid, header.Gid, header.Uname, header.Gname = name, 0, 0, "", ""
		if left -= header.Size; left < 0 {
			return fmt.Errorf("the flake has more than %d MiB of files: use a smaller folder, or a git repository without them", maxSource>>20)
		}
		if err := out.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.CopyN(out, file, header.Size)
		return err
	}
	git := exec.Command("git", "-C", root, "-c", "core.fsmonitor=false", "-c", "safe.directory=*", "ls-files", "-z")
	if names, err := git.Output(); err == nil && len(names) > 0 {
		known := false
		for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
			known = known || name == "flake.nix"
			if err := add(name); err != nil {
				return err
			}
		}
		if !known {
			return errors.New("git does not know flake.nix: git add it")
		}
		return out.Close()
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.IsDir() || strings.HasPrefix(d.Name(), ".nix-flake-"):
			return nil
		}
		return add(name)
	})
	if err != nil {
		return err
	}
	return out.Close()
}

func develop(args []string) error {
	l, err := parse(args, globalFlags.with(flags{"--ignore-environment": {}, "-i": {}, "--keep": {values: 1}}), "-c", "--command")
	if err != nil {
		return err
	}
	folder, attribute, is := ".", "", true
	if len(l.words) > 0 {
		if folder, attribute, is = local(l.words[0]); !is {
			return errors.New("nix develop is for the flake of a folder here: use nix shell nixpkgs#NAME -c COMMAND")
		}
	}
	packages, err := ofFlake(folder, attribute, "develop")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(packages[0].Paths[0])
	if err != nil {
		return err
	}
	before := os.Getenv("PATH")
	for variable := range strings.SplitSeq(string(text), "\x00") {
		if name, value, found := strings.Cut(variable, "="); found {
			os.Setenv(name, value)
		}
	}
	os.Setenv("PATH", os.Getenv("PATH")+":"+before)
	os.Setenv("IN_NIX_SHELL", "impure")
	return start(l.after)
}
