// Command nix-sandbox-vm is the interpreter of an artifact's programs if its sandboxes are
// virtual machines: the kernel starts it with the path of such a file. It starts the machine that
// the file describes, has it run the program of the same name in its image, and carries the
// standard streams. For a file named check it prints the requirements of the sandbox on this
// computer.
//
// Its exit status is that of the program in the machine, or 125 if no program ran.
package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/carrier"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// version is set when the program is linked.
var version = "unknown"

// carry is the argument of the program that carries a machine's connections to the proxy, in the network's namespace.
const carry = "--carry"

// exitRefused tells "no sandbox started" from every status of the code in it.
const exitRefused = 125

// QEMU ends with the thread that started it, which is the main thread.
func init() { runtime.LockOSThread() }

func main() {
	jail.EnterProfile()
	status, err := run(os.Args[1:])
	if err != nil {
		message := "nix-sandbox-vm: error: " + err.Error() + "\n"
		if hint := jail.HintOf(err); hint != "" {
			message += "nix-sandbox-vm: hint: " + hint + "\n"
		}
		_, _ = io.WriteString(os.Stderr, message) // there is nobody else to tell
		status = exitRefused
	}
	os.Exit(status)
}

func run(args []string) (status int, err error) {
	switch {
	case len(args) > 0 && args[0] == jail.Step:
		return 0, jail.RunStep(args[1:])
	case len(args) > 0 && args[0] == jail.WatchStep:
		return 0, jail.Watch(args[1:])
	case len(args) == 1 && args[0] == carry:
		certificates, err := jail.CarrierCertificates()
		if err != nil {
			return 0, err
		}
		return 0, carrier.Outside(os.NewFile(jail.CarrierFD, "carrier"), certificates, carrier.Dial)
	case len(args) == 1 && args[0] == "--version":
		_, err := os.Stdout.WriteString("nix-sandbox-vm " + version + "\n")
		return 0, err
	case len(args) == 0:
		return 0, &jail.Refusal{Problem: "no sandbox was named", Hint: "run the sandbox's own bin/run"}
	case len(args) > 1:
		return 0, &jail.Refusal{
			Problem: "a sandbox takes no arguments, and was given " + args[1],
			Hint:    "write the code to its standard input",
		}
	}
	spec, err := machine.ReadSpec(args[0])
	if err != nil {
		return 0, err
	}
	memory := machine.Memory{Folder: cacheFolder()}
	program := filepath.Base(args[0])
	if program == jail.CheckName {
		return 0, jail.WriteFindings(os.Stdout, spec.Check(context.Background(), memory))
	}
	if os.Getenv("NIX_SANDBOX_WORKSPACE") != "" {
		return 0, &jail.Refusal{
			Problem: "NIX_SANDBOX_WORKSPACE is set, and a virtual machine shares no files with other sandboxes",
			Hint:    "leave it unset, or build the environment with backend = \"jail\"",
		}
	}
	events := 0
	if value := os.Getenv(handover.EventsVariable); value != "" && spec.HasNetwork() {
		if events, err = number(handover.EventsVariable, value); err != nil {
			return 0, err
		}
	}
	report, err := openReports(os.Getenv(reportsVariable))
	if err != nil {
		return 0, err
	}
	project, err := spec.OpenProject(cacheFolder(), os.Getenv)
	if err != nil {
		return 0, err
	}
	defer project.Close()
	if program == serveProgram {
		control, err := openControl(os.Getenv(controlVariable))
		if err != nil {
			return 0, err
		}
		var s *serving
		if folder := os.Getenv(fromVariable); folder != "" {
			s, err = wake(spec, memory, folder, project)
		} else {
			s, err = startServing(spec, memory, cacheFolder(), control != nil)
		}
		if err != nil {
			return 0, err
		}
		defer s.Close()
		if err := spec.Connect(s.Machine, events, carry); err != nil {
			return 0, err
		}
		if err := s.AwaitTrust(); err != nil {
			return 0, err
		}
		report(startReport{Isolation: s.Accelerator, Start: s.began(), ProjectChanged: s.projectChanged})
		return serve(spec, s, control, project)
	}
	m, err := spec.Start(memory, false)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	if err := spec.Connect(m, events, carry); err != nil {
		return 0, err
	}
	report(startReport{Isolation: m.Accelerator})
	if err := m.Run(program, false, time.Now()); err != nil {
		return 0, err
	}
	if err := m.AwaitTrust(); err != nil {
		return 0, err
	}
	if project != nil {
		// The program waits for its input.
		if err := project.Show(m); err != nil {
			return 0, err
		}
	}
	return newStreams(m).carry(nil, nil)
}

// cacheFolder is the folder for the launcher's findings about this computer, or "" if the user has
// no such folder.
func cacheFolder() string {
	folder, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(folder, "nix-sandbox-mcp", "vm")
}
