// The servers at the left, and what is said above the tabs about the chosen one.

import { button, copying, counted, element, number, short, show } from "./draw.js";
import { ownProcess, processes, servers } from "./model.js";
import { look, view, whenLooking } from "./view.js";

const place = document.getElementById("servers");
const about = document.getElementById("about");
const STATES = { runs: "running", broken: "broken", starting: "starting", ended: "ended" };
let isOpen = false;  // on a phone, the list is closed at first

function stateOf(one) {
  if (one.state === "runs" && one.listener?.shadow) return "shadow";
  if (one.state === "runs" && (one.waiting || one.listener?.warnings?.length)) return "warned";
  return one.state;
}

function line(one, label) {
  const isChosen = view.server === one.id;
  const made = button("", label, () => { isOpen = false; look({ server: one.id }, true); },
    { class: `server ${one.state}`, "aria-current": isChosen ? "true" : undefined, title: one.problem || one.target || undefined, "data-server": one.id });
  made.append(element("span", { class: `dot ${stateOf(one)}`, "aria-hidden": "true" }),
    element("span", { class: "called" }, one.mark ? element("small", {}, `${one.mark} `) : "", one.name),
    element("span", { class: "number" }, one.tools === null ? "–" : number(one.tools)),
    element("span", { class: "number" }, one.tools === null ? "–" : short(one.tokens)),
    element("span", { class: "number" }, one.calls ? short(one.calls) : "0"));
  if (one.problem) made.append(element("span", { class: "problem" }, one.problem));
  return element("li", {}, made);
}

function labelOf(one) {
  const said = [one.name, STATES[one.state] || one.state];
  if (one.tools !== null) said.push(counted(one.tools, "tool"), counted(one.tokens, "token"));
  said.push(counted(one.calls, "call"));
  if (one.problem) said.push(one.problem);
  return said.join(", ");
}

// What merges others has no tools of its own to count.
function total(all) {
  const live = all.filter((one) => one.state !== "ended" && (!one.isMerged || all.length === 1));
  const sum = (name) => live.reduce((found, one) => found + (one[name] || 0), 0);
  return { id: "", name: "All servers", state: all.some((one) => one.state === "broken") ? "broken" : "runs",
    problem: "", tools: sum("tools"), hidden: sum("hidden"), tokens: sum("tokens"), calls: sum("calls"),
    failed: sum("failed"), refused: sum("refused"), live, saved: live.reduce((found, one) => found + (one.listener?.saved_bytes || 0), 0) };
}

export function drawServers() {
  const all = servers();
  const every = total(all);
  const chosen = all.find((one) => one.id === view.server);
  const opens = button("", `Servers: ${chosen ? chosen.name : "all"}`, () => { isOpen = !isOpen; drawServers(); },
    { class: "opens", "aria-expanded": String(isOpen), "aria-controls": "server-list" });
  opens.append(element("span", {}, chosen ? chosen.name : "All servers"), element("span", { class: "quiet" }, counted(all.length, "server")));
  const marked = all.map((one) => ({ ...one,
    mark: one.state === "ended" ? "ended" : one.state === "starting" ? "starting" : one.listener?.shadow ? "only watched" : "" }));
  show(place, opens, element("div", { id: "server-list", class: isOpen ? "open" : "" },
    element("div", { class: "server heads", "aria-hidden": "true" }, element("span", {}), element("span", {}, "Server"),
      element("span", { class: "number" }, "Tools"), element("span", { class: "number" }, "Tokens"), element("span", { class: "number" }, "Calls")),
    element("ul", {}, line(every, `All servers, ${labelOf(every).split(", ").slice(2).join(", ")}`), ...marked.map((one) => line(one, labelOf(one)))),
    all.length ? "" : element("p", { class: "quiet none" }, ownProcess()?.state.only_running
      ? "No filter is running." : "No upstream yet: the filter is fetching its tools."),
    all.length && all.every((one) => one.state === "ended") ? element("p", { class: "quiet none" }, "No filter is running.") : ""));
  drawAbout(chosen, every, all);
}

