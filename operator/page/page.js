// Writes the page from the events of the servers. What comes of sandboxes becomes text nodes
// and never markup; the page's policy (require-trusted-types-for) has the browser refuse
// markup from a script.
"use strict";
const most = 100; // calls that are shown, beside those that run
const mostBlobs = 400; // images in memory
const find = (id) => document.getElementById(id);

// make returns an element; a child that is no node becomes text.
const make = (tag, className, ...children) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
};

// A character that a reader would not see, or that moves others: controls, formats, what Unicode
// calls ignorable. Within an emoji they do no harm. A sequence is one that a terminal obeys.
const emoji = "\\p{Extended_Pictographic}\\ufe0f?\\p{EMod}?";
const parts = new RegExp([
  `(?<emoji>${emoji}(?:\\u200d${emoji})*)`,
  "\\x1b\\[(?<colour>[\\d;]*)m",
  "(?<sequence>\\x1b\\[[\\x20-\\x3f]*[\\x40-\\x7e]|\\x1b[\\]P^_X][^\\x07\\x1b]{0,4096}(?:\\x07|\\x1b\\\\)|\\x1b[\\x20-\\x2f]*[\\x30-\\x7e])",
  "(?<hidden>(?!\\r?\\n|\\t)[\\p{Cc}\\p{Cf}\\p{Co}\\p{Cn}\\p{Zl}\\p{Zp}\\p{DI}\\p{VS}\\u2800])",
].join("|"), "gu");
const codePoint = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

// plain is a text in which hidden characters have their numbers.
const plain = (text) => text.replace(parts, (part, ...rest) => rest.at(-1).emoji ? part : [...part].map((c) => c === "\x1b" ? "ESC" : c < " " || c > "~" ? codePoint(c) : c).join(""));

const mostNodes = 400; // of one text, whatever it holds
// visible returns nodes for a text: colours of terminals as classes, other sequences left out, and
// hidden characters by their numbers.
const visible = (text) => {
  const nodes = [];
  let style = "", at = 0;
  const add = (piece) => { if (piece) nodes.push(style ? make("span", style, piece) : piece); };
  for (const match of text.matchAll(parts)) {
    const { emoji, colour, sequence, hidden } = match.groups;
    if (emoji) continue;
    add(text.slice(at, match.index));
    if (nodes.length > mostNodes) return [...nodes, plain(text.slice(match.index))];
    at = match.index + match[0].length;
    if (hidden) nodes.push(make("span", "hidden", hidden === "\r" ? "CR" : codePoint(hidden)), hidden === "\r" ? "\n" : "");
    if (colour === undefined || sequence) continue;
    for (const code of (colour || "0").split(";")) {
      if (+code === 0 || code === "39") style = "";
      if (/^[39][1-6]$/.test(code)) style = `ansi${code[1]}`;
    }
  }
  add(text.slice(at));
  return nodes;
};

