// Command nix-sandbox-vm-image makes the parts of a virtual machine when Nix builds
// a sandbox:
//
//	nix-sandbox-vm-image store FOLDER IMAGE
//	nix-sandbox-vm-image initrd KERNEL MODULES INIT MEMORY_MB PIDS FILE
//
// The first makes an image of a folder; mkfs.erofs is on the PATH. The second makes
// the initial RAM disk with the modules of a kernel and the first process; xz is on
// the PATH.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/image"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
)

// modules are those for the disks, the ports, and the file systems of a sandbox.
var modules = []string{"virtio_mmio", "virtio_blk", "virtio_console", "erofs", "overlay"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nix-sandbox-vm-image: error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "store":
		words := append(slices.Clone(image.Mkfs), args[2], args[1])
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		return cmd.Run()
	case len(args) == 7 && args[0] == "initrd":
		return initrd(args[1], args[2], args[3], args[4], args[5], args[6])
	}
	return errors.New("the arguments are none of those that its documentation lists")
}

func initrd(kernelFolder, moduleFolder, init, memory, pids, file string) error {
	kernel, err := image.OpenKernel(kernelFolder, moduleFolder)
	if err != nil {
		return err
	}
	loaded, err := kernel.Modules(context.Background(), modules)
	if err != nil {
		return err
	}
	var spec protocol.Spec
	for _, module := range loaded {
		spec.Modules = append(spec.Modules, module.Name)
	}
	if spec.MemoryMB, err = strconv.ParseInt(memory, 10, 64); err != nil {
		return err
	}
	if spec.PIDs, err = strconv.Atoi(pids); err != nil {
		return err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	archive := image.NewInitrd(f)
	archive.Modules(protocol.ModuleDir, loaded)
	archive.File(protocol.SpecFile, 0o644, text)
	archive.File("/init", 0o755, program)
	return errors.Join(archive.Close(), f.Close())
}
