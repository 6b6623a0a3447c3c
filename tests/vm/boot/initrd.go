package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
)

// writeInitrd writes the machine's initial RAM disk: init, the kernel modules
// and the request.
func writeInitrd(ctx context.Context, file, init string, kernel *kernel, request guest.Request) error {
	modules, err := kernel.load(ctx, wanted)
	if err != nil {
		return err
	}
	request.Modules = nil
	for _, module := range modules {
		request.Modules = append(request.Modules, module.name)
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
	archive := newc{w: bufio.NewWriter(f)}
	archive.folder("/dev")
	archive.folder(guest.ModuleDir)
	for _, module := range modules {
		archive.file(path.Join(guest.ModuleDir, module.name), 0o644, module.data)
	}
	archive.file(guest.RequestFile, 0o644, order)
	archive.file("/init", 0o755, program)
	// The first process's stdout and stderr, before it mounts anything.
	archive.entry("/dev/console", 0o020600, nil, 5, 1)
	if err := archive.close(); err != nil {
		return err
	}
	return f.Close()
}

// newc writes a cpio archive in the one format that Linux unpacks (Documentation/
// driver-api/early-userspace/buffer-format.rst). Its first error sticks.
type newc struct {
	w     *bufio.Writer
	inode int
	err   error
}

func (c *newc) folder(name string) { c.entry(name, 0o040755, nil, 0, 0) }
func (c *newc) file(name string, mode uint32, content []byte) {
	c.entry(name, 0o100000|mode, content, 0, 0)
}

func (c *newc) entry(name string, mode uint32, content []byte, major, minor int) {
	name = name[1:] // archives hold relative names
	c.inode++
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.inode, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	c.write(header+name+"\x00", len(header)+len(name)+1)
	c.write(string(content), len(content))
}

// write writes a part and fills it up to a multiple of four bytes.
func (c *newc) write(part string, length int) {
	if c.err == nil {
		_, c.err = io.WriteString(c.w, part+"\x00\x00\x00"[:-length&3])
	}
}

func (c *newc) close() error {
	c.entry("/TRAILER!!!", 0, nil, 0, 0)
	if c.err != nil {
		return c.err
	}
	return c.w.Flush()
}
