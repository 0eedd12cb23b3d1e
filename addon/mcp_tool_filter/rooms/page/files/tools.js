// Tools: search, sort, switch; what is switched is only planned until it is applied (see changes.js).

import { isHidden, changed, toggle, hideAll } from "./changes.js";
import { button, counted, element, laidOut, number, show } from "./draw.js";
import { ask } from "./link.js";
import { List } from "./list.js";
import { servers } from "./model.js";
import { openPanel } from "./panel.js";
import { look, view, whenLooking } from "./view.js";

const place = document.getElementById("tools");
const bar = element("form", { class: "bar", role: "search", "aria-label": "Tools to show" });
const search = element("input", { type: "search", name: "search", placeholder: "Search tools  /",
  "aria-label": "Search the tools" });
const shown = element("select", { name: "shown", "aria-label": "Which tools" },
  ...[["", "All tools"], ["exposed", "Exposed"], ["hidden", "Hidden"], ["edited", "Edited"]]
    .map(([value, text]) => element("option", { value }, text)));
const count = element("span", { class: "count", id: "shown-tools" });
const all = button("Hide all shown", "Hide all shown tools", () => hideAll(matching(), true), { id: "hide-all" });
const none = button("Show all shown", "Show all shown tools", () => hideAll(matching(), false), { id: "show-all" });
for (const [box, name] of [[search, "search"], [shown, "shown"]]) {
  for (const event of ["input", "change"]) {
    box.addEventListener(event, () => { if (view[name] !== box.value) look({ [name]: box.value }); });
  }
}
bar.addEventListener("submit", (event) => event.preventDefault());
bar.append(search, shown, count, all, none);
const empty = element("div", {});
place.append(bar);

const list = new List(place, {
  label: "Tools",
  columns: [["", "switch"], ["Tool", "name", "name"], ["Server", "of", "server"], ["Says", "about"],
    ["Tokens", "number tokens", "tokens"], ["Calls", "number calls", "calls"]],
  key: ({ server, tool }) => `${server.key}/${tool.id}`,
  kind: ({ server, tool }) => [isHidden(server, tool) ? "hidden-tool" : "shown-tool",
    changed(server, tool) ? "changed" : ""].join(" "),
  cells: (one) => [switchOf(one), named(one), one.server.name, about(one), tokens(one), calls(one.tool)],
  open: (one, takesFocus) => definition(one, takesFocus),
  press: ({ server, tool }) => { if (canSwitch(server, tool)) toggle(server, tool); },
  nothing: empty,
});

function canSwitch(server, tool) {
  return server.state !== "ended" && server.canSwitch && (tool.exposed || tool.by_deny);
}

function switchOf({ server, tool }) {
  const hidden = isHidden(server, tool);
  const of = server.switches || servers().length > 1 ? ` of ${server.name}` : "";
  const made = button("", `${hidden ? "Show" : "Hide"} ${tool.name}${of}`, () => toggle(server, tool),
    { class: hidden ? "toggle" : "toggle on", title: hidden ? "Hidden: show it" : "Shown: hide it" });
  if (!canSwitch(server, tool)) {
    made.disabled = true;
    made.title = server.canSwitch ? `An exception would not expose it (${tool.why})` : "Its server decides";
  }
  return made;
}

function named({ tool }) {
  const marks = tool.marks ? tool.marks.split(", ") : [];
  return element("span", { title: tool.name }, element("code", {}, tool.name),
    tool.called ? element("span", { class: "mark" }, `→ ${tool.called}`) : "",
    tool.edited ? element("span", { class: "mark edited" }, "edited") : "",
    ...marks.map((mark) => element("span", { class: `mark ${mark}` }, mark)));
}

function about({ tool }) {
  return element("span", { title: [tool.why, tool.description].filter(Boolean).join(": ") },
    tool.why ? element("span", { class: "why" }, `${tool.why}${tool.description ? " · " : ""}`) : "", tool.description);
}

function tokens({ tool }) {
  return tool.bytes ? number(tool.tokens) : "";
}

