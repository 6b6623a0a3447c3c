package escape

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// every returns the suite's attempts.
func every(t *testing.T) []attempt {
	t.Helper()
	attempts := must.Get(load(families))(t)
	return attempts
}

func TestFamilies_AreComplete(t *testing.T) {
	attempts := every(t)
	if len(attempts) < 120 {
		t.Errorf("%d attempts, want 120 at least", len(attempts))
	}
	var uncontrolled []string
	used := map[string]bool{}
	for _, a := range attempts {
		if a.control == controlNone {
			uncontrolled = append(uncontrolled, a.name)
		}
		for _, bait := range a.baits {
			used[bait] = true
		}
		for _, tag := range a.tags {
			if !slices.Contains([]string{"limits", "seccomp", "channels", "shared", "devices"}, tag) {
				t.Errorf("%s: tag %q is not documented", a.name, tag)
			}
		}
	}
	if len(uncontrolled) >= 10 {
		t.Errorf("%d attempts without a control: %v", len(uncontrolled), uncontrolled)
	}
	for name := range baits {
		if !used[name] {
			t.Errorf("no attempt uses the bait %s", name)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	const good = "# Tries. Held: no.\n#: control host\nread('x')\n"
	for name, test := range map[string]struct{ text, want string }{
		"no prose":          {"-- a.py --\n" + good, "does not explain"},
		"no attempt":        {"Prose.\n", "no attempt"},
		"extension":         {"Prose.\n-- a.rb --\n" + good, `extension "rb"`},
		"name":              {"Prose.\n-- A b.py --\n" + good, "lower case"},
		"no reason":         {"Prose.\n-- a.py --\n#: control host\nx\n", "does not say why"},
		"no control":        {"Prose.\n-- a.py --\n# Held: no.\nx\n", "no control"},
		"unknown control":   {"Prose.\n-- a.py --\n# Held: no.\n#: control moon\nx\n", `control "moon"`},
		"none, no reason":   {"Prose.\n-- a.py --\n# Held: no.\n#: control none\nx\n", "needs its reason"},
		"no code":           {"Prose.\n-- a.py --\n# Held: no.\n#: control host\n", "no code"},
		"unknown bait":      {"Prose.\n-- a.py --\n# Held: no.\n#: with cheese\nx\n", `with "cheese"`},
		"unknown directive": {"Prose.\n-- a.py --\n# Held: no.\n#: contrl host\nx\n", "unknown directive"},
		"no value":          {"Prose.\n-- a.py --\n# Held: no.\n#: control\nx\n", "lacks a value"},
		"timeout":           {"Prose.\n-- a.py --\n# Held: no.\n#: timeout 1h\nx\n", `timeout "1h"`},
		"rounds":            {"Prose.\n-- a.py --\n# Held: no.\n#: rounds 3\nx\n", `rounds "3"`},
		"rounds, no via":    {"Prose.\n-- a.py --\n# Held: no.\n#: control host\n#: rounds session\nx\n", "via session"},
		"not ASCII":         {"Prose.\n-- a.py --\n# Held: né.\n", "printable ASCII"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse("family", test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestLoadRefusesTwoOfOneName(t *testing.T) {
	text := "Prose.\n" + strings.Repeat("-- a.py --\n# Held: no.\n#: control host\nx\n", 2)
	_, err := load(fstest.MapFS{"attempts/f.txtar": {Data: []byte(text)}})
	if err == nil || !strings.Contains(err.Error(), "f/a.py") {
		t.Errorf("error %v, want one that names f/a.py", err)
	}
}

// An artifact without a sandbox: bin/run is the host's interpreter. What it
// takes for /project is the project itself.
func weak(t *testing.T, kind string) string {
	t.Helper()
	interpreter, err := hostInterpreter(context.Background(), kind, "", maxTimeout)
	if err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("sed"); err != nil {
		t.Skip(err)
	}
	// What root mounts goes with the attempt.
	own := ""
	if unshare, err := exec.LookPath("unshare"); err == nil && os.Geteuid() == 0 {
		own = unshare + " --mount"
	}
	return script(t, kind, fmt.Sprintf(`exec %s %s %s "$(sed "s,/project,$PROJECT_DIR,g")" </dev/null`,
		own, interpreter, languages[kind].argument()))
}

// script makes an artifact whose bin/run is a shell script.
func script(t *testing.T, kind, text string) string {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	for name, content := range map[string]string{
		"metadata.json": fmt.Sprintf(`{"schema":1,"name":"weak","backend":"none","interpreter_type":%q,"pids":32,"memory_mb":64,"workspace_mb":16}`, kind),
		"bin/run":       "#!/bin/sh\n" + text + "\n",
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755))
	}
	return dir
}

// Without a sandbox, nearly everything gets out. What does not is stopped by
// the kernel or by what an ordinary user may not.
func TestRun_WithoutASandboxFails(t *testing.T) {
	var direct []attempt
	for _, a := range every(t) {
		if !a.session {
			direct = append(direct, a)
		}
	}
	for kind := range languages {
		t.Run(kind, func(t *testing.T) {
			dir := weak(t, kind)
			if testing.Short() {
				t.Skip("it tries the whole suite")
			}
			report := must.Get(run(context.Background(), dir, Options{NoControls: true}, direct))(t)
			escaped := 0
			for _, result := range report.Results {
				if result.Escaped {
					escaped++
				} else {
					t.Log(result)
				}
			}
			tried := len(report.Results) - report.Count(Skipped)
			share := 90
			if os.Geteuid() != 0 {
				share = 60 // many attempts need root where there is no sandbox
			}
			if tried == 0 || escaped*100 < tried*share {
				t.Errorf("%d of %d attempts escaped, want %d %%", escaped, tried, share)
			}
			if report.OK() {
				t.Error("the report of no sandbox is good")
			}
		})
	}
}

// The attempts on a network by name get through where there is no sandbox: all of them,
// or the machine lacks something. These are their controls.
func TestRun_WithoutASandboxReachesEverything(t *testing.T) {
	if !networld.Again(t) {
		return
	}
	attempts := slices.DeleteFunc(every(t), func(a attempt) bool {
		return !slices.Contains(a.baits, "world") || a.control != controlHost
	})
	for kind := range languages {
		t.Run(kind, func(t *testing.T) {
			dir := weak(t, kind)
			describeNetwork(t, dir)
			asControl(t, dir)
			options := Options{NoControls: true, Slow: patience.Factor(), Match: escapeMatch()}
			report := must.Get(run(t.Context(), dir, options, attempts))(t)
			escaped := 0
			for _, result := range report.Results {
				// An attempt waits for an answer for a second at most, which a busy machine may
				// miss. It then is tried alone.
				if !result.Escaped && result.Verdict != Skipped {
					t.Logf("%s: tried again", result)
					options.Match = []string{result.Name}
					result = must.Get(run(t.Context(), dir, options, attempts))(t).Results[0]
				}
				switch {
				case result.Escaped:
					escaped++
					t.Log(result)
				case result.Verdict == Skipped:
					t.Log(result)
				default:
					t.Errorf("%s: it did not get through", result)
				}
			}
			t.Logf("%d of %d attempts got through", escaped, len(report.Results))
		})
	}
}

// escapeMatch are the patterns of names that the environment has.
func escapeMatch() []string {
	return strings.FieldsFunc(os.Getenv("NIX_SANDBOX_ESCAPE_MATCH"), func(char rune) bool { return char == ',' })
}

// asControl tells the attempts in a weak artifact that they are controls.
func asControl(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "bin", "run")
	text := string(must.Get(os.ReadFile(path))(t))
	changed := strings.Replace(text, `"s,/project,`, `"s/^\(var \)*CONTROL\( *= *'*\)0/\1CONTROL\21/;s,/project,`, 1)
	if changed == text {
		t.Fatalf("the weak artifact has no such command: %s", text)
	}
	must.Do(t, os.WriteFile(path, []byte(changed), 0o755))
}

// describeNetwork gives an artifact the policy of the tests' internet in its metadata.
func describeNetwork(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "metadata.json")
	var metadata map[string]any
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(path))(t), &metadata))
	metadata["network"] = map[string]any{"mode": "allow", "domains": networld.ReadPolicy().Domains, "ports": networld.ReadPolicy().Ports}
	must.Do(t, os.WriteFile(path, must.Get(json.Marshal(metadata))(t), 0o644))
}

