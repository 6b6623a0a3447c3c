// Package cdi reads specifications of the Container Device Interface. Generators such as
// nvidia-ctk and amd-ctk write them: they name the devices of a machine and the device
// nodes, mounts and variables that a container needs for each.
//
// The standard is SPEC.md of github.com/cncf-tags/container-device-interface. Its module
// specs-go has the fields and the version that each field needs. This package adds the
// standard's rules for the fields that a sandbox uses, and a rule about trust: a specification
// names files of the host, so it counts only if no users but root and its reader can write it.
// Fields that have no effect here, such as annotations, may have any value.
//
// Package jail/devices/device decides about sandboxes.
package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// The bounds of one specification. A machine with eight graphics cards, each of them in
// seven parts, has a specification of about 200 KiB with 150 devices.
const (
	MaxSize    = 2 << 20 // bytes
	maxDevices = 4096
	maxEdits   = 1024 // of one kind, such as mounts, of one device
	maxPath    = 4095 // bytes, as in the kernel
)

// Parse parses a specification in YAML or, if isJSON, in JSON. An error is a clause that
// names the field and its value, as in `kind is "gpu", want …`.
func Parse(text []byte, isJSON bool) (spec *specs.Spec, err error) {
	// encoding/json would replace invalid bytes.
	if !utf8.Valid(text) {
		return nil, errors.New("it is not in UTF-8")
	}
	decode := decodeYAML
	if isJSON {
		decode = decodeJSON
	}
	if spec, err = decode(text); err != nil {
		return nil, err
	}
	if err := check(spec); err != nil {
		return nil, err
	}
	return spec, nil
}

func decodeJSON(text []byte) (*specs.Spec, error) {
	var spec specs.Spec
	err := bounded.JSON(text, &spec)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("it is empty")
	case err != nil:
		return nil, fmt.Errorf("it is not a specification in JSON: %s", hostile.Message(strings.TrimPrefix(err.Error(), "json: ")))
	}
	return &spec, nil
}

func decodeYAML(text []byte) (*specs.Spec, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var spec specs.Spec
	if err := decoder.Decode(&spec); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is empty")
		}
		what := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n")
		what = strings.ReplaceAll(strings.TrimSpace(what), "\n  line", "; line")
		// The author of the file does not know names of Go types.
		what = strings.NewReplacer("type specs.", "", "specs.", "").Replace(what)
		return nil, fmt.Errorf("it is not a specification in YAML: %s", hostile.Message(what))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("a second YAML document follows the first one")
	}
	return &spec, nil
}

// check applies the standard's rules that the types do not express, to the fields that are used.
func check(spec *specs.Spec) error {
	if spec.Version == "" {
		return errors.New("cdiVersion is missing")
	}
	if specs.ValidateVersion(&specs.Spec{Version: spec.Version}) != nil {
		return fmt.Errorf("cdiVersion is %q, want a version from 0.3.0 to %s", spec.Version, specs.CurrentVersion)
	}
	vendor, class, _ := strings.Cut(spec.Kind, "/")
	if !isName(vendor, "") || !isName(class, "") || !isLetter(vendor[0]) || !isLetter(class[0]) {
		return fmt.Errorf("kind is %q, want a vendor and a class such as vendor.example/gpu", spec.Kind)
	}
	if err := checkEdits("containerEdits", spec.ContainerEdits); err != nil {
		return err
	}
	if len(spec.Devices) == 0 || len(spec.Devices) > maxDevices {
		return fmt.Errorf("devices has %d entries, want 1 to %d", len(spec.Devices), maxDevices)
	}
	seen := map[string]bool{}
	for i, device := range spec.Devices {
		if !isName(device.Name, ":") {
			return fmt.Errorf("devices[%d].name is %q, want letters, digits, -, _, . and :, with a letter or a digit first and last", i, device.Name)
		}
		if seen[device.Name] {
			return fmt.Errorf("devices has %q twice", device.Name)
		}
		seen[device.Name] = true
		where := fmt.Sprintf("devices[%d]", i)
		if err := checkEdits(where+".containerEdits", device.ContainerEdits); err != nil {
			return err
		}
		if isEmpty(device.ContainerEdits) {
			return fmt.Errorf("%s.containerEdits is empty, so that the device %q would be nothing", where, device.Name)
		}
	}
	// Last, because specs-go 1.1.1 panics on null entries.
	if err := specs.ValidateVersion(spec); err != nil {
		needs, _ := specs.MinimumRequiredVersion(spec)
		return fmt.Errorf("cdiVersion is %q, and it has fields of version %s", spec.Version, needs)
	}
	return nil
}

func isEmpty(e specs.ContainerEdits) bool {
	return len(e.Env) == 0 && len(e.DeviceNodes) == 0 && len(e.NetDevices) == 0 && len(e.Hooks) == 0 &&
		len(e.Mounts) == 0 && e.IntelRdt == nil && len(e.AdditionalGIDs) == 0
}