// How often something was called, how often that ended with an error, and how often it was refused.
function calls(tool) {
  if (tool.refused && !tool.calls) return element("span", { class: "refused" }, `${number(tool.refused)} refused`);
  if (!tool.failed) return tool.calls ? number(tool.calls) : "";
  return element("span", {}, `${number(tool.calls)} (`, element("span", { class: "failed" }, `${number(tool.failed)} failed`), ")");
}

const ORDER = {
  name: (one, other) => one.tool.name.localeCompare(other.tool.name),
  server: (one, other) => one.server.name.localeCompare(other.server.name),
  tokens: (one, other) => one.tool.tokens - other.tool.tokens,
  calls: (one, other) => one.tool.calls - other.tool.calls || one.tool.refused - other.tool.refused,
};

function chosen() {
  return servers().filter((one) => one.listener?.tools && (view.server ? one.id === view.server : one.state !== "ended"));
}

// At "All servers", what merges others does not show their tools again.
function candidates() {
  const found = chosen();
  const own = view.server ? found : found.filter((one) => !one.isMerged || found.length === 1);
  return own.flatMap((server) => server.listener.tools.map((tool) => ({ server, tool })));
}

function matching() {
  const text = view.search.toLowerCase();
  const found = candidates().filter(({ server, tool }) =>
    (!text || [tool.name, tool.called, tool.description, tool.marks, tool.why, server.name].join(" ").toLowerCase().includes(text))
    && (!view.shown || { exposed: tool.exposed, hidden: !tool.exposed, edited: tool.edited }[view.shown]));
  const order = ORDER[view.sort.replace("-", "")];
  if (order) found.sort(view.sort.startsWith("-") ? (one, other) => order(other, one) : order);
  return found;
}

function sortBy(name) {
  const first = name === "tokens" || name === "calls" ? `-${name}` : name;
  const other = first.startsWith("-") ? name : `-${name}`;
  look({ sort: view.sort === first ? other : view.sort === other ? "" : first });
}

export function drawTools() {
  if (place.hidden) return;
  if (search.value !== view.search) search.value = view.search;
  shown.value = view.shown;
  list.drawHeads(view.sort, sortBy);
  const [found, every] = [matching(), candidates()];
  const exposed = found.filter(({ tool }) => tool.exposed);
  const sum = exposed.reduce((total, { tool }) => total + tool.tokens, 0);
  count.textContent = `${found.length === every.length ? counted(every.length, "tool") : `${number(found.length)} of ${counted(every.length, "tool")}`}, `
    + `${number(exposed.length)} exposed, ${counted(sum, "token")}`;
  place.classList.toggle("of-one", Boolean(view.server) || servers().length === 1);
  show(empty, element("p", { class: "quiet" }, every.length ? "No tool fits." : "No tools are known."));
  list.set(found);
}

// The definition, beside that of the server if it is edited

async function definition({ server, tool }, takesFocus) {
  const key = `${server.key}/${tool.id}`;
  const found = await ask("definition", { pid: server.pid, listener: server.listener.mode, tool: tool.id })
    .catch((error) => ({ problem: error.message }));
  const facts = element("dl", { class: "facts" }, ...[["Server", server.name],
    ["Clients see", tool.exposed ? tool.called || "it" : `nothing: ${tool.why}`], ["Says", tool.marks],
    ["Tokens", number(tool.tokens)], ["Calls", number(tool.calls)], ["Failed", tool.failed || ""], ["Refused", tool.refused || ""]]
    .filter(([, value]) => value).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const parts = [facts];
  if (found.problem) parts.push(element("p", { class: "quiet" }, found.problem));
  else if (found.own === found.shown) parts.push(element("h3", {}, "Definition"), element("pre", {}, laidOut(found.own)));
  else parts.push(beside(laidOut(found.own), laidOut(found.shown)));
  openPanel(list, key, tool.name, parts, takesFocus);
}

function beside(own, shownText) {
  const [before, after] = [own.split("\n"), shownText.split("\n")];
  const column = (title, lines, others, kind) => element("section", {}, element("h3", {}, title),
    element("pre", {}, ...lines.flatMap((line) => [others.has(line) ? line : element(kind, {}, line), "\n"])));
  return element("div", { class: "beside" },
    column("The server's own", before, new Set(after), "del"), column("What clients see", after, new Set(before), "ins"));
}

export function focusToolSearch() {
  search.focus();
}

whenLooking(drawTools);