// A verdict comes from evidence and from having run to the end, never from
// the absence of both.
func TestRun_VerdictsComeFromEvidence(t *testing.T) {
	if _, err := hostInterpreter(context.Background(), "bash", "", maxTimeout); err != nil {
		t.Skip(err)
	}
	// Half a sandbox: code runs in it, and the canary is out of its reach.
	const blind = `code=$(cat); exec bash -c "CANARY=/nowhere; HIDE=yes; $(printf '%s' "$code" | sed 's,^CANARY=.*,CANARY=/nowhere,')"`
	for name, test := range map[string]struct {
		script, code string
		want         Result
	}{
		"held":        {blind, `: "$(<"$CANARY")"; cat "$CANARY"`, Result{Verdict: Held, Controlled: true}},
		"escaped":     {`exec bash -s`, `cat "$CANARY"`, Result{Verdict: Failed, Escaped: true}},
		"says so":     {blind, `escaped "by itself"`, Result{Verdict: Failed, Escaped: true}},
		"no end":      {blind, `exit 0`, Result{Verdict: Failed}},
		"misspelt":    {blind, `caat "$CANARY"`, Result{Verdict: Failed}},
		"syntax":      {blind, `if then`, Result{Verdict: Failed}},
		"hangs":       {blind, `while :; do :; done`, Result{Verdict: Failed}},
		"proves none": {blind, `cat /nowhere`, Result{Verdict: Failed}},
		"lacking":     {blind, `lacking "a monitor"`, Result{Verdict: Skipped}},
		"flood":       {blind, `while printf '%8192s'; do :; done`, Result{Verdict: Failed}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attempts := must.Get(parse("test", "Prose.\n-- a.sh --\n# Held: no.\n#: with canary\n#: timeout 1s\n#: control host\n"+test.code+"\n"))(t)
			report := must.Get(run(context.Background(), script(t, "bash", test.script), Options{}, attempts))(t)
			got := report.Results[0]
			t.Log(got)
			got.Name, got.Reason = "", ""
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRun_Refuses(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	for name, test := range map[string]struct {
		dir     string
		options Options
		want    string
	}{
		"nothing there":  {t.TempDir(), Options{}, "metadata.json"},
		"other language": {script(t, "command", ""), Options{}, `interpreter_type "command"`},
		"runs nothing":   {script(t, "bash", "exit 3"), Options{}, "does not run code: exit status 3"},
		"pattern":        {script(t, "bash", "exec bash -s"), Options{Match: []string{"["}}, `pattern "["`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Run(context.Background(), test.dir, test.options)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// What the suite makes on the host is gone when it ends.
func TestBaits_AreRemoved(t *testing.T) {
	var names []string
	for name := range baits {
		if name != "takeover" && name != "listening" { // they need a project and a world
			names = append(names, name)
		}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			scene, err := newScene(false, false, []string{name})
			if _, ok := err.(errLacking); ok {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			// Nothing was tried, so no evidence is on its way, which is awaited
			// longer outside of a sandbox.
			scene.inside = true
			if found := scene.evidence(); found != "" {
				t.Errorf("evidence before anything was tried: %s", found)
			}
			scene.close()
			left, err := filepath.Glob(filepath.Join(os.TempDir(), "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left in the folder for temporary files: %v %v", left, err)
			}
			for _, folder := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
				if _, err := os.Lstat(filepath.Join(folder, scene.mark)); err == nil {
					t.Errorf("%s was left in %s", scene.mark, folder)
				}
			}
			for _, pid := range []string{"VICTIM", "INIT"} {
				if pid, ok := scene.vars[pid].(int); ok && processState(pid) != "" {
					t.Errorf("process %d was left", pid)
				}
			}
		})
	}
}

func TestOutput_IsSearchedAcrossWrites(t *testing.T) {
	o := newOutput("needle", "other")
	fmt.Fprint(o, strings.Repeat("x", keepOutput), "nee")
	if o.has("needle") {
		t.Error("found before it was written")
	}
	fmt.Fprint(o, "dl")
	fmt.Fprint(o, "e")
	if !o.has("needle") || o.has("other") {
		t.Errorf("found %v", o.found)
	}
	if got := o.kept.Len(); got != keepOutput {
		t.Errorf("keeps %d bytes, want %d", got, keepOutput)
	}
}
