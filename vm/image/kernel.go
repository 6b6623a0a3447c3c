package image

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kernel is an unpacked kernel package.
type Kernel struct {
	// Image is the path of the file that boots.
	Image   string
	modules map[string]string // name → file
	builtin map[string]bool
}

// OpenKernel opens a folder with boot/vmlinuz-*, bzImage or Image, and lib/modules/*. The
// modules may be in another folder; an empty one is the same.
func OpenKernel(folder, modules string) (*Kernel, error) {
	if modules == "" {
		modules = folder
	}
	one := func(folder string, patterns ...string) (string, error) {
		for _, pattern := range patterns {
			found, err := filepath.Glob(filepath.Join(folder, pattern))
			if err == nil && len(found) == 1 {
				return found[0], nil
			}
		}
		return "", fmt.Errorf("%s holds no single %s: give a folder with one unpacked kernel", folder, patterns[0])
	}
	image, err := one(folder, "boot/vmlinuz-*", "bzImage", "Image")
	if err != nil {
		return nil, err
	}
	tree, err := one(modules, "lib/modules/*", "usr/lib/modules/*")
	if err != nil {
		return nil, err
	}
	k := &Kernel{Image: image, modules: map[string]string{}, builtin: map[string]bool{}}
	err = filepath.WalkDir(filepath.Join(tree, "kernel"), func(path string, _ fs.DirEntry, err error) error {
		if name, ok := moduleName(path); ok {
			k.modules[name] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(tree, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for _, path := range strings.Fields(string(builtin)) {
		if name, ok := moduleName(path); ok {
			k.builtin[name] = true
		}
	}
	return k, nil
}

// moduleName turns …/crc32c-intel.ko.xz into crc32c_intel.
func moduleName(path string) (string, bool) {
	name, suffix, ok := strings.Cut(filepath.Base(path), ".ko")
	if !ok || suffix != "" && suffix != ".xz" {
		return "", false
	}
	return strings.ReplaceAll(name, "-", "_"), true
}

// Module is a kernel module, not compressed, as finit_module(2) takes it.
type Module struct {
	Name string // of its file: NAME.ko
	Data []byte
}

// Modules returns the named modules that are not built into the kernel, each after the modules that
// it needs.
func (k *Kernel) Modules(ctx context.Context, names []string) ([]Module, error) {
	var modules []Module
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if done[name] || k.builtin[name] {
			return nil
		}
		done[name] = true
		path, ok := k.modules[name]
		if !ok {
			return fmt.Errorf("the kernel %s has no module %s", k.Image, name)
		}
		data, err := os.ReadFile(path)
		if err == nil && strings.HasSuffix(path, ".xz") {
			data, err = decompress(ctx, path)
		}
		if err != nil {
			return err
		}
		needs, err := dependencies(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, need := range needs {
			if err := add(need); err != nil {
				return err
			}
		}
		modules = append(modules, Module{name + ".ko", data})
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return modules, nil
}

func decompress(ctx context.Context, path string) ([]byte, error) {
	data, err := exec.CommandContext(ctx, "xz", "--decompress", "--stdout", path).Output()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		return nil, fmt.Errorf("decompress %s: %w: %.300s", path, err, bytes.TrimSpace(ended.Stderr))
	}
	return data, err
}

// dependencies returns the modules that a module names as its dependencies.
func dependencies(data []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("it has no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for _, field := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}
