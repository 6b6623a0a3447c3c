package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// program makes an executable file and returns its path.
func program(t *testing.T, path string) string {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	return path
}

// entry is an environment with nothing wrong; a change of nil removes a field.
func entry(t *testing.T, change map[string]any) map[string]any {
	t.Helper()
	run := program(t, filepath.Join(t.TempDir(), "bin", "run"))
	fields := map[string]any{"backend": "jail", "exec": run, "session_exec": run}
	for key, value := range change {
		if value == nil {
			delete(fields, key)
		} else {
			fields[key] = value
		}
	}
	return fields
}

func document(t testing.TB, environments map[string]any, more map[string]any) string {
	t.Helper()
	fields := mcptest.Settings(more)
	fields["environments"] = environments
	text := must.Get(json.Marshal(fields))(t)
	return string(text)
}

// writeArtifact writes an artifact into a sandbox folder and returns its folder.
func writeArtifact(t *testing.T, folder, called string, fields map[string]any) string {
	t.Helper()
	dir := filepath.Join(folder, called)
	program(t, filepath.Join(dir, "bin", "run"))
	program(t, filepath.Join(dir, "bin", "session-run"))
	text := must.Get(json.Marshal(fields))(t)
	must.Do(t, os.WriteFile(filepath.Join(dir, "metadata.json"), text, 0o644))
	return dir
}

// base is what a server without environments was built with.
func base(t *testing.T) *Set {
	t.Helper()
	set := must.Get(Read(document(t, map[string]any{}, nil)))(t)
	return set
}

// A field that is in neither is missing: the runtime has no defaults.
func TestEnvironment_NeedsEveryField(t *testing.T) {
	whole := mcptest.Settings(nil)["defaults"].(map[string]any)
	for field, value := range whole {
		if value == nil { // which an environment without the field has, too
			continue
		}
		rest := maps.Clone(whole)
		delete(rest, field)
		set := must.Get(Read(document(t, map[string]any{"x": entry(t, nil)}, map[string]any{"defaults": rest})))(t)
		if why := reason(set, "x"); why == nil || why.Error() != "NIX_SANDBOX_METADATA: environments.x."+field+" is missing" {
			t.Errorf("without %s: %v", field, why)
		}
	}
}

// What the table of options publishes is required of metadata, or of the server's defaults: there is
// no second default. The exceptions are for operators, or the same as their absence.
func TestPublished_IsRequired(t *testing.T) {
	table := string(must.Get(os.ReadFile("../../nix/lib/options.nix"))(t))
	row := regexp.MustCompile(`(?m)^    ([a-z_]+) = \{\n((?:      .*\n)*)    \};`)
	required := mcptest.Settings(nil)["defaults"].(map[string]any)
	maps.Copy(required, map[string]any{"name": nil, "backend": nil})
	exceptions := []string{"interpreter", "stdin_mode", "workspace_mb", "packages_on_demand"}
	count := 0
	for _, found := range row.FindAllStringSubmatch(table, -1) {
		if _, is := required[found[1]]; strings.Contains(found[2], "      published = true;") {
			count++
			if !is && !slices.Contains(exceptions, found[1]) {
				t.Errorf("%s is published, and not read", found[1])
			}
		}
	}
	if count < 15 {
		t.Errorf("only %d published options were found", count)
	}
}

// An artifact of an earlier version lacks fields; the server's own metadata has
// what they were.
func TestArtifact_IsCompletedByTheServer(t *testing.T) {
	folder := t.TempDir()
	writeArtifact(t, folder, "old", map[string]any{"schema": 1, "name": "old", "backend": "jail", "pids": 7})
	set := must.Get(base(t).With(Folders{Folders: []string{folder}}))(t)
	if env := set.Environments["old"]; env.PIDs != 7 || env.MemoryMB != 512 || env.Timeout != 30*time.Second {
		t.Errorf("%+v, broken %v", env, set.Broken)
	}
}

func TestDefaults(t *testing.T) {
	fields := entry(t, nil)
	set := must.Get(Read(document(t, map[string]any{"a": fields}, nil)))(t)
	run := fields["exec"].(string)
	want := Environment{
		Name: "a", Backend: "jail", InterpreterType: "command",
		Timeout: 30 * time.Second, MaxTimeout: 30 * time.Second, AskWithin: 5 * time.Minute, MemoryMB: 512, PIDs: 256, OutputBytes: 32 << 10, Prewarm: 1,
		Inherit: []string{}, Exec: run, SessionExec: run, Origin: "NIX_SANDBOX_METADATA",
	}
	if diff := cmp.Diff(want, set.Environments["a"]); diff != "" {
		t.Error(diff)
	}
}

