package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// wanted are the modules that the machine needs or that a test may want to
// reach: the disks and the port; the file systems; then what an ordinary user
// can reach on common distributions, where the module comes by itself, so that
// an attempt on it succeeds outside a sandbox.
var wanted = []string{
	"virtio_mmio", "virtio_blk", "virtio_console",
	"crc32c_intel", "erofs", "overlay", "fuse",
	"algif_hash", "vsock", "vsock_loopback",
	"unix_diag", "inet_diag", "tcp_diag", "udp_diag",
	"veth", // for tests/networld
}

// A kernel is an unpacked kernel package.
type kernel struct {
	image   string
	modules map[string]string // name → file
	builtin map[string]bool
}

// openKernel opens a folder with boot/vmlinuz-* and lib/modules/*.
func openKernel(folder string) (*kernel, error) {
	one := func(patterns ...string) (string, error) {
		for _, pattern := range patterns {
			found, err := filepath.Glob(filepath.Join(folder, pattern))
			if err == nil && len(found) == 1 {
				return found[0], nil
			}
		}
		return "", fmt.Errorf("%s holds no single %s: give a folder with one unpacked kernel", folder, patterns[0])
	}
	image, err := one("boot/vmlinuz-*", "bzImage")
	if err != nil {
		return nil, err
	}
	tree, err := one("lib/modules/*", "usr/lib/modules/*")
	if err != nil {
		return nil, err
	}
	k := &kernel{image: image, modules: map[string]string{}, builtin: map[string]bool{}}
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

// A module is what init loads.
type module struct {
	name string
	data []byte
}

// load returns the wanted modules, each after the modules that it needs.
func (k *kernel) load(ctx context.Context, names []string) ([]module, error) {
	var modules []module
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if done[name] || k.builtin[name] {
			return nil
		}
		done[name] = true
		path, ok := k.modules[name]
		if !ok {
			return fmt.Errorf("the kernel %s has no module %s", k.image, name)
		}
		data, err := os.ReadFile(path)
		if err == nil && strings.HasSuffix(path, ".xz") {
			var text string
			text, err = command(ctx, []string{"xz", "--decompress", "--stdout", path})
			data = []byte(text)
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
		modules = append(modules, module{name + ".ko", data})
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return modules, nil
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
