// Package image makes the images that a virtual machine starts from: the initial RAM disk with the
// kernel modules that its first process loads, and images of folders.
package image

import (
	"bufio"
	"fmt"
	"io"
	"path"
)

// Initrd writes an initial RAM disk: a cpio archive in the one format that Linux unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst). Paths are absolute, and a folder
// precedes its entries. The output depends only on the arguments. [Initrd.Close] returns the first
// error.
type Initrd struct {
	w     *bufio.Writer
	inode int
	err   error
}

// NewInitrd returns an archive that is empty but for /dev/console, which the kernel
// opens for its first process, and so has the folder /dev.
func NewInitrd(w io.Writer) *Initrd {
	c := &Initrd{w: bufio.NewWriter(w)}
	c.Folder("/dev")
	c.entry("/dev/console", 0o020600, nil, 5, 1)
	return c
}

// Folder adds an empty folder.
func (c *Initrd) Folder(name string) { c.entry(name, 0o040755, nil, 0, 0) }

// File adds a file with permissions.
func (c *Initrd) File(name string, permissions uint32, content []byte) {
	c.entry(name, 0o100000|permissions, content, 0, 0)
}

// Modules adds kernel modules in a folder.
func (c *Initrd) Modules(folder string, modules []Module) {
	c.Folder(folder)
	for _, module := range modules {
		c.File(path.Join(folder, module.Name), 0o644, module.Data)
	}
}

func (c *Initrd) entry(name string, mode uint32, content []byte, major, minor int) {
	name = name[1:] // archives hold relative names
	c.inode++
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.inode, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	c.write(header+name+"\x00", len(header)+len(name)+1)
	c.write(string(content), len(content))
}

// write writes a part and fills it up to a multiple of four bytes.
func (c *Initrd) write(part string, length int) {
	if c.err == nil {
		_, c.err = io.WriteString(c.w, part+"\x00\x00\x00"[:-length&3])
	}
}

// Close ends the archive. The writer stays open.
func (c *Initrd) Close() error {
	c.entry("/TRAILER!!!", 0, nil, 0, 0)
	if c.err != nil {
		return c.err
	}
	return c.w.Flush()
}
