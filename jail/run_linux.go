package jail

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// serveName is the name of the artifact's program that has a log as standard error.
const serveName = "session-run"

// steps are the launcher's own arguments, after which it takes one step of a start.
var steps = map[string]func(args []string) error{
	Step: RunStep, Wait: RunWait, HandOut: RunHandOut, Merge: RunMerge,
}

// Run runs the launcher with these arguments. It returns only if that fails or starts no
// sandbox. version is the launcher's own. devices is nil in a launcher for sandboxes
// without devices.
func Run(args []string, version string, devices DeviceFinder) error {
	if len(args) > 0 {
		if step := steps[args[0]]; step != nil {
			return step(args[1:])
		}
	}
	switch {
	case len(args) == 1 && args[0] == Hold:
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case len(args) == 1 && args[0] == "--version":
		_, err := os.Stdout.WriteString("nix-sandbox-jail " + version + "\n")
		return err
	case len(args) == 0:
		return &Refusal{
			Problem: "no sandbox was named",
			Hint:    "run the sandbox's own bin/run",
		}
	case len(args) > 1:
		return &Refusal{
			Problem: "a sandbox takes no arguments, and was given " + args[1],
			Hint:    "give it the code on standard input",
		}
	}
	EnterProfile()
	spec, err := ReadSpec(args[0])
	if err != nil {
		return err
	}
	if spec.Devices != nil && devices == nil {
		return errors.New("this launcher starts only sandboxes without devices, and the description has some")
	}
	name := filepath.Base(args[0])
	switch name {
	case CheckName:
		findings := spec.CheckMachine(context.Background())
		if spec.Devices != nil {
			findings = append(findings, devices.Findings(spec)...)
		}
		return WriteFindings(os.Stdout, findings)
	case GrowName:
		return spec.Grow(os.Getenv, os.Stdout)
	case WorkspaceName:
		project, err := spec.readProject(os.Getenv(projectVariable), os.Getenv("PROJECT_MOUNT"), os.Getenv("PROJECT_MODE"))
		if err != nil {
			return err
		}
		return spec.StartWorkspace(project)
	}
	request, err := spec.ReadRequest(os.Getenv)
	if err != nil {
		return err
	}
	request.logs = name == serveName
	if spec.Devices != nil {
		if request.devices, err = devices.Find(spec, request); err != nil {
			return err
		}
	}
	return spec.Start(request)
}

// Main is the main function of a launcher. It ends this process if [Run] fails.
func Main(version string, devices DeviceFinder) {
	if err := Run(os.Args[1:], version, devices); err != nil {
		WriteError(os.Stderr, err)
		os.Exit(exitRefused)
	}
}

// exitRefused is the exit status if no sandbox started.
const exitRefused = 125
