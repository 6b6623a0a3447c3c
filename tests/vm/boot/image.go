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
)

const storeFolder = "/nix/store"

// keptImages is how many store images stay in the cache: 100 to 500 MB each.
const keptImages = 3

// mkfs are mkfs.erofs's options for an image that depends on the files' names,
// modes and contents alone. The time is the Nix store's, which Python's compiled
// files remember; nothing is compressed, since an image is used once or twice.
var mkfs = []string{"mkfs.erofs", "--quiet", "--all-root", "-x-1", "-T1", "-U", "6e69782d-7361-6e64-626f-782d6d637000"}

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
	image := filepath.Join(cache, fmt.Sprintf("store-%x.erofs", key[:12]))
	if _, err := os.Stat(image); err == nil {
		now := time.Now()
		return image, os.Chtimes(image, now, now)
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
	arguments = append(append(append(arguments, "--"), mkfs...), partial, tree)
	if _, err := command(ctx, arguments); err != nil {
		return "", err
	}
	return image, keep(cache, partial, image)
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
func filesImage(ctx context.Context, folder, image string) error {
	_, err := command(ctx, append(slices.Clone(mkfs), image, folder))
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
