// Command nix-sandbox-net is the network of one sandbox: it answers the sandbox's look-ups and
// carries its connections to the hosts that a policy allows. It runs outside the sandbox's
// namespaces, on sockets of the sandbox's network namespace that it receives over a descriptor.
//
// It expects these descriptors:
//
//	3  the socket over which the listening sockets come (package handover)
//	4  optional: where events are written (package event); if it is a socket, the answers to
//	   those that ask come from it
//	5  optional: a pidfd of the process with which it ends
//	6… the secrets of the policy's credentials, in their order
//
// If the policy makes it read requests inside TLS, it sends the certificate of its authority back
// over descriptor 3. Without descriptor 4 it writes refusals to standard error, for people.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// version is set when the program is linked.
var version = "unknown"

// The descriptors.
const (
	handoverDescriptor = 3
	eventsDescriptor   = 4
	parentDescriptor   = 5
	firstSecret        = 6
)

func main() {
	flags := flag.NewFlagSet("nix-sandbox-net", flag.ExitOnError)
	policyFile := flags.String("policy", "", "the `file` with the policy of the sandbox")
	check := flags.Bool("check", false, "read the policy and exit, with status 1 and a sentence if it is wrong")
	showVersion := flags.Bool("version", false, "print the version and exit")
	_ = flags.Parse(os.Args[1:])
	if *showVersion {
		fmt.Println("nix-sandbox-net " + version)
		return
	}
	if *check {
		if _, err := policy.ReadFile(*policyFile); err != nil {
			fmt.Fprintln(os.Stderr, "nix-sandbox-net: error: "+err.Error())
			os.Exit(1)
		}
		return
	}
	report := reporter()
	err := run(*policyFile, report)
	if err == nil {
		return
	}
	report(event.Event{Kind: event.Ended, Problem: event.Problem(err)})
	fmt.Fprintln(os.Stderr, "nix-sandbox-net: error: "+err.Error())
	os.Exit(1)
}

func run(policyFile string, report func(event.Event)) error {
	if policyFile == "" {
		return errors.New("no policy was named: the launcher of a sandbox starts this program")
	}
	// A core dump would show the sandbox's traffic.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("switch cores off: %w", err)
	}
	// Code in the sandbox decides how many connections and headers there are. The limit keeper
	// does not see this process, so that it ends by itself, and the sandbox's network with it.
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: maxData, Max: maxData}); err != nil {
		return fmt.Errorf("limit the memory: %w", err)
	}
	p, err := policy.ReadFile(policyFile)
	if err != nil {
		return err
	}
	parent := parentEnd(parentDescriptor)
	secrets, err := readSecrets(p.Credentials)
	if err != nil {
		return err
	}
	n, err := newNetwork(p, secrets, report, askUser())
	if err != nil {
		return err
	}
	if err := n.receive(handoverDescriptor); err != nil {
		return err
	}
	// Without that descriptor this waits forever, and the kernel ends the process with its
	// parent (PR_SET_PDEATHSIG).
	<-parent
	return nil
}