const units = (value, names) => {
  let unit = 0;
  while (value >= 1000 && unit < names.length - 1) { value /= 1000; unit++; }
  return `${value < 10 && unit ? value.toFixed(1) : Math.floor(value)} ${names[unit]}`;
};
const size = (bytes) => units(bytes, ["bytes", "KB", "MB", "GB"]);
const seconds = (s) => {
  if (s < 1) return `${Math.floor(1000 * s)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return s < 48 * 3600 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
};
const count = (n, noun, many = `${noun}s`) => `${n} ${n === 1 ? noun : many}`;
const megabytes = (bytes) => `${Math.floor(bytes / 2 ** 20)} MB`;
const who = (name) => name ? plain(name) : "the one client";
// text joins what there is of these.
const text = (...some) => some.filter((part) => part).join(" · ");

// The state of the server.
const item = (name, facts, isBusy, chosen) => {
  const title = make("button", "name", name);
  title.type = "button";
  title.addEventListener("click", () => choose(chosen));
  return make("li", isBusy ? "busy" : "", title, make("span", "facts", facts));
};
const list = (id, items, none) => {
  const now = find(id);
  // A list that has not changed keeps the reader's place and focus.
  const fresh = make("ul", "", ...(items.length ? items : [make("li", "facts", none)]));
  if (fresh.textContent !== now.textContent) now.replaceChildren(...fresh.childNodes);
};
// The servers, by their numbers.
const states = new Map();
// nameOf is what a user calls a server: the project that it shows, or its process.
const nameOf = (server) => {
  const state = states.get(server);
  return state?.project ? plain(state.project.replace(/.*\/(?=.)/, "")) : `process ${state?.pid ?? "?"}`;
};
const among = (server) => states.size > 1 && nameOf(server);
// breakable is a path that may go on in the next line after each separator.
const breakable = (path) => plain(path).split(/(?<=[/_-])/).flatMap((part) => [part, make("wbr")]);
const aboutServer = (server, { memory, audit, version, pid, project, environments }) => {
  const facts = [
    ["process", `${pid}, version ${version}`],
    ["memory", `server ${megabytes(memory.server_bytes)}, ${count(memory.sandboxes_processes, "process", "processes")} of sandboxes ${megabytes(memory.sandboxes_bytes)}`],
    ["environments", (environments ?? []).join(", ") || "none"],
  ];
  if (project) facts.unshift(["project", make("span", "", ...breakable(project))]);
  if (audit) {
    const log = make("span", "", text(plain(audit.Path.replace(/.*\//, "")), `${audit.Records} records`, audit.Lost && `${audit.Lost} lost`));
    log.title = plain(audit.Path);
    facts.push(["audit log", log]);
  }
  return make("dl", "", ...facts.flatMap(([name, fact]) => [make("dt", "", name), make("dd", "", fact)]));
};
const showStates = () => {
  const all = [...states].map(([server, state]) => ({ server, ...state }));
  // of returns what all servers have of a name, each with its server.
  const of = (name) => all.flatMap((state) => (state[name] ?? []).map((one) => ({ server: state.server, ...one })));
  const running = of("running"), sessions = of("sessions").sort((a, b) => b.waiting - a.waiting || a.idle_seconds - b.idle_seconds);
  find("summary").textContent = text(running.length && `${running.length} running`, count(sessions.length, "session"), all.length === 1 ? `up ${seconds(all[0].uptime_seconds)}` : count(all.length, "server"));
  list("principals", of("principals").map((p) => item(who(p.name), text(
    among(p.server), p.running && `${p.running} running`, count(p.calls, "call"), p.failed && `${p.failed} failed`, p.refused && `${p.refused} refused`,
    p.sessions && `${count(p.sessions, "session")} (≤\u00a0${p.memory_mb}\u00a0MB)`), p.running, { server: `${p.server}`, principal: p.name })), "Nobody has called yet.");
  list("sessions", sessions.map((s) => item(plain(s.id), text(
    among(s.server), s.principal && who(s.principal), s.environments, count(s.calls, "call"), s.waiting ? `in use${s.waiting > 1 ? `, ${s.waiting - 1} waiting` : ""}` : `unused for ${seconds(s.idle_seconds)}`,
    `≤\u00a0${s.memory_mb}\u00a0MB`), s.waiting, { server: `${s.server}`, principal: s.principal ?? "", session: s.id })), "There is no live session.");
  find("servers").replaceChildren(...(all.length ? all.map((state) => aboutServer(state.server, state)) : [make("p", "facts", "No server of yours runs, or has answered its client yet. One that starts appears here.")]));
  const failed = all.find((state) => state.audit?.Failure);
  find("alert").hidden = !failed;
  find("alert").textContent = failed ? `The audit log cannot be written: ${plain(failed.audit.Failure)}` : "";
};
const showState = (state, server) => {
  const isNew = !states.has(server);
  states.set(server, state);
  showStates();
  if (isNew) for (const { call } of cards.values()) showCall(call, call.server); // they name their servers now
  const runs = new Map((state.running ?? []).map((call) => [call.number, call]));
  for (const [id, { call, article }] of cards) {
    if (call.server !== server || call.outcome) continue;
    const now = runs.get(call.number);
    if (now) article.querySelector(".took").textContent = seconds(now.took / 1e9);
    else forget(id); // its result comes, or came too early to be here
  }
};
// showGone is for a server that has ended: its calls stay, and what ran has no result.
const showGone = (_, server) => {
  states.delete(server);
  questions.delete(server);
  for (const [id, { call }] of cards) if (call.server === server && !call.outcome) forget(id);
  showStates();
  showQuestion();
  refilter();
};

// The calls.
const cards = new Map(); // by the numbers of their servers and their own: { call, article }
const forget = (id) => {
  cards.get(id)?.article.remove();
  cards.delete(id);
};
// stream shows a text of a call in its card; what has not changed stays as it is.
const stream = (article, name, part) => {
  let pre = article.querySelector(`pre.${name}`);
  if (!part?.head && !part?.tail && !part?.cut) return pre?.remove();
  if (!pre) {
    pre = make("pre", name);
    pre.tabIndex = 0;
    pre.setAttribute("aria-label", name);
    article.querySelector(".body").append(pre);
  }
  const all = `${part.head ?? ""}\n${part.cut ?? 0}\n${part.tail ?? ""}`;
  if (pre.shown === all) return;
  pre.shown = all;
  const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
  pre.replaceChildren(...visible(part.head ?? ""), ...(part.cut ? [make("span", "gap", `${size(part.cut)} left out`)] : []), ...visible(part.tail ?? ""));
  if (atEnd && article.classList.contains("running")) pre.scrollTop = pre.scrollHeight;
};
const remark = (sentence) => {
  const [, opening, rest] = /^(hint|network|tools|listening): ([^]*)$/.exec(sentence) ?? [, "", sentence];
  return make("p", `remark ${opening}`, ...(opening ? [make("b", "", opening), " "] : []), ...visible(rest));
};
// opener opens a port of a session for this page, while the page is open.
const opened = new Map(); // addresses by session and port
// showOpeners shows each as it is now: its card may have been made anew since a click.
const showOpeners = () => { for (const one of document.querySelectorAll(".opener")) one.show(); };
const opener = (call) => (sentence) => {
  const [, port] = /^listening: the user opens port (\d+) /.exec(sentence) ?? [];
  if (!port || call.principal) return [];
  const name = `${port} ${call.server} ${call.session}`;
  const place = make("p", "opener");
  const show = () => {
    const address = opened.get(name);
    if (address) {
      const link = make("a", "", `http://${address}`);
      Object.assign(link, { href: `http://${address}`, target: "_blank", rel: "noreferrer" });
      return place.replaceChildren(link, make("span", "facts", "while this page is open; trust it as little as a page you do not know"));
    }
    const button = make("button", "", `Open port ${port}`);
    button.type = "button";
    button.addEventListener("click", async () => {
      button.disabled = true;
      const answer = await post("forward", { server: call.server, session: call.session, port: +port });
      if (!answer?.ok) return place.replaceChildren(make("span", "facts", plain(answer ? await answer.text() : "The server did not answer.")));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      opened.set(name, (await reader.read()).value.trim());
      showOpeners();
      while (!(await reader.read().catch(() => ({ done: true }))).done); // until the server ends it
      opened.delete(name);
      showOpeners();
    });
    place.replaceChildren(button);
  };
  place.show = show;
  show();
  return [place];
};
// load shows an image. An element of its own sends no key.
const blobs = new Map(); // by address
const load = async (image, address) => {
  if (!blobs.has(address)) {
    const answer = await fetch(address, { headers: keyHeaders() }).catch(() => null);
    if (!answer?.ok) return;
    const blob = await answer.blob();
    if (!/^image\/(png|jpeg|gif|webp)$/.test(blob.type)) return;
    if (blobs.size >= mostBlobs) {
      const [oldest, url] = blobs.entries().next().value;
      URL.revokeObjectURL(url);
      blobs.delete(oldest);
    }
    blobs.set(address, URL.createObjectURL(blob));
  }
  image.src = blobs.get(address);
};
// saver is the name of a file, with a button that saves it if its session is the user's.
const unsaved = new Map(); // why a file was not, by its call and path: its card may have been made anew since a click
const saver = (call, path, name) => {
  if (!call.session || call.principal) return visible(name);
  const id = `${call.server} ${call.number} ${path}`;
  const place = make("span", "facts saver"), button = make("button", "", ...visible(name));
  Object.assign(button, { type: "button", title: "Save" });
  button.addEventListener("click", async () => {
    const answer = await fetch(`files/${call.server}?${new URLSearchParams({ session: call.session, env: call.env, path })}`, { headers: keyHeaders() }).catch(() => null);
    if (!answer?.ok) {
      unsaved.set(id, plain(answer ? await answer.text() : "The server did not answer."));
      for (const one of document.querySelectorAll(".saver")) one.show();
      return;
    }
    const link = make("a"), url = URL.createObjectURL(await answer.blob());
    Object.assign(link, { href: url, download: plain(path.replace(/.*\//, "")) });
    link.click();
    URL.revokeObjectURL(url);
  });
  place.show = () => place.replaceChildren(unsaved.get(id) ?? "");
  place.show();
  return [button, place];
};
const showFile = (call) => (file, index) => {
  const path = file.path.replace(/^\/workspace\//, "");
  if (!file.type) return make("p", "file", ...saver(call, file.path, path), make("span", "facts", size(file.bytes)));
  const image = make("img");
  image.alt = plain(path);
  load(image, `images/${call.server}/${call.number}/${index}`);
  return make("figure", "", image, make("figcaption", "", ...visible(path)));
};
const showCall = (call, server) => {
  call.server = server;
  const id = `${server}-${call.number}`;
  const outcome = call.outcome || (call.waits ? "waiting" : "running");
  let { article } = cards.get(id) ?? {};
  if (!article) {
    article = make("article", "", make("h3"), make("div", "body"));
    article.id = `call-${id}`;
  }
  const known = cards.get(id)?.call;
  if (!known || call.outcome && !known.outcome) {
    // Those that run are above those that have ended, and the newest is the first.
    const all = [...find("calls").children];
    find("calls").insertBefore(article, (call.outcome ? all.find((other) => other !== article && !other.classList.contains("live")) : all[0]) ?? null);
    cards.delete(id);
  }
  cards.set(id, { call, article });
  article.className = ["call", outcome, ...(call.outcome ? [] : ["live"])].join(" ");
  const session = make("button", "session", plain(call.session ?? ""));
  session.type = "button";
  session.addEventListener("click", () => choose({ server: `${server}`, principal: call.principal ?? "", session: call.session }));
  article.querySelector("h3").replaceChildren(
    make("span", "outcome", outcome), make("span", "env", plain(call.env) || "no environment"), call.session ? session : "",
    make("span", "facts", text(among(server), call.principal && who(call.principal), new Date(call.began).toTimeString().slice(0, 8), call.exit_code && `status ${call.exit_code}`), " · ", make("span", "took", seconds(call.took / 1e9))));
  if (call.trace_id) article.querySelector("h3").title = `trace ${plain(call.trace_id)}`;
  const body = article.querySelector(".body");
  for (const name of ["code", "stdout", "stderr"]) stream(article, name, call[name]);
  stream(article, "tools", { head: call.tools });
  for (const old of body.querySelectorAll(":scope > :not(pre)")) old.remove();
  if (call.waits) body.append(remark(`waits for ${call.waits}`));
  if (call.line) body.append(make("p", "line", ...visible(call.line)));
  body.append(...(call.reason ? [remark(call.reason)] : []), ...(call.remarks ?? []).map(remark), ...(call.remarks ?? []).flatMap(opener(call)), ...(call.files ?? []).map(showFile(call)));
  const more = (call.file_count ?? 0) - (call.files ?? []).length;
  if (more > 0) body.append(make("p", "file facts", `and ${count(more, "more file")}`));
  const ended = [...cards].filter(([, card]) => card.call.outcome);
  for (const [old] of ended.slice(0, Math.max(0, ended.length - most))) forget(old);
  refilter();
};

// The filter. A choice is offered if there are two to choose from.
const form = find("filter"), all = "\0";
const choices = { server: (c) => `${c.server}`, principal: (c) => c.principal ?? "", env: (c) => c.env, session: (c) => c.session ?? "", outcome: (c) => c.outcome || "running" };
const titles = { server: "every server", principal: "every caller", env: "every environment", session: "every session", outcome: "every outcome" };
const blank = { principal: "the one client", env: "no environment", session: "no session" };
const choose = (wanted) => {
  for (const [name, value] of Object.entries(wanted)) offer(name, value);
  refilter();
};
// offer fills a select with what the calls have, and has it choose a value.
const offer = (name, chosen) => {
  const select = form.elements[name], values = new Set([...cards.values()].map(({ call }) => choices[name](call)));
  chosen ??= select.value || all;
  if (chosen !== all) values.add(chosen);
  const wanted = [all, ...[...values].sort()];
  if (wanted.join(all) !== [...select.options].map((option) => option.value).join(all)) {
    select.replaceChildren(...wanted.map((value) => new Option(value === all ? titles[name] : name === "server" ? nameOf(+value) : plain(value) || blank[name], value)));
  }
  select.value = chosen;
  select.hidden = wanted.length < 3 && chosen === all;
};
const refilter = () => {
  for (const name in choices) offer(name);
  const words = form.elements.text.value.toLowerCase();
  let shown = 0;
  for (const { call, article } of cards.values()) {
    const fits = Object.entries(choices).every(([name, of]) => [all, of(call)].includes(form.elements[name].value))
      && (!words || article.textContent.toLowerCase().includes(words));
    article.hidden = !fits;
    shown += fits;
  }
  form.querySelector("output").textContent = shown === cards.size ? count(shown, "call") : `${shown} of ${count(cards.size, "call")}`;
  find("none").hidden = shown > 0;
  find("none").textContent = cards.size ? "No call fits the filter." : "Nothing has run yet. Calls appear here as they come.";
};
form.addEventListener("input", refilter);
form.addEventListener("submit", (event) => event.preventDefault());
refilter();

// On a wide screen the state is beside the calls.
const wide = matchMedia("(min-width: 60rem)");
const arrange = () => { find("state").open = wide.matches; };
wide.addEventListener("change", arrange);
arrange();

const showLink = (live) => {
  find("link").textContent = live ? "live" : "not live";
  find("link").classList.toggle("live", live);
};

// The link that nix-sandbox-mcp page prints has the key, and the address loses it.
const keyHeaders = () => sessionStorage.getItem("key") ? { "Nix-Sandbox-Key": sessionStorage.getItem("key") } : {};
const post = (path, body) => fetch(path, { method: "POST", headers: { "Content-Type": "application/json", ...keyHeaders() }, body: JSON.stringify(body) }).catch(() => null);
const takeKey = () => {
  if (!location.hash.startsWith("#key=")) return false;
  sessionStorage.setItem("key", location.hash.slice(5).replace(/[^A-Z2-7]/g, ""));
  history.replaceState(null, "", location.pathname);
  return true;
};

// The oldest question is shown, with words of the server. Code chooses when it comes, so its buttons
// take no click that was meant for something else.
const buttonsAfter = 1000; // milliseconds
const short = { once: "Once", session: "This session", always: "Always", no: "No" };
const questions = new Map(); // lists by server
let asked; // its id
const showQuestions = (list, server) => {
  questions.set(server, list ?? []);
  showQuestion();
};
const showQuestion = () => {
  const open = [...questions].flatMap(([server, list]) => list.map((one) => ({ server, ...one })));
  const [question] = open.sort((a, b) => Date.parse(a.Asked) - Date.parse(b.Asked));
  const section = find("question");
  section.hidden = !question;
  if (asked === question?.ID) return;
  asked = question?.ID;
  section.replaceChildren();
  if (!question) return;
  const note = make("p", "facts", "The first answer counts, here or elsewhere.");
  const reply = async (choice, buttons) => {
    for (const one of buttons) one.disabled = true;
    const answer = await post("answer", { server: question.server, id: question.ID, choice });
    if (!answer?.ok) note.textContent = plain(answer ? await answer.text() : "The server did not get the answer.");
    if (!answer) for (const one of buttons) one.disabled = false;
  };
  // What is allowed for good is a line of the configuration, which the user sees before it is written.
  const remember = async (buttons) => {
    const answer = question.Lines ? await post("remember", { lines: question.Lines }) : null;
    if (!answer?.ok) return reply("always", buttons);
    const { file, table, before, after, sum } = await answer.json();
    const write = make("button", "", make("b", "", "Write this line, and allow")), until = make("button", "", make("b", "", "Allow until the server ends"));
    for (const one of [write, until]) one.type = "button";
    write.addEventListener("click", async () => {
      write.disabled = true;
      const written = await post("remember", { lines: question.Lines, sum });
      if (written?.ok) return reply("always", [write, until]);
      note.textContent = plain(written ? await written.text() : "The page's program did not answer.");
    });
    until.addEventListener("click", () => reply("always", [write, until]));
    buttons.find((one) => one.value === "always").replaceWith(make("div", "edit", make("p", "facts", plain(file)), make("pre", "", `${plain(table)}\n`, ...(before ? [make("span", "deleted", plain(before)), "\n"] : []), make("span", "added", plain(after))), write, until));
  };
  const buttons = question.Choices.map(({ Choice: choice, Label: label }) => {
    const button = make("button", "", make("b", "", short[choice] ?? choice), make("span", "facts", label === short[choice] ? "" : plain(label)));
    Object.assign(button, { type: "button", value: choice, disabled: true });
    button.addEventListener("click", () => choice === "always" ? remember(buttons) : reply(choice, buttons));
    return button;
  });
  section.append(make("h2", "", `${text(among(question.server), who(question.Principal))} asks`), make("pre", "", plain(question.Text)), ...buttons, note);
  setTimeout(() => { for (const one of buttons) one.disabled = false; }, buttonsAfter);
};

// The patches of projects. One at a time is shown, file by file, and the user applies what they have seen.
let patchShown; // its id
const showPatches = (patches) => {
  list("patches", patches.map((p) => {
    const one = item(plain(p.session), text(count(p.files, "file"), p.env, plain(p.project.replace(/.*\/(?=.)/, ""))), false, {});
    one.querySelector("button").addEventListener("click", () => showPatch(p));
    return one;
  }), "No session has changed a project, or all is applied.");
  const now = patches.find((p) => p.id === patchShown?.id);
  if (patchShown && now?.sum !== patchShown.sum) now ? showPatch(now) : hidePatch();
};
const hidePatch = () => {
  patchShown = undefined;
  find("patch").hidden = true;
  find("patch").replaceChildren();
};
const patchLine = (line) => make("span", { "+": "added", "-": "deleted", "@": "hunk" }[line[0]] ?? "", ...visible(line), "\n");
const mostLines = 2000; // of one file
// hunks are the lines of a patch without those that name the file, and its contents by their sums.
const hunks = (text) => {
  const lines = text.trimEnd().split("\n"), first = lines.findIndex((line) => line.startsWith("@@"));
  return lines.filter((line, at) => at >= first || !/^(index|---|\+\+\+) /.test(line));
};
const showPatch = async (p) => {
  patchShown = p;
  const answer = await fetch(`patches/${encodeURIComponent(p.id)}`, { headers: keyHeaders() }).catch(() => null);
  if (patchShown !== p) return;
  if (!answer?.ok) return hidePatch();
  const { sum, files, more, left_out } = await answer.json();
  const close = make("button", "", "Close");
  close.type = "button";
  close.addEventListener("click", hidePatch);
  const note = make("p", "facts", text(more && `${count(more, "more file")}: see nix-sandbox-mcp changes`, ...left_out.map((one) => `left out: ${plain(one)}`)));
  const apply = (label, paths, place, hunks) => {
    const button = make("button", "", label);
    button.type = "button";
    button.addEventListener("click", async () => {
      button.disabled = true;
      const done = await post("apply", { id: p.id, sum, paths, hunks });
      const { written, deleted, refused, conflicts } = done?.ok ? await done.json() : {};
      place.textContent = done?.ok ? text(`applied: ${written} written, ${deleted} deleted`, refused.length && `apply these by themselves: ${plain(refused.join(", "))}`, ...conflicts.map((one) => `not applied: ${plain(one)}`))
        : plain(done ? await done.text() : "The page's program did not answer.");
      button.hidden = done?.ok ?? false;
      button.disabled = false;
    });
    return button;
  };
  const discard = make("button", "", "Discard");
  discard.type = "button";
  discard.addEventListener("click", async () => {
    const done = await post("discard", { id: p.id, sum });
    if (done?.ok) return hidePatch();
    place.textContent = plain(done ? await done.text() : "The page's program did not answer.");
  });
  const place = make("span", "facts");
  const title = make("h2", "", `${plain(p.session)} changed ${plain(p.project.replace(/.*\/(?=.)/, ""))}`);
  title.title = plain(p.project);
  find("patch").replaceChildren(title, apply("Apply all ordinary files", [], place), discard, close, place, note, ...files.map((file) => {
    const place = make("span", "facts"), lines = hunks(file.text);
    let hunk = -1; // of those that are shown
    const shown = lines.slice(0, mostLines).flatMap((line) => {
      const first = line.startsWith("@@") && file.hunks > 1;
      return first ? [apply("Apply this hunk", [], place, { [file.name]: [++hunk] }), patchLine(line)] : [patchLine(line)];
    });
    const text = file.text ? make("pre", "", ...shown, lines.length > mostLines ? `${lines.length - mostLines} more lines` : "") : make("p", "facts", "not shown: it is binary, or there is no room");
    const details = make("details", "", make("summary", "", ...visible(file.name), " ", make("span", "facts", `${file.kind}, +${file.added} −${file.deleted}`)), text, apply("Apply this file", [file.name], place), place);
    details.open = files.length < 6;
    return details;
  }));
  find("patch").hidden = false;
};

const shows = { state: showState, call: showCall, questions: showQuestions, gone: showGone, patches: showPatches, servers: () => { if (!states.size) showStates(); } };
let stopped = new AbortController();
// read reads the events until they end. An EventSource sends no key.
const read = async () => {
  const answer = await fetch("events", { headers: keyHeaders(), signal: stopped.signal });
  if (!answer.ok) {
    find("none").textContent = plain(await answer.text());
    return;
  }
  // All recent calls come again, perhaps of another server.
  for (const id of [...cards.keys()]) forget(id);
  states.clear();
  questions.clear();
  refilter();
  showLink(true);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let left = "", { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const events = (left + value).split("\n\n");
    left = events.pop();
    for (const event of events) {
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(event);
      const { server, is } = JSON.parse(data);
      shows[kind](is, server);
    }
  }
};
const follow = async () => {
  for (;;) {
    await read().catch(() => {}); // the program has gone, or the key is another one
    showLink(false);
    questions.clear();
    showQuestion();
    if (!stopped.signal.aborted) await new Promise((resolve) => setTimeout(resolve, 1000));
    stopped = new AbortController();
  }
};
addEventListener("hashchange", () => { if (takeKey()) stopped.abort(); });
takeKey();
follow();
