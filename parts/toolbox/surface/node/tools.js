// Tools that this code can call. They run outside of the sandbox; results are data.
//
//   await tools.SERVER.TOOL({name: value})    calls a tool
//   tools.SERVER.TOOL.help                    its signature and what it does
//   await tools.SERVER.TOOL.raw({...})        the result as the server sent it
//   tools.search('words')                     signatures of the tools with these words
'use strict';
const fs = require('fs');
const net = require('net');
const path = require('path');

const SOCKET = '\0nix-sandbox-tools';
const FOLDER = '/tmp/tools';
const KEEP = 32; // connections that wait for another call
let known;
let files = 0;
const idle = [];

const catalog = () => known ??= JSON.parse(fs.readFileSync(`${process.env.NIX_SANDBOX_TOOLS ?? '/tools'}/catalog.json`, 'utf8'));

class ToolError extends Error {
  constructor(message, server, tool, code = 'error', content = undefined) {
    super(message);
    Object.assign(this, { name: new.target.name, server, tool, code, content });
  }
}
class ToolDenied extends ToolError {}
class ToolTimeout extends ToolError {}

// Bytes that a tool answered with, in a file.
class File {
  constructor(data, mimeType = '') {
    fs.mkdirSync(FOLDER, { recursive: true });
    const extension = /^[a-z]+\/([a-z0-9]+)/.exec(mimeType)?.[1] ?? 'bin';
    this.path = `${FOLDER}/${process.pid}-${++files}.${extension}`;
    this.mimeType = mimeType;
    fs.writeFileSync(this.path, Buffer.from(data, 'base64'));
  }
  save(target) { fs.copyFileSync(this.path, target); return target; }
  // Has the answer of this call show the image.
  show() {
    fs.mkdirSync('/workspace/outputs', { recursive: true });
    return this.save(`/workspace/outputs/${path.basename(this.path)}`);
  }
}

// A result that is more than data or a text.
class Content {
  constructor(raw) {
    Object.assign(this, { text: '', images: [], files: [], links: [] });
    Object.defineProperty(this, 'raw', { value: raw });
    const texts = [];
    for (const item of raw.content ?? []) {
      const resource = item.resource ?? {};
      if (item.type === 'text') texts.push(item.text);
      else if (item.type === 'image') this.images.push(new File(item.data, item.mimeType));
      else if (item.type === 'audio') this.files.push(new File(item.data, item.mimeType));
      else if (item.type === 'resource' && resource.blob !== undefined) this.files.push(new File(resource.blob, resource.mimeType));
      else if (item.type === 'resource') texts.push(resource.text);
      else if (item.type === 'resource_link') this.links.push(item);
    }
    this.text = texts.join('\n');
  }
}

// Sends a question on a connection of its own, and resolves to the answer.
function exchange(question) {
  return new Promise((resolve, reject) => {
    const socket = idle.pop() ?? net.connect({ path: SOCKET });
    const parts = [];
    let size = 0;
    let wanted = -1;
    const fail = () => {
      socket.destroy();
      reject(new ToolError('tools are reached while a call of run is going on, and the connection to them has ended', '', '', 'unavailable'));
    };
    const take = (data) => {
      parts.push(data);
      size += data.length;
      if (wanted < 0 && size >= 4) {
        const all = Buffer.concat(parts);
        wanted = 4 + all.readUInt32BE(0);
        parts.splice(0, parts.length, all);
      }
      if (wanted < 0 || size < wanted) return;
      socket.removeAllListeners();
      socket.on('error', () => {});
      socket.unref();
      if (idle.length < KEEP) idle.push(socket);
      else socket.destroy();
      try {
        resolve(JSON.parse(Buffer.concat(parts).toString('utf8', 4)));
      } catch (error) {
        reject(error);
      }
    };
    socket.removeAllListeners();
    socket.on('error', fail).on('close', fail).on('data', take);
    socket.ref();
    const text = Buffer.from(JSON.stringify(question));
    const header = Buffer.alloc(4);
    header.writeUInt32BE(text.length);
    socket.write(Buffer.concat([header, text]));
  });
}

async function raw(server, tool, given) {
  if (given.length > 1 || given.length === 1 && (typeof given[0] !== 'object' || given[0] === null)) {
    throw new ToolError(`arguments are one object:\n  tools.${server}.${catalog()[server]?.[tool]?.signature ?? tool}`, server, tool, 'usage');
  }
  const answer = await exchange({ server, tool, arguments: given[0] ?? {} });
  if (answer.error) {
    const { kind, message, near = [] } = answer.error;
    const Kind = { denied: ToolDenied, timeout: ToolTimeout }[kind] ?? ToolError;
    throw new Kind([message, ...near.map((one) => `tools.${one}`)].join('\n  '), server, tool, kind);
  }
  if (answer.result.isError) {
    const content = new Content(answer.result);
    throw new ToolError(`${server}.${tool}: ${content.text || 'it failed'}`, server, tool, 'error', content);
  }
  return answer.result;
}

// Whether a text is this text, or this number, boolean or null as JSON: the same in each language.
function is(only, text) {
  if (typeof only === 'string') return only === text;
  try {
    return JSON.parse(text) === only;
  } catch {
    return false;
  }
}

// What code wants of a result.
function value(result) {
  const content = result.content ?? [];
  const isText = content.length > 0 && content.every((item) => item.type === 'text');
  const text = isText ? content.map((item) => item.text).join('\n') : undefined;
  const data = result.structuredContent;
  if (data !== undefined) {
    // Many servers wrap a text or a number, because structured data was an object once.
    const [only, ...others] = Object.values(data ?? {});
    return isText && others.length === 0 && !Array.isArray(data) && is(only, text) ? only : data;
  }
  if (content.length === 0) return undefined;
  if (!isText) return new Content(result);
  if (content.length === 1 && /^\s*[[{]/.test(text)) {
    try {
      return JSON.parse(text);
    } catch { /* it is a text */ }
  }
  return text;
}

function toolOf(server, name) {
  const about = catalog()[server][name];
  const call = async (...given) => value(await raw(server, name, given));
  call.raw = (...given) => raw(server, name, given);
  call.help = about ? `tools.${server}.${about.signature}\n\n${about.description}${about.outputSchema ? `\n\nresult: ${JSON.stringify(about.outputSchema)}` : ''}` : '';
  return call;
}

const isName = (name) => typeof name === 'string' && !['then', 'toJSON', 'constructor', 'inspect'].includes(name);

const serverOf = (server) => new Proxy({}, {
  get(_, name) {
    if (!isName(name)) return undefined;
    return toolOf(server, name);
  },
  ownKeys: () => Object.keys(catalog()[server]),
  getOwnPropertyDescriptor: (_, name) => ({ value: toolOf(server, name), enumerable: true, configurable: true }),
});

const own = {
  ToolError, ToolDenied, ToolTimeout, Content, File,
  search(words = '') {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    return Object.entries(catalog()).flatMap(([server, tools]) => Object.entries(tools)
      .filter(([name, tool]) => wanted.every((word) => `${server} ${name} ${tool.description}`.toLowerCase().includes(word)))
      .map(([, tool]) => `tools.${server}.${tool.signature}`));
  },
};

module.exports = new Proxy(own, {
  get(_, name) {
    if (typeof name === 'symbol' || name in own) return own[name];
    if (name in catalog()) return serverOf(name);
    if (!isName(name)) return undefined;
    throw new ToolError(`there is no server ${JSON.stringify(name)}; there are ${Object.keys(catalog()).join(', ')}`, name, '', 'usage');
  },
});
