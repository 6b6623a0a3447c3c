package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// decode reads a JSON object into a map or a struct. Each field of a struct is required, and may not
// be null, unless its tag says omitempty. The error names the file and the first wrong field, with a
// prefix.
func decode(where, prefix string, text []byte, into any) error {
	err := json.Unmarshal(text, into)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		// Embedded structs are in the path too.
		path := slices.DeleteFunc(strings.Split(wrong.Field, "."), func(name string) bool { return name == "" || unicode.IsUpper(rune(name[0])) })
		field := strings.TrimSuffix(prefix+strings.Join(path, "."), ".")
		return fmt.Errorf("%s: %s, it must be %s", where, strings.TrimSpace(field+" is "+described(wrong.Value)), allowed(wrong.Type))
	case err != nil:
		return fmt.Errorf("%s: %w", where, err)
	}
	if of := reflect.TypeOf(into).Elem(); of.Kind() != reflect.Struct {
		return nil
	} else if field := missing(of, text); field != "" {
		return fmt.Errorf("%s: %s%s is missing", where, prefix, field)
	}
	return nil
}

// missing returns the path of the first required field of a struct that an object lacks, or "".
func missing(of reflect.Type, text []byte) string {
	var object map[string]json.RawMessage
	_ = json.Unmarshal(text, &object) // was decoded before
	for _, field := range reflect.VisibleFields(of) {
		name, optional, _ := strings.Cut(field.Tag.Get("json"), ",")
		value := object[name]
		switch {
		case name == "" || name == "-":
		case value == nil || string(value) == "null":
			if optional == "" {
				return name
			}
		case field.Type.Kind() == reflect.Struct:
			if below := missing(field.Type, value); below != "" {
				return name + "." + below
			}
		}
	}
	return ""
}

// wrong is the error of an UnmarshalJSON or UnmarshalText for a text that is no value of its type.
// encoding/json adds the field.
func wrong(value any, text []byte) error {
	return &json.UnmarshalTypeError{Value: string(text), Type: reflect.TypeOf(value).Elem()}
}

// described words the value of an error: encoding/json names the type of most.
func described(value string) string {
	switch value {
	case "string", "number":
		return "a " + value
	case "bool":
		return "a boolean"
	case "array", "object":
		return "an " + value
	}
	return fmt.Sprintf("%.100s", strings.TrimPrefix(value, "number "))
}

// allowed words the values of a type.
func allowed(of reflect.Type) string {
	switch of {
	case reflect.TypeFor[OnDemand]():
		return `an array of names of packages, or "all"`
	case reflect.TypeFor[Pattern]():
		return "a regular expression"
	case reflect.TypeFor[seconds]():
		return "a number of seconds"
	}
	switch of.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a boolean"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a whole number, and not negative"
}

// seconds is a time that JSON has in seconds.
type seconds time.Duration

// UnmarshalJSON reads a number that is not negative, or null, which changes nothing.
func (s *seconds) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	number, err := strconv.ParseFloat(string(text), 64)
	if err != nil || number < 0 || number > math.MaxInt32 {
		return wrong(s, text)
	}
	*s = seconds(number * float64(time.Second))
	return nil
}
