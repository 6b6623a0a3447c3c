package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// checked checks a text by a schema, as a gate does.
func checked(t testing.TB, schema, text string) string {
	t.Helper()
	value, count, err := decode([]byte(text), maxArgumentValues)
	if err != nil {
		return err.Error()
	}
	return (&Schema{RawMessage: json.RawMessage(schema)}).check(t.Context(), value, count)
}

// schemas are of all keywords that compute with numbers or compare values.
var schemas = []string{
	`{"properties":{"n":{"minimum":1,"maximum":100}}}`,
	`{"properties":{"n":{"exclusiveMinimum":1e-300,"exclusiveMaximum":1e300}}}`,
	`{"properties":{"n":{"multipleOf":0.01}}}`,
	`{"properties":{"n":{"type":"integer"}}}`,
	`{"properties":{"n":{"type":"array","uniqueItems":true}}}`,
	`{"properties":{"n":{"enum":[1,1e300,"x",{"a":1}]}}}`,
	`{"properties":{"n":{"const":1e2}}}`,
	`{"$defs":{"f":{"anyOf":[{"type":"number","minimum":1},{"type":"array","items":{"$ref":"#/$defs/f"}},{"type":"object","additionalProperties":{"$ref":"#/$defs/f"}}]}},"properties":{"n":{"$ref":"#/$defs/f"}}}`,
	`{"unevaluatedProperties":false,"allOf":[{"patternProperties":{"^n":{"contains":{"minimum":3}}}}]}`,
}

// numbers are those that math/big computes with for long, or not at all.
var numbers = []string{"1", "100", "-0", "0.5", "1e2", "1E+400", "1e401", "1e-400", "1e-401", "1e9999999", "-1e-9999999", "1e99999999999999999999",
	strings.Repeat("9", maxDigits), strings.Repeat("9", maxDigits+3), "0." + strings.Repeat("3", maxDigits-1)}

// No number ends the process, or is computed with if it is beyond the bounds.
func TestSchema_OutlastsNumbers(t *testing.T) {
	excessive := map[string]bool{"1e401": true, "1e-401": true, "1e9999999": true, "-1e-9999999": true, "1e99999999999999999999": true, numbers[13]: true}
	for _, schema := range schemas {
		for _, number := range numbers {
			for _, text := range []string{`{"n":` + number + `}`, `{"n":[` + strings.Repeat(number+",", 25) + number + `]}`} {
				wrong := checked(t, schema, text)
				if refused := strings.Contains(wrong, "digits, or an exponent beyond 400"); refused != excessive[number] {
					t.Errorf("%s by %s: %q", text[:min(40, len(text))], schema, wrong)
				}
			}
		}
	}
	// The controls: a schema does check, and a schema with such a number is wrong itself.
	if wrong := checked(t, schemas[0], `{"n":101}`); !strings.Contains(wrong, "maximum") {
		t.Errorf("101 is %q", wrong)
	}
	if wrong := checked(t, `{"minimum":1e9999999}`, "1"); !strings.Contains(wrong, "its schema is wrong: the number 1e9999999 has more than") {
		t.Errorf("a schema with such a number: %q", wrong)
	}
	if wrong := checked(t, `{"$ref":"#"}`, "1"); wrong == "" {
		t.Error("a schema that is itself is right")
	}
}

