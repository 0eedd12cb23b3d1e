// Shows what /mcp/state says, once a second. All text goes in as text: tool names are not ours.
"use strict";

const SECOND = 1000;
const WIDE = 600;
const SVG = "http://www.w3.org/2000/svg";
const changes = new Map();  // by server, or "" if all share their patterns: what to hide and show
const saving = new Map();  // likewise: how the file would change
const filters = { text: "", tool: "", client: "", outcome: "" };
const opened = new Map();  // by the number of a message: its details
let last = "";
let state = null;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function button(text, label, action) {
  const made = element("button", { type: "button", "aria-label": label }, text);
  made.onclick = action;
  return made;
}

// Redraws what has changed and leaves the rest in place, so that a click or a selection survives.
// A button never becomes another one: a click that comes late would press the wrong one.
function show(place, ...wanted) {
  const had = [...place.childNodes];
  wanted.forEach((made, at) => (at < had.length ? renew(had[at], made) : place.append(made)));
  had.slice(wanted.length).forEach((one) => one.remove());
}

function renew(old, made) {
  const isOther = made.nodeName === "BUTTON" && !old.isEqualNode(made);
  if (old.nodeName !== made.nodeName || isOther) {
    old.replaceWith(made);
  } else if (made instanceof Text) {
    if (old.data !== made.data) old.data = made.data;
  } else {
    for (const name of old.getAttributeNames()) {
      if (!made.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of made.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    old.onclick = made.onclick;
    show(old, ...made.childNodes);
  }
}

// While something is pressed, nothing moves: a slow click is not lost, and hits what was pressed.
let pressedSince = -Infinity;

function isPressed() {
  return performance.now() - pressedSince < 10 * SECOND;  // the release may be lost
}

function release() {
  setTimeout(() => { pressedSince = -Infinity; });  // the click comes first
}

addEventListener("pointerdown", () => { pressedSince = performance.now(); }, true);
addEventListener("keydown", ({ key }) => {
  if (key === " ") pressedSince = performance.now();
}, true);
for (const end of ["pointerup", "pointercancel", "keyup"]) addEventListener(end, release, true);
addEventListener("blur", release);  // of the window alone

// A name breaks behind a _ or a -, and only if it has to.
function named(text, kind, attributes) {
  const parts = text.split(/(?<=[_.\-/:])/);
  const name = element(kind || "code", { title: text, ...attributes });
  parts.forEach((part, at) => name.append(...(at ? [element("wbr"), part] : [part])));
  if (parts.some((part) => part.length > 24)) name.classList.add("long");
  return name;
}

function below(...lines) {
  return element("div", { class: "below" }, ...lines);
}

function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  return bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / 1048576).toFixed(1)} MB`;
}

function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

// The token is in the address, but only until we have it: it stays with this tab, and goes nowhere
// by itself. In mitmweb, mitmweb's own cookie lets us in.
function tokenOfTab() {
  const address = new URL(location.href);
  const given = address.searchParams.get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
  return given || sessionStorage.getItem("token");
}

const token = tokenOfTab();

function request(path, { headers = {}, ...more } = {}) {
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(`/mcp/${path}`, { credentials: "same-origin", headers, ...more });
}

async function ask(path, body) {
  const xsrf = /(?:^|; )_mitmproxy_xsrf=([^;]*)/.exec(document.cookie);
  const headers = { "Content-Type": "application/json" };
  if (xsrf) headers["X-XSRFToken"] = xsrf[1];
  const answer = await request(path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}

// Figures and tables

function figure(label, value, more) {
  const shown = element("dd", {}, value.toLocaleString("en"));
  if (more) shown.append(" ", element("small", {}, more));
  return element("div", { "data-figure": label }, element("dt", {}, label), shown);
}

// A phone lays the rows out as grids; the roles say that they are a table all the same.
function table(kind, heads, rows) {
  const head = element("tr", { role: "row" }, ...heads.map((text, at) => element("th",
    { scope: "col", role: "columnheader", ...cell(at, heads) },
    text || element("span", { class: "unseen" }, "Switch"))));
  return element("table", { "data-table": kind, role: "table", "aria-label": kind },
    element("thead", { role: "rowgroup" }, head),
    element("tbody", { role: "rowgroup" }, ...rows));
}

function cell(at, heads) {
  if (/^(why|verdict)$/i.test(heads[at])) return { class: "second" };
  const numbers = /^(calls|refused|refusals|bytes|waiting|time ago|seen ago|last call|hits|ms)$/i;
  return at && numbers.test(heads[at]) ? { class: "number" } : {};
}

function row(heads, values, kind) {
  return element("tr", { role: "row", ...(kind ? { class: kind } : {}) },
    ...values.map((value, at) => element("td", { role: "cell", ...cell(at, heads) }, value)));
}

function ago(seconds) {
  if (seconds === null) return "open";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

function part(title, heads, rows, nothing) {
  const shown = rows.length
    ? table(title, heads, rows)
    : element("p", { class: "quiet" }, nothing);
  return element("div", {}, element("h3", {}, title), shown);
}

// Tools, with a switch each

function ownSwitches() {
  return Object.keys(state.servers || {});
}

function changesOf(server) {
  if (!changes.has(server)) changes.set(server, { hide: new Set(), show: new Set() });
  return changes.get(server);
}

function pressed(tool, { hide, show }) {
  if (hide.has(tool.id)) return true;
  if (show.has(tool.id)) return false;
  return !tool.exposed;
}

function toggle(tool, server) {
  const { hide, show } = changesOf(server);
  const wasPending = hide.delete(tool.id) || show.delete(tool.id);
  if (!wasPending) (tool.exposed ? hide : show).add(tool.id);
  saving.delete(server);
  draw();
}

function of(server) {
  return server ? ` of ${server}` : "";
}

function switchOf(tool, server) {
  const hidden = pressed(tool, changesOf(server));
  const made = button(hidden ? "Show" : "Hide",
    `${hidden ? "Show" : "Hide"} ${tool.name}${of(server)}`, () => toggle(tool, server));
  if (hidden === tool.exposed) made.classList.add("changed");
  if (!tool.exposed && !tool.by_deny) {
    made.disabled = true;
    made.title = `An exception would not expose it (${tool.why})`;
  }
  return made;
}

// How often something was called, and how often that ended with an error.
function times(one) {
  if (!one.failed) return one.calls || "";
  const failed = element("span", { class: "failed" }, `${one.failed} failed`);
  return element("span", {}, `${one.calls} (`, failed, ")");
}

function tools(listener, exposed) {
  const server = ownSwitches().includes(listener.mode) ? listener.mode : "";
  const heads = exposed ? ["Tool", "Calls", "Bytes", ""] : ["Tool", "Why", "Refused", ""];
  const rows = listener.tools.filter((tool) => tool.exposed === exposed).flatMap((tool) => {
    const name = tool.marks
      ? element("span", {}, named(tool.name), " ", element("small", {}, tool.marks))
      : named(tool.name);
    const values = exposed
      ? [name, times(tool), tool.bytes.toLocaleString("en"), switchOf(tool, server)]
      : [name, tool.why, tool.refused || "", switchOf(tool, server)];
    const line = row(heads, values, exposed ? "shown-tool" : "hidden-tool");
    return tool.description ? [line, about(tool.description, heads.length)] : [line];
  });
  return exposed
    ? part("Exposed tools", heads, rows, "None: clients see no tools.")
    : part(listener.shadow ? "Tools that would be hidden" : "Hidden tools", heads, rows,
      "None: nothing is denied.");
}

function about(description, columns) {
  const text = description.length > 90 ? `${description.slice(0, 90)}…` : description;
  return element("tr", { role: "row", class: "about" },
    element("td", { role: "cell", colspan: columns, title: description }, text));
}

function sessions(listener) {
  const heads = ["Session", "Revision", "Waiting", "Seen ago"];
  const rows = listener.sessions.map((one) =>
    row(heads, [element("div", {}, one.client || "", " ", element("code", {}, one.id)), one.revision, one.waiting, ago(one.seconds_ago)]));
  return part("Sessions", heads, rows, "No sessions at the moment.");
}

function rules(listener) {
  const heads = ["Rule", "Hits"];
  const rows = (listener.rules || []).map((one) =>
    row(heads, [named(one.id), one.hits], "rule"));
  return rows.length ? part("Rules", heads, rows, "") : "";
}

function refusals(listener) {
  const heads = ["Message", "Why", "Time ago"];
  const rows = listener.refusals.slice(0, 10).map((one) =>
    row(heads, [named(one.tool), one.why, ago(one.seconds_ago)]));
  return part("Last refusals", heads, rows, "Nothing has been refused.");
}

function section(listener) {
  const about = `${listener.server}, ${listener.transport}, ${listener.revision}`;
  const saved = `bytes, about ${listener.saved_tokens} tokens per tools/list`;
  return element("section", { "data-mode": listener.mode },
    element("h2", {}, ownSwitches().includes(listener.mode)
      ? `${listener.mode}: ${listener.upstream}` : listener.upstream),
    element("p", { class: "quiet" }, about),
    ...(listener.shadow ? [element("p", { class: "warning", "data-shadow": "" },
      "Nothing is enforced: this filter only reports what it would hide, refuse or change.")] : []),
    ...listener.warnings.map((text) => element("p", { class: "warning" }, text)),
    element("dl", {},
      figure("Exposed", listener.exposed, listener.exposed === 1 ? "tool" : "tools"),
      figure(listener.shadow ? "Would be hidden" : "Hidden", listener.hidden, listener.hidden === 1 ? "tool" : "tools"),
      figure("Context saved", listener.saved_bytes, saved),
      figure("Lists given", listener.lists),
      figure("Calls", listener.calls),
      figure("Failed", listener.failed),
      figure("Refused", listener.refused),
      ...(listener.shadow || listener.reported ? [figure("Only reported", listener.reported)] : []),
      figure("Messages", listener.messages)),
    element("div", { class: "columns" },
      element("div", {}, tools(listener, false), rules(listener), refusals(listener),
        sessions(listener)),
      element("div", {}, tools(listener, true))));
}

// Other filters of this user

let running = "";

function filterLine(heads, filter, server) {
  const name = server.name || server.server || server.target;
  const calls = Object.entries(server.calls_by_tool || {}).slice(0, 8)
    .map(([tool, number]) => `${tool} ${number}`).join(", ");
  const where = [`pid ${filter.pid}`, server.target, server.listens_at,
    filter.audit_log && `audit log ${filter.audit_log}`].filter(Boolean).join(", ");
  const tools = server.exposed === null ? "not known yet"
    : element("details", {},
      element("summary", {}, `${server.exposed} exposed, ${server.hidden} hidden`),
      below(`Exposed: ${(server.exposed_tools || []).join(", ") || "none"}`,
        element("br"), `Hidden: ${(server.hidden_tools || []).join(", ") || "none"}`));
  return row(heads, [element("div", {}, named(name), below(where)), tools,
    element("div", {}, times(server), below(calls)), server.refused || ""], "filter");
}

function runningFilters({ running: all, pid }) {
  const heads = ["Server", "Tools", "Calls", "Refused"];
  const others = all.filter((filter) => filter.pid !== pid);
  const rows = others.flatMap((filter) => (filter.problem
    ? [row(heads, [`pid ${filter.pid}`, filter.problem, "", ""], "filter")]
    : filter.servers.map((server) => filterLine(heads, filter, server))));
  const place = document.getElementById("running");
  place.hidden = !rows.length && !state.only_running;
  const title = state.only_running ? "Running filters" : "Other running filters";
  const opened = new Set([...place.querySelectorAll("details[open]")].map(at));
  place.replaceChildren(part(title, heads, rows, "No filter is running."));
  for (const one of place.querySelectorAll("details")) one.open = opened.has(at(one));
}

// Which row of its table an element is in.
function at(one) {
  return one.closest("tr").rowIndex;
}

async function lookAround() {
  const answer = await request("running");
  const text = answer.ok ? await answer.text() : "";
  if (state && text && text !== running && !isPressed()) {
    runningFilters(JSON.parse(text));
    running = text;
  }
}

// What happens: a chart of the last ten minutes, and the last messages

function bars(steps) {
  const most = Math.max(1, ...steps.map((step) => step.calls + step.refused));
  const width = WIDE / steps.length;
  const rows = steps.flatMap((step, at) => {
    const place = { x: (at * width + 1).toFixed(1), width: (width - 2).toFixed(1) };
    const parts = [["calls", step.calls - step.failed], ["failures", step.failed],
      ["refusals", step.refused]];
    let top = 80;
    return parts.map(([kind, number]) => {
      const height = (number / most) * 76;
      top -= height;
      return drawn("rect", { ...place, y: top, height, class: kind });
    });
  });
  const sum = (kind) => steps.reduce((all, step) => all + step[kind], 0);
  const label = `Last ten minutes: ${counted(sum("calls"), "call")}, ${sum("failed")} failed, `
    + `${sum("refused")} refused`;
  return chart(label, rows, `${most} in 10 s`);
}

function latency(steps) {
  const times = steps.map((step) => step.p50_ms);
  const most = Math.max(1, ...times.filter((time) => time !== null));
  const width = WIDE / steps.length;
  const places = times.map((time, at) =>
    (time === null ? null : [(at + 0.5) * width, 78 - (time / most) * 74]));
  const marks = places.flatMap((place, at) => {
    if (!place) return [];
    const dot = drawn("path", { d: `M${place[0]} ${place[1]}h.01`, class: "dot" });
    const before = places[at - 1];
    return before ? [drawn("line",
      { x1: before[0], y1: before[1], x2: place[0], y2: place[1], class: "time" }), dot] : [dot];
  });
  return chart(`Median time of the upstream, at most ${most.toFixed(1)} ms`, marks,
    `${most.toFixed(1)} ms`);
}

function savings(steps) {
  let sum = 0;
  const sums = steps.map((step) => (sum += step.saved_bytes));
  const width = WIDE / steps.length;
  const corners = sums.map((bytes, at) =>
    `${((at + 1) * width).toFixed(1)},${(80 - (bytes / Math.max(1, sum)) * 74).toFixed(1)}`);
  const area = drawn("polygon",
    { points: `0,80 ${corners.join(" ")} ${WIDE},80`, class: "savings" });
  const tokens = Math.round(sum / 4).toLocaleString("en");
  return chart(`Context saved: ${size(sum)}, about ${tokens} tokens`, [area],
    size(sum));
}

function chart(label, marks, top) {
  const picture = drawn("svg",
    { viewBox: `0 0 ${WIDE} 82`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    drawn("line", { x1: 0, x2: WIDE, y1: 6, y2: 6, class: "grid" }),
    drawn("line", { x1: 0, x2: WIDE, y1: 43, y2: 43, class: "grid" }),
    drawn("line", { x1: 0, x2: WIDE, y1: 80.5, y2: 80.5, class: "axis" }), ...marks);
  return element("figure", {}, element("figcaption", {}, label),
    element("div", { class: "chart" }, picture,
      element("span", { class: "top", "aria-hidden": "true" }, top)),
    element("div", { class: "span", "aria-hidden": "true" },
      element("span", {}, "10 min ago"), element("span", {}, "now")));
}

function verdict(entry) {
  const why = entry.rule || entry.pattern || entry.why || "";
  const said = entry.problem ? `: ${entry.problem}` : "";
  if (entry.shadow) return [answer(entry, said), entry.would].filter(Boolean).join(", ");
  if (entry.answer_why === "blocked") return `answer refused (${entry.answer_rule})`;
  if (entry.why === "invalid" || entry.answer_why === "invalid") return "invalid message";
  return answer(entry, said) || (why ? `${entry.verdict} (${why})` : entry.verdict);
}

function answer(entry, said) {
  if (entry.error_code !== undefined) return `error ${entry.error_code}${said}`;
  if (entry.answered === false) return entry.status ? `no answer (HTTP ${entry.status})` : "no answer";
  return entry.tool_error ? `tool error${said}` : "";
}

function outcome(entry) {
  const isRefused = (entry.verdict === "refused" || entry.verdict === "dropped")
    && entry.why !== "invalid";
  if (!entry.shadow && (isRefused || entry.answer_why === "blocked")) return "refused";
  const isInvalid = entry.why === "invalid" || entry.answer_why === "invalid";
  const hasFailed = entry.tool_error || entry.error_code !== undefined
    || entry.answered === false || (isInvalid && !entry.shadow);
  if (hasFailed) return "failed";
  return entry.shadow ? "reported" : "ok";
}

function subject(entry) {
  return entry.tool || entry.uri || entry.prompt || entry.resource || entry.skill || "";
}

function method(entry) {
  return entry.method || (entry.why === "forbidden" ? "request" : "unreadable");
}

function short(name) {
  return /^[0-9a-f]{32}$/.test(name) ? `session ${name.slice(0, 8)}…` : name;
}

function client(entry) {
  return entry.client_name || short(entry.session || "") || entry.client || entry.transport || "";
}

// Search, filters, export

function matching() {
  const text = filters.text.toLowerCase();
  return state.recent.filter((entry) =>
    (!filters.tool || entry.tool === filters.tool)
    && (!filters.client || client(entry) === filters.client)
    && (!filters.outcome || outcome(entry) === filters.outcome)
    && (!text || [method(entry), subject(entry), client(entry), verdict(entry)]
      .some((part) => String(part || "").toLowerCase().includes(text))));
}

function choice(name, label) {
  const made = element("select", { name, "aria-label": label });
  made.addEventListener("change", () => { filters[name] = made.value; showMessages(); });
  return made;
}

function offer(name, label, values) {
  const box = document.querySelector(`#filters [name=${name}]`);
  const all = [...new Set([...values, filters[name]])].filter(Boolean).sort();
  const wanted = [["", label], ...all.map((value) => [value, value])];
  if (wanted.length === box.options.length
    && wanted.every(([value], at) => box.options[at].value === value)) return;
  box.replaceChildren(...wanted.map(([value, text]) => element("option", { value }, text)));
  box.value = filters[name];
}

