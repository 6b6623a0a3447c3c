package release

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// schemaVariable names the registry's schema of server.json. It is in the Go module of the
// registry, github.com/modelcontextprotocol/registry.
const schemaVariable = "NIX_SANDBOX_TEST_SERVER_SCHEMA"

func TestNotes_AreOfTheVersion(t *testing.T) {
	notes := string(must.Get(exec.CommandContext(t.Context(), filepath.Join(root, "dist/release/notes")).Output())(t))
	for _, wanted := range []string{"### Upgrade notes", "### Added"} {
		if !strings.Contains(notes, wanted) {
			t.Errorf("the notes lack %q", wanted)
		}
	}
	for _, other := range []string{"\n## ", "\n[", "](docs/"} {
		if strings.Contains(notes, other) {
			t.Errorf("the notes have %q", other)
		}
	}
}

func serverJSON(t *testing.T) string {
	t.Helper()
	return strings.ReplaceAll(read(t, "dist/release/server.json.in"), "@version@", undertest.Version(t))
}

// What the registry asks beyond its schema: packages of the type oci have their version in the
// identifier and neither `version` nor `registryBaseUrl`, at a registry that it knows, and the
// image has a label with the server's name (internal/validators/registries/oci.go there).
func TestServerJSON_FollowsTheRules(t *testing.T) {
	var server struct {
		Name, Description, Version string
		Packages                   []map[string]any
	}
	must.Do(t, json.Unmarshal([]byte(serverJSON(t)), &server))
	if len(server.Description) > 100 {
		t.Errorf("the description has %d characters, and may have 100", len(server.Description))
	}
	if !strings.Contains(read(t, "nix/lib/mkImage.nix"), `"io.modelcontextprotocol.server.name" = "`+server.Name+`"`) {
		t.Errorf("the image's label does not have %q", server.Name)
	}
	if len(server.Packages) == 0 {
		t.Error("there are no packages")
	}
	for _, p := range server.Packages {
		identifier, _ := p["identifier"].(string)
		if p["registryType"] != "oci" || p["version"] != nil || p["registryBaseUrl"] != nil ||
			!strings.HasPrefix(identifier, "ghcr.io/") || !strings.HasSuffix(identifier, ":"+server.Version) {
			t.Errorf("the package is %v", p)
		}
	}
}

func TestServerJSON_HasTheSchema(t *testing.T) {
	path := os.Getenv(schemaVariable)
	if path == "" {
		t.Skip(schemaVariable + " does not name the schema of server.json")
	}
	schema := must.Get(jsonschema.NewCompiler().Compile(path))(t)
	text := serverJSON(t)
	if err := schema.Validate(must.Get(jsonschema.UnmarshalJSON(strings.NewReader(text)))(t)); err != nil {
		t.Error(err)
	}
	// The control: a transport that there is not.
	wrong := strings.Replace(text, `"type": "stdio"`, `"type": "pigeon"`, 1)
	if schema.Validate(must.Get(jsonschema.UnmarshalJSON(strings.NewReader(wrong)))(t)) == nil {
		t.Error("the schema accepts a transport that there is not")
	}
}

// Actions are named by commits, which nobody can move. The one of Determinate Nix is on purpose
// the newest, in a job that may only read.
func TestWorkflows_PinActions(t *testing.T) {
	uses := regexp.MustCompile(`uses: (\S+)( # v\S+)?`)
	pinned := regexp.MustCompile(`^[\w.-]+/[\w.-]+@[0-9a-f]{40}$`)
	files := must.Get(filepath.Glob(filepath.Join(root, ".github/workflows/*.yml")))(t)
	found := 0
	for _, file := range files {
		text := string(must.Get(os.ReadFile(file))(t))
		for _, use := range uses.FindAllStringSubmatch(text, -1) {
			found++
			local := strings.HasPrefix(use[1], "./")
			newest := use[1] == "DeterminateSystems/determinate-nix-action@v3"
			if !local && !newest && (!pinned.MatchString(use[1]) || use[2] == "") {
				t.Errorf("%s: %s: name the commit, and the version in a comment", file, use[1])
			}
		}
		if !strings.Contains(text, "\npermissions:") {
			t.Errorf("%s says nothing of permissions", file)
		}
	}
	if found == 0 {
		t.Error("no action was found")
	}
}

// A person agrees before anything is written outside of the workflow: to a job with a secret or with
// a right to write, or to one that it needs.
func TestRelease_WaitsForAPerson(t *testing.T) {
	var workflow struct {
		Jobs map[string]struct {
			Needs, Env, Steps yaml.Node
			Environment       string
			Permissions       map[string]string
		}
	}
	must.Do(t, yaml.Unmarshal([]byte(read(t, ".github/workflows/release.yml")), &workflow))
	asked := 0
	for name, job := range workflow.Jobs {
		text := string(must.Get(yaml.Marshal([]*yaml.Node{&job.Env, &job.Steps}))(t))
		writes := strings.Contains(text, "secrets.")
		for _, right := range job.Permissions {
			writes = writes || right == "write"
		}
		needs := string(must.Get(yaml.Marshal(&job.Needs))(t))
		if job.Environment == "release" {
			asked++
			if !strings.Contains(needs, "check") || !strings.Contains(needs, "build") {
				t.Errorf("%s does not wait for the check and the build", name)
			}
		} else if writes && strings.TrimSpace(needs) != "publish" {
			t.Errorf("%s writes or has a secret before a person agreed", name)
		}
		// A step's secret is not in the environment of other steps.
		if environment := string(must.Get(yaml.Marshal(&job.Env))(t)); strings.Contains(environment, "secrets.") {
			t.Errorf("all steps of %s have a secret", name)
		}
		if strings.Contains(text, "go install") && job.Permissions["contents"] != "" {
			t.Errorf("%s runs a program from elsewhere, and has a right to the repository", name)
		}
		// That action reads the password from Docker's file (getRegistryCredentials in @sigstore/oci).
		if login, push := strings.Index(text, "docker login"), strings.Index(text, "push-to-registry: true"); push >= 0 && (login < 0 || push < login) {
			t.Errorf("%s pushes an attestation before it has logged in with docker", name)
		}
	}
	if asked != 2 {
		t.Errorf("%d jobs wait for a person, want 2", asked)
	}
}

