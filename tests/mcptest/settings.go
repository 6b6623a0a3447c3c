package mcptest

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Metadata is the server's metadata with the environments, and with
// [Settings].
func Metadata(t testing.TB, environments map[string]map[string]any) string {
	t.Helper()
	return MetadataWith(t, environments, nil)
}

// MetadataWith is [Metadata] with some of the settings replaced.
func MetadataWith(t testing.TB, environments map[string]map[string]any, others map[string]any) string {
	t.Helper()
	settings := Settings(others)
	settings["environments"] = environments
	text := must.Get(json.Marshal(settings))(t)
	return string(text)
}

// Settings are the fields of the server's metadata besides its environments,
// as Nix writes them (nix/lib/serverMetadata.nix) where nothing is configured.
// Each of the others replaces one of them.
func Settings(others map[string]any) map[string]any {
	settings := map[string]any{
		"schema": 1,
		"defaults": map[string]any{
			"closure": "", "cpus": nil, "description": "", "interpreter_type": "command",
			"max_timeout_seconds": nil, "memory_mb": 512, "needs": "",
			"ask_seconds": 300, "inherit_env": []any{}, "packages_ask": false, "nix": false, "output_kb": 32, "pids": 256, "prewarm": 1, "timeout_seconds": 30,
		},
		"session": Session(nil),
		"project": Project(nil),
		"inbox":   map[string]any{"mount_point": "/inbox"},
		"serve":   Serve(nil),
	}
	maps.Copy(settings, others)
	return settings
}

// Session is the field of that name. Each of the others replaces one of its own fields.
func Session(others map[string]any) map[string]any {
	session := map[string]any{
		"idle_timeout_seconds": 300, "max_lifetime_seconds": 3600,
		"shared_files": false, "keep_files": false, "keep_mb": 4096,
		"suspend": true, "suspend_mb": 4096,
	}
	maps.Copy(session, others)
	return session
}

// Serve is the field of that name. Each of the others replaces one of its own fields.
func Serve(others map[string]any) map[string]any {
	serve := map[string]any{
		"listen": "127.0.0.1:8080", "hosts": []string{}, "origins": []string{},
		"token_file": nil, "proxy": nil, "oauth": nil,
		"quotas":        map[string]any{"default": map[string]any{"calls": 16, "sessions": 8, "streams": 64, "memory_mb": 8192, "memory_used_mb": nil, "pids": nil}},
		"calls_at_once": nil, "lame_duck_seconds": 4, "drain_seconds": 30,
	}
	maps.Copy(serve, others)
	return serve
}

// Project is the field of that name. Each of the others replaces one of its
// own fields.
func Project(others map[string]any) map[string]any {
	project := map[string]any{
		"path": nil, "inherit_env": nil, "use_flake": false,
		"mount_point": "/project", "reserved": []string{"/nix", "/workspace"},
		"mode": "readonly", "modes": []string{"readonly", "overlay"}, "refused_modes": map[string]string{"readwrite": "and it is refused"},
	}
	maps.Copy(project, others)
	return project
}
