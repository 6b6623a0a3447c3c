package clientfile

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/tailscale/hujson"
)

// mergeJSON adds to a file of JSON. What is new comes last in its object, indented as the file is.
func mergeJSON(file []byte, add string) ([]byte, error) {
	if len(bytes.TrimSpace(file)) == 0 {
		file = []byte("{}\n")
	}
	root, err := hujson.Parse(bytes.Clone(file)) // whose parts it changes
	if err != nil {
		return nil, err
	}
	wanted, err := hujson.Parse([]byte(add))
	if err != nil {
		return nil, err
	}
	e := editor{indent: "  "}
	if object, ok := root.Value.(*hujson.Object); ok && len(object.Members) > 0 {
		before := object.Members[0].Name.BeforeExtra
		if at := bytes.LastIndexByte(before, '\n'); at >= 0 && len(bytes.Trim(before[at+1:], " \t")) == 0 {
			e.indent = string(before[at+1:])
		}
	}
	e.merge(&root, wanted, "\n", 0)
	return root.Pack(), nil
}

type editor struct{ indent string }

// merge adds to a value whose closing bracket is on a line that begins with newline.
func (e editor) merge(into *hujson.Value, add hujson.Value, newline string, at int) {
	switch old := into.Value.(type) {
	case *hujson.Object:
		for _, member := range add.Value.(*hujson.Object).Members {
			if has := find(old, member.Name); has != nil {
				e.merge(has, member.Value, newline+e.indent, at+1)
				continue
			}
			name := hujson.Value{BeforeExtra: e.room(&old.AfterExtra, newline), Value: member.Name.Value}
			value := hujson.Value{BeforeExtra: hujson.Extra(" "), Value: e.format(member.Value, newline+e.indent)}
			old.Members = append(old.Members, hujson.ObjectMember{Name: name, Value: value})
		}
		return
	case *hujson.Array:
		if at > depth {
			break
		}
		list := decoded(*into).([]any)
		for _, element := range add.Value.(*hujson.Array).Elements {
			if len(missing(list, []any{decoded(element)})) > 0 {
				old.Elements = append(old.Elements, hujson.Value{BeforeExtra: e.room(&old.AfterExtra, newline), Value: e.format(element, newline+e.indent)})
			}
		}
		return
	}
	if !reflect.DeepEqual(decoded(*into), decoded(add)) {
		into.Value = e.format(add, newline)
	}
}

// find returns the value of a name.
func find(object *hujson.Object, name hujson.Value) *hujson.Value {
	for i, member := range object.Members {
		if member.Name.Value.(hujson.Literal).String() == name.Value.(hujson.Literal).String() {
			return &object.Members[i].Value
		}
	}
	return nil
}

// room makes a new line before a closing bracket, after the comments there, and returns what comes
// before an element on it.
func (e editor) room(after *hujson.Extra, newline string) hujson.Extra {
	before := append(bytes.TrimRight(*after, " \t\r\n"), newline+e.indent...)
	*after = hujson.Extra(newline)
	return before
}

// format returns a value as lines, of which all but the first begin with newline.
func (e editor) format(value hujson.Value, newline string) hujson.ValueTrimmed {
	var text bytes.Buffer
	if json.Indent(&text, value.Pack(), newline[1:], e.indent) != nil {
		return value.Value
	}
	formatted, err := hujson.Parse(text.Bytes())
	if err != nil {
		return value.Value
	}
	return formatted.Value
}

// decoded returns what a value means.
func decoded(value hujson.Value) (meaning any) {
	value = value.Clone()
	value.Standardize()
	_ = json.Unmarshal(value.Pack(), &meaning) // it was parsed
	return meaning
}
