package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Schema is a JSON Schema, which is compiled when it is used first. It checks one value at a time.
type Schema struct {
	json.RawMessage

	compile sync.Once
	schema  *jsonschema.Schema
	wrong   error
	turn    chan struct{} // has an element while a value is checked

	ctx  context.Context // of that check
	left int             // steps
}

// A check of a value takes at most so many steps, of up to some 200 ns and 300 bytes each. A step is
// one schema that is tried with one value. A schema that refers to itself in anyOf takes 2^n of
// them for a value that is nested n deep.
const (
	leastSteps    = 100_000
	stepsForValue = 10
)

// overBudget is what a check panics with when it is to end: the library takes no context.
type overBudget struct{}

// noSchemas refuses to load what a schema refers to: a tool must not make the server fetch anything.
type noSchemas struct{}

func (noSchemas) Load(url string) (any, error) {
	return nil, errors.New("a schema may not refer to another document")
}

// check returns what is wrong with a value of so many values, or an empty text. It ends with ctx.
func (s *Schema) check(ctx context.Context, value any, count int) (wrong string) {
	s.compile.Do(s.prepare)
	if s.wrong != nil {
		return fmt.Sprintf("its schema is wrong: %v", s.wrong)
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return "the call of run ended before they were checked"
	}
	defer func() { <-s.turn }()
	defer func() {
		switch cause := recover(); cause {
		case nil:
		case overBudget{}:
			wrong = fmt.Sprintf("to check them by its schema takes more than %d steps: send fewer values, or less deep ones", leastSteps+stepsForValue*count)
			if ctx.Err() != nil {
				wrong = "the call of run ended before they were checked"
			}
		default: // a fault of the library
			wrong = fmt.Sprintf("they cannot be checked by its schema: %v", cause)
		}
	}()
	s.ctx, s.left = ctx, leastSteps+stepsForValue*count
	err := s.schema.Validate(value)
	if err == nil {
		return ""
	}
	// The first line names the schema.
	_, words, _ := strings.Cut(err.Error(), "\n")
	lines := strings.Split(words, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "- "), "at '': ")
	}
	return strings.Join(lines[:min(3, len(lines))], "; ")
}

// prepare compiles the schema.
func (s *Schema) prepare() {
	defer func() {
		if cause := recover(); cause != nil {
			s.wrong = fmt.Errorf("it cannot be compiled: %v", cause)
		}
	}()
	s.turn = make(chan struct{}, 1)
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noSchemas{})
	compiler.DefaultDraft(jsonschema.Draft2020)
	document, _, err := decode(s.RawMessage, maxSchemaValues)
	if err == nil {
		if err = compiler.AddResource("tool.json", document); err == nil {
			s.schema, err = compiler.Compile("tool.json")
		}
	}
	if s.wrong = err; err == nil {
		s.bound(reflect.ValueOf(s.schema), map[*jsonschema.Schema]bool{})
	}
}

// bound has each schema below a value count its steps, before it tries the schemas below itself. The
// library calls a format's function at that moment, with the value.
func (s *Schema) bound(v reflect.Value, seen map[*jsonschema.Schema]bool) {
	if one, is := v.Interface().(*jsonschema.Schema); is {
		if one == nil || seen[one] {
			return
		}
		seen[one] = true
		s.count(one)
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if e := v.Elem(); e.IsValid() && (v.Kind() == reflect.Interface || e.Type().PkgPath() == reflect.TypeFor[jsonschema.Schema]().PkgPath()) {
			s.bound(e, seen)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				s.bound(v.Field(i), seen)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			s.bound(v.Index(i), seen)
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			s.bound(entries.Value(), seen)
		}
	}
}

// count has a schema take steps for itself, for the schemas below it that it tries with the same value,
// and for those that it tries with each part of a value. An enumeration takes a step for each of its
// values, which the schema above it pays: the library looks there before it calls anything.
func (s *Schema) count(one *jsonschema.Schema) {
	self, each := 1, 1+len(one.PatternProperties)
	pay := func(steps *int, below ...*jsonschema.Schema) {
		for _, schema := range below {
			if schema != nil {
				*steps++
				if schema.Enum != nil {
					*steps += len(schema.Enum.Values)
				}
			}
		}
	}
	for _, list := range [][]*jsonschema.Schema{one.AllOf, one.AnyOf, one.OneOf, {one.Not, one.If, one.Then, one.Else, one.Ref, one.RecursiveRef}} {
		pay(&self, list...)
	}
	if one.DynamicRef != nil {
		pay(&self, one.DynamicRef.Ref)
	}
	for _, schema := range one.DependentSchemas {
		pay(&self, schema)
	}
	for _, schema := range one.Properties { // each with at most one part
		pay(&self, schema)
	}
	pay(&each, one.PropertyNames, one.UnevaluatedProperties, one.Contains, one.Items2020, one.UnevaluatedItems)
	for _, schema := range one.PatternProperties {
		pay(&each, schema)
	}
	for _, some := range []any{one.AdditionalProperties, one.AdditionalItems, one.Items, one.PrefixItems} {
		switch some := some.(type) {
		case *jsonschema.Schema:
			pay(&each, some)
		case []*jsonschema.Schema:
			pay(&self, some...)
		}
	}
	format := one.Format
	one.Format = &jsonschema.Format{Validate: func(value any) error {
		parts := 0
		switch value := value.(type) {
		case map[string]any:
			parts += len(value)
		case []any:
			parts += len(value)
		case string:
			parts += len(value) / 100
		}
		if s.left -= self + each*parts; s.left < 0 || s.ctx.Err() != nil {
			panic(overBudget{})
		}
		if format == nil {
			return nil
		}
		return format.Validate(value)
	}}
	if format != nil {
		one.Format.Name = format.Name
	}
}
