// What was switched but not applied yet, what was applied, and how the file would change.

import { button, counted, element, isPressed, show } from "./draw.js";
import { ask } from "./link.js";
import { processes, servers } from "./model.js";

const place = document.getElementById("pending");
const changes = new Map();  // by process and server, or "" if all share their patterns
const saving = new Map();  // likewise: how the file would change
const previews = new Map();  // likewise: what was asked, and the answer
let redraw = () => {};
let late = () => {};

export function onChange(drawAll, fail) {
  redraw = drawAll;
  late = fail;
}

function slot({ pid, switches }) {
  return `${pid}/${switches}`;
}

function changesOf(server) {
  const key = slot(server);
  if (!changes.has(key)) changes.set(key, { hide: new Set(), show: new Set() });
  return changes.get(key);
}

export function isHidden(server, tool) {
  const { hide, show: shown } = changesOf(server);
  if (hide.has(tool.id)) return true;
  return shown.has(tool.id) ? false : !tool.exposed;
}

export function changed(server, tool) {
  return isHidden(server, tool) === tool.exposed;
}

function plan(server, tool, hides) {
  const { hide, show: shown } = changesOf(server);
  hide.delete(tool.id);
  shown.delete(tool.id);
  if (hides && tool.exposed) hide.add(tool.id);
  if (!hides && !tool.exposed && tool.by_deny) shown.add(tool.id);
  saving.delete(slot(server));
}

export function toggle(server, tool) {
  plan(server, tool, !isHidden(server, tool));
  redraw();
}

export function hideAll(found, hides) {
  for (const { server, tool } of found) if (server.canSwitch) plan(server, tool, hides);
  redraw();
}

// Each process has patterns for all of its servers, or each of its servers has its own.
function owners() {
  const found = new Map();
  for (const one of servers()) {
    if (one.canSwitch && one.state !== "ended" && !found.has(slot(one))) found.set(slot(one), one);
  }
  return [...found.values()];
}

let drawing = 0;

export async function drawChanges() {
  drawing += 1;
  const number = drawing;
  const panels = (await Promise.all(owners().map(panel))).filter(Boolean);
  if (number !== drawing) return null;  // a preview was slow: what is drawn later is newer
  if (isPressed()) return setTimeout(() => drawChanges().catch(late), 300);
  place.hidden = !panels.length;
  return show(place, ...panels);
}

async function preview(server, said) {
  const key = slot(server);
  const asked = JSON.stringify([said, nowOf(server).deny, nowOf(server).except]);
  if (previews.get(key)?.asked !== asked) {
    previews.set(key, { asked, found: await ask("preview", { pid: server.pid, server: server.switches, ...said }) });
  }
  return previews.get(key).found;
}

function nowOf({ pid, switches }) {
  const { state } = processes.get(pid);
  return switches ? state.servers[switches] : state;
}

async function panel(server) {
  const { hide, show: shown } = changesOf(server);
  const of = server.switches || owners().length > 1 ? ` of ${server.name}` : "";
  const name = of ? element("strong", {}, `${server.name}: `) : "";
  const now = nowOf(server);
  if (hide.size + shown.size) {
    const found = await preview(server, { hide: [...hide], show: [...shown] });
    const said = `${counted(hide.size, "tool")} to hide, ${shown.size} to show.`;
    const back = button("Discard", `Discard the changes${of}`,
      () => { changes.delete(slot(server)); redraw(); });
    if (found.problem) {
      return element("div", {}, element("p", {}, name, said), element("p", { class: "warning" }, found.problem), back);
    }
    const how = server.switches ? " To keep this after a restart, save it, or write:"
      : " To keep this after a restart, use:";
    return element("div", {}, element("p", {}, name, said + how),
      element("pre", {}, found.command || "(no pattern)"),
      button("Apply", `Apply the changes${of}`,
        () => change("apply", server, { deny: found.deny, except: found.except }), { class: "main" }), back);
  }
  if (!now.can_undo) return null;
  if (saving.has(slot(server))) return element("div", {}, name, ...planned(server, of, saving.get(slot(server))));
  return element("div", {},
    element("p", {}, name, "The patterns were changed on this page. Now active:"),
    element("pre", {}, now.command || "(no pattern)"),
    button("Undo the last change", `Undo the last change${of}`, () => change("undo", server, {})),
    now.file ? button(`Save in ${now.file.split(/[\\/]/).pop()} …`, `Save the patterns${of}`,
      () => save(server).catch(late), { class: "main" }) : "");
}

function planned(server, of, found) {
  const back = button(found.token ? "Cancel" : "Close", `Do not save the patterns${of}`,
    () => { saving.delete(slot(server)); redraw(); });
  if (found.problem) return [element("p", { class: "warning" }, found.problem), back];
  if (found.saved) return [element("p", {}, `Saved in ${found.file}.`), back];
  const more = found.note ? [element("p", { class: "warning" }, found.note)] : [];
  if (!found.diff) return [element("p", {}, `${found.file} has these patterns.`), ...more, back];
  return [element("p", {}, `This changes in ${found.file}:`), diff(found.diff), ...more,
    button("Write the file", `Write the file${of}`, () => save(server, found).catch(late), { class: "main" }), back];
}

function diff(text) {
  const kinds = { "+": "ins", "-": "del" };
  return element("pre", { class: "diff" }, ...text.split("\n").flatMap((line) =>
    [kinds[line[0]] && !/^(\+\+\+|---) /.test(line) ? element(kinds[line[0]], {}, line) : line, "\n"]));
}

async function save(server, { token = "", file = "" } = {}) {
  saving.set(slot(server), { file, ...await ask("save", { pid: server.pid, server: server.switches, token }) });
  redraw();
}

export async function change(path, server, body) {
  const { problem } = await ask(path, { pid: server.pid, server: server.switches, ...body });
  document.getElementById("refused").textContent = problem || "";
  if (!problem) changes.delete(slot(server));
  saving.delete(slot(server));
  redraw({ again: true });
}
