package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/image"
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

// writeInitrd writes the machine's initial RAM disk: init, the kernel modules
// and the request.
func writeInitrd(ctx context.Context, file, init string, kernel *image.Kernel, request guest.Request) error {
	names := wanted
	if request.GPU {
		names = append(slices.Clone(wanted), "virtio_gpu")
	}
	modules, err := kernel.Modules(ctx, names)
	if err != nil {
		return err
	}
	request.Modules = nil
	for _, module := range modules {
		request.Modules = append(request.Modules, module.Name)
	}
	program, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	order, err := json.Marshal(request)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	archive := image.NewInitrd(f)
	archive.Modules(guest.ModuleDir, modules)
	archive.File(guest.RequestFile, 0o644, order)
	archive.File("/init", 0o755, program)
	if err := archive.Close(); err != nil {
		return err
	}
	return f.Close()
}
