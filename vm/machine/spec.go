// Package machine starts the virtual machine of one sandbox: QEMU, in a jail of its own, from the
// description that the build made.
//
// It promises that QEMU has no network, no capability, no file of the host except those that the
// description names, read-only, and the descriptors that it is given; and that it ends with its
// [Machine], and with this process.
package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// Schema is the version of [Spec] that this program reads.
const Schema = 1

// Spec describes a machine. The build writes it, after a first line that names this
// program as the file's interpreter.
type Spec struct {
	Schema int `json:"schema"`
	// Jail describes the jail of QEMU. Its command lacks only the arguments that depend on the
	// accelerator.
	Jail json.RawMessage `json:"jail"`
	// Kernel and Initrd are paths in that jail, and Append is the kernel's command line.
	Kernel string `json:"kernel"`
	Initrd string `json:"initrd"`
	Append string `json:"append"`
	// Board is QEMU's name of the machine, and CPU of the processor if it is emulated.
	Board string `json:"board"`
	CPU   string `json:"cpu"`
	// MemoryMB is the memory of the machine, in MiB: the code's limit and the needs of the kernel
	// and the programs beside the code.
	MemoryMB int `json:"memory_mb"`
	// Project says how the machine shows a project and other folders of the host.
	Project ProjectSpec `json:"project"`

	jail *jail.Spec
	text string
	// shown says what of the host is shown in the machines that are started, and disk the image of it.
	shown *protocol.Project
	disk  *os.File
}

// ProjectSpec says how a machine shows a project and other folders of the host.
type ProjectSpec struct {
	jail.ProjectRules
	// LayerMB is the size of the layer for the code's writes, in MiB.
	LayerMB int `json:"layer_mb"`
	// Inbox is where code finds the inbox: an absolute path.
	Inbox string `json:"inbox"`
	// Binds are further folders.
	Binds []Bind `json:"binds"`
	// MaxFiles and MaxMB bound all together.
	MaxFiles int `json:"max_files"`
	MaxMB    int `json:"max_mb"`
	// Mkfs describes the jail of the program that makes an image in the file that is its
	// descriptor 3, of the tar archive that it reads.
	Mkfs json.RawMessage `json:"mkfs"`
}

// Bind is a folder of the host that code can read.
type Bind struct {
	Name string `json:"name"` // in the image
	From string `json:"from"` // an absolute path of the host
	To   string `json:"to"`   // an absolute path in the sandbox
}

// ReadSpec reads the description in a file.
func ReadSpec(name string) (*Spec, error) {
	text, err := bounded.ReadFile(name, jail.MaxSpec)
	if err != nil {
		return nil, fmt.Errorf("read the sandbox's description: %w", err)
	}
	spec, err := parseSpec(text)
	if err != nil {
		return nil, &jail.Refusal{
			Problem: fmt.Sprintf("%s does not describe a virtual machine: %v", name, err),
			Hint:    "build the sandbox again with mkSandbox",
		}
	}
	return spec, nil
}

func parseSpec(text []byte) (*Spec, error) {
	first, object, found := bytes.Cut(text, []byte("\n"))
	if !found || !bytes.HasPrefix(first, []byte("#!")) {
		return nil, errors.New("it does not start with a #! line")
	}
	var spec Spec
	if err := bounded.JSON(object, &spec); err != nil {
		return nil, err
	}
	if spec.Schema != Schema {
		return nil, fmt.Errorf("its schema is %d, this program reads schema %d", spec.Schema, Schema)
	}
	if spec.Board == "" || spec.CPU == "" {
		return nil, errors.New("it has no board or cpu")
	}
	if spec.MemoryMB < 64 {
		return nil, fmt.Errorf("memory_mb is %d, want at least 64", spec.MemoryMB)
	}
	spec.text = string(object)
	var err error
	if spec.jail, err = jail.ParseObject(spec.Jail); err != nil {
		return nil, fmt.Errorf("its jail: %w", err)
	}
	return &spec, nil
}
