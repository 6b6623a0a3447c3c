package policy_test

import (
	"path"
	"strings"
	"testing"
	"unicode"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/policy"
)

func TestName(t *testing.T) {
	for reason, names := range map[string]string{
		"": `a.py src/words.go tests/test_words.py lib/a.test.ts a.spec.js types.d.ts docs/guide.md README README.md readme.de.md
			CHANGELOG.rst LICENSE NOTES.txt table.csv testdata/a.golden build/a.py config.py package/a.js src/Main.java A.PY index.html docs/0001.md 日本.md`,
		policy.Hidden:       ".envrc a/.vscode/b.py .a.py ..a/b.py .git",
		policy.Installed:    "node_modules/a.js a/site-packages/b/c.py VENDOR/a.go __pycache__/a.py",
		policy.Kind:         "Makefile HEAD objects/k a.pyc a.so a.json a.nix a.yaml a.toml a.lock a.xml a.py~ a.py.bak a a.b/c README.exe a.md5 a.",
		policy.Build:        "setup.py conftest.py a/build.rs vite.config.ts CMakeLists.txt requirements-dev.txt Package.swift webpack.mix.js Makefile.PL SETUP.PY gems.rb rakefile.rb xmake.lua premake5.lua tasks.py toxfile.py conanfile.py hatch_build.py celeryconfig.py ipython_config.py jupyter_config.py jupyter_server_config.py pavement.py locustfile.py pelicanconf.py",
		policy.Instructions: "CLAUDE.md claude.md a/AGENTS.md CLAUDE.local.md QWEN.md CONVENTIONS.md a.prompt.md R2.md Skill.md",
		policy.OddName:      "a:b.py a\\b.py \u202eyp.a a\u200b.py \xff.py a/\x01/b.py a\u00a0.py -Ish.sh a/--/b.py",
	} {
		for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ' ' || r == '\n' || r == '\t' }) {
			if got := policy.Name(name); got != reason {
				t.Errorf("%q: %q, want %q", name, got, reason)
			}
		}
	}
	if got := policy.Name("a b/c d.py"); got != "" {
		t.Errorf("with spaces: %q", got)
	}
	for _, name := range []string{" .py", " a.py", "a /b.py", " a/b.py"} {
		if got := policy.Name(name); got != policy.OddName {
			t.Errorf("%q: %q, want %q", name, got, policy.OddName)
		}
	}
}

func TestLine(t *testing.T) {
	for line, want := range map[string]string{
		"x = 1\n": "", "\tGrüße 日本\r\n": "", "⚠\ufe0f 👩\u200d💻 ❤\ufe0f\u200d🔥\n": "", strings.Repeat("x", 4096) + "\n": "",
		strings.Repeat("x", 4097): policy.LongLine, "a\x1b[0m": policy.OddText, "a\rb": policy.OddText, "\xff": policy.OddText, "\u202e": policy.OddText,
		"a\u3164": policy.OddText, "\u2800": policy.OddText, "a\u200db": policy.OddText, "a\ufe0f": policy.OddText, "\u00ad": policy.OddText, "a\x00": policy.OddText,
	} {
		if got := policy.Line([]byte(line)); got != want {
			t.Errorf("%.20q: %q, want %q", line, got, want)
		}
	}
}

// Whatever a name is made of, one that passes has visible parts that begin with no dot or
// dash, and one of the endings, or is that of a document.
func FuzzName(f *testing.F) {
	f.Add("a/b.py")
	f.Add("README")
	f.Fuzz(func(t *testing.T, name string) {
		if name != path.Clean(name) || path.IsAbs(name) || policy.Name(name) != "" {
			return
		}
		for part := range strings.SplitSeq(name, "/") {
			if part[0] == '.' || part[0] == '-' || part[0] == ' ' || strings.ContainsFunc(part, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q passes", name)
			}
		}
		switch strings.ToLower(path.Ext(name)) {
		case ".json", ".toml", ".yaml", ".yml", ".nix", ".lock", ".so", ".pyc", ".exe", ".xml", ".ini", ".cfg":
			t.Errorf("%q passes", name)
		}
	})
}