function figure(label, value, more, kind = "") {
  return element("div", { "data-figure": label, class: kind }, element("dt", {}, label),
    element("dd", {}, typeof value === "string" ? value : number(value), more ? [" ", element("small", {}, more)] : ""));
}

function figures(one, saved, isShadow) {
  if (one.tools === null && one.state !== "ended") return "";  // nothing is known of it
  return element("dl", { class: "figures" },
    figure("Exposed", one.tools ?? "–", one.tools === 1 ? "tool" : "tools"),
    figure(isShadow ? "Would be hidden" : "Hidden", one.hidden, one.hidden === 1 ? "tool" : "tools"),
    figure("Tokens", one.tokens, "in every conversation"),
    figure("Context saved", saved, "bytes a list"),
    figure("Calls", one.calls), figure("Failed", one.failed, "", one.failed ? "failed" : ""),
    figure("Refused", one.refused, "", one.refused ? "refused" : ""),
    one.listener?.shadow || one.listener?.reported ? figure("Only reported", one.listener.reported) : "");
}

// The URL for clients, or the entry in a client's file that starts the server; with what copies it.
function url(one) {
  if (!one.url) return "";
  const isHttp = /^https?:/.test(one.url);
  const start = isHttp ? { type: "http", url: one.url } : one.entry;
  const entry = JSON.stringify({ [one.name.replace(/[^\w.-]+/g, "-")]: start }, null, 2);
  const copyEntry = start ? copying(entry, "the entry for a client's file", "Copy entry") : "";
  if (!isHttp) return element("p", { class: "url" }, element("span", { class: "quiet" }, "Its client started it, over stdio."), copyEntry);
  return element("p", { class: "url" }, element("span", { class: "quiet" }, one.isMerged && one.id !== view.server ? "One URL for all servers" : "URL for clients"), element("code", {}, one.url), " ",
    copying(one.url, "the URL for clients"), copyEntry);
}

function drawAbout(one, every, all) {
  if (!one) {
    const notes = all.filter((each) => each.state !== "ended" && each.listener?.warnings?.length).map((each) => each.name);
    const isShadow = all.length > 0 && all.every((each) => each.listener?.shadow);
    const only = all.length === 1 ? all[0] : null;
    show(about, element("h2", {}, only ? only.name : "All servers"),
      only ? element("p", { class: "quiet target" }, [only.target, only.about].filter(Boolean).join(" · ")) : "",
      url(only || all.find((each) => each.isMerged) || {}),
      ...notices(only), figures({ ...every, listener: only?.listener }, every.saved, isShadow),
      !only && notes.length ? element("p", { class: "quiet" }, `Warnings: ${notes.slice(0, 8).join(", ")}${notes.length > 8 ? " …" : ""}`) : "",
      ...(only ? [rules(only)] : []));
    return;
  }
  show(about, element("h2", {}, one.name, one.state === "ended" ? element("small", {}, " ended") : ""),
    element("p", { class: "quiet target" }, [one.target, one.about, one.process.isOwn ? "" : `pid ${one.pid}`].filter(Boolean).join(" · ")),
    one.problem ? element("p", { class: "warning" }, one.problem) : "", url(one), ...notices(one),
    figures(one, one.listener?.saved_bytes || 0, one.listener?.shadow), rules(one));
}

function notices(one) {
  if (!one?.listener) return [];
  const said = [...(one.listener.warnings || [])].slice(0, 20).map((text) => element("p", { class: "warning" }, text));
  if (one.listener.shadow) {
    said.unshift(element("p", { class: "warning", "data-shadow": "" },
      "Nothing is enforced: this filter only reports what it would hide, refuse or change."));
  }
  return said;
}

function rules(one) {
  const all = one.listener?.rules || [];
  if (!all.length) return "";
  return element("details", { class: "rules", open: all.length < 6 }, element("summary", {}, `Rules (${all.length})`),
    element("table", { "aria-label": "Rules" }, element("tbody", {}, ...all.slice(0, 100).map((rule) =>
      element("tr", { class: "rule" }, element("td", {}, element("code", {}, rule.id)), element("td", { class: "number" }, counted(rule.hits, "hit")))))));
}

whenLooking(drawServers);
