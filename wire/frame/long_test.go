package frame

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// texts are what code may look like: as it is, and as JSON may write it.
func texts() []string {
	long := strings.Repeat("x\n", 2*Long)
	return []string{
		`"` + strings.Repeat("x", 2*Long) + `"`,
		quote(long), quote(long + "\x00\u2028\U0001F600<&>"),
		`"\ud83d\ude00\ud83d` + strings.Repeat("y", 2*Long) + `"`,
		`"` + strings.Repeat("z", 2*Long) + "\xff\xfe" + `"`,
		`"` + strings.Repeat("z", 2*Long) + `\x"`,
		`"` + strings.Repeat("z", 2*Long) + "\x01" + `"`,
		strings.Repeat("[", 2*Long), `"` + strings.Repeat("z", 2*Long),
		strings.Repeat("1", 2*Long), `{"a":` + quote(long) + `}`,
	}
}

func quote(text string) string {
	raw, _ := json.Marshal(text)
	return string(raw)
}

// A long frame is read as encoding/json reads it, wrong ones included.
func TestLongFrames_ArriveAsTheyWere(t *testing.T) {
	for _, text := range texts() {
		for _, payload := range []string{
			`{"type":"execute","id":1,"code":` + text + `,"keep":true}`,
			`{ "code" : ` + text + ` , "type" : "execute" }`,
			`{"type":"execute","env":{"code":` + text + `}}`,
			`{"type":"execute","code":` + text + `,}`,
			`{"type":"execute","code":` + text,
		} {
			var want, got Request
			wantErr := json.Unmarshal([]byte(payload), &want)
			frame := append([]byte{0, byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload))}, payload...)
			gotErr := NewReader(bytes.NewReader(frame)).Read(&got)
			if (wantErr == nil) != (gotErr == nil) {
				t.Fatalf("%.50s…: error %v, want %v", payload, gotErr, wantErr)
			}
			if diff := cmp.Diff(want, got); wantErr == nil && diff != "" {
				t.Errorf("%.50s…: %.500s", payload, diff)
			}
		}
	}
}

func TestLift_TakesALongText(t *testing.T) {
	long := strings.Repeat("x\ny", Long)
	rest, text, ok := Lift([]byte(`{"a":{"b" : `+quote(long)+`},"c":1}`), "b", "an other")
	if !ok || text != long || string(rest) != `{"a":{"b" : "an other"},"c":1}` {
		t.Errorf("%.100s, %.20q, %v", rest, text, ok)
	}
	// What is not a long string under that key is left alone.
	for _, message := range []string{
		``, `{}`, `{"b":"short"}`, `{"b":1}`, `"b"`, `{"b":`, `{"b":"x`, `{"a":` + quote(long) + `}`,
		`{"b":"short","a":` + quote(long) + `}`, `{"b":[` + quote(long) + `]}`, `{"a":` + quote(long+`"b":"`) + `}`,
	} {
		if rest, _, ok := Lift([]byte(message), "b", ""); ok {
			t.Errorf("%.50s: %.50s", message, rest)
		}
	}
}

// Strings are read as encoding/json reads them, or not at all.
func FuzzUnquote(f *testing.F) {
	for _, text := range []string{`a"`, `\u00e9\n"`, `\ud83d\ude00"`, `\ud83d\u0041"`, `\u12"`, `\x"`, "\xff\"", "\x01\"", `\u+123"`, `a`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, size, ok := unquote(raw)
		if !ok {
			return
		}
		var want string
		if err := json.Unmarshal(append([]byte{'"'}, raw[:size]...), &want); err != nil || want != got {
			t.Errorf("%q is %q, not %q; error %v", raw[:size], want, got, err)
		}
	})
}

func BenchmarkReadLong(b *testing.B) {
	var stream bytes.Buffer
	must.Do(b, NewWriter(&stream).Write(Request{Type: Execute, Code: strings.Repeat("# a line of code\n", 1<<16)}))
	b.SetBytes(int64(stream.Len()))
	for b.Loop() {
		var r Request
		must.Do(b, NewReader(bytes.NewReader(stream.Bytes())).Read(&r))
	}
}
