package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/image"
)

const storeFolder = "/nix/store"

// keptImages is how many store images stay in the cache: 100 to 500 MB each.
const keptImages = 3

// storeImage returns an image of the roots' closure, and makes it if the cache
// has none. Store paths never change, so their names are the key.
func storeImage(ctx context.Context, cache, folder string, roots []string) (string, error) {
	output, err := command(ctx, append([]string{"nix-store", "--query", "--requisites"}, roots...))
	if err != nil {
		return "", err
	}
	closure := strings.Fields(output)
	slices.Sort(closure)
	key := sha256.Sum256([]byte(strings.Join(closure, "\n")))
	kept := filepath.Join(cache, fmt.Sprintf("store-%x.erofs", key[:12]))
	if _, err := os.Stat(kept); err == nil {
		now := time.Now()
		return kept, os.Chtimes(kept, now, now)
	}
	// bubblewrap shows the closure as a tree of its own without a copy.
	tree := filepath.Join(folder, "store")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return "", err
	}
	arguments := []string{bubblewrap(closure), "--die-with-parent", "--dev-bind", "/", "/", "--tmpfs", tree}
	for _, path := range closure {
		inside := filepath.Join(tree, filepath.Base(path))
		if target, err := os.Readlink(path); err == nil {
			arguments = append(arguments, "--symlink", target, inside)
		} else {
			arguments = append(arguments, "--ro-bind", path, inside)
		}
	}
	partial := filepath.Join(folder, "store.erofs")
	arguments = append(append(append(arguments, "--"), image.Mkfs...), partial, tree)
	if _, err := command(ctx, arguments); err != nil {
		return "", err
	}
	return kept, keep(cache, partial, kept)
}

// bubblewrap is the one of the closure, which every jail has, so that the host
// needs none.
func bubblewrap(closure []string) string {
	for _, path := range closure {
		program := filepath.Join(path, "bin/bwrap")
		if _, err := os.Stat(program); err == nil {
			return program
		}
	}
	return "bwrap"
}

// keep moves an image into the cache and deletes the oldest images there. A
// virtual machine that uses a deleted image has it open and is not affected.
func keep(cache, partial, image string) error {
	if err := os.Rename(partial, image); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(cache, "store-*.erofs"))
	if err != nil {
		return err
	}
	age := func(path string) time.Time {
		info, err := os.Stat(path)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(images, func(a, b string) int { return age(b).Compare(age(a)) })
	for _, old := range images[min(keptImages, len(images)):] {
		if err := os.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// filesImage makes an image of a folder.
func filesImage(ctx context.Context, folder, file string) error {
	_, err := command(ctx, append(slices.Clone(image.Mkfs), file, folder))
	return err
}

// command runs a program on the host, waits for it and returns its output.
func command(ctx context.Context, words []string) (string, error) {
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stderr = &errs
	output, err := cmd.Output()
	if err != nil {
		said := strings.TrimSpace(errs.String())
		return "", fmt.Errorf("%s: %w: %.1000s", words[0], err, said)
	}
	return string(output), nil
}