func TestEveryField(t *testing.T) {
	fields := entry(t, map[string]any{
		"name": "a", "interpreter_type": "python", "interpreter": "python3 -c", "stdin_mode": "arg",
		"ask_seconds": 7, "inherit_env": []string{"C"}, "timeout_seconds": 2.5, "max_timeout_seconds": 60, "memory_mb": 64, "cpus": 1.5, "pids": 10, "workspace_mb": 5, "output_kb": 8,
		"prewarm": 3, "description": "d", "network": map[string]any{"mode": "none"}, "closure": "c", "needs": "n",
		"of_a_newer_builder": []int{1},
	})
	set, err := Read(document(t, map[string]any{"a": fields}, map[string]any{
		"session": map[string]any{"idle_timeout_seconds": 7, "max_lifetime_seconds": 8, "shared_files": true, "keep_files": true, "keep_mb": 9, "suspend": true, "suspend_mb": 10},
		"project": map[string]any{
			"path": "/p", "mount_point": "/m", "mode": "x", "inherit_env": map[string]any{"vars": []string{"A", "B_1"}},
			"reserved": []string{"/r"}, "modes": []string{"x", "y"}, "refused_modes": map[string]string{"z": "why"},
		},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Broken) > 0 {
		t.Fatal(set.Broken)
	}
	got := set.Environments["a"]
	want := Environment{
		Name: "a", Description: "d", Backend: "jail", InterpreterType: "python", Closure: "c", Needs: "n",
		AskWithin: 7 * time.Second, Timeout: 2500 * time.Millisecond, MaxTimeout: time.Minute, MemoryMB: 64, CPUs: 1.5, PIDs: 10, OutputBytes: 8 << 10, Inherit: []string{"C"}, Prewarm: 3,
		Exec: got.Exec, SessionExec: got.Exec, Origin: "NIX_SANDBOX_METADATA",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Session{Idle: 7 * time.Second, Lifetime: 8 * time.Second, SharedFiles: true, KeepFiles: true, KeepBytes: 9 << 20, Suspend: true, SuspendBytes: 10 << 20}, set.Session); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Project{
		Path: "/p", Mount: "/m", Reserved: []string{"/r"}, Inherit: []string{"A", "B_1"},
		Mode: "x", Modes: []string{"x", "y"}, RefusedModes: map[string]string{"z": "why"},
	}, set.Project); diff != "" {
		t.Error(diff)
	}
}

// An environment without a network says so in one of the ways of this version
// and the one before, or not at all.
func TestEnvironment_Network(t *testing.T) {
	for name, test := range map[string]struct {
		network any
		want    *Network
	}{
		"none":          {"none", nil},
		"the mode none": {map[string]any{"mode": "none"}, nil},
		"null":          {json.RawMessage("null"), nil},
		"some":          {map[string]any{"mode": "allow", "domains": []string{"files.example", "*.host.example", "git.example:22"}, "ports": []int{443, 80}}, &Network{Mode: "allow", Domains: []string{"files.example", "*.host.example", "git.example:22"}, Ports: []int{443, 80}}},
		"its limits":    {map[string]any{"mode": "allow", "connections": 64, "rate": 50, "megabytes": 1024, "names": 1000}, &Network{Mode: "allow", Limits: map[string]int64{"connections": 64, "rate": 50, "megabytes": 1024, "names": 1000}}},
		"its secrets":   {map[string]any{"mode": "allow", "secrets": []string{"API_TOKEN"}}, &Network{Mode: "allow", Secrets: []string{"API_TOKEN"}}},
		"a later mode":  {map[string]any{"mode": "ask", "of": 1}, &Network{Mode: "ask"}},
	} {
		set := must.Get(Read(document(t, map[string]any{"x": entry(t, map[string]any{"network": test.network})}, nil)))(t)
		if diff := cmp.Diff(test.want, set.Environments["x"].Network); diff != "" || len(set.Broken) > 0 {
			t.Errorf("%s: %v %s", name, set.Broken, diff)
		}
	}
}

func TestNetwork_Hosts(t *testing.T) {
	long := strings.Repeat("long.", 40) + "example"
	for want, domains := range map[string][]string{
		"files.example":                 {"files.example"},
		"files.example, b.example":      {"files.example", "b.example"},
		"files.example +1":              {"files.example", long},
		"2 hosts":                       {long, "b.example"},
		"1 host":                        {long},
		"hosts that its operator named": nil,
	} {
		if got := (&Network{Domains: domains}).Hosts(64); got != want {
			t.Errorf("%q: %q", domains, got)
		}
	}
	for want, n := range map[string]Network{
		"a.example, and others that the user is asked about": {Domains: []string{"a.example"}, Ask: []string{"*"}},
		"hosts that the user is asked about":                 {Ask: []string{"*.example"}},
	} {
		if got := n.Hosts(64); got != want {
			t.Errorf("%+v: %q, want %q", n, got, want)
		}
	}
}

// What is wrong with one environment is one line that names its location, and
// leaves the other environments as they are.
func TestBrokenEnvironment(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	must.Do(t, os.WriteFile(plain, nil, 0o644))
	for name, test := range map[string]struct {
		change map[string]any
		want   string
	}{
		"backend missing":        {map[string]any{"backend": nil}, "environments.x.backend is missing"},
		"backend of wrong type":  {map[string]any{"backend": 1}, "environments.x.backend is a number, it must be a string"},
		"interpreter type":       {map[string]any{"interpreter_type": "Ruby"}, `environments.x.interpreter_type is "Ruby", it must be 1 to 32 of a-z, 0-9, _ and -, and begin with a letter`},
		"timeout a string":       {map[string]any{"timeout_seconds": "30"}, `environments.x.timeout_seconds is "30", it must be a number of seconds`},
		"timeout too long":       {map[string]any{"timeout_seconds": 1e10}, "environments.x.timeout_seconds is 10000000000, it must be a number of seconds"},
		"memory a fraction":      {map[string]any{"memory_mb": 1.5}, "environments.x.memory_mb is 1.5, it must be a whole number, and not negative"},
		"memory negative":        {map[string]any{"memory_mb": -1}, "environments.x.memory_mb is -1, it must be a whole number, and not negative"},
		"memory null":            {map[string]any{"memory_mb": json.RawMessage("null")}, "environments.x.memory_mb is missing"},
		"pids an object":         {map[string]any{"pids": map[string]any{}}, "environments.x.pids is an object, it must be a whole number"},
		"max_timeout in quotes":  {map[string]any{"max_timeout_seconds": "60"}, `environments.x.max_timeout_seconds is "60"`},
		"cpus a boolean":         {map[string]any{"cpus": true}, "environments.x.cpus is a boolean"},
		"description an array":   {map[string]any{"description": []string{}}, "environments.x.description is an array"},
		"exec missing":           {map[string]any{"exec": nil}, "environments.x.exec is missing"},
		"session_exec missing":   {map[string]any{"session_exec": nil}, "environments.x.session_exec is missing"},
		"exec relative":          {map[string]any{"exec": "bin/run"}, `environments.x.exec is "bin/run", it must be an absolute path`},
		"exec that is not there": {map[string]any{"exec": dir + "/none"}, "environments.x.exec is " + dir + "/none, which does not exist"},
		"exec not executable":    {map[string]any{"exec": plain}, "environments.x.exec is " + plain + ", which is not executable"},
		"exec a folder":          {map[string]any{"session_exec": dir}, "environments.x.session_exec is " + dir + ", which is not a file"},
		"network a number":       {map[string]any{"network": 1}, "environments.x.network is a number, it must be an object"},
		"network of all":         {map[string]any{"network": "all"}, "environments.x.network is a string, it must be an object"},
		"a limit of words":       {map[string]any{"network": map[string]any{"mode": "allow", "rate": "50"}}, "environments.x.network.rate is a string, it must be a whole number"},
	} {
		t.Run(name, func(t *testing.T) {
			set := must.Get(Read(document(t, map[string]any{"x": entry(t, test.change), "good": entry(t, nil)}, nil)))(t)
			if diff := cmp.Diff([]string{"good"}, set.Names()); diff != "" {
				t.Errorf("usable environments: %s", diff)
			}
			why := reason(set, "x")
			if why == nil || !strings.Contains(why.Error(), test.want) || !strings.HasPrefix(why.Error(), "NIX_SANDBOX_METADATA: ") {
				t.Errorf("reason %q, want one of NIX_SANDBOX_METADATA with %q", why, test.want)
			}
			if why != nil && strings.Contains(why.Error(), "\n") {
				t.Errorf("reason %q has more than one line", why)
			}
		})
	}
}

// reason says why an environment was left out; nil where it was not.
func reason(set *Set, name string) error {
	for _, broken := range set.Broken {
		if broken.Name == name {
			return broken.Err
		}
	}
	return nil
}

func TestBadNames(t *testing.T) {
	for _, name := range []string{"", "Python", "a b", "-a", "_a", "a/b", "..", strings.Repeat("a", 65), "é"} {
		set := must.Get(Read(document(t, map[string]any{name: entry(t, nil)}, nil)))(t)
		if len(set.Environments) > 0 || reason(set, name) == nil {
			t.Errorf("environment %q was taken", name)
		}
	}
}

func TestBrokenWhole(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.json")
	must.Do(t, os.WriteFile(broken, []byte(`{"schema":1,`), 0o644))
	with := func(changes map[string]any) string { return document(t, map[string]any{}, changes) }
	project := func(changes map[string]any) string { return with(map[string]any{"project": mcptest.Project(changes)}) }
	inherit := func(names any) string { return project(map[string]any{"inherit_env": map[string]any{"vars": names}}) }
	for name, test := range map[string]struct{ source, want string }{
		"not there":            {dir + "/none.json", "read metadata: open " + dir + "/none.json: no such file"},
		"not JSON":             {broken, broken + ": not valid JSON"},
		"JSON that breaks off": {`{"schema":1`, "NIX_SANDBOX_METADATA: not valid JSON"},
		"nested too deep":      {`{"schema":` + strings.Repeat("[", 1<<20), "not valid JSON"},
		"no schema":            {`{"environments":{}}`, "schema is missing, it must be 1"},
		"a later schema":       {`{"schema":2,"environments":{}}`, "schema is 2, this runtime reads schema 1"},
		"a schema of words":    {`{"schema":"1","environments":{}}`, `schema is "1"`},
		"no environments":      {`{"schema":1}`, "environments is missing"},
		"environments a list":  {`{"schema":1,"environments":[]}`, "environments is an array, it must be an object"},
		"no session":           {with(map[string]any{"session": nil}), "session is missing"},
		"session of words":     {with(map[string]any{"session": map[string]any{"idle_timeout_seconds": "5"}}), `session.idle_timeout_seconds is "5", it must be a number of seconds`},
		"no project":           {with(map[string]any{"project": nil}), "project is missing"},
		"no modes":             {project(map[string]any{"modes": nil}), "project.modes is missing"},
		"a mode of numbers":    {project(map[string]any{"modes": []any{"x", 1}}), "project.modes is a number, it must be a string"},
		"reserved a string":    {project(map[string]any{"reserved": "/nix"}), "project.reserved is a string, it must be an array"},
		"reasons a list":       {project(map[string]any{"refused_modes": []string{}}), "project.refused_modes is an array, it must be an object"},
		"a reason of numbers":  {project(map[string]any{"refused_modes": map[string]any{"x": 1}}), "project.refused_modes is a number, it must be a string"},
		"inherit a string":     {inherit("HOME"), "project.inherit_env.vars is a string"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(test.source)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestFolders(t *testing.T) {
	user, machine := t.TempDir(), t.TempDir()
	mine := writeArtifact(t, user, "any-folder", map[string]any{"schema": 1, "name": "python", "backend": "jail", "description": "mine"})
	writeArtifact(t, machine, "python", map[string]any{"schema": 1, "name": "python", "backend": "jail", "description": "the machine's"})
	lua := writeArtifact(t, machine, "lua", map[string]any{"schema": 1, "name": "lua", "backend": "jail"})
	must.Do(t, os.Mkdir(filepath.Join(machine, "no-artifact"), 0o755))
	// A link, as nix build leaves one.
	must.Do(t, os.Symlink(writeArtifact(t, t.TempDir(), "result", map[string]any{"schema": 1, "name": "linked", "backend": "jail"}), filepath.Join(user, "link")))

	base := must.Get(Read(document(t, map[string]any{"python": entry(t, nil), "bash": entry(t, nil)}, nil)))(t)
	set := must.Get(base.With(Folders{Folders: []string{user, machine, user + "/none"}}))(t)
	if diff := cmp.Diff([]string{"bash", "linked", "lua", "python"}, set.Names()); diff != "" {
		t.Error(diff)
	}
	if got := set.Environments["python"]; got.Description != "mine" || got.SessionExec != filepath.Join(mine, "bin", "session-run") {
		t.Errorf("python is %+v, want the one of %s", got, mine)
	}
	if got := set.Environments["lua"].Exec; got != filepath.Join(lua, "bin", "run") {
		t.Errorf("lua runs %s", got)
	}
	want := []Overridden{
		{"python", "NIX_SANDBOX_METADATA"},
		{"python", filepath.Join(machine, "python", "metadata.json")},
	}
	if diff := cmp.Diff(want, set.Overridden); diff != "" {
		t.Error(diff)
	}
}

// Where there are too many entries none is taken, for nobody could say which
// were left out.
func TestTooManyEntries(t *testing.T) {
	folder := t.TempDir()
	for i := range maxEntries {
		must.Do(t, os.WriteFile(filepath.Join(folder, fmt.Sprint(i)), nil, 0o644))
	}
	if _, err := (&Set{}).With(Folders{Folders: []string{folder}}); err != nil {
		t.Fatal(err)
	}
	program(t, filepath.Join(folder, "one-more"))
	set, err := (&Set{Environments: map[string]Environment{"own": {}}}).With(Folders{Folders: []string{folder}})
	if err == nil || !strings.Contains(err.Error(), "has more than 1000 entries") || set.Unread == nil || len(set.Environments) != 1 {
		t.Errorf("error %v, set %+v", err, set)
	}
}

// A build that ends while its folder is read is not forgotten.
func TestBuild_ThatHasJustEndedIsPending(t *testing.T) {
	set := &Set{}
	set.build(filepath.Join(t.TempDir(), "go"+building), "go"+building)
	if len(set.Builds) != 1 || set.Builds[0].Name != "go" || set.Builds[0].Failed {
		t.Errorf("%+v", set.Builds)
	}
}

// What Nix said is shown to clients whatever its bytes, and what is no name
// becomes none.
func TestReports(t *testing.T) {
	folder := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(folder, "wrong.failed"), []byte("caf\xe9 is closed\n"), 0o644),
		os.Symlink(writeArtifact(t, t.TempDir(), "result", map[string]any{"schema": 1, "name": "fine", "backend": "jail"}), filepath.Join(folder, "No Name.named")),
	); err != nil {
		t.Fatal(err)
	}
	set := must.Get(base(t).With(Folders{Builds: folder}))(t)
	if len(set.Builds) != 1 || set.Builds[0].Reason != "caf\uFFFD is closed" {
		t.Errorf("builds %+v", set.Builds)
	}
	if err := reason(set, "No Name"); err == nil || !strings.Contains(err.Error(), `"No Name" is no name of an environment`) || len(set.Environments) != 0 {
		t.Errorf("error %v, environments %v", err, set.Names())
	}
}

// Each change that another reading would show is another fingerprint.
func TestFingerprint(t *testing.T) {
	sandboxes, builds := t.TempDir(), t.TempDir()
	artifact := writeArtifact(t, sandboxes, "one", map[string]any{"schema": 1, "name": "one", "backend": "jail"})
	builder := exec.Command("sleep", "1000")
	must.Do(t, builder.Start())
	t.Cleanup(func() { _ = builder.Process.Kill() })
	must.Do(t, os.WriteFile(filepath.Join(builds, "two.building"), []byte(fmt.Sprint(builder.Process.Pid)), 0o644))
	folders := Folders{Folders: []string{sandboxes}, Builds: builds}
	last := folders.Fingerprint()
	if again := folders.Fingerprint(); again != last {
		t.Fatal("nothing has changed, and the fingerprint has")
	}
	replace := func(name string) func() error {
		return func() error {
			name := filepath.Join(artifact, name)
			return errors.Join(os.WriteFile(name+".new", []byte("#!/bin/sh\n"), 0o755), os.Rename(name+".new", name))
		}
	}
	for _, change := range []struct {
		what string
		make func() error
	}{
		{"the metadata", replace("metadata.json")},
		{"bin/run", replace("bin/run")},
		{"bin/session-run", replace("bin/session-run")},
		{"a builder that is gone", func() error {
			if err := builder.Process.Kill(); err != nil {
				return err
			}
			_ = builder.Wait()
			return nil
		}},
		{"a build that is over", func() error { return os.Remove(filepath.Join(builds, "two.building")) }},
		{"one more", func() error { return os.Symlink(artifact, filepath.Join(sandboxes, "three")) }},
	} {
		must.Do(t, change.make())
		now := folders.Fingerprint()
		if now == last {
			t.Errorf("%s: the fingerprint is the same", change.what)
		}
		last = now
	}
}

// What is no file is not waited for: reading a FIFO would stop the server.
func TestFIFOForMetadata(t *testing.T) {
	folder := t.TempDir()
	dir := writeArtifact(t, folder, "pipe", nil)
	file := filepath.Join(dir, "metadata.json")
	must.Do(t, errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o644)))
	base := must.Get(Read(document(t, map[string]any{"python": entry(t, nil)}, nil)))(t)
	for folder, want := range map[string]string{folder: file + ": is no file", file: file + ": not a directory"} {
		got := make(chan error, 1)
		go func() {
			set, err := base.With(Folders{Folders: []string{folder}})
			if err == nil {
				err = reason(set, "pipe")
			}
			got <- err
		}()
		select {
		case err := <-got:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", folder, err, want)
			}
		case <-time.After(patience.Long):
			t.Errorf("%s: still being read", folder)
		}
	}
}

