// Translates TypeScript with esbuild, which lies beside the driver. The driver loads
// this file when code cannot be read as JavaScript.
//
// Returns a function from source to { code }, JavaScript whose statements stand on
// the lines of the source, or to { problem }: the message, lineNumber and
// columnNumber, both from 0, of what esbuild cannot read.
(function (require, folder) {
  'use strict';
  const { execFileSync } = require('child_process');
  const { SourceMap } = require('module');

  const options = ['--loader=ts', '--log-level=error', '--color=false', '--charset=utf8', '--format=esm',
    `--target=node${process.versions.node}`, '--minify-whitespace', '--sourcemap=inline', '--sources-content=false'];

  function run(source, compilerOptions) {
    const raw = JSON.stringify({ compilerOptions });
    return execFileSync(`${folder}/esbuild`, [...options, `--tsconfig-raw=${raw}`], {
      input: source, encoding: 'utf8', env: {}, stdio: 'pipe', maxBuffer: 1 << 30,
    });
  }

  // What a line of code may end with, so that a new line after it is only a space: the
  // next token cannot end a statement or begin one.
  const breakable = /[.;{},(=:?&|+*<![]/;

  // Statements with which esbuild ends a class that has decorators. A class has no
  // value.
  const decorated = /[;}](?:\w+=)?__(?:decorat\w+|runInitializers)\([^;]*\);\s*$/;

  // Puts each piece of esbuild's output on the line that it has in the source. The
  // output is one line, apart from the lines inside template literals.
  function align(output) {
    const end = output.lastIndexOf('//# sourceMappingURL=');
    const map = JSON.parse(Buffer.from(output.slice(output.indexOf('base64,', end) + 7), 'base64'));
    const mappings = new SourceMap(map);
    const out = [];
    let line = 0; // of the text in out
    output.slice(0, end).split('\n').forEach((text, number, all) => {
      let from = 0;
      for (let at = 1; at < text.length; at++) {
        if (!breakable.test(text[at - 1])) continue;
        const { generatedLine, generatedColumn, originalLine } = mappings.findEntry(number, at);
        if (generatedLine !== number || generatedColumn !== at || originalLine <= line) continue;
        out.push(text.slice(from, at), '\n'.repeat(originalLine - line));
        line = originalLine;
        from = at;
      }
      out.push(text.slice(from));
      if (number < all.length - 1) out.push('\n');
      line++;
    });
    return out.join('').replace(decorated, '$&void 0;');
  }

  // The language leaves out imports of which only types are used. In a session another call may
  // use them, and so they stay.
  return (source, isProgram) => {
    // Decorators are those of the language, unless code is written for the older ones.
    let old = /\bPropertyDescriptor\b/.test(source);
    for (;;) {
      try {
        return { code: align(run(source, { experimentalDecorators: old, verbatimModuleSyntax: !isProgram })) };
      } catch (error) {
        const found = /\[ERROR\] (.*)\n\n +<stdin>:(\d+):(\d+):/.exec(error.stderr);
        if (found === null) return { problem: { message: 'it cannot be read', lineNumber: 0, columnNumber: 0 } };
        if (!old && /experimental decorators/.test(found[1])) { old = true; continue; }
        return { problem: { message: found[1], lineNumber: found[2] - 1, columnNumber: +found[3] } };
      }
    }
  };
})
