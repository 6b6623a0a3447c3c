package schemas_test

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

const profile = "../../dist/deploy/seccomp.json"

// needed are the system calls that sandboxes start with, and that default profiles lack.
var needed = []string{"clone", "clone3", "keyctl", "mount", "pivot_root", "sethostname", "umount2", "unshare"}

// strictProfile decodes a profile as Docker has it. A field that Docker does not know is an
// error.
func strictProfile(text []byte) (p seccomp.Seccomp, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return p, decoder.Decode(&p)
}

func TestProfile_HasFieldsOfDocker(t *testing.T) {
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := strictProfile(text); err != nil {
		t.Errorf("%s: %v", profile, err)
	}
	// The control: a field that there is not.
	wrong := bytes.Replace(text, []byte(`"defaultAction"`), []byte(`"standardAction"`), 1)
	if _, err := strictProfile(wrong); err == nil {
		t.Errorf("%s is accepted with the field standardAction", profile)
	}
}

// What Docker makes of the profile for a container without capabilities allows the calls
// that sandboxes start with, on both architectures, and Docker's own profile does not.
func TestProfile_AllowsWhatSandboxesNeed(t *testing.T) {
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}
	ours, err := seccomp.LoadProfile(string(text), spec)
	if err != nil {
		t.Fatalf("Docker cannot read %s: %v", profile, err)
	}
	standard, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		t.Fatal(err)
	}
	lacks := 0
	for _, name := range needed {
		if !allows(ours, name) {
			t.Errorf("%s does not allow %s", profile, name)
		}
		if !allows(standard, name) {
			lacks++
		}
	}
	if lacks == 0 {
		t.Error("Docker's own profile allows all that sandboxes need: the profile is not needed any more")
	}
	for _, name := range []string{"bpf", "init_module", "kexec_load", "swapon"} {
		if allows(ours, name) {
			t.Errorf("%s allows %s", profile, name)
		}
	}
	p, err := strictProfile(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64} {
		if !slices.ContainsFunc(p.ArchMap, func(a seccomp.Architecture) bool { return a.Arch == arch }) {
			t.Errorf("%s is not for %s", profile, arch)
		}
	}
}

// allows reports whether a profile allows a call with whatever arguments.
func allows(p *specs.LinuxSeccomp, name string) bool {
	return slices.ContainsFunc(p.Syscalls, func(rule specs.LinuxSyscall) bool {
		return rule.Action == specs.ActAllow && len(rule.Args) == 0 && slices.Contains(rule.Names, name)
	})
}
