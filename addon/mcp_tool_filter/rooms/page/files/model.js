// What is known: the processes, their servers, and the last messages of all.

const MOST = 10_000;  // messages

export const processes = new Map();  // by pid
export const messages = [];  // oldest first
let own = 0;

export function ownProcess() {
  return processes.get(own);
}

// Takes the state of a process. Messages come once: `after` tells what is known.
export function take(state, { isOwn = false, said = null } = {}) {
  const { pid } = state;
  const known = processes.get(pid) || { pid, last: 0 };
  const fresh = (state.recent || []).filter((entry) => entry.number > known.last).reverse();
  if (fresh.length) known.last = fresh.at(-1).number;
  delete state.recent;
  Object.assign(known, { state, isOwn, said, ended: false });
  processes.set(pid, known);
  if (isOwn) own = pid;
  return fresh.map((entry) => message(known, entry));
}

export function add(fresh) {
  if (!fresh.length) return;
  fresh.sort((one, other) => (one.at < other.at ? -1 : one.at > other.at ? 1 : 0));
  messages.push(...fresh);
  if (messages.length > MOST) messages.splice(0, messages.length - MOST);
}

export function note(pid, said) {
  const known = processes.get(pid) || { pid, last: 0, state: null };
  Object.assign(known, { said, isOwn: false, ended: false });
  processes.set(pid, known);
}

export function afterOf() {
  return Object.fromEntries([...processes.values()].filter((one) => !one.isOwn)
    .map((one) => [one.pid, one.last]));
}

// A process that is gone stays while its messages do, marked. It may have missed one question.
export function end(pids) {
  for (const one of processes.values()) {
    one.missed = one.isOwn || pids.has(one.pid) ? 0 : (one.missed || 0) + 1;
    if (one.missed > 1) {
      one.ended = true;
      if (!one.last) processes.delete(one.pid);
    }
  }
}

// Servers

export function servers() {
  const found = [...processes.values()].flatMap((one) =>
    (one.state && !one.state.only_running ? one.state.listeners.map((listener) => listed(one, listener))
      : one.said?.problem ? [silent(one)] : (one.said?.servers || []).map((each) => told(one, each))));
  const names = new Map();
  for (const one of found) names.set(one.name, (names.get(one.name) || 0) + 1);
  for (const one of found) one.id = names.get(one.name) > 1 ? `${one.name}@${one.pid}` : one.name;
  const seen = new Set();
  for (const one of found) {
    while (seen.has(one.id)) one.id += "+";
    seen.add(one.id);
  }
  return found;
}

function nameOf(mode, called) {
  if (!/:\/\/|^(reverse|regular|local)\b/.test(mode)) return mode;
  return called && called !== "unnamed" ? called : mode.replace(/^.*?:\/\//, "") || "unnamed";
}

function listed(process, listener) {
  const isOwnSwitch = Boolean(process.state.servers?.[listener.mode]);
  const isShared = Object.keys(process.state.servers || {}).length === 0;
  const said = process.said?.servers?.find((one) => one.name === listener.mode) || process.said?.servers?.[0];
  return {
    key: `${process.pid}/${listener.mode}`, pid: process.pid, process, listener,
    name: nameOf(listener.mode, listener.server),
    target: listener.upstream || "", about: [listener.server, listener.transport, listener.revision].filter(Boolean).join(", "),
    state: process.ended ? "ended" : listener.state || "runs",
    problem: listener.problem || "",
    tools: listener.is_listed === false ? null : listener.exposed ?? null, hidden: listener.hidden ?? 0, tokens: listener.tokens ?? 0,
    calls: listener.calls || 0, failed: listener.failed || 0, refused: listener.refused || 0,
    url: listener.url || said?.listens_at || "", entry: listener.entry || null,
    switches: isOwnSwitch ? listener.mode : "", isMerged: Boolean(listener.is_merged),
    canSwitch: !listener.is_merged && Boolean(listener.tools) && (isOwnSwitch || isShared),
    waiting: waitingOf(process, isOwnSwitch ? listener.mode : "").length,
  };
}

export function waitingOf({ state }, server) {
  return (server ? state.servers[server] : state)?.waiting || [];
}

// A filter of another version, or one that has not shown its page yet.
function told(process, said) {
  const name = said.name || said.server || said.target || "unnamed";
  return {
    key: `${process.pid}/${name}`, pid: process.pid, process, listener: null, name,
    target: said.target || "", about: said.server || "", state: process.ended ? "ended" : "runs",
    problem: "", tools: said.exposed, hidden: said.hidden || 0, tokens: 0, calls: said.calls || 0,
    failed: said.failed || 0, refused: said.refused || 0, url: said.listens_at || "",
    entry: null, switches: "", waiting: said.waiting || 0, said,
  };
}

function silent(process) {
  return { key: `${process.pid}/`, pid: process.pid, process, listener: null,
    name: `pid ${process.pid}`, target: "", about: "", state: process.ended ? "ended" : "broken",
    problem: process.said.problem, tools: null, hidden: 0, tokens: 0, calls: 0, failed: 0, refused: 0,
    url: "", entry: null, switches: "", waiting: 0 };
}

// Messages

function message(process, entry) {
  const listeners = process.state.listeners || [];
  const has = (name) => listeners.find((one) => one.mode === name);
  const of = has(entry.server) || (entry.server === "mcp" && has("merged"))
    || listeners.find((one) => entry.upstream && one.mode.includes(entry.upstream))
    || (listeners.length === 1 ? listeners[0] : null);
  const made = {
    key: `${process.pid}:${entry.number}`, pid: process.pid, entry, at: entry.time || "",
    server: of ? `${process.pid}/${of.mode}` : "", of: of ? nameOf(of.mode, of.server) : entry.server || "",
    client: client(entry), tool: entry.tool || "", subject: subject(entry), method: method(entry),
    outcome: outcome(entry), verdict: verdict(entry),
  };
  made.text = [made.method, made.subject, made.client, made.verdict, made.of].join(" ").toLowerCase();
  return made;
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
  return String(entry.tool || entry.uri || entry.prompt || entry.resource || entry.skill || "");
}

function method(entry) {
  return entry.method || (entry.why === "forbidden" ? "request" : "unreadable");
}

function client(entry) {
  const session = /^[0-9a-f]{32}$/.test(entry.session || "") ? `session ${entry.session.slice(0, 8)}…` : entry.session;
  return entry.client_name || session || entry.client || entry.transport || "";
}
