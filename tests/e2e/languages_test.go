package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// A session of TypeScript is one of JavaScript: declarations, types and imports of
// earlier calls are there in later ones.
func TestLanguages_TypeScriptInASession(t *testing.T) {
	c := start(t)
	for _, step := range []struct{ code, want string }{
		{"import { readFileSync, type Stats } from 'node:fs'\nenum Color { Red, Green = 5 }\ninterface Point { x: number }", "[no output]"},
		{"const p: Point = { x: Color.Green };\n[p.x, typeof readFileSync]", "[ 5, 'function' ]\n"},
		{"class Box<T> { constructor(private readonly value: T) {} get(): T { return this.value } }\nnew Box<number>(p.x).get() as number", "5\n"},
		{"\n\n(null as any).missing", "at call-4:3:"},
		{"process.stdout.write('hello')\n5", "hello\n5\n"},
	} {
		if got := in(c, "typed", "node", step.code).Text(); !strings.Contains(got, step.want) {
			t.Errorf("%s\ngot %q, want %q", step.code, got, step.want)
		}
	}
}

// What a person would not want to see of a value is not in the answer.
func TestLanguages_LargeValuesAreShort(t *testing.T) {
	c := start(t)
	for _, code := range []string{
		"const child = require('child_process').exec('true')\nchild",
		"const server = require('http').createServer(() => {}).listen('socket')\nserver",
		"const worker = new (require('worker_threads').Worker)('1', { eval: true })\nworker",
		"process",
	} {
		if got := in(c, "values", "node", code).Text(); strings.Count(got, "\n") != 1 || len(got) > 400 {
			t.Errorf("%s: %s", code, got)
		}
	}
}

// The ready-made environments have the programs that code reaches for, and these
// find what they need in there.
func TestLanguages_HaveTheUsualPrograms(t *testing.T) {
	c := start(t)
	common := "git grep sed find awk gawk jq make diff tar gzip which xargs sort"
	for env, test := range map[string]struct{ code, programs string }{
		"bash": {`for p in %s; do command -v $p >/dev/null || echo $p; done`, common +
			" ps top patch less perl sqlite3 openssl file tree bc curl wget ip nc xxd column zip unzip xz zstd bzip2 rg python3"},
		"python": {`import shutil; print(*(p + '\n' for p in '%s'.split() if not shutil.which(p)), sep='', end='')`, common},
		"node":   {`for (const p of '%s'.split(' ')) if (require('child_process').spawnSync('which', [p]).status) console.log(p)`, common + " esbuild"},
	} {
		if got := run(c, env, fmt.Sprintf(test.code, test.programs)).Text(); got != "[no output]" {
			t.Errorf("%s lacks\n%s", env, got)
		}
	}
	for code, want := range map[string]string{
		"ps -o comm= -p $$":                                                      "bash",
		"top -b -n 1 | grep -c bash":                                             "1",
		"sqlite3 :memory: 'select 6 * 7'":                                        "42",
		"openssl rand -hex 4 | wc -c":                                            "9",
		"ip address 2>&1 | cut -c 1-26":                                          "Cannot open netlink socket",
		"echo ab | xxd -p":                                                       "61620a",
		"printf 'a b\\nc d\\n' | column -t":                                      "a  b\nc  d",
		"perl -MJSON::PP -e 'print 6 * 7'":                                       "42",
		"python3 -c 'print(6 * 7)'":                                              "42",
		"echo hi >f; zip -q z f; unzip -p z":                                     "hi",
		"echo hi | xz | zstd | zstd -d | xz -d":                                  "hi",
		"git init -q . && git status --short":                                    "[no output]",
		"git init && git commit -qm first --allow-empty && git log --format=%an": "Initialized empty Git repository in /workspace/.git/\nsandbox",
		"TZ=Europe/Berlin date -d @0 +%H%Z":                                      "01CET",
		"printf '#!/bin/bash\\necho ran' >f; chmod +x f; ./f":                    "ran",
		"printf '#!/usr/bin/perl\\nprint 42' >f; chmod +x f; ./f":                "42",
		"printf '#!/usr/bin/python3\\nprint(42)' >f; chmod +x f; ./f":            "42",
		"find . -name x | less":                                                  "[no output]",
	} {
		if got := strings.TrimSpace(run(c, "bash", code).Text()); got != want {
			t.Errorf("%s: %q, want %q", code, got, want)
		}
	}
}

// A first line that names another interpreter is followed, and the session stays
// as it was.
func TestLanguages_FirstLineNamesAnInterpreter(t *testing.T) {
	c := start(t)
	in(c, "s", "bash", "x=1")
	if got := in(c, "s", "bash", "#!/usr/bin/env python3\nimport sys\nprint(sys.version_info.major)\nsys.exit(3)").Text(); got != "3\n[exit status 3]" {
		t.Errorf("python: %q", got)
	}
	if got := in(c, "s", "bash", "echo $x").Text(); got != "1\n" {
		t.Errorf("after it: %q", got)
	}
	if got := run(c, "node", "#!/bin/bash\necho shell").Text(); got != "shell\n" {
		t.Errorf("without a session: %q", got)
	}
}
