// Activity: one line a message, and a panel with its request, answer, verdict and why.

import { charts } from "./charts.js";
import { button, copying, counted, element, laidOut, number, show, size } from "./draw.js";
import { ask } from "./link.js";
import { List } from "./list.js";
import { messages, ownProcess, processes, servers } from "./model.js";
import { openPanel } from "./panel.js";
import { look, view, whenLooking } from "./view.js";

const SECOND = 1000;
const SOME = 50;  // tools and clients that a filter offers
const OUTCOMES = ["ok", "failed", "refused", "reported"];

const place = document.getElementById("activity");
const drawnCharts = element("div", { id: "charts", class: "charts" });
const filters = element("form", { id: "filters", class: "bar", role: "search", "aria-label": "Messages to show" });
const count = element("span", { class: "count", id: "shown-messages" });
const empty = element("div", {});
place.append(drawnCharts, filters);

let frozen = null;  // the messages that are shown while it is paused
let seen = 0;  // how many there were then

const search = element("input", { type: "search", name: "q", placeholder: "Search messages  /",
  "aria-label": "Search the messages" });
const tool = element("input", { name: "tool", list: "tool-names", placeholder: "Tool", "aria-label": "Tool", autocomplete: "off" });
const toolNames = element("datalist", { id: "tool-names" });
const client = element("select", { name: "client", "aria-label": "Client" });
const server = element("select", { name: "server", "aria-label": "Server" });
const outcome = element("select", { name: "outcome", "aria-label": "Outcome" });
const pause = button("Pause", "Pause: show no new messages", () => setPause(!frozen),
  { "aria-pressed": "false", id: "pause" });
const clear = button("Clear", "Clear the filters", () =>
  look({ q: "", tool: "", client: "", outcome: "", server: "" }), { id: "clear" });
const save = button("Export", "Export the shown messages as JSON", () => download(), { id: "export" });

for (const [box, name] of [[search, "q"], [tool, "tool"], [client, "client"], [outcome, "outcome"],
  [server, "server"]]) {
  for (const event of ["input", "change"]) {
    box.addEventListener(event, () => { if (view[name] !== box.value) look({ [name]: box.value }); });
  }
}
filters.addEventListener("submit", (event) => event.preventDefault());
filters.append(search, server, client, tool, toolNames, outcome, clear, count, pause, save);

const list = new List(place, {
  label: "Messages",
  columns: [["Time", "time"], ["Server", "of"], ["Client", "client"], ["Message", "what"],
    ["Verdict", "verdict"], ["ms", "number"]],
  key: (one) => one.key,
  kind: (one) => `message ${one.outcome}${one.outcome === "ok" ? "" : ` ${one.outcome}-message`}`,
  cells: (one) => [clock(one.entry), one.of, one.client, named(one), one.verdict,
    one.entry.upstream_ms === undefined ? "" : one.entry.upstream_ms.toFixed(1)],
  open: (one, takesFocus) => details(one, takesFocus),
  nothing: empty,
});

function clock(entry) {
  return String(entry.time || "").slice(11, 19);
}

function named(one) {
  return element("span", { title: `${one.method} ${one.subject}` },
    one.subject ? [element("span", { class: "quiet" }, `${one.method} `), element("code", {}, one.subject)] : one.method);
}

// Filters

function matching() {
  const text = view.q.toLowerCase();
  const [wanted, chosen] = [view.tool.toLowerCase(), chosenServer()];
  return (frozen || messages).filter((one) =>
    (!view.server || (chosen && one.server === chosen.key))
    && (!view.client || one.client === view.client)
    && (!view.outcome || one.outcome === view.outcome)
    && (!wanted || one.subject.toLowerCase().includes(wanted))
    && (!text || one.text.includes(text))).reverse();
}

function chosenServer() {
  return servers().find((one) => one.id === view.server) || null;
}

function offer(box, label, values, now) {
  const all = [...new Set([...values, now])].filter(Boolean).sort();
  const wanted = ["", ...all];
  if (wanted.length !== box.options.length || wanted.some((value, at) => box.options[at].value !== value)) {
    box.replaceChildren(...wanted.map((value) => element("option", { value }, value || label)));
  }
  box.value = now;
}

function mostUsed(name) {
  const counts = new Map();
  for (const one of messages) if (one[name]) counts.set(one[name], (counts.get(one[name]) || 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]).slice(0, SOME).map(([value]) => value);
}

function setPause(isPaused) {
  frozen = isPaused ? [...messages] : null;
  seen = messages.length ? messages.at(-1).key : 0;
  drawActivity();
}

function missed() {
  if (!frozen) return 0;
  const at = messages.findLastIndex((one) => one.key === seen);
  return messages.length - 1 - at;
}