function offerFilters() {
  const form = document.getElementById("filters");
  if (!form.children.length) {
    const search = element("input", { type: "search", name: "text", placeholder: "Search",
      "aria-label": "Search the messages" });
    for (const event of ["input", "change"]) {
      search.addEventListener(event, () => { filters.text = search.value; showMessages(); });
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.append(search, choice("tool", "Tool"), choice("client", "Client"),
      choice("outcome", "Outcome"),
      button("Export", "Export the shown messages as JSON", () => download().catch(late)));
  }
  offer("tool", "All tools", state.recent.map((entry) => entry.tool));
  offer("client", "All clients", state.recent.map(client));
  offer("outcome", "All outcomes", ["ok", "failed", "refused", "reported"]);
}

async function download() {
  const wanted = matching();
  const found = [];
  for (const entry of wanted) {
    const { number, details, ...line } = entry;
    found.push(details ? { ...line, ...await ask("details", { number }) } : line);
  }
  const file = new Blob([JSON.stringify(found, null, 2)], { type: "application/json" });
  const link = element("a", { href: URL.createObjectURL(file), download: "mcp-messages.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10 * SECOND);
}

// The last messages, with details of a call

async function open(entry) {
  if (opened.has(entry.number)) {
    opened.delete(entry.number);
  } else {
    opened.set(entry.number, await ask("details", { number: entry.number }));
  }
  showMessages();
}

function detailed(entry, columns) {
  const found = opened.get(entry.number);
  const parts = ["problem", "arguments", "result"].filter((name) => found[name]).flatMap((name) =>
    [element("h4", {}, name === "problem" ? "" : name), element("pre", {}, laidOut(found[name]))]);
  return element("tr", { role: "row" }, element("td",
    { role: "cell", class: "details", colspan: columns }, below(timing(entry)), ...parts));
}

function timing(entry) {
  const parts = [`from ${client(entry)}`, `at ${String(entry.time || "").slice(11, 23)}`];
  if (entry.upstream_ms !== undefined) parts.push(`upstream ${entry.upstream_ms.toFixed(1)} ms`);
  if (entry.own_ms !== undefined) parts.push(`filter ${entry.own_ms.toFixed(1)} ms`);
  if (entry.bytes) parts.push(size(entry.bytes));
  if (entry.answer_bytes) parts.push(`answer ${size(entry.answer_bytes)}`);
  return parts.join(", ");
}

function laidOut(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function message(entry) {
  const text = `${method(entry)} ${subject(entry)}`.trim();
  if (state.flows && entry.flow) {
    return named(text, "a", { href: `/#/flows/${encodeURIComponent(entry.flow)}/response` });
  }
  return named(text, "span");
}

function recent() {
  const heads = ["Time", "Message", "Verdict", "ms"];
  const found = matching();
  const rows = found.slice(0, filters.text || filters.tool || filters.client || filters.outcome
    ? found.length : 30).flatMap((entry) => {
    const clock = String(entry.time || "").slice(11, 19);
    const time = element("time", {}, clock);
    const more = entry.details
      ? [button(opened.has(entry.number) ? "Less" : "Details",
        `Details of message ${entry.number}`, () => open(entry).catch(late))] : [];
    const kind = { refused: "refused-message", failed: "failed-message", reported: "reported-message", ok: "" }[outcome(entry)];
    const took = entry.upstream_ms === undefined ? "" : entry.upstream_ms.toFixed(1);
    const line = row(heads, [time, element("div", {}, message(entry), " ", ...more),
      verdict(entry), took], kind);
    return opened.has(entry.number) ? [line, detailed(entry, heads.length)] : [line];
  });
  const nothing = state.recent.length ? "No message matches." : "Nothing has passed yet.";
  const shown = part("Last messages", heads, rows, nothing);
  if (rows.length) {
    const box = element("div",
      { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Last messages" });
    box.append(shown.lastChild);
    shown.append(box);
  }
  return shown;
}

function callers() {
  const heads = ["Client", "Calls", "Refusals", "Last call"];
  const rows = (state.callers || []).slice(0, 10).map((one) => {
    const tools = Object.entries(one.tools).map(([tool, number]) => `${tool} ${number}`).join(", ");
    const name = one.client || short(one.name);
    return row(heads, [element("div", {}, named(name, "code", { title: one.name }), below(tools)),
      times(one), one.refused || "", element("time", {}, one.last.slice(11, 19))]);
  });
  return part("Who calls what", heads, rows, "Nobody has called a tool yet.");
}

function showMessages() {
  const place = document.getElementById("messages");
  const focused = place.contains(document.activeElement)
    && document.activeElement.getAttribute("aria-label");
  show(place, recent(), callers());
  const again = focused && [...place.querySelectorAll("[aria-label]")].find((one) =>
    one.getAttribute("aria-label") === focused && one.tabIndex >= 0);
  if (again) again.focus();
}

function activity() {
  if (state.only_running) return;  // this page is of no filter
  document.getElementById("activity").hidden = false;
  show(document.getElementById("charts"),
    bars(state.steps), latency(state.steps), savings(state.steps));
  for (const number of opened.keys()) {
    if (!state.recent.some((entry) => entry.number === number)) opened.delete(number);
  }
  offerFilters();
  showMessages();
}

// What waits for approval, because only the lock hides it

function waiting() {
  const servers = ownSwitches();
  const all = (servers.length ? servers : [""]).flatMap((server) =>
    ((server ? state.servers[server] : state).waiting || []).map((one) => [server, one]));
  const place = document.getElementById("waiting");
  place.hidden = !all.length;
  show(place, ...(all.length ? [element("h2", {}, "Waiting for approval"),
    element("p", { class: "quiet" }, "The lock hides these tools. Read what they say before you approve.")] : []),
  ...all.map(([server, one]) => approval(server, one)));
}

function approval(server, one) {
  const said = element("pre", { class: "diff" });
  one.lines.forEach(({ indent, pieces }) => said.append(" ".repeat(Math.max(0, indent - 2)),
    ...pieces.map(({ text, style }) => element({ "-": "del", "+": "ins", "!": "strong" }[style] || "span", {}, text)), "\n"));
  if (one.more) said.append(`… and ${counted(one.more, "line")} more`);
  const title = element("h3", {}, one.is_new ? "New: " : "Changed: ", named(one.name),
    server ? ` of ${server}` : "");
  return element("div", { "data-waiting": one.name }, title, said,
    one.token ? button("Approve", `Approve ${one.name}${of(server)}`,
      () => change("approve", server, { token: one.token }).catch(late)) : "");
}

// Changes by a click

async function pending() {
  const place = document.getElementById("pending");
  const servers = ownSwitches();
  const panels = await Promise.all((servers.length ? servers : [""]).map(panel));
  const shown = panels.filter(Boolean);
  if (isPressed()) {
    last = "";  // draw it later
    return;
  }
  place.hidden = !shown.length;
  show(place, ...shown);
  document.documentElement.style.setProperty("--pending", `${place.offsetHeight + 24}px`);
}

// The changes of one server, or of all if they share their patterns.
async function panel(server) {
  const { hide, show } = changesOf(server);
  const now = server ? state.servers[server] : state;
  const whose = server ? element("h2", {}, server) : "";
  if (hide.size + show.size) {
    const found = await ask("preview", { server, hide: [...hide], show: [...show] });
    const said = `${counted(hide.size, "tool")} to hide, ${show.size} to show.`;
    const discard = button("Discard", `Discard the changes${of(server)}`,
      () => { changes.delete(server); draw(); });
    if (found.problem) {
      return element("div", {}, whose, element("p", {}, said),
        element("p", { class: "warning" }, found.problem), discard);
    }
    const how = server ? " To keep this after a restart, save it, or write:"
      : " To keep this after a restart, use:";
    return element("div", {}, whose, element("p", {}, said + how),
      element("pre", {}, found.command || "(no pattern)"),
      button("Apply", `Apply the changes${of(server)}`,
        () => change("apply", server, { deny: found.deny, except: found.except })),
      discard);
  }
  if (!now.can_undo) return null;
  const parts = saving.has(server) ? planned(server, saving.get(server)) : [
    element("pre", {}, now.command || "(no pattern)"),
    button("Undo the last change", `Undo the last change${of(server)}`,
      () => change("undo", server, {})),
    ...(now.file ? [button(`Save in ${now.file.split(/[\\/]/).pop()} …`,
      `Save the patterns${of(server)}`, () => save(server).catch(late))] : [])];
  const title = "The patterns were changed on this page. Now active:";
  return element("div", {}, whose, saving.has(server) ? "" : element("p", {}, title), ...parts);
}

function planned(server, found) {
  const back = button(found.token ? "Cancel" : "Close", `Do not save the patterns${of(server)}`,
    () => { saving.delete(server); draw(); });
  if (found.problem) return [element("p", { class: "warning" }, found.problem), back];
  if (found.saved) return [element("p", {}, `Saved in ${found.file}.`), back];
  const note = found.note ? [element("p", { class: "warning" }, found.note)] : [];
  if (!found.diff) return [element("p", {}, `${found.file} has these patterns.`), ...note, back];
  return [element("p", {}, `This changes in ${found.file}:`),
    element("pre", { class: "diff" }, found.diff), ...note,
    button("Write the file", `Write the file${of(server)}`,
      () => save(server, found).catch(late)), back];
}

async function save(server, { token = "", file = "" } = {}) {
  saving.set(server, { file, ...await ask("save", { server, token }) });
  draw();
}

async function change(path, server, body) {
  const { problem } = await ask(path, { server, ...body });
  document.getElementById("refused").textContent = problem || "";
  if (!problem) changes.delete(server);
  saving.delete(server);
  last = "";
  await look();
}

function draw() {
  const focused = document.activeElement && document.activeElement.getAttribute("aria-label");
  document.getElementById("listeners").hidden = Boolean(state.only_running);
  if (state.listeners.length) {
    show(document.getElementById("listeners"), ...state.listeners.map(section));
  }
  activity();
  waiting();
  pending().catch(late);
  if (focused) {  // a keyboard stays where it was
    const again = [...document.querySelectorAll("button")].find((one) =>
      one.getAttribute("aria-label").replace(/^(Show|Hide) /, "")
        === focused.replace(/^(Show|Hide) /, ""));
    if (again) again.focus();
  }
}

function late(error) {
  document.body.classList.add("late");
  document.getElementById("live").textContent = `Not up to date: ${error.message}`;
}

async function look() {
  const answer = await request("state");
  if (!answer.ok) throw new Error(answer.status === 403 ? "Log in again" : answer.status);
  const text = await answer.text();
  if (text !== last && !isPressed()) {
    last = text;
    state = JSON.parse(text);
    const refused = state.refused_edit;
    if (refused) {
      document.getElementById("refused").textContent =
        `The last edit of an option was not adopted. ${refused}`;
    } else if ([...changes.values()].every(({ hide, show }) => !hide.size && !show.size)) {
      document.getElementById("refused").textContent = "";
    }
    document.getElementById("flows").hidden = !state.flows;
    draw();
  }
  document.body.classList.remove("late");
  document.getElementById("live").textContent = "Live";
}

async function update() {
  await look().catch(late);
  setTimeout(update, SECOND);
}

async function updateRunning() {
  await lookAround().catch(() => {});  // the other update says what is wrong
  setTimeout(updateRunning, 3 * SECOND);
}

update().then(updateRunning);
