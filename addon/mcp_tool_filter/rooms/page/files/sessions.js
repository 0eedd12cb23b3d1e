// Sessions: who is connected, and who calls what.

import { ago, element, number } from "./draw.js";
import { List } from "./list.js";
import { processes, servers } from "./model.js";
import { view, whenLooking } from "./view.js";

const place = document.getElementById("sessions");

function titled(text) {
  const half = element("div", { class: "half" }, element("h2", {}, text));
  place.append(half);
  return half;
}

const sessions = new List(titled("Sessions"), {
  label: "Sessions",
  columns: [["Client", "client"], ["Server", "of"], ["Session", "id"], ["Revision", "revision"],
    ["Waiting", "number"], ["Seen ago", "number"]],
  key: (one) => one.key,
  cells: ({ server, one }) => [one.client || "unnamed", server.name, element("code", {}, one.id), one.revision,
    one.waiting ? number(one.waiting) : "", ago(one.seconds_ago)],
  nothing: element("p", { class: "quiet" }, "No sessions at the moment."),
});

const callers = new List(titled("Who calls what"), {
  label: "Who calls what",
  columns: [["Client", "client"], ["Tools", "tools"], ["Calls", "number"], ["Refused", "number"], ["Last call", "number"]],
  key: (one) => `${one.pid}/${one.name}`,
  cells: (one) => [one.client || short(one.name),
    Object.entries(one.tools).map(([tool, calls]) => `${tool} ${calls}`).join(", "),
    one.failed ? element("span", {}, `${number(one.calls)} (`, element("span", { class: "failed" }, `${number(one.failed)} failed`), ")") : number(one.calls),
    one.refused ? number(one.refused) : "", one.last.slice(11, 19)],
  nothing: element("p", { class: "quiet" }, "Nobody has called a tool yet."),
});

function short(name) {
  return /^[0-9a-f]{32}$/.test(name) ? `session ${name.slice(0, 8)}…` : name;
}

export function drawSessions() {
  if (place.hidden) return;
  const wanted = servers().filter((one) => one.state !== "ended" && (!view.server || one.id === view.server));
  const counts = new Map();
  sessions.set(wanted.flatMap((server) => (server.listener?.sessions || []).map((one) => {
    const key = `${server.key}/${one.id}`;
    counts.set(key, (counts.get(key) || 0) + 1);
    return { key: `${key}/${counts.get(key)}`, server, one };
  })));
  const pids = new Set(wanted.map((one) => one.pid));
  callers.set([...processes.values()].filter((one) => pids.has(one.pid))
    .flatMap((one) => (one.state?.callers || []).map((caller) => ({ ...caller, pid: one.pid }))));
}

whenLooking(drawSessions);
