// Writes the page from the events of the server. What comes of sandboxes becomes text nodes
// and never markup; the page's policy (require-trusted-types-for) has the browser refuse
// markup from a script.
"use strict";
const most = 100; // calls that are shown
const find = (id) => document.getElementById(id);

// make returns an element; a child that is no node becomes text.
const make = (tag, className, ...children) => {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
};

const seconds = (s) => {
  if (s < 1) return `${Math.round(1000 * s)} ms`;
  if (s < 100) return `${s.toFixed(1)} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  return `${(s / 3600).toFixed(1)} h`;
};
const duration = (nanoseconds) => seconds(nanoseconds / 1e9);
const mib = (bytes) => `${Math.floor(bytes / 2 ** 20)} MiB`;
const who = (name) => name || "(the one client)";
// text joins what there is of these.
const text = (...parts) => parts.filter((part) => part).join(" · ");

// fill replaces the rows of a table; without rows, none says so.
const fill = (id, rows, none) => {
  const body = find(id);
  if (rows.length) {
    body.replaceChildren(...rows.map((row) => make("tr", "", ...row.map((cell) => make("td", "", cell)))));
    return;
  }
  const cell = make("td", "none", none);
  cell.colSpan = body.parentElement.tHead.rows[0].cells.length;
  body.replaceChildren(make("tr", "", cell));
};

const showState = (state) => {
  const { memory, audit } = state;
  find("server").textContent = text(
    `version ${state.version}`, `process ${state.pid}`, `runs for ${seconds(state.uptime_seconds)}`, `server ${mib(memory.server_bytes)}`,
    `${memory.sandboxes_processes} processes of sandboxes ${mib(memory.sandboxes_bytes)}`,
    `environments: ${(state.environments ?? []).join(", ") || "none"}`);
  fill("principals", (state.principals ?? []).map((p) => [who(p.name), p.running, p.calls, p.failed, p.refused, p.sessions, `${p.memory_mb} MiB`]), "Nobody has called yet.");
  fill("sessions", (state.sessions ?? []).map((s) =>
    [s.id, who(s.principal), s.environments, s.calls, seconds(s.age_seconds), s.calls ? "in use" : seconds(s.idle_seconds), `${s.memory_mb} MiB`]), "There is no session.");
  fill("running", (state.running ?? []).map((c) => [c.number, who(c.principal), c.env, c.session ?? "", duration(c.took)]), "Nothing runs.");
  if (!audit) {
    find("audit").replaceChildren("There is none.");
    return;
  }
  const written = audit.Failure ? make("strong", "bad", `cannot be written: ${audit.Failure}`) : "is written";
  find("audit").replaceChildren(`${text(audit.Path, `record ${audit.Seq}`)} · `, written, ` · ${audit.Lost} lost · last hash `, make("code", "", audit.Hash));
};

const showCall = (call) => {
  const article = make("article", `call ${call.outcome}`,
    make("h3", "", make("span", "outcome", call.outcome), ` ${call.env}${call.session ? ` / ${call.session}` : ""} `,
      make("span", "facts", text(who(call.principal), new Date(call.began).toTimeString().slice(0, 8), duration(call.took),
        call.exit_code && `status ${call.exit_code}`, call.trace_id && `trace ${call.trace_id}`))));
  article.id = `call-${call.number}`;
  for (const stream of ["code", "stdout", "stderr"]) if (call[stream]) article.append(make("pre", stream, call[stream]));
  if (call.reason) article.append(make("p", "reason", call.reason));
  (call.images ?? []).forEach((path, index) => {
    const image = make("img", "");
    image.src = `images/${call.number}/${index}`;
    image.alt = path;
    article.append(make("figure", "", image, make("figcaption", "", path)));
  });
  const calls = find("calls");
  calls.prepend(article);
  while (calls.childElementCount > most) calls.lastElementChild.remove();
};

const showLink = (live) => {
  find("link").textContent = live ? "live" : "not live";
  find("link").classList.toggle("live", live);
};
const events = new EventSource("events");
events.addEventListener("open", () => {
  // All recent calls come again, perhaps of another server.
  find("calls").replaceChildren();
  showLink(true);
});
events.addEventListener("error", () => showLink(false));
events.addEventListener("state", (event) => showState(JSON.parse(event.data)));
events.addEventListener("call", (event) => showCall(JSON.parse(event.data)));
