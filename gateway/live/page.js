// Writes the page from the events of the server. What comes of sandboxes becomes text nodes
// and never markup; the page's policy (require-trusted-types-for) has the browser refuse
// markup from a script.
"use strict";
const most = 100; // calls that are shown, beside those that run
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
const showState = (state) => {
  const { memory, audit } = state, environments = state.environments ?? [], running = state.running ?? [];
  const sessions = (state.sessions ?? []).sort((a, b) => b.waiting - a.waiting || a.idle_seconds - b.idle_seconds);
  find("summary").textContent = text(running.length && `${running.length} running`, count(sessions.length, "session"), `up ${seconds(state.uptime_seconds)}`);
  list("principals", (state.principals ?? []).map((p) => item(who(p.name), text(
    p.running && `${p.running} running`, count(p.calls, "call"), p.failed && `${p.failed} failed`, p.refused && `${p.refused} refused`,
    p.sessions && `${count(p.sessions, "session")} (≤\u00a0${p.memory_mb}\u00a0MB)`), p.running, { principal: p.name })), "Nobody has called yet.");
  list("sessions", sessions.map((s) => item(plain(s.id), text(
    s.principal && who(s.principal), s.environments, count(s.calls, "call"), s.waiting ? `in use${s.waiting > 1 ? `, ${s.waiting - 1} waiting` : ""}` : `unused for ${seconds(s.idle_seconds)}`,
    `≤\u00a0${s.memory_mb}\u00a0MB`), s.waiting, { principal: s.principal ?? "", session: s.id })), "There is no live session.");
  const facts = [
    ["version", `${state.version}, process ${state.pid}`],
    ["memory", `server ${megabytes(memory.server_bytes)}, ${count(memory.sandboxes_processes, "process", "processes")} of sandboxes ${megabytes(memory.sandboxes_bytes)}`],
    ["environments", environments.join(", ") || "none"],
  ];
  if (audit) {
    const log = make("span", "", text(plain(audit.Path.replace(/.*\//, "")), `${audit.Records} records`, audit.Lost && `${audit.Lost} lost`));
    log.title = plain(audit.Path);
    facts.push(["audit log", log]);
  } else facts.push(["audit log", "none"]);
  find("server").replaceChildren(...facts.flatMap(([name, fact]) => [make("dt", "", name), make("dd", "", fact)]));
  find("alert").hidden = !audit?.Failure;
  find("alert").textContent = audit?.Failure ? `The audit log cannot be written: ${plain(audit.Failure)}` : "";
  const runs = new Map(running.map((call) => [call.number, call]));
  for (const [number, { call, article }] of cards) {
    if (call.outcome) continue;
    const now = runs.get(number);
    if (now) article.querySelector(".took").textContent = seconds(now.took / 1e9);
    else forget(number); // its result comes, or came too early to be here
  }
};

// The calls.
const cards = new Map(); // by their numbers: { call, article }
const forget = (number) => {
  cards.get(number)?.article.remove();
  cards.delete(number);
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
// opener opens a port of a session for this page, while the page is open. Only the user's own page does.
const opened = new Map(); // addresses by session and port
const opener = (call) => (sentence) => {
  const [, port] = /^listening: the user opens port (\d+) /.exec(sentence) ?? [];
  if (!port || call.principal || !sessionStorage.getItem("key")) return [];
  const name = `${port} ${call.session}`;
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
      const body = JSON.stringify({ session: call.session, port: +port });
      const answer = await fetch("forward", { method: "POST", headers: { "Content-Type": "application/json", ...keyHeaders() }, body }).catch(() => null);
      if (!answer?.ok) return place.replaceChildren(make("span", "facts", plain(answer ? await answer.text() : "The server did not answer.")));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      opened.set(name, (await reader.read()).value.trim());
      show();
      while (!(await reader.read().catch(() => ({ done: true }))).done); // until the server ends it
      opened.delete(name);
      show();
    });
    place.replaceChildren(button);
  };
  show();
  return [place];
};
const showFile = (call) => (file, index) => {
  const path = file.path.replace(/^\/workspace\//, "");
  if (!file.type) return make("p", "file", ...visible(path), make("span", "facts", size(file.bytes)));
  const image = make("img");
  image.src = `images/${call.number}/${index}`;
  image.alt = plain(path);
  return make("figure", "", image, make("figcaption", "", ...visible(path)));
};
const showCall = (call) => {
  const outcome = call.outcome || (call.waits ? "waiting" : "running");
  let { article } = cards.get(call.number) ?? {};
  if (!article) {
    article = make("article", "", make("h3"), make("div", "body"));
    article.id = `call-${call.number}`;
  }
  const known = cards.get(call.number)?.call;
  if (!known || call.outcome && !known.outcome) {
    // Those that run are above those that have ended, and the newest is the first.
    const all = [...find("calls").children];
    find("calls").insertBefore(article, (call.outcome ? all.find((other) => other !== article && !other.classList.contains("live")) : all[0]) ?? null);
    cards.delete(call.number);
  }
  cards.set(call.number, { call, article });
  article.className = ["call", outcome, ...(call.outcome ? [] : ["live"])].join(" ");
  const session = make("button", "session", plain(call.session ?? ""));
  session.type = "button";
  session.addEventListener("click", () => choose({ principal: call.principal ?? "", session: call.session }));
  article.querySelector("h3").replaceChildren(
    make("span", "outcome", outcome), make("span", "env", plain(call.env) || "no environment"), call.session ? session : "",
    make("span", "facts", text(call.principal && who(call.principal), new Date(call.began).toTimeString().slice(0, 8), call.exit_code && `status ${call.exit_code}`), " · ", make("span", "took", seconds(call.took / 1e9))));
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
  for (const [number] of ended.slice(0, Math.max(0, ended.length - most))) forget(number);
  refilter();
};

// The filter. A choice is offered if there are two to choose from.
const form = find("filter"), all = "\0";
const choices = { principal: (c) => c.principal ?? "", env: (c) => c.env, session: (c) => c.session ?? "", outcome: (c) => c.outcome || "running" };
const titles = { principal: "every caller", env: "every environment", session: "every session", outcome: "every outcome" };
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
    select.replaceChildren(...wanted.map((value) => new Option(value === all ? titles[name] : plain(value) || blank[name], value)));
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
  find("link").textContent = live ? sessionStorage.getItem("key") ? "live, takes answers" : "live" : "not live";
  find("link").classList.toggle("live", live);
};

// The key allows answers. The link that nix-sandbox-mcp approve gives has it, and the address loses it.
const keyHeaders = () => sessionStorage.getItem("key") ? { "Nix-Sandbox-Key": sessionStorage.getItem("key") } : {};
const takeKey = () => {
  if (!location.hash.startsWith("#key=")) return false;
  sessionStorage.setItem("key", location.hash.slice(5).replace(/[^A-Z2-7]/g, ""));
  history.replaceState(null, "", location.pathname);
  return true;
};

// The oldest question is shown, with words of the server. Code chooses when it comes, so its buttons
// take no click that was meant for something else.
const buttonsAfter = 1000; // milliseconds
let asked; // its id
const showQuestions = ([question]) => {
  const section = find("question");
  section.hidden = !question;
  if (asked === question?.ID) return;
  asked = question?.ID;
  section.replaceChildren();
  if (!question) return;
  const note = make("p", "facts", "The first answer counts, here or elsewhere.");
  const buttons = question.Choices.map(({ Choice: choice, Label: label }) => {
    const button = make("button", "", plain(label));
    Object.assign(button, { type: "button", value: choice, disabled: true });
    button.addEventListener("click", async () => {
      for (const one of buttons) one.disabled = true;
      const body = JSON.stringify({ id: question.ID, choice });
      const answer = await fetch("answer", { method: "POST", headers: { "Content-Type": "application/json", ...keyHeaders() }, body }).catch(() => null);
      if (!answer?.ok) note.textContent = plain(answer ? await answer.text() : "The server did not get the answer.");
      if (!answer) for (const one of buttons) one.disabled = false;
    });
    return button;
  });
  section.append(make("h2", "", `${who(question.Principal)} asks`), make("pre", "", plain(question.Text)), ...buttons, note);
  setTimeout(() => { for (const one of buttons) one.disabled = false; }, buttonsAfter);
};

const shows = { state: showState, call: showCall, questions: showQuestions };
let stopped = new AbortController();
// read reads the events until they end. An EventSource sends no key.
const read = async () => {
  const answer = await fetch("events", { headers: keyHeaders(), signal: stopped.signal });
  if (answer.status === 403) sessionStorage.removeItem("key");
  if (!answer.ok) return;
  // All recent calls come again, perhaps of another server.
  for (const number of [...cards.keys()]) forget(number);
  refilter();
  showLink(true);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let left = "", { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const events = (left + value).split("\n\n");
    left = events.pop();
    for (const event of events) {
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(event);
      shows[kind](JSON.parse(data));
    }
  }
};
const follow = async () => {
  for (;;) {
    await read().catch(() => {}); // the server has gone, or the key is another one
    showLink(false);
    showQuestions([]);
    if (!stopped.signal.aborted) await new Promise((resolve) => setTimeout(resolve, 1000));
    stopped = new AbortController();
  }
};
addEventListener("hashchange", () => { if (takeKey()) stopped.abort(); });
takeKey();
follow();
