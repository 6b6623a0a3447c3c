package bpf

import (
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCompile_RefusesRulesThatOverlap(t *testing.T) {
	deny := Verdict{{Then: Errno(unix.EPERM)}}
	for name, rules := range map[string][]Rule{
		"the same call twice": {{3, 3, deny}, {3, 3, deny}},
		"a call of a range":   {{3, 9, deny}, {9, 9, deny}},
		"after the last":      {{3, math.MaxUint32, deny}, {math.MaxUint32, math.MaxUint32, deny}},
		"a range backwards":   {{9, 3, deny}},
	} {
		if _, err := Compile(0, rules, nil); err == nil || !strings.Contains(err.Error(), "overlaps") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := Compile(0, []Rule{{4, 9, deny}, {3, 3, deny}, {0, 0, nil}, {10, math.MaxUint32, nil}}, nil); err != nil {
		t.Errorf("rules side by side: %v", err)
	}
}

func TestCompile_RefusesAProgramThatIsTooLong(t *testing.T) {
	var rules []Rule
	for n := range uint32(maxInstructions) {
		rules = append(rules, Rule{2 * n, 2 * n, nil})
	}
	if _, err := Compile(0, rules, nil); err == nil {
		t.Error("more rules than the kernel allows instructions were compiled")
	}
}