export function drawActivity() {
  if (place.hidden) return;
  for (const [box, value] of [[search, view.q], [tool, view.tool]]) {
    if (box.value !== value) box.value = value;
  }
  offer(server, "All servers", servers().map((one) => one.id), view.server);
  offer(client, "All clients", mostUsed("client"), view.client);
  offer(outcome, "All outcomes", OUTCOMES, view.outcome);
  const names = mostUsed("tool");
  if (names.join() !== [...toolNames.children].map((one) => one.value).join()) {
    toolNames.replaceChildren(...names.map((value) => element("option", { value })));
  }
  show(drawnCharts, ...charts([...processes.values()].filter((one) => !one.ended)));
  const found = matching();
  const all = frozen || messages;
  count.textContent = found.length === all.length ? counted(all.length, "message")
    : `${number(found.length)} of ${counted(all.length, "message")}`;
  const isFiltered = view.q || view.tool || view.client || view.outcome || view.server;
  clear.hidden = !isFiltered;
  const more = missed();
  pause.textContent = frozen ? `Resume${more ? ` (${number(more)} new)` : ""}` : "Pause";
  pause.setAttribute("aria-pressed", Boolean(frozen));
  show(empty, ...(found.length ? [] : nothing(all.length)));
  list.set(found);
}

function nothing(all) {
  if (all) return [element("p", { class: "quiet" }, "No message fits these filters.")];
  const urls = servers().filter((one) => /^https?:/.test(one.url));
  const found = [element("p", {}, element("strong", {}, "No messages yet."))];
  if (urls.length) {
    urls.sort((one, other) => other.isMerged - one.isMerged);  // the one for all comes first
    found.push(element("p", { class: "quiet" }, urls.length === 1 ? "Give this URL to a client:" : "Give one of these URLs to a client:"),
      element("ul", { class: "urls" }, ...urls.slice(0, 12).map((one) =>
        element("li", {}, element("code", {}, one.url), " ", copying(one.url, one.url)))));
  } else if (ownProcess()?.state.only_running && !servers().length) {
    found.push(element("p", { class: "quiet" }, "No filter is running. Put the filter in front of your servers:"),
      element("pre", {}, "mcp-tool-filter"));
  }
  return found;
}

async function download() {
  const found = [];
  for (const { entry, pid } of matching()) {
    const { number: at, details: has, ...line } = entry;
    found.push(has ? { ...line, ...await ask("details", { pid, number: at }) } : line);
  }
  const file = new Blob([JSON.stringify(found, null, 2)], { type: "application/json" });
  const link = element("a", { href: URL.createObjectURL(file), download: "mcp-messages.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10 * SECOND);
}

// The panel

let wanted = null;

async function details(one, takesFocus) {
  wanted = one.key;
  const title = `${one.method} ${one.subject}`.trim();
  if (takesFocus || !one.entry.details) openPanel(list, one.key, title, [facts(one)], takesFocus);
  if (!one.entry.details) return;
  const found = await ask("details", { pid: one.pid, number: one.entry.number })
    .catch((error) => ({ problem: error.message }));
  if (wanted !== one.key) return;  // another one was opened meanwhile
  const parts = [["problem", "Problem"], ["arguments", "Request"], ["result", "Answer"]]
    .filter(([name]) => found[name])
    .map(([name, head]) => element("section", {}, element("h3", {}, head), element("pre", {}, laidOut(found[name]))));
  openPanel(list, one.key, title, [facts(one), ...parts], false);
}

function facts(one) {
  const { entry } = one;
  const why = [["Pattern", entry.pattern], ["Rule", entry.rule], ["Why", entry.why],
    ["Answer", entry.answer_verdict && `${entry.answer_verdict} (${entry.answer_rule || entry.answer_pattern || entry.answer_why || ""})`],
    ["Would be", entry.would]];
  const rows = [["Verdict", element("span", { class: one.outcome }, one.verdict)], ...why,
    ["Error", entry.problem], ["Server", one.of], ["Client", one.client], ["Session", entry.session && entry.session.slice(0, 8)],
    ["From", entry.client], ["Time", String(entry.time || "").replace("T", " ").replace("Z", " UTC")],
    ["Upstream", entry.upstream_ms !== undefined && `${entry.upstream_ms.toFixed(1)} ms`],
    ["Filter", entry.own_ms !== undefined && `${entry.own_ms.toFixed(1)} ms`],
    ["Size", entry.bytes && size(entry.bytes)], ["Answer size", entry.answer_bytes && size(entry.answer_bytes)],
    ["Saved", entry.saved_bytes && size(entry.saved_bytes)],
    ["Flow", ownProcess()?.state.flows && entry.flow
      && element("a", { href: `/#/flows/${encodeURIComponent(entry.flow)}/response` }, "Open in mitmweb")]];
  return element("dl", { class: "facts" }, ...rows.filter(([, value]) => value)
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

export function focusSearch() {
  search.focus();
}

whenLooking(drawActivity);