func TestWords_FindWhatATagMakesFalse(t *testing.T) {
	folder := t.TempDir()
	for path, text := range map[string]string{"dist/release/words": read(t, "dist/release/words"), "README.md": "It is tagged.\n", "CHANGELOG.md": "", "docs/a.md": ""} {
		must.Write(t, filepath.Join(folder, path), text, 0o700)
	}
	words := func() (string, error) {
		output, err := exec.CommandContext(t.Context(), filepath.Join(folder, "dist/release/words")).CombinedOutput()
		return string(output), err
	}
	if output, err := words(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
	must.Write(t, filepath.Join(folder, "docs/a.md"), "No version has been tagged yet.\n", 0o600)
	if output, err := words(); err == nil || !strings.Contains(output, "docs/a.md:1:") {
		t.Errorf("%v: %s", err, output)
	}
}

// What GitHub asks of the forms: https://docs.github.com/communities/using-templates, "Syntax
// for issue forms": name, description and body, and in it types that it knows, with labels and
// ids that are there once.
func TestForms_HaveTheSyntax(t *testing.T) {
	for _, name := range []string{"bug.yml", "idea.yml"} {
		var form struct {
			Name, Description string
			Labels            []string
			Body              []struct {
				Type, ID   string
				Attributes struct {
					Label, Description, Placeholder, Render string
					Options                                 []string
				}
				Validations struct{ Required bool }
			}
		}
		decoder := yaml.NewDecoder(strings.NewReader(read(t, ".github/ISSUE_TEMPLATE/"+name)))
		decoder.KnownFields(true)
		must.Do(t, decoder.Decode(&form))
		ids := map[string]bool{}
		for _, item := range form.Body {
			known := map[string]bool{"textarea": true, "input": true, "dropdown": len(item.Attributes.Options) > 0}
			if !known[item.Type] || item.Attributes.Label == "" || ids[item.ID] {
				t.Errorf("%s: %+v", name, item)
			}
			ids[item.ID] = true
		}
		if form.Name == "" || form.Description == "" || len(ids) == 0 {
			t.Errorf("%s is not complete", name)
		}
		if name == "bug.yml" && !ids["doctor"] {
			t.Errorf("%s does not ask for what doctor prints", name)
		}
	}
}

func TestSkill_IsShort(t *testing.T) {
	if lines := strings.Count(read(t, "dist/plugin/skills/sandbox/SKILL.md"), "\n"); lines > 30 {
		t.Errorf("the skill has %d lines, and may have 30", lines)
	}
}

// bomVariable names the folder of CycloneDX's schemas. They are in the Go module
// github.com/CycloneDX/cyclonedx-go.
const bomVariable = "NIX_SANDBOX_TEST_BOM_SCHEMAS"

func TestSBOM_HasTheSchema(t *testing.T) {
	server, folder := undertest.Server(t), os.Getenv(bomVariable)
	if folder == "" {
		t.Skip(bomVariable + " does not name the folder of CycloneDX's schemas")
	}
	compiler := jsonschema.NewCompiler()
	for name, file := range map[string]string{
		"bom-1.5": "bom-1.5.schema.json", "spdx": "spdx.schema.json", "jsf-0.82": "jsf-0.82.schemax.json",
	} {
		text := must.Get(os.ReadFile(filepath.Join(folder, file)))(t)
		document := must.Get(jsonschema.UnmarshalJSON(strings.NewReader(string(text))))(t)
		must.Do(t, compiler.AddResource("http://cyclonedx.org/schema/"+name+".schema.json", document))
	}
	schema := must.Get(compiler.Compile("http://cyclonedx.org/schema/bom-1.5.schema.json"))(t)
	text := string(must.Get(exec.CommandContext(t.Context(), filepath.Join(root, "dist/release/sbom"), filepath.Dir(filepath.Dir(server))).Output())(t))
	if err := schema.Validate(must.Get(jsonschema.UnmarshalJSON(strings.NewReader(text)))(t)); err != nil {
		t.Error(err)
	}
	var bom struct {
		Components   []struct{ Name string }
		Dependencies []struct{ Ref string }
	}
	must.Do(t, json.Unmarshal([]byte(text), &bom))
	if len(bom.Components) < 10 || len(bom.Dependencies) != len(bom.Components)+1 {
		t.Errorf("%d components have %d lists of dependencies", len(bom.Components), len(bom.Dependencies))
	}
	// The control: a kind of component that there is not.
	wrong := strings.ReplaceAll(text, `"type": "library"`, `"type": "pigeon"`)
	if schema.Validate(must.Get(jsonschema.UnmarshalJSON(strings.NewReader(wrong)))(t)) == nil {
		t.Error("the schema accepts a kind of component that there is not")
	}
}