// A broken artifact hides no environment that works.
func TestBrokenArtifact(t *testing.T) {
	folder := t.TempDir()
	dir := writeArtifact(t, folder, "python", map[string]any{"schema": 1, "name": "python", "backend": "jail"})
	must.Do(t, os.Remove(filepath.Join(dir, "bin", "run")))
	for called, text := range map[string]string{"one": `{"schema":1,`, "two": `{"schema":1,"backend":"jail"}`} {
		dir := writeArtifact(t, folder, called, nil)
		must.Do(t, os.WriteFile(filepath.Join(dir, "metadata.json"), []byte(text), 0o644))
	}
	base := must.Get(Read(document(t, map[string]any{"python": entry(t, nil)}, nil)))(t)
	set := must.Get(base.With(Folders{Folders: []string{folder}}))(t)
	if diff := cmp.Diff([]string{"python"}, set.Names()); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{
		"python": filepath.Join(folder, "python", "metadata.json") + ": exec is " + filepath.Join(dir, "bin", "run") + ", which does not exist",
		"one":    filepath.Join(folder, "one", "metadata.json") + ": not valid JSON",
		"two":    filepath.Join(folder, "two", "metadata.json") + ": name is missing",
	} {
		if got := reason(set, name); got == nil || got.Error() != want {
			t.Errorf("reason of %s: %v, want %s", name, got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(document(f, map[string]any{"a": map[string]any{"backend": "jail", "exec": "/bin/sh", "session_exec": "/bin/sh"}}, nil))
	f.Add(`{"schema":1,"environments":{"a":{"timeout_seconds":1e999,"cpus":-0}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.HasPrefix(strings.TrimSpace(text), "{") {
			return
		}
		set, err := Read(text)
		if err != nil {
			return
		}
		for name, env := range set.Environments {
			if name != env.Name || !ValidName.MatchString(name) || env.Timeout < 0 || env.OutputBytes < 0 || env.MemoryMB < 0 || env.Prewarm < 0 {
				t.Errorf("took %+v", env)
			}
		}
	})
}

func TestOnDemand_IsRead(t *testing.T) {
	for _, test := range []struct {
		value any
		want  *OnDemand
		err   string
	}{
		{nil, nil, ""},
		{[]string{}, nil, ""},
		{"all", &OnDemand{All: true}, ""},
		{[]string{"pandas"}, &OnDemand{Names: []string{"pandas"}}, ""},
		{[]int{1}, nil, `is [1], it must be an array of names of packages, or "all"`},
		{"some", nil, "must be an array"},
	} {
		environment := entry(t, map[string]any{"packages_on_demand": test.value})
		set := must.Get(Read(document(t, map[string]any{"python": environment}, nil)))(t)
		got := set.Environments["python"].OnDemand
		if test.err != "" {
			if err := reason(set, "python"); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%v: %v", test.value, err)
			}
			continue
		}
		if test.want != nil {
			test.want.Folder = filepath.Dir(filepath.Dir(environment["exec"].(string)))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%v: %s", test.value, diff)
		}
	}
}
