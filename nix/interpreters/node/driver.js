// Runs code in this process for the agent. The inspector's Runtime.evaluate has the
// semantics of a REPL: declarations may be repeated, await is allowed at the top
// level, and the value of the last expression is the result.
//
// The code may replace any global or method. This file binds those that it uses
// before the code runs.
(function (require, load, module, folder) {
  'use strict';
  const fs = require('fs');
  const vm = require('vm');
  const net = require('net');
  const util = require('util');
  const EventEmitter = require('events');
  const { Session } = require('inspector');
  const { exit, pid, stdout, stderr } = process;
  const { inspect } = util;
  const { readSync, writeSync } = fs;
  const { create, defineProperty, keys } = Object;
  const { now } = Date;
  const { Error, Set } = globalThis;
  const { fstatSync, readFileSync, writeFileSync } = fs;
  const { isPromise } = util.types;
  const { then } = Promise.prototype;
  const later = setImmediate;
  const { setInterval, clearInterval } = globalThis;
  const { getActiveResourcesInfo } = process;

  const CONTROL = 3;
  const CODE = 4;
  const MOMENT = 1000; // how long a call waits for work that it began, in milliseconds
  const STUCK = 'Uncaught Error: the code waits for a promise that nothing can settle any more\n';
  const ended = { toString: () => 'process.exit' }; // thrown by process.exit where nothing else can end the code

  const session = new Session();
  session.connect();

  let call = null; // the one that runs
  let asProgram = false; // the process ends with the code
  let leaving = false; // the event exit has come
  let entry = null; // what the next script calls
  let taken; // what take received
  let reported; // the last error that was not caught
  let stdin; // process.stdin, once the code has asked for it
  const open = { stdout: false, stderr: false }; // whether the last line is not ended
  let showing = false; // a call's value is being shown
  const loaded = create(null); // the modules of the driver, by name

  // The name of the code's file, from which it learns where its folder is. There is
  // such a file only for code that starts itself again: see place.
  const ROOT = process.cwd();
  const FILE = `${ROOT}/code.js`;
  let meta; // import.meta, once the code has asked for it
  let placed = false; // the file is there, and not the code's own

  // Code that the inspector evaluates reaches the driver through these properties.
  // They are symbols or not enumerable, so that the code does not meet them.
  const hidden = (key, value) => defineProperty(globalThis, key, { value, configurable: false, enumerable: false, writable: false });
  hidden(Symbol.for('agent.enter'), () => entry());
  hidden(Symbol.for('agent.take'), (value) => { taken = value; });
  hidden('__imp_', (specifier, options) => load(specifier, options));
  defineProperty(globalThis, '__impmeta__', { get: () => meta ??= describeModule(), configurable: false });
  const wait = new vm.Script('Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 100)', { filename: 'agent:wait' });
  const enter = new vm.Script("globalThis[Symbol.for('agent.enter')]()", { filename: 'agent:enter' });

  // Returns the value that a RemoteObject of the inspector describes.
  function value(remote) {
    if (remote.objectId === undefined) {
      switch (remote.unserializableValue) {
        case undefined: return remote.value;
        case '-0': return -0;
        case 'NaN': return NaN;
        case 'Infinity': return Infinity;
        case '-Infinity': return -Infinity;
        default: return BigInt(remote.unserializableValue.slice(0, -1));
      }
    }
    taken = undefined;
    session.post('Runtime.callFunctionOn', {
      functionDeclaration: "function (value) { globalThis[Symbol.for('agent.take')](value) }",
      objectId: remote.objectId,
      arguments: [{ objectId: remote.objectId }],
    });
    const result = taken;
    taken = undefined;
    return result;
  }

  // Returns what import.meta is to the code.
  function describeModule() {
    const { isBuiltin } = require('module');
    const { pathToFileURL } = require('url');
    return Object.assign(create(null), {
      dirname: ROOT,
      filename: FILE,
      resolve: (name) => (isBuiltin(name) ? `node:${name.replace(/^node:/, '')}` : pathToFileURL(require.resolve(name)).href),
      url: pathToFileURL(FILE).href,
    });
  }

  // Returns what a file of the driver's modules evaluates to. It is loaded when it is
  // first needed.
  function loadModule(name) {
    return loaded[name] ??= new vm.Script(readFileSync(`${folder}/modules/${name}.js`, 'utf8'), { filename: 'agent:driver' }).runInThisContext()(require, folder);
  }

  // Notes whether a stream stands in the middle of a line.
  function track(stream, name) {
    const note = (chunk) => {
      if (chunk.length > 0) open[name] = typeof chunk === 'string' ? chunk[chunk.length - 1] !== '\n' : chunk[chunk.length - 1] !== 10;
    };
    const { _write, _writev } = stream;
    stream._write = (chunk, encoding, done) => { note(chunk); return _write.call(stream, chunk, encoding, done); };
    stream._writev = (chunks, done) => { note(chunks[chunks.length - 1].chunk); return _writev.call(stream, chunks, done); };
    for (const method of ['_write', '_writev']) defineProperty(stream, method, { enumerable: false });
  }

  // Shows an emitter of events (a process, a server, a stream) by its own properties,
  // because all of one is kilobytes of Node.js's own state. They stand on one line,
  // those that say nothing left out where it is long. What the code itself prints
  // stays as it is.
  function brief(depth, options, inspect) {
    if (!showing) return this;
    const name = this.constructor?.name || 'EventEmitter';
    if (depth < 0) return `[${name}]`;
    const own = {}, set = {};
    for (const key of keys(this)) {
      const value = this[key];
      if (key[0] === '_' || value === undefined || typeof value === 'function') continue;
      own[key] = value;
      if (value) set[key] = value;
    }
    const line = { ...options, compact: true, breakLength: Infinity };
    let text = `${name} ${inspect(own, line)}`;
    if (text.length > 300) text = `${name} ${inspect(set, { ...line, depth: 0 })}`;
    return text.length > 300 ? `[${name}]` : text;
  }

  // Returns a value as text, with the driver's frames removed from stacks. The last
  // line of a stack may end with the brace that opens the error's properties.
  function describe(value) {
    let text;
    showing = true;
    try {
      text = inspect(value);
    } finally {
      showing = false;
    }
    if (/^(?:Timeout|Immediate) \{/.test(text)) text = `[${value.constructor.name}]`;
    return text.replace(/\n +at Session\.post \(node:inspector[^]*?(?=(?: \{)?\n(?! +at )|$)/g, '')
      .replace(/\n +at [^\n]*agent:(?:driver|enter)[^\n]*?(?=(?: \{)?(?:\n|$))/g, '');
  }

  // Folds the frames of Node.js and of packages in an error's stacks into one line with
  // their number, and takes out what the text says twice. Code gets everything back with
  // a stackTraceLimit of its own or, in a session, by the name that node's own prompt
  // has for the last error.
  function fold(text) {
    if (Error.stackTraceLimit !== 10) return text;
    let how = asProgram ? '; Error.stackTraceLimit = 99 shows all' : '; console.log(_error) shows all';
    return text.replace(/(?:\n +at (?:[^\n]*\()?(?:async )?(?:node:|(?:file:\/\/)?\/[^\n:]*\/node_modules\/)[^\n]*?(?=(?: \{)?(?:\n|$)))+/g, (frames) => {
      const names = new Set(frames.match(/node:|\/node_modules\/(?:@[^/]+\/)?[^/]+(?!.*\/node_modules\/)/g).map((place) => place === 'node:' ? 'Node.js' : place.slice(14)));
      const count = frames.split('\n').length - 1;
      const line = `${/^\n +/.exec(frames)[0]}[${count} frame${count > 1 ? 's' : ''} of ${[...names].slice(0, 4).join(', ')}${how}]`;
      how = '';
      return line;
    })
      .replace(`\nRequire stack:\n- ${FILE}\n`, '\n')
      .replace(/,\n +requireStack: \[[^\]]*\](?=\n)/, '')
      .replace(/^([^\n]* \[(\w+)\]: [^]*) \{\n +code: '\2'\n\}$/, '$1')
      .replace(/\/nix\/store\/[0-9a-z]{32}-/g, '/nix/store/…-');
  }

  // Writes a value. This may run code of the value's own, which may throw.
  function show(stream, before, value, unless) {
    let text;
    try {
      text = describe(value);
      if (stream === stderr) text = fold(text);
    } catch {
      text = '[a value that cannot be shown]';
    }
    if (unless?.test(text)) return;
    const line = stream === stdout ? open.stdout : open.stderr;
    stream.write(`${line ? '\n' : ''}${before}${text}\n`);
  }

  // Values that only say that work is pending: a program ends when it is done.
  const underWay = /^(?:Promise \{\s+(?:<pending>|<rejected>|undefined)[\s,]|\[Timeout\]$|\[Immediate\]$)/;

  // Whether the value of the last statement only came with what the statement does: an
  // assignment, a write, or a call that returns its emitter for the next call.
  const written = /\bprocess\.std(?:out|err)\.write\([^;]*\);?\s*$/;
  const assigned = /(?:^|[;\n])[ \t]*[\w$.[\]'"]+[ \t]*=(?![=>])[^;\n]*;?\s*$/;
  function incidental(source, value) {
    if (written.test(source) || assigned.test(source)) return true;
    if (value === module.exports && source.includes('module.exports')) return true;
    return value instanceof EventEmitter && !/(?:^|[;\n])\s*[\w$]+;?\s*$/.test(source);
  }

  // Whether an error says that code cannot be read, and not that code which ran has
  // read something.
  const unreadable = (error) => error instanceof SyntaxError && /^[^\n]*\n +at Session\.post/.test(error.stack);

  // TypeScript that is also JavaScript, with another meaning: f<string>(x).
  const generic = /[\w$]<(?:string|number|boolean|bigint|symbol|object|any|unknown|void|never|[A-Z][\w$.]*)(?:\[\])*(?:, ?[\w$.]+(?:\[\])*)*>\(/;

  function report(error, details, source, name) {
    let text = '';
    if (details && unreadable(error)) {
      const line = source.split('\n')[details.lineNumber];
      // Declarations of imports are longer in what is evaluated.
      if (line !== undefined && line.length < 500 && details.columnNumber <= line.length) {
        text = `${name}:${details.lineNumber + 1}\n${line}\n${' '.repeat(details.columnNumber)}^\n`;
      }
    }
    show(stderr, `${text}Uncaught `, error);
    if (!asProgram && (!('_error' in globalThis) || globalThis._error === reported)) {
      defineProperty(globalThis, '_error', { value: reported = error, configurable: true, enumerable: false, writable: true });
    }
  }

  // The number of operations that will call back soon: reads, programs, requests. Timers
  // and servers may last as long as the session.
  function operations() {
    return getActiveResourcesInfo().filter((kind) => !/Timeout|Immediate|Server/i.test(kind)).length;
  }

  // Ends a call with a status; only the first status counts.
  function settle(current, status) {
    if (current.over) return;
    current.over = true;
    current.status = status;
    // Unhandled rejections are reported after the microtasks.
    later(() => {
      if (status === 0 && operations() > current.before) rest(current);
      else finish(current);
    });
  }

  // Ends a call when the operations that it began have called back, or soon.
  function rest(current) {
    const end = now() + MOMENT;
    const look = setInterval(() => {
      if (operations() <= current.before || now() >= end) current.rested();
    }, 2);
    look.unref();
    current.rested = () => {
      current.rested = undefined;
      clearInterval(look);
      finish(current);
    };
  }

  function finish(current) {
    if (stdout.writableLength > 0 && !stdout.destroyed) return void stdout.once('drain', () => finish(current));
    if (stderr.writableLength > 0 && !stderr.destroyed) return void stderr.once('drain', () => finish(current));
    call = null;
    control.ref();
    session.post('Runtime.releaseObjectGroup', { objectGroup: 'call' });
    // The next call finds the end of input once more, and not a stream that has ended.
    if (stdin !== undefined && (stdin.readableEnded || stdin.destroyed)) stdin = new fs.ReadStream(null, { fd: 0, autoClose: false });
    const status = current.status || (process.exitCode & 0xff);
    process.exitCode = undefined;
    writeSync(CONTROL, `done ${current.nonce} ${status & 0xff}\n`);
  }

  // Returns code without the prompts of node's own prompt and without the output
  // between them; each line keeps its number.
  function unpasted(source) {
    if (!/^\s*> /.test(source)) return source;
    let inside = false;
    return source.split('\n').map((line) => {
      const found = /^\s*(> |\.\.\.(?: |$)|\| )(.*)/.exec(line);
      inside = found !== null && (found[1] === '> ' || inside);
      return inside ? found[2] : '';
    }).join('\n');
  }

  // Code that is written as the body of a function returns its value. The parser
  // takes a return at the top level and drops what it returns, so that the last one
  // becomes an expression that is as long.
  function returned(source) {
    if (!/^return\b/m.test(source)) return source;
    try {
      new vm.Script(source);
      return source; // each return is in a function
    } catch (error) {
      if (error.message !== 'Illegal return statement') return source;
    }
    const at = source.search(/^return\b(?![^]*^return\b)/m);
    return `${source.slice(0, at)}0,    ${source.slice(at + 6)}`;
  }

  // Evaluates code. Code that cannot be read as JavaScript is read as TypeScript.
  function evaluate(source, name, how) {
    source = returned(unpasted(source));
    if (source.includes('>(') && generic.test(source)) {
      const { code } = loadModule('typescript')(source, asProgram);
      if (code !== undefined) return attempt(code, name, how);
    }
    attempt(source, name, {
      ...how,
      unreadable(error, details) {
        const { code, problem } = loadModule('typescript')(source, asProgram);
        const fail = (error, details) => { report(error, details, source, name); how.settled(1); };
        // What both languages refuse is reported as the one does that got further.
        const further = problem && (problem.lineNumber - details.lineNumber || problem.columnNumber - details.columnNumber) > 0;
        if (further) error.stack = error.stack.replace(/^[^\n]*/, `SyntaxError: ${problem.message}`);
        if (further) fail(error, problem);
        else if (problem) fail(error, details);
        else attempt(code, name, { ...how, unreadable: () => fail(error, details) });
      },
    });
  }

  // Evaluates JavaScript. Nothing is written once over() says that the call has
  // ended. With wait, the call ends when the promise does that is its value.
  function attempt(source, name, { settled, over = () => false, unless, wait = false, unreadable: reread }) {
    place(source);
    const expression = `${rewrite(expressed(source))}\n//# sourceURL=${name}`;
    const fail = (error, details) => {
      if (error !== ended) report(error, details, source, name);
      settled(1);
    };
    session.post('Runtime.evaluate', {
      expression, replMode: true, awaitPromise: true, objectGroup: 'call', silent: true,
    }, (failure, reply) => {
      if (failure) {
        // The code was interrupted, which run handles.
        if (call?.stopped || /terminated/.test(failure.message)) return;
        // Of an end that the code chose after an await, the inspector hears first.
        if (leaving) return;
        // The inspector has lost its context: no code can run here any more.
        exit.call(process, 70);
      }
      if (over()) return;
      const { result, exceptionDetails } = reply;
      if (exceptionDetails) {
        const error = exceptionDetails.exception ? value(exceptionDetails.exception) : new Error(exceptionDetails.text);
        if (reread && unreadable(error)) return reread(error, exceptionDetails);
        return fail(error, exceptionDetails);
      }
      if (result.type === 'undefined') return settled(0);
      const last = value(result);
      if (incidental(source, last)) return settled(0);
      const end = () => {
        if (over()) return;
        show(stdout, '', last, unless);
        settled(0);
      };
      if (call !== null) call.waits = wait && isPromise(last);
      if (wait && isPromise(last)) then.call(last, end, (error) => { if (!over()) fail(error); });
      else end();
    });
  }

  // Puts the code where it says that it is, if it starts or reads its own file.
  function place(source) {
    if (!/__filename|argv|cluster|import\.meta/.test(source) || !/\b(?:Worker|fork|cluster|readFile|readFileSync)\b/.test(source)) return;
    try {
      writeFileSync(FILE, source, { flag: placed ? 'w' : 'wx' });
      placed = true;
    } catch {
      // The file is the code's own, or there is no space for it.
    }
  }

  function run(nonce, name, source) {
    const current = { nonce, status: 0, sync: true, over: false };
    call = current;
    open.stdout = open.stderr = false;
    // Without it, an event loop that has nothing left to do says so.
    control.unref();
    current.before = operations();
    entry = () => evaluate(source, name, { settled: (status) => settle(current, status), over: () => current.over, unless: underWay, wait: true });
    try {
      // SIGINT ends even a loop that never yields, and the state that was
      // computed before stays.
      enter.runInThisContext({ breakOnSigint: true });
    } catch {
      current.stopped = true;
      if (current.exit === undefined) {
        stderr.write('Uncaught Error: interrupted\n');
        settle(current, 130);
      }
    }
    entry = null;
    current.sync = false;
    if (current.exit !== undefined) settle(current, current.exit);
  }

  // Absorbs a late SIGINT of the previous call, so that it does not interrupt this
  // one. libuv delivers a signal at most two turns of the event loop later. If it
  // arrived while node removed the handler of breakOnSigint, node stores it for the
  // next script with that option, and raises it there from another thread.
  function calm() {
    try {
      wait.runInThisContext({ breakOnSigint: true });
    } catch {
      // The signal arrived.
    }
  }

  // Ends a call that waits for what cannot come any more.
  function stuck() {
    control.ref();
    call?.rested?.();
    if (call === null || call.over) return;
    if (call.waits) return settle(call, 0); // for its value, as no program would
    stderr.write(STUCK);
    settle(call, 13);
  }

  // Runs code as a program: the process ends with it, as node would end it. If it
  // ends with status 0, the reply is written at the event exit and need not wait for
  // node's own teardown, because no code runs after that event.
  function last(source, nonce) {
    asProgram = true;
    control.pause();
    control.unref();
    fs.closeSync(CODE);
    const { emit } = process;
    let rests = false; // nothing can settle a promise any more
    process.emit = function (event, ...values) {
      // Node emits it only if no work is left: an end that the code chose comes without.
      if (event === 'beforeExit') rests = true;
      if (event === 'exit') leaving = true;
      const result = emit.call(this, event, ...values);
      if (event === 'exit' && process.pid === pid && !((process.exitCode ?? values[0]) & 0xff)) answer(nonce);
      return result;
    };
    process.removeListener('SIGINT', interrupted);
    process.removeListener('beforeExit', stuck);
    process.exit = function (...status) {
      rests = false; // the work of a listener of beforeExit
      return exit.apply(process, status);
    };
    let ends = false;
    process.once('exit', () => {
      if (!ends && rests && !process.exitCode) {
        stderr.write(STUCK);
        process.exitCode = 13;
      }
    });
    const settled = (status) => {
      ends = true;
      if (status !== 0) exit.call(process, status);
      // The end of node's own event loop would wait for the compiler's threads.
      later(() => {
        if (process.listenerCount('beforeExit') === 0 && process.getActiveResourcesInfo().length === 0) exit.call(process);
      });
    };
    evaluate(source, 'code', { settled, unless: underWay });
  }

  // Writes the reply of a program, unless the code has put a file of its own at the
  // channel's descriptor.
  function answer(nonce) {
    try {
      if (fstatSync(CONTROL).ino !== channel) return;
      writeSync(CONTROL, `done ${nonce} 0\n`);
      // Freeing memory now would compete with the agent for the processor.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1000);
    } catch {
      // The agent learns the status from the end of the process.
    }
  }

  function interrupted() {
    if (call === null || call.over) return;
    stderr.write('Uncaught Error: interrupted\n');
    settle(call, 130);
  }

  function uncaught(error) {
    if (error === ended) return;
    if (process.listenerCount('uncaughtException') > 1) return; // the code has a handler of its own
    report(error);
    if (asProgram) {
      exit.call(process, 1);
    } else if (call !== null) {
      if (call.over) call.status ||= 1;
      else settle(call, 1);
    }
  }

  // Without a listener, node wraps a reason that is no error into one.
  function rejected(reason) {
    if (process.listenerCount('unhandledRejection') > 1) return; // the code has a handler of its own
    if (process.listenerCount('uncaughtException') > 1) process.emit('uncaughtException', reason, 'unhandledRejection');
    else uncaught(reason);
  }

  process.exit = function (status = process.exitCode) {
    status = (status ?? 0) & 0xff;
    if (process.pid === pid && call !== null && !call.over) {
      if (call.sync) {
        // SIGINT ends the code without running its catch and finally
        // blocks, like the end of a process. The agent has to send it:
        // process.kill would tear the inspector down.
        call.exit = status;
        call.stopped = true;
        writeSync(CONTROL, `stop ${call.nonce}\n`);
        for (const end = now() + 5000; now() < end;);
      } else {
        settle(call, status);
      }
    }
    throw ended;
  };

  // The parser reads { a: 1 } as a block. Code in braces that is also an expression
  // is evaluated as one.
  function expressed(source) {
    if (!/^\s*\{[^]*\}\s*$/.test(source)) return source;
    try {
      new vm.Script(`(${source}\n)`);
      return `(${source}\n)`;
    } catch {
      return source;
    }
  }

  // Code that the inspector evaluates is no module. Dynamic imports and import.meta
  // become names that are as long, so that columns stay the same; import declarations
  // become awaited dynamic imports; exports become plain declarations.
  function rewrite(source) {
    if (!/\b(?:import|export)\b/.test(source)) return source;
    const open = []; // '{' for a block, '`' for a template's expression
    let out = '';
    let from = 0;
    let before = ''; // the token before
    let declared = false;
    const token = /\/\/[^\n]*|\/\*[^]*?\*\/|"(?:[^"\\\n]|\\[^])*"|'(?:[^'\\\n]|\\[^])*'|[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*|[0-9][\w.]*|\s+|[^]/uy;
    const template = /(?:[^`\\$]|\\[^]|\$(?!\{))*(?:`|\$\{)/uy;
    const pattern = /\/(?:[^/\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+\/\w*/uy;
    const declaration = /import\s*(?:([\p{ID_Start}$_][\p{ID_Continue}$]*)\s*(,\s*)?)?(?:\{([^}]*)\}\s*|\*\s*as\s+([\p{ID_Start}$_][\p{ID_Continue}$]*)\s*)?(from\b\s*)?("[^"\n]*"|'[^'\n]*')(?:\s*(?:with|assert)\s*(\{[^}]*\}))?/uy;
    const exported = /export\s+(?:(?=(?:async|class|const|function|let|var)\b)|default\s+(?=(?:async\s+function|class|function)\b\s*\*?\s*(?!extends\b)[\p{ID_Start}$_])|(default)\s+)|export\s*(?:\{[^}]*\}|\*(?:\s*as\s+[\p{ID_Start}$_][\p{ID_Continue}$]*)?)(?:\s*from\s*("[^"\n]*"|'[^'\n]*'))?/uy;
    const skip = (re, at) => { re.lastIndex = at; return re.exec(source); };
    let at = 0;
    const text = () => { // the rest of a template, up to its end or its next expression
      const m = skip(template, at);
      if (m === null) { at = source.length; return; }
      at += m[0].length;
      if (m[0].endsWith('${')) open.push('`');
      before = m[0].endsWith('${') ? '(' : '`';
    };
    while (at < source.length) {
      const m = skip(token, at);
      const word = m[0];
      if (word === '/' && !/^(?:[\p{ID_Continue}$)\]`"'}]+)$/u.test(before) || word === '/' && /^(?:return|typeof|case|in|of|delete|void|throw|new|else|do|instanceof|yield|await)$/.test(before)) {
        const literal = skip(pattern, at);
        if (literal !== null) { at += literal[0].length; before = ')'; continue; }
      }
      if (word === 'import' && before !== '.') {
        if (/^\s*\(/.test(source.slice(at + 6, at + 200))) {
          out += source.slice(from, at) + '__imp_';
          from = at + 6;
        } else if (/^\s*\.\s*meta\b/.test(source.slice(at + 6, at + 200))) {
          const length = /^\s*\.\s*meta/.exec(source.slice(at + 6))[0].length;
          out += source.slice(from, at) + '__impmeta__' + ' '.repeat(Math.max(0, length - 5));
          at = from = at + 6 + length;
          before = 'meta';
          continue;
        } else if (open.length === 0) {
          const d = skip(declaration, at);
          if (d !== null && Boolean(d[1] || d[3] !== undefined || d[4]) === Boolean(d[5]) && Boolean(d[1] && (d[3] !== undefined || d[4])) === Boolean(d[2])) {
            declared = true;
            out += source.slice(from, at) + declare(d);
            at += d[0].length;
            from = at;
            before = '"';
            continue;
          }
        }
      }
      if (word === 'export' && open.length === 0 && before !== '.') {
        const d = skip(exported, at);
        if (d !== null) {
          declared = true;
          const lines = '\n'.repeat(d[0].split('\n').length - 1);
          const plain = d[1] ? 'const __default = ' : d[2] ? `void (await __imp_(${d[2]}))` : /^export\s+[a-z]/.test(d[0]) ? ' '.repeat(d[0].length - lines.length) : ';';
          out += source.slice(from, at) + plain + lines;
          at += d[0].length;
          from = at;
          before = ';';
          continue;
        }
      }
      at += word.length;
      if (/^(?:\s|\/\/|\/\*)/.test(word)) continue;
      before = /^["']/.test(word) ? '"' : word;
      if (word === '`') text();
      else if (word === '{' || word === '(' || word === '[') open.push(word);
      else if (word === ')' || word === ']') open.pop();
      else if (word === '}' && open.pop() === '`') text();
    }
    // A module is strict.
    return `${declared ? "'use strict';void 0;" : ''}${out}${source.slice(from)}`;
  }

  function declare([whole, main, , names, all, , from, attributes]) {
    const loaded = `await __imp_(${from}${attributes ? `, { with: ${attributes} }` : ''})`;
    const lines = '\n'.repeat(whole.split('\n').length - 1);
    const parts = [];
    if (main) parts.push(`default: ${main}`);
    if (names !== undefined) parts.push(names.replace(/\s+as\s+/g, ': ').replace(/\s+/g, ' '));
    if (all && main) return `const ${all} = ${loaded}, { default: ${main} } = ${all}${lines}`;
    if (all) return `const ${all} = ${loaded}${lines}`;
    if (parts.length > 0) return `const { ${parts.join(', ')} } = ${loaded}${lines}`;
    return `void (${loaded})${lines}`;
  }

  const channel = fstatSync(CONTROL).ino;
  let received = '';
  const control = new net.Socket({ fd: CONTROL, readable: true, writable: true });
  control.setEncoding('latin1');
  control.on('error', () => exit.call(process, 0));
  control.on('end', () => exit.call(process, 0));
  control.on('data', (chunk) => {
    received += chunk;
    const end = received.indexOf('\n');
    if (end < 0) return;
    const [word, nonce, number, size] = received.slice(0, end).split(' ');
    received = received.slice(end + 1);
    const code = Buffer.allocUnsafe(+size);
    let length = 0;
    while (length < code.length) {
      const n = readSync(CODE, code, length, code.length - length, length);
      if (n === 0) break;
      length += n;
    }
    const source = code.toString('utf8', 0, length);
    if (word === 'last') last(source, nonce);
    else if (word === 'late') later(() => later(() => { calm(); run(nonce, `call-${number}`, source); }));
    else run(nonce, `call-${number}`, source);
  });

  // The code is the main module. node removes the global module when this script
  // ends.
  require.main = module;
  module.filename = FILE;
  process.nextTick(() => Object.assign(globalThis, { module, __filename: FILE, __dirname: ROOT }));
  const { get } = Object.getOwnPropertyDescriptor(process, 'stdin');
  defineProperty(process, 'stdin', { get: () => stdin ??= get.call(process), configurable: true, enumerable: true });
  process.argv[1] = FILE;
  process.execArgv = [];
  defineProperty(EventEmitter.prototype, inspect.custom, { value: brief, configurable: true, writable: true });
  track(stdout, 'stdout');
  track(stderr, 'stderr');
  process.on('SIGINT', interrupted);
  process.on('beforeExit', stuck);
  process.on('uncaughtException', uncaught);
  process.on('unhandledRejection', rejected);
  writeSync(CONTROL, 'ready\n');
})
