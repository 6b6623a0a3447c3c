package driver_test

import (
	"testing"
	"time"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

func TestNode(t *testing.T) {
	interrupted := Limit(700*time.Millisecond, 2*time.Second)
	steps(t, "node", map[string][]Step{
		"declarations": {
			{Code: "const a = 1; let b = 2; class C { x() { return a } }; function f() { return b }"},
			{Code: "const a = 5; let b = 6; class C { x() { return a } }"},
			{Code: "new C().x() + f()", Stdout: "11\n"},
			{Code: "var v = 1; v += 1", Stdout: "2\n"},
		},
		"values": {
			{Code: "'a'", Stdout: "'a'\n"},
			{Code: "undefined"},
			{Code: "null", Stdout: "null\n"},
			{Code: "[-0, NaN, 12n, Symbol('s')]", Stdout: "[ -0, NaN, 12n, Symbol(s) ]\n"},
			{Code: "-0", Stdout: "-0\n"},
			{Code: "12n", Stdout: "12n\n"},
			{Code: "Symbol('s')", Stdout: "Symbol(s)\n"},
			{Code: "({ a: { b: [1] } })", Stdout: "{ a: { b: [ 1 ] } }\n"},
			{Code: "{ a: 1 }", Stdout: "{ a: 1 }\n"},
			{Code: "{ let a = 1; console.log(a) }", Stdout: "1\n"},
			{Code: "({ [require('util').inspect.custom]() { throw 1 } })", Stdout: "[a value that cannot be shown]\n"},
			{Code: ""},
			{Code: "// nothing"},
		},
		"await": {
			{Code: "const x = await Promise.resolve(3)"},
			{Code: "await new Promise((ok) => setTimeout(ok, 20)); x", Stdout: "3\n"},
			{Code: "for await (const y of [1]) console.log(y)", Stdout: "1\n"},
			{Code: "await Promise.reject(new Error('no'))", Exit: 1, Stderr: "Uncaught Error: no\n    at call-4:1:22\n"},
		},
		"errors": {
			{Code: "function f() { throw new TypeError('x') }"},
			{Code: "\nf()", Exit: 1, Stderr: "Uncaught TypeError: x\n    at f (call-1:1:22)\n    at call-2:2:1\n"},
			{Code: "let = = 3", Exit: 1, Stderr: "call-3:1\nlet = = 3\n      ^\nUncaught SyntaxError: Unexpected token '='\n"},
			{Code: "JSON.parse('{')", Exit: 1, Stderr: "Uncaught SyntaxError: "},
			{Code: "throw 5", Exit: 1, Stderr: "Uncaught 5\n"},
			{Code: "throw undefined", Exit: 1, Stderr: "Uncaught undefined\n"},
			{Code: "throw new Error('a', { cause: new Error('b') })", Exit: 1, Stderr: "[cause]: Error: b\n"},
			{Code: "(function r() { r() })()", Exit: 1, Stderr: "RangeError: Maximum call stack size exceeded"},
			{Code: "'(", Exit: 1, Stderr: "SyntaxError"},
			{Code: "throw Object.assign(new Error('x'), { code: 'E' })", Exit: 1, Stderr: "Uncaught Error: x\n    at call-10:1:21 {\n  code: 'E'\n}\n"},
		},
		"errors of nobody": {
			{Code: "const x = 1; Promise.reject(new Error('lost')); 2", Stdout: "2\n", Exit: 1, Stderr: "Uncaught Error: lost"},
			{Code: "setTimeout(() => { throw new Error('timer') }, 5); await new Promise(() => {})", Exit: 1, Stderr: "Uncaught Error: timer"},
			{Code: "setTimeout(() => { throw new Error('between') }, 2000); 3", Stdout: "3\n"},
			{Code: "x", Stdout: "1\n", Stderr: "Uncaught Error: between", After: 2500 * time.Millisecond},
			{Code: "process.on('uncaughtException', (e) => console.log('mine', e.message)); setTimeout(() => { throw new Error('x') }, 1); await new Promise((ok) => setTimeout(ok, 50))", Stdout: "mine x\n"},
			{Code: "x", Stdout: "1\n"},
		},
		"exit": {
			{Code: "const x = 1"},
			{Code: "process.exit(3)", Exit: 3},
			{Code: "try { process.exit(4) } catch { console.log('no') } finally { console.log('no') }", Exit: 4},
			{Code: "await 1; process.exit(5)", Exit: 5},
			{Code: "process.exitCode = 6", Stdout: "6\n", Exit: 6},
			{Code: "process.exit()"},
			{Code: "x", Stdout: "1\n"},
		},
		"interrupts": {
			{Code: "const x = 1"},
			{Code: "while (true) {}", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted, Stderr: "interrupted"},
			{Code: "try { for (;;); } finally { for (;;); }", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted, Stderr: "interrupted"},
			{Code: "await new Promise(() => {})", Exit: 130, Outcome: frame.OutcomeTimeout, Change: interrupted, Stderr: "interrupted"},
			{Code: "x", Stdout: "1\n"},
		},
		"an interrupt that reaches no loop of the event loop": {
			{Code: "const x = 1"},
			{Code: "await 1; while (true) {}", Exit: 137, Outcome: frame.OutcomeTimeout, Change: interrupted, Lost: true},
			{Code: "typeof x", Stdout: "'undefined'\n"},
		},
		"output": {
			{Code: "console.log('a'); console.error('b'); process.stdout.write('c\\n'); require('child_process').spawnSync('echo', ['d'], { stdio: 'inherit' }); 'e'", Stdout: "a\nc\nd\n'e'\n", Stderr: "b\n"},
			{Code: "for (let i = 0; i < 1e4; i++) console.error('line'); console.log('end')", Stdout: "end\n", Stderr: "line\n"},
		},
		"timers and servers stay": {
			{Code: "let n = 0; const t = setInterval(() => n++, 5); undefined"},
			{Code: "const m = n; await new Promise((ok) => setTimeout(ok, 100)); n > m", Stdout: "true\n"},
			{Code: "clearInterval(t); const s = require('net').createServer((c) => c.end('hi')); await new Promise((ok) => s.listen('./socket', ok))"},
			{Code: "let d = ''; for await (const c of require('net').connect('./socket')) d += c; d", Stdout: "'hi'\n"},
		},
		"workers and children": {
			{Code: "const { Worker } = require('worker_threads'); await new Promise((ok) => new Worker('require(\"worker_threads\").parentPort.postMessage(6)', { eval: true }).on('message', (m) => ok(console.log(m))))", Stdout: "6\n"},
			{Code: "require('fs').writeFileSync('child.js', 'process.send(7)'); await new Promise((ok) => require('child_process').fork('./child.js').on('message', ok))", Stdout: "7\n"},
			{Code: "require('child_process').execSync('echo 8').toString()", Stdout: "'8\\n'\n"},
		},
		"the main module": {
			{Code: "require.main === module", Stdout: "true\n"},
			{Code: "require('fs').writeFileSync('m.js', 'module.exports = require.main === module'); require('./m.js')", Stdout: "false\n"},
			{Code: "module.exports = { a: 1 }", Stdout: "{ a: 1 }\n"},
		},
		"stdin is empty": {
			{Code: "require('fs').readFileSync(0, 'utf8')", Stdout: "''\n"},
		},
		"overridden": {
			{Code: "console.log = null; process.stdout.write = () => {}; JSON.parse = null; globalThis.setImmediate = null; Array.prototype.push = null; undefined"},
			{Code: "process.stderr.write('x\\n'); process.exit(2)", Stderr: "x\n", Exit: 2},
		},
		"crash": {
			{Code: "process.reallyExit(5)", Exit: 5, Outcome: frame.OutcomeCrashed, Lost: true},
			{Code: "process.abort()", Exit: 134, Outcome: frame.OutcomeCrashed, Lost: true, Stderr: Any},
			{Code: "1", Stdout: "1\n"},
		},
	})
}

func TestNodeModules(t *testing.T) {
	root := t.TempDir()
	plant(t, root, "mine.js", "exports.x = 7")
	plant(t, root, "mine.mjs", "export default 8")
	plant(t, root, "node_modules/installed/index.js", "module.exports = 'from node_modules'")
	plant(t, root, "node_modules/fs/index.js", "console.log('planted'); process.exit(9)")
	plant(t, root, "node_modules/net/index.js", "console.log('planted'); process.exit(9)")
	lib := t.TempDir()
	plant(t, lib, "elsewhere/index.js", "module.exports = 9")
	Start(t, "node", Root(root), Env("NODE_PATH", lib)).Steps([]Step{
		{Code: "require('path').sep + require('./mine').x", Stdout: "'/7'\n"},
		{Code: "const { sep } = await import('node:path'); sep", Stdout: "'/'\n"},
		{Code: "(await import('./mine.mjs')).default", Stdout: "8\n"},
		{Code: "require('installed')", Stdout: "'from node_modules'\n"},
		{Code: "(await import('installed')).default", Stdout: "'from node_modules'\n"},
		{Code: "import fs, { existsSync as there } from 'node:fs'\nimport * as os from 'os'; import 'url'\nthere('/') && typeof fs.readFileSync + typeof os.cpus", Stdout: "'functionfunction'\n"},
		{Code: "'import(1)' + \"import(2)\" + `import(3)${(await import('path')).sep}` + /import(4)/.source // import(5)", Stdout: "'import(1)import(2)import(3)/import(4)'\n"},
		{Code: "const o = { import: (x) => x }; o.import(3)", Stdout: "3\n"},
		{Code: "await import('nowhere')", Exit: 1, Stderr: "ERR_MODULE_NOT_FOUND"},
		{Code: "require('elsewhere')", Stdout: "9\n"},
	})
}

// A program's end waits for its timers.
func TestNodeEphemeral(t *testing.T) {
	for name, s := range map[string]Step{
		"value":      {Code: "console.log(1)\n2", Stdout: "1\n2\n"},
		"timer":      {Code: "setTimeout(() => console.log('late'), 100); undefined", Stdout: "late\n"},
		"exit":       {Code: "process.exit(3)", Exit: 3},
		"exit code":  {Code: "process.exitCode = 4; undefined", Exit: 4},
		"error":      {Code: "setTimeout(() => console.log('no'), 100); throw new Error('x')", Exit: 1, Stderr: "Uncaught Error: x\n    at code:1:"},
		"rejection":  {Code: "Promise.reject(new Error('x')); undefined", Exit: 1, Stderr: "Error: x"},
		"await":      {Code: "await new Promise((ok) => setTimeout(ok, 20)); 5", Stdout: "5\n"},
		"never":      {Code: "await new Promise(() => {})", Exit: 13, Stderr: "nothing can settle"},
		"on exit":    {Code: "process.on('exit', () => console.log('bye')); undefined", Stdout: "bye\n"},
		"main":       {Code: "if (require.main === module) console.log('main')", Stdout: "main\n"},
		"its main":   {Code: "async function main() { await 1; setTimeout(() => console.log('end'), 10) }\nmain()", Stdout: "end\n"},
		"pending":    {Code: "new Promise((ok) => setTimeout(() => ok(console.log('end')), 10))", Stdout: "end\n"},
		"timers":     {Code: "setTimeout(() => console.log('late'), 10)", Stdout: "late\n"},
		"promise":    {Code: "Promise.resolve(5)", Stdout: "Promise { 5 }\n"},
		"no control": {Code: "try { require('fs').fstatSync(4); console.log('open') } catch {}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Change = Ephemeral
			Start(t, "node").Steps([]Step{s})
		})
	}
}
