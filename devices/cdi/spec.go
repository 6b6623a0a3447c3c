// Package cdi reads specifications of the Container Device Interface. Generators such as
// nvidia-ctk and amd-ctk write them: they name the devices of a machine and the device
// nodes, mounts and variables that a container needs for each.
//
// The standard is SPEC.md of github.com/cncf-tags/container-device-interface. Its module
// specs-go has the fields and the version that each field needs. This package adds the
// standard's rules for readers, and a rule about trust: a specification names files of
// the host, so it counts only if no users but root and its reader can write it.
//
// Package devices/device decides about sandboxes.
package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
)

// The bounds of one specification. A machine with eight graphics cards, each of them in
// seven parts, has a specification of about 200 KiB with 150 devices.
const (
	MaxSize    = 2 << 20 // bytes
	maxDevices = 4096
	maxEdits   = 1024      // of one kind, such as mounts, of one device
	maxPath    = 4095      // bytes, as in the kernel
	maxNotes   = 256 << 10 // bytes of annotations, as in Kubernetes
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
		return nil, fmt.Errorf("it is not a specification in JSON: %s", clip(oneLine(strings.TrimPrefix(err.Error(), "json: "))))
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
		return nil, fmt.Errorf("it is not a specification in YAML: %s", clip(oneLine(what)))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("a second YAML document follows the first one")
	}
	return &spec, nil
}

// check applies the standard's rules that the types do not express.
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
	if err := checkAnnotations("annotations", spec.Annotations); err != nil {
		return err
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
		if err := checkAnnotations(where+".annotations", device.Annotations); err != nil {
			return err
		}
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
	hosts, names := map[string]bool{}, map[string]bool{}
	for i, device := range e.NetDevices {
		at := fmt.Sprintf("%s.netDevices[%d]", where, i)
		if device == nil || device.HostInterfaceName == "" || device.Name == "" {
			return fmt.Errorf("%s lacks hostInterfaceName or name", at)
		}
		if hosts[device.HostInterfaceName] || names[device.Name] {
			return fmt.Errorf("%s moves %q to %q, and another entry has one of the two", at, device.HostInterfaceName, device.Name)
		}
		hosts[device.HostInterfaceName], names[device.Name] = true, true
	}
	if rdt := e.IntelRdt; rdt != nil {
		// A folder of the kernel's resctrl has this name; "/" is its root.
		if id := rdt.ClosID; id != "/" && (len(id) > maxPath || id == "." || id == ".." || strings.ContainsAny(id, "/\n\x00")) {
			return fmt.Errorf("%s.intelRdt.closID is %q, want a name of a file", where, id)
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
	for _, number := range []struct {
		field string
		value int64
	}{{"major", node.Major}, {"minor", node.Minor}} {
		if number.value < 0 || number.value > math.MaxUint32 {
			return fmt.Errorf("%s.%s is %d, want 0 to %d", where, number.field, number.value, uint32(math.MaxUint32))
		}
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
	if err := checkPath(where+".containerPath", mount.ContainerPath); err != nil {
		return err
	}
	for _, option := range mount.Options {
		if option == "" || strings.ContainsAny(option, ",\x00\n ") {
			return fmt.Errorf("%s.options has %q, want one option of mount(8) in each", where, option)
		}
	}
	return nil
}

// hookNames are the names in OCI's runtime specification.
var hookNames = []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

func checkHook(where string, hook *specs.Hook) error {
	if hook == nil {
		return fmt.Errorf("%s is null", where)
	}
	if !slices.Contains(hookNames, hook.HookName) {
		return fmt.Errorf("%s.hookName is %q, want one of %s", where, hook.HookName, strings.Join(hookNames, ", "))
	}
	if err := checkPath(where+".path", hook.Path); err != nil {
		return err
	}
	if hook.Timeout != nil && *hook.Timeout <= 0 {
		return fmt.Errorf("%s.timeout is %d, want more than 0 seconds", where, *hook.Timeout)
	}
	if len(hook.Args) > maxEdits {
		return fmt.Errorf("%s.args has %d entries, want at most %d", where, len(hook.Args), maxEdits)
	}
	return checkVariables(where+".env", hook.Env)
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

func checkAnnotations(where string, annotations map[string]string) error {
	size := 0
	for key, value := range annotations {
		prefix, name, found := strings.Cut(key, "/")
		if !found {
			prefix, name = "a", key
		}
		if !isName(name, "") || !isName(prefix, "") || len(name) > 63 {
			return fmt.Errorf("%s has %q, want names such as vendor.example/name", where, clip(key))
		}
		size += len(key) + len(value)
	}
	if size > maxNotes {
		return fmt.Errorf("%s has %d bytes, want at most %d", where, size, maxNotes)
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

// oneLine replaces unprintable characters, because libraries quote values unchanged in
// their errors.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }), " ")
}

// clip shortens a value for a sentence.
func clip(value string) string {
	const most = 200
	if len(value) > most {
		return bounded.Head(value, most) + "…"
	}
	return value
}
