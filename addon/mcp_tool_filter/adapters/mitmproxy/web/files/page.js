// Shows what /mcp/state says, once a second. All text goes in as text: tool names are not ours.
"use strict";

const SECOND = 1000;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function figure(label, value, more) {
  const shown = element("dd", {}, value.toLocaleString("en"));
  if (more) shown.append(" ", element("small", {}, more));
  return element("div", { "data-figure": label }, element("dt", {}, label), shown);
}

function table(kind, heads, rows) {
  const head = element("tr", {}, ...heads.map((text, at) => element("th", cell(at, heads), text)));
  return element("table", { "data-table": kind }, element("thead", {}, head),
    element("tbody", {}, ...rows));
}

function cell(at, heads) {
  return at && /calls|refused|bytes|waiting|ago/i.test(heads[at]) ? { class: "number" } : {};
}

function row(heads, values, kind) {
  return element("tr", kind ? { class: kind } : {},
    ...values.map((value, at) => element("td", cell(at, heads), value)));
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

function tools(listener, exposed) {
  const heads = exposed ? ["Tool", "Calls", "Bytes"] : ["Tool", "Why", "Refused"];
  const rows = listener.tools.filter((tool) => tool.exposed === exposed).map((tool) => {
    const name = element("code", { title: tool.name }, tool.name);
    const values = exposed
      ? [name, tool.calls || "", tool.bytes.toLocaleString("en")]
      : [name, element("code", {}, tool.why), tool.refused || ""];
    return row(heads, values, exposed ? "shown-tool" : "hidden-tool");
  });
  return exposed
    ? part("Exposed tools", heads, rows, "None: clients see no tool at all.")
    : part("Hidden tools", heads, rows, "None: nothing is denied.");
}

function sessions(listener) {
  const heads = ["Session", "Revision", "Waiting", "Seen ago"];
  const rows = listener.sessions.map((one) =>
    row(heads, [element("code", {}, one.id), one.revision, one.waiting, ago(one.seconds_ago)]));
  return part("Sessions", heads, rows, "None is known at the moment.");
}

function refusals(listener) {
  const heads = ["Refused", "Why", "Time ago"];
  const rows = listener.refusals.slice(0, 20).map((one) =>
    row(heads, [element("code", { title: one.tool }, one.tool), element("code", {}, one.why),
      ago(one.seconds_ago)]));
  return part("Last refusals", heads, rows, "Nothing has been refused.");
}

function section(listener) {
  const about = `${listener.server}, ${listener.transport}, ${listener.revision}`;
  const saved = `bytes, about ${listener.saved_tokens} tokens per tools/list`;
  return element("section", { "data-mode": listener.mode },
    element("h2", {}, listener.upstream),
    element("p", { class: "quiet" }, about),
    ...listener.warnings.map((text) => element("p", { class: "warning" }, text)),
    element("dl", {},
      figure("Exposed", listener.exposed, "tools"),
      figure("Hidden", listener.hidden, "tools"),
      figure("Context saved", listener.saved_bytes, saved),
      figure("Lists given", listener.lists),
      figure("Calls", listener.calls),
      figure("Refused", listener.refused),
      figure("Messages", listener.messages)),
    element("div", { class: "columns" },
      element("div", {}, tools(listener, false), refusals(listener), sessions(listener)),
      element("div", {}, tools(listener, true))));
}

let last = "";

async function update() {
  const live = document.getElementById("live");
  try {
    const answer = await fetch("/mcp/state", { credentials: "same-origin" });
    if (!answer.ok) throw new Error(answer.status === 403 ? "Log in again" : answer.status);
    const text = await answer.text();
    if (text !== last) {  // so that a selection in the page survives
      last = text;
      const { listeners, refused_edit: refused } = JSON.parse(text);
      document.getElementById("refused").textContent =
        refused && `The last edit of an option was not adopted. ${refused}`;
      if (listeners.length) {
        document.getElementById("listeners").replaceChildren(...listeners.map(section));
      }
    }
    document.body.classList.remove("late");
    live.textContent = "Live";
  } catch (error) {
    document.body.classList.add("late");
    live.textContent = `Not up to date: ${error.message}`;
  }
  setTimeout(update, SECOND);
}

update();
