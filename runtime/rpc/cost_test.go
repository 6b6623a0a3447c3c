package rpc

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// What is refused takes hundreds of megabytes when it is decoded.
func TestCost_RefusesMoreValuesThanAnyMessageHas(t *testing.T) {
	const mega = 1 << 20
	list := func(one string, n int) string { return `{"x":[` + strings.Repeat(one+",", n) + "1]}" }
	for name, test := range map[string]struct {
		text string
		ok   bool
	}{
		"empty":                 {"", true},
		"a message":             {`{"jsonrpc":"2.0","id":1,"method":"ping"}`, true},
		"some values":           {list("1", 5000), true},
		"numbers":               {list("1", mega), false},
		"lists":                 {list("[]", mega), false},
		"objects":               {list(`{"":0}`, mega), false},
		"fields":                {`{"x":{` + strings.Repeat(`"a":1,`, mega) + `"b":1}}`, false},
		"nested":                {strings.Repeat("[", maxDepth+1), false},
		"text of such":          {`{"code":"` + strings.Repeat("[1,", mega) + `"}`, true},
		"text with quotes":      {`{"code":"` + strings.Repeat(`\"[`, mega) + `"}`, true},
		"text with backslashes": {`{"code":"` + strings.Repeat(`\\`, mega) + `","x":` + strings.Repeat("[", maxDepth) + `}`, false},
		"text without an end":   {`{"code":"` + strings.Repeat("[", mega), true},
		"a backslash at last":   {`{"code":"\`, true},
	} {
		if _, err := Cost([]byte(test.text)); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The cost of values is at least what they take in memory when all is decoded five times.
func TestCost_IsWhatValuesTake(t *testing.T) {
	for _, one := range []string{"1", "[]", "{}", `{"":0}`, `"x"`, "null"} {
		text := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":[` + strings.Repeat(one+",", 3000) + "1]}}")
		cost := must.Get(Cost(text))(t)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var all []any
		for range 5 {
			var v any
			must.Do(t, json.Unmarshal(text, &v))
			all = append(all, v)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(all)
		if took := int64(after.HeapAlloc) - int64(before.HeapAlloc); took > cost {
			t.Errorf("%s: %d bytes are in memory, %d are counted", one, took, cost)
		}
	}
}
