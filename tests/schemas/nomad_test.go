package schemas_test

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
)

const job = "../../deploy/nomad.hcl"

// unknown returns the names in a block of HCL that a type of Nomad's API does not have.
func unknown(body *hclsyntax.Body, of reflect.Type) []string {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return nil // a map: of a driver's options, or of variables
	}
	fields := map[string]reflect.Type{}
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("hcl"), ",")
		fields[name] = field.Type
	}
	var names []string
	for name := range body.Attributes {
		if fields[name] == nil {
			names = append(names, fmt.Sprintf("%s.%s", of.Name(), name))
		}
	}
	for _, block := range body.Blocks {
		if fields[block.Type] == nil {
			names = append(names, fmt.Sprintf("%s.%s", of.Name(), block.Type))
			continue
		}
		names = append(names, unknown(block.Body, fields[block.Type])...)
	}
	slices.Sort(names)
	return names
}

// Nomad's own reader of jobs is in a module that cannot be fetched: the test reads HCL, and
// compares the names with the types of Nomad's API.
func TestNomad_HasFieldsOfTheAPI(t *testing.T) {
	text, err := os.ReadFile(job)
	if err != nil {
		t.Fatal(err)
	}
	jobs := func(text string) []string {
		file, problems := hclsyntax.ParseConfig([]byte(text), job, hcl.InitialPos)
		if problems.HasErrors() {
			t.Fatal(problems)
		}
		block := file.Body.(*hclsyntax.Body).Blocks[0]
		if block.Type != "job" {
			t.Fatalf("the first block is %q", block.Type)
		}
		return unknown(block.Body, reflect.TypeFor[api.Job]())
	}
	if names := jobs(string(text)); names != nil {
		t.Errorf("%s has %q, which the API has not", job, names)
	}
	// The control: names that there are not.
	wrong := strings.NewReplacer("kill_timeout", "kill_time", "healthy_deadline", "healthy_line").Replace(string(text))
	if names := jobs(wrong); !slices.Equal(names, []string{"Task.kill_time", "UpdateStrategy.healthy_line"}) {
		t.Errorf("with two wrong names, the test finds %q", names)
	}
}