func TestDecode_IsBounded(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1}`: "", ` [1, "x", null, true, {"a": {"a": 1}}] `: "",
		`{"a":1}x`: "they are no JSON", `{"a":}`: "they are no JSON", `[1,]`: "they are no JSON", ``: "they are no JSON", `[1`: "they are no JSON", `{"a":1]`: "they are no JSON", `]`: "they are no JSON",
		strings.Repeat("[", maxNesting) + strings.Repeat("]", maxNesting): "",
		strings.Repeat("[", maxNesting+1):                                 "their lists and objects are 64 deep in others, or deeper",
		"[" + strings.Repeat("[],", maxArgumentValues) + "1]":             "they have more than 10000 values",
		`{"to":1,"x":[{"a":1,"\u0061":2}]}`:                               `the name "a" comes twice in one object`,
	} {
		_, _, err := decode([]byte(text), maxArgumentValues)
		if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
			t.Errorf("%.40s: %s, want %q", text, got, want)
		}
	}
}

// What is encoded is what was decoded, with names in order, plain characters and numbers as they
// were.
func TestEncode_IsPlain(t *testing.T) {
	value, _, err := decode([]byte(`{"\u0074o":"\u006d<\u2028\u00e9\n","n":[12345678901234567890, 1.50, 1e2], "a":{"c":1,"b":null}}`), 100)
	must.Do(t, err)
	if got, want := string(encode(value)), `{"a":{"b":null,"c":1},"n":[12345678901234567890,1.50,1e2],"to":"m<\u2028é\n"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// filters is a schema of a kind that servers have: a filter whose parts are filters.
const filters = `{"$defs":{"f":{"anyOf":[
	{"type":"object","required":["and"],"properties":{"and":{"type":"array","items":{"$ref":"#/$defs/f"}}}},
	{"type":"object","required":["or","x"],"properties":{"and":{"type":"array","items":{"$ref":"#/$defs/f"}}}},
	{"type":"object","required":["not","x"],"properties":{"and":{"type":"array","items":{"$ref":"#/$defs/f"}}}},
	{"type":"object","required":["field"]}]}},"properties":{"filter":{"$ref":"#/$defs/f"}}}`

func filter(depth int) string {
	return `{"filter":` + strings.Repeat(`{"and":[`, depth) + `{"field":1}` + strings.Repeat(`]}`, depth) + `}`
}

// A check takes a bounded number of steps, and so a bounded time and memory, whatever a schema
// makes of a value.
func TestSchema_TakesBoundedSteps(t *testing.T) {
	for _, depth := range []int{3, 28} {
		if wrong := checked(t, filters, filter(depth)); wrong != "" {
			t.Errorf("a right filter that is %d deep: %s", depth, wrong)
		}
	}
	for name, test := range map[string]struct{ schema, text string }{
		"a deep filter":                         {filters, strings.Replace(filter(28), "field", "none", 1)},
		"many patterns":                         {`{"patternProperties":{` + strings.TrimSuffix(strings.Repeat(`"N(a+)+$":{"type":"null"},`, 400), ",") + `}}`, ""},
		"a large enum":                          {`{"items":{"anyOf":[{"enum":[` + strings.Repeat(`"xxxxxxxx",`, 5000) + `"y"]}]}}`, `[` + strings.Repeat(`"xxxxxxxz",`, 9000) + `1]`},
		"an enumeration of numbers":             {`{"items":{"enum":[` + strings.Repeat(strings.Repeat("7", maxDigits)+",", 2000) + `1]}}`, `[` + strings.Repeat(strings.Repeat("8", maxDigits)+`,`, 2000) + `2]`},
		"an enumeration that is referred to":    {`{"$defs":{"e":{"enum":[` + strings.Repeat("7,", 2000) + `1]}},"items":{"$ref":"#/$defs/e"}}`, `[` + strings.Repeat(`8,`, 2000) + `2]`},
		"an enumeration of contained values":    {`{"contains":{"enum":[` + strings.Repeat("7,", 2000) + `1]}}`, `[` + strings.Repeat(`8,`, 2000) + `2]`},
		"an enumeration of values that are not": {`{"items":{"not":{"enum":[` + strings.Repeat("7,", 2000) + `1]}}}`, `[` + strings.Repeat(`8,`, 2000) + `2]`},
		"branches":                              {`{"items":{"anyOf":[` + strings.Repeat(`{"type":"null"},`, 400) + `{"type":"null"}]}}`, `[` + strings.Repeat(`1,`, 9000) + `1]`},
	} {
		if test.text == "" {
			for i := range 400 {
				test.schema = strings.Replace(test.schema, "N", fmt.Sprint(i), 1)
			}
			test.text = `{"x":1`
			for i := range 5000 {
				test.text += fmt.Sprintf(`,"%daaaaaaaaab":1`, i)
			}
			test.text += `}`
		}
		var before, after runtime.MemStats
		var began, ended syscall.Rusage
		runtime.ReadMemStats(&before)
		must.Do(t, syscall.Getrusage(syscall.RUSAGE_SELF, &began))
		wrong := checked(t, test.schema, test.text)
		must.Do(t, syscall.Getrusage(syscall.RUSAGE_SELF, &ended))
		runtime.ReadMemStats(&after)
		t.Logf("%s: %d ms of processor time, %d MiB allocated", name, (ended.Utime.Nano()-began.Utime.Nano())/1e6, (after.TotalAlloc-before.TotalAlloc)>>20)
		if !strings.Contains(wrong, "to check them by its schema takes more than") {
			t.Errorf("%s: %.200q", name, wrong)
		}
	}
}

// A check ends with its call.
func TestSchema_EndsWithItsCall(t *testing.T) {
	value, count, err := decode([]byte(filter(3)), maxArgumentValues)
	must.Do(t, err)
	s := &Schema{RawMessage: json.RawMessage(filters)}
	ended, end := context.WithCancel(t.Context())
	end()
	const want = "the call of run ended before they were checked"
	if wrong := s.check(ended, value, count); wrong != want {
		t.Errorf("in a call that has ended: %q", wrong)
	}
	// Another check runs.
	s.turn <- struct{}{}
	if wrong := s.check(ended, value, count); wrong != want {
		t.Errorf("while it waits: %q", wrong)
	}
	<-s.turn
	if wrong := s.check(t.Context(), value, count); wrong != "" {
		t.Errorf("after it: %q", wrong)
	}
}

func FuzzSchema(f *testing.F) {
	for i, schema := range schemas {
		f.Add(schema, `{"n":`+numbers[i]+`}`)
	}
	f.Add(filters, filter(10))
	f.Add(`{"properties":{"a":{"format":"regex","pattern":"("}}}`, `{"a":"("}`)
	f.Fuzz(func(t *testing.T, schema, text string) {
		for i, number := range numbers {
			text = strings.ReplaceAll(text, fmt.Sprintf("#%x", i), number)
		}
		value, count, err := decode([]byte(text), maxArgumentValues)
		if err != nil {
			return
		}
		if wrong := (&Schema{RawMessage: json.RawMessage(schema)}).check(t.Context(), value, count); strings.Contains(wrong, "cannot be checked") {
			t.Errorf("the library panics: %s", wrong)
		}
		again, _, err := decode(encode(value), maxArgumentValues)
		if err != nil || string(encode(again)) != string(encode(value)) {
			t.Errorf("%q is encoded as %q: %v", text, encode(value), err)
		}
	})
}
