package config

import (
	"maps"
	"slices"
	"strings"
)

// known are the variables that users set; the wrapper and programs of this project have others.
var known = strings.Fields(`NIX_SANDBOX_AUDIT NIX_SANDBOX_CDI NIX_SANDBOX_CONFIG NIX_SANDBOX_DIR NIX_SANDBOX_ENVS NIX_SANDBOX_HOSTS
	NIX_SANDBOX_HTTP NIX_SANDBOX_INBOX NIX_SANDBOX_METADATA NIX_SANDBOX_METRICS NIX_SANDBOX_OUTPUTS NIX_SANDBOX_START_SECONDS
	NIX_SANDBOX_TOKENS PROJECT_DIR PROJECT_MODE PROJECT_MOUNT PROJECT_USE_FLAKE SESSION_IDLE_TIMEOUT SESSION_KEEP_FILES SESSION_MAX
	SESSION_MAX_LIFETIME`)

// Misspelled returns the variables of an environment, each as NAME=VALUE, that look like one of this program's
// with a slip: a letter that is missing, added or another one, or two that are exchanged. Each has the name
// that was probably meant.
func Misspelled(environ []string) map[string]string {
	slips := map[string]string{}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if len(name) > 64 || slices.Contains(known, name) {
			continue
		}
		for _, meant := range known {
			if isSlip(name, meant) {
				slips[name] = meant
			}
		}
	}
	return slips
}

// isSlip reports whether two words differ in one place.
func isSlip(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	switch {
	case len(b)-len(a) > 1:
		return false
	case len(a) < len(b):
		return a[i:] == b[i+1:]
	case a[i+1:] == b[i+1:]:
		return true
	}
	return i+2 <= len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// Slips words what [Misspelled] returns, a sentence for each, in their order.
func Slips(environ []string) (sentences []string) {
	slips := Misspelled(environ)
	for _, name := range slices.Sorted(maps.Keys(slips)) {
		sentences = append(sentences, "the variable "+name+" means nothing here: "+slips[name]+" was probably meant")
	}
	return sentences
}
