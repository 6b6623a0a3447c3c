package config

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func environment(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

func complete(variables map[string]string, session registry.Session, project registry.Project) (Config, error) {
	config, err := Read(environment(variables))
	if err != nil {
		return Config{}, err
	}
	return config.Complete(session, project)
}

// built is what Nix writes where nothing is configured, and project likewise,
// but for the fields that are given.
var built = registry.Session{Idle: 300 * time.Second, Lifetime: 3600 * time.Second}

func project(given registry.Project) registry.Project {
	given.Mount, given.Mode = cmp.Or(given.Mount, "/project"), cmp.Or(given.Mode, "readonly")
	given.Reserved = []string{"/nix", "/workspace"}
	given.Modes = []string{"readonly", "overlay"}
	given.RefusedModes = map[string]string{"readwrite": "and code in a sandbox never changes files of the host"}
	return given
}

func TestComplete(t *testing.T) {
	dir := t.TempDir()
	for name, test := range map[string]struct {
		variables map[string]string
		session   registry.Session
		project   registry.Project
		want      Config
	}{
		"defaults": {
			variables: map[string]string{"NIX_SANDBOX_METADATA": "{}"},
			session:   built, project: project(registry.Project{}),
			want: Config{
				Metadata: "{}", Folders: registry.Folders{Folders: []string{"/etc/nix-sandbox-mcp/sandboxes"}}, ProjectMount: "/project", ProjectMode: "readonly",
				SessionIdle: 300 * time.Second, SessionLifetime: 3600 * time.Second, SessionMax: 64, SessionMaxOfMany: 1024,
				StartWithin: 10 * time.Second,
			},
		},
		"the metadata's": {
			variables: map[string]string{"NIX_SANDBOX_METADATA": "m", "HOME": "/h"},
			session:   registry.Session{Idle: 5 * time.Second, Lifetime: 6 * time.Second, Outputs: dir},
			project:   project(registry.Project{Path: dir, Mount: "/code", Mode: "overlay"}),
			want: Config{
				Metadata: "m", Folders: registry.Folders{Folders: []string{"/h/.config/nix-sandbox-mcp/sandboxes", "/etc/nix-sandbox-mcp/sandboxes"}},
				ProjectDir: dir, ProjectMount: "/code", ProjectMode: "overlay", Outputs: dir,
				SessionIdle: 5 * time.Second, SessionLifetime: 6 * time.Second, SessionMax: 64, SessionMaxOfMany: 1024,
				StartWithin: 10 * time.Second,
			},
		},
		"variables win": {
			variables: map[string]string{
				"NIX_SANDBOX_METADATA": "m", "NIX_SANDBOX_DIR": "/boxes::/more", "PROJECT_DIR": dir, "PROJECT_MOUNT": "/src/app", "PROJECT_MODE": "readonly",
				"SESSION_IDLE_TIMEOUT": "1", "SESSION_MAX_LIFETIME": "2", "SESSION_MAX": "3", "NIX_SANDBOX_INBOX": dir, "NIX_SANDBOX_OUTPUTS": dir,
			},
			session: registry.Session{Idle: 5 * time.Second, Lifetime: 6 * time.Second, Outputs: "/does/not/exist"},
			project: project(registry.Project{Path: "/does/not/exist", Mount: "/code", Mode: "overlay"}),
			want: Config{
				Metadata: "m", Folders: registry.Folders{Folders: []string{"/boxes", "/more"}}, ProjectDir: dir, ProjectMount: "/src/app", ProjectMode: "readonly", Inbox: dir, Outputs: dir,
				SessionIdle: time.Second, SessionLifetime: 2 * time.Second, SessionMax: 3, SessionMaxOfMany: 3,
				StartWithin: 10 * time.Second,
			},
		},
		"the user's own configuration folder": {
			variables: map[string]string{"NIX_SANDBOX_METADATA": "m", "HOME": "/h", "XDG_CONFIG_HOME": "/x"},
			session:   built, project: project(registry.Project{}),
			want: Config{
				Metadata: "m", Folders: registry.Folders{Folders: []string{"/x/nix-sandbox-mcp/sandboxes", "/etc/nix-sandbox-mcp/sandboxes"}}, ProjectMount: "/project", ProjectMode: "readonly",
				SessionIdle: 300 * time.Second, SessionLifetime: 3600 * time.Second, SessionMax: 64, SessionMaxOfMany: 1024,
				StartWithin: 10 * time.Second,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := must.Get(complete(test.variables, test.session, test.project))(t)
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestProjectDirIsMadeAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	must.Do(t, os.Mkdir("code", 0o755))
	config := must.Get(complete(map[string]string{"NIX_SANDBOX_METADATA": "m", "PROJECT_DIR": "code"}, built, project(registry.Project{})))(t)
	if !filepath.IsAbs(config.ProjectDir) || filepath.Base(config.ProjectDir) != "code" {
		t.Errorf("project is at %s", config.ProjectDir)
	}
}

// A value that does not parse is an error with the variable, the value and
// what to do.
func TestHosts(t *testing.T) {
	for list, want := range map[string][]string{
		"":                                  nil,
		",":                                 nil,
		"sandbox.example":                   {"sandbox.example"},
		"sandbox.example, 192.0.2.1,::1 , ": {"sandbox.example", "192.0.2.1", "::1"},
	} {
		config, err := Read(environment(map[string]string{"NIX_SANDBOX_METADATA": "m", "NIX_SANDBOX_HOSTS": list}))
		if diff := gocmp.Diff(want, config.Hosts); err != nil || diff != "" {
			t.Errorf("%q: %v, %s", list, err, diff)
		}
	}
}

func TestWrongValues(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must.Do(t, os.WriteFile(file, nil, 0o644))
	for _, test := range []struct{ name, value, want string }{
		{"NIX_SANDBOX_METADATA", "", "NIX_SANDBOX_METADATA is not set"},
		{"SESSION_IDLE_TIMEOUT", "5m", `SESSION_IDLE_TIMEOUT is "5m"`},
		{"SESSION_IDLE_TIMEOUT", "0", `SESSION_IDLE_TIMEOUT is "0"`},
		{"SESSION_IDLE_TIMEOUT", "1.5", `SESSION_IDLE_TIMEOUT is "1.5"`},
		{"SESSION_MAX_LIFETIME", "-1", `SESSION_MAX_LIFETIME is "-1"`},
		{"SESSION_MAX_LIFETIME", "99999999999999999999", `SESSION_MAX_LIFETIME is "99999999999999999999"`},
		{"SESSION_MAX", "many", `SESSION_MAX is "many"`},
		{"PROJECT_DIR", dir + "/none", "PROJECT_DIR is " + dir + "/none, which does not exist"},
		{"PROJECT_DIR", file, "PROJECT_DIR is " + file + ", which is not a folder"},
		{"NIX_SANDBOX_OUTPUTS", dir + "/none", "NIX_SANDBOX_OUTPUTS is " + dir + "/none, which does not exist"},
		{"NIX_SANDBOX_INBOX", dir + "/none", "NIX_SANDBOX_INBOX is " + dir + "/none, which does not exist"},
		{"NIX_SANDBOX_INBOX", file, "NIX_SANDBOX_INBOX is " + file + ", which is not a folder"},
		{"PROJECT_MOUNT", "project", `PROJECT_MOUNT is "project", which is not a plain absolute path`},
		{"PROJECT_MOUNT", "/", `PROJECT_MOUNT is "/", which overlaps the sandbox's own /nix`},
		{"PROJECT_MOUNT", "/a/../b", `PROJECT_MOUNT is "/a/../b", which is not a plain absolute path`},
		{"PROJECT_MOUNT", "/project/", `PROJECT_MOUNT is "/project/", which is not a plain absolute path`},
		{"PROJECT_MOUNT", "/nix", `PROJECT_MOUNT is "/nix", which overlaps the sandbox's own /nix`},
		{"PROJECT_MOUNT", "/workspace/project", `PROJECT_MOUNT is "/workspace/project", which overlaps the sandbox's own /workspace`},
		{"PROJECT_MOUNT", "/a\nb", "which is not a plain absolute path"},
		{"NIX_SANDBOX_HOSTS", "sandbox.example,http://other.example", `has "http://other.example", which is not the name of a host`},
		{"NIX_SANDBOX_HOSTS", "sandbox.example:8080", `has "sandbox.example:8080"`},
		{"NIX_SANDBOX_HOSTS", "*.example", `has "*.example"`},
		{"NIX_SANDBOX_HOSTS", "one.example two.example", `has "one.example two.example"`},
		{"PROJECT_MODE", "rw", `PROJECT_MODE is "rw"`},
		{"PROJECT_MODE", "readwrite", "never changes files of the host"},
	} {
		t.Run(test.name+"="+test.value, func(t *testing.T) {
			variables := map[string]string{"NIX_SANDBOX_METADATA": "m", test.name: test.value}
			_, err := complete(variables, built, project(registry.Project{}))
			var wrong *Error
			if !errors.As(err, &wrong) || !strings.Contains(wrong.Problem, test.want) || wrong.Hint == "" {
				t.Errorf("error %#v, want %q and a hint", err, test.want)
			}
		})
	}
}

// Whoever wrote the path into the configuration did not set the variable.
func TestWrongPathOfConfiguration(t *testing.T) {
	_, err := complete(map[string]string{"NIX_SANDBOX_METADATA": "m"}, built, project(registry.Project{Path: "/does/not/exist"}))
	var wrong *Error
	if !errors.As(err, &wrong) || wrong.Problem != "the configuration's project path is /does/not/exist, which does not exist" {
		t.Errorf("error %#v", err)
	}
}