// checkEdits checks edits; where is the path of their field.
func checkEdits(where string, e specs.ContainerEdits) error {
	for _, list := range []struct {
		field string
		count int
	}{
		{"env", len(e.Env)}, {"deviceNodes", len(e.DeviceNodes)}, {"netDevices", len(e.NetDevices)},
		{"hooks", len(e.Hooks)}, {"mounts", len(e.Mounts)}, {"additionalGids", len(e.AdditionalGIDs)},
	} {
		if list.count > maxEdits {
			return fmt.Errorf("%s.%s has %d entries, want at most %d", where, list.field, list.count, maxEdits)
		}
	}
	if err := checkVariables(where+".env", e.Env); err != nil {
		return err
	}
	for i, node := range e.DeviceNodes {
		if err := checkNode(fmt.Sprintf("%s.deviceNodes[%d]", where, i), node); err != nil {
			return err
		}
	}
	for i, mount := range e.Mounts {
		if err := checkMount(fmt.Sprintf("%s.mounts[%d]", where, i), mount); err != nil {
			return err
		}
	}
	for i, hook := range e.Hooks {
		if err := checkHook(fmt.Sprintf("%s.hooks[%d]", where, i), hook); err != nil {
			return err
		}
	}
	for i, device := range e.NetDevices {
		if device == nil {
			return fmt.Errorf("%s.netDevices[%d] is null", where, i)
		}
	}
	return nil
}

func checkNode(where string, node *specs.DeviceNode) error {
	if node == nil {
		return fmt.Errorf("%s is null", where)
	}
	if err := checkPath(where+".path", node.Path); err != nil {
		return err
	}
	if node.HostPath != "" {
		if err := checkPath(where+".hostPath", node.HostPath); err != nil {
			return err
		}
	}
	if !slices.Contains([]string{"", "b", "c", "u", "p"}, node.Type) {
		return fmt.Errorf("%s.type is %q, want b, c, u or p", where, node.Type)
	}
	if p := node.Permissions; p != "none" && strings.Trim(p, "rwm") != "" {
		return fmt.Errorf("%s.permissions is %q, want letters of rwm, or none", where, p)
	}
	return nil
}

func checkMount(where string, mount *specs.Mount) error {
	if mount == nil {
		return fmt.Errorf("%s is null", where)
	}
	if err := checkPath(where+".hostPath", mount.HostPath); err != nil {
		return err
	}
	return checkPath(where+".containerPath", mount.ContainerPath)
}

func checkHook(where string, hook *specs.Hook) error {
	if hook == nil {
		return fmt.Errorf("%s is null", where)
	}
	if len(hook.Args) > maxEdits {
		return fmt.Errorf("%s.args has %d entries, want at most %d", where, len(hook.Args), maxEdits)
	}
	return checkPath(where+".path", hook.Path)
}

func checkVariables(where string, variables []string) error {
	for i, variable := range variables {
		name, _, found := strings.Cut(variable, "=")
		if !found || name == "" || strings.ContainsRune(variable, 0) {
			return fmt.Errorf("%s[%d] is %q, want NAME=VALUE", where, i, clip(variable))
		}
	}
	return nil
}

// checkPath accepts only paths that mean the same to every reader: absolute and without
// "..".
func checkPath(where, path string) error {
	switch {
	case path == "":
		return fmt.Errorf("%s is missing", where)
	case !filepath.IsAbs(path):
		return fmt.Errorf("%s is %q, want an absolute path", where, clip(path))
	case slices.Contains(strings.Split(path, "/"), ".."):
		return fmt.Errorf("%s is %q, want a path without \"..\"", where, clip(path))
	case len(path) > maxPath || strings.ContainsFunc(path, func(c rune) bool { return !unicode.IsPrint(c) }):
		return fmt.Errorf("%s is %q, want at most %d bytes of printable characters", where, clip(path), maxPath)
	}
	return nil
}

// isName reports whether a name consists of letters, digits, -, _, . and the characters in
// more, with a letter or a digit first and last.
func isName(name, more string) bool {
	if name == "" || len(name) > 253 || !isAlphanumeric(name[0]) || !isAlphanumeric(name[len(name)-1]) {
		return false
	}
	for i := range len(name) {
		if !isAlphanumeric(name[i]) && !strings.ContainsRune("-_."+more, rune(name[i])) {
			return false
		}
	}
	return true
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func isAlphanumeric(c byte) bool { return isLetter(c) || c >= '0' && c <= '9' }

// clip shortens a value for a sentence.
func clip(value string) string {
	const most = 200
	if len(value) > most {
		return bounded.Head(value, most) + "…"
	}
	return value
}
