// Approvals: what only the lock hides, with the difference; and what lets it pass.

import { change } from "./changes.js";
import { button, counted, element, show } from "./draw.js";
import { servers, waitingOf } from "./model.js";
import { view, whenLooking } from "./view.js";

const place = document.getElementById("approvals");
const MOST = 1200;  // marked pieces in the document
const opened = new Set();
let late = () => {};

export function onFailure(fail) {
  late = fail;
}

export function allWaiting() {
  const seen = new Set();
  return servers().filter((one) => one.process.state && one.state !== "ended" && (!view.server || one.id === view.server))
    .flatMap((server) => {
      const key = `${server.pid}/${server.switches}`;
      if (seen.has(key)) return [];
      seen.add(key);
      return waitingOf(server.process, server.switches).map((one) => ({ server, one }));
    });
}

export function drawApprovals() {
  if (place.hidden) return;
  const all = allWaiting();
  if (!all.length) {
    show(place, element("div", { class: "nothing" }, element("p", {}, element("strong", {}, "Nothing waits for approval.")),
      element("p", { class: "quiet" }, "With a lock (--lock FILE), tools that are new or have changed wait here.")));
    return;
  }
  let room = MOST;
  show(place, element("h2", {}, "Waiting for approval"),
    element("p", { class: "quiet" }, `The lock hides ${all.length === 1 ? "this tool" : `these ${all.length} tools`}. Read what they say before you approve.`),
    ...all.map(({ server, one }) => {
      room -= one.lines.reduce((sum, line) => sum + line.pieces.filter((piece) => piece.style).length, 8);
      return approval(server, one, room > 0 || opened.has(one.token));
    }));
}

function approval(server, one, isOpen) {
  const of = server.switches ? ` of ${server.name}` : "";
  const title = element("h3", {}, one.is_new ? "New: " : "Changed: ", element("code", {}, one.name), of);
  if (!isOpen) {
    return element("div", { "data-waiting": one.name, class: "card" }, title,
      button(`Show ${counted(one.lines.length, "line")}`, `Show ${one.name}${of}`, () => { opened.add(one.token); drawApprovals(); }));
  }
  const said = element("pre", { class: "diff" });
  one.lines.forEach(({ indent, pieces }) => said.append(" ".repeat(Math.max(0, indent - 2)),
    ...pieces.map(({ text, style }) => (style ? element({ "-": "del", "+": "ins", "!": "strong" }[style] || "span", {}, text) : text)), "\n"));
  if (one.more) said.append(`… and ${counted(one.more, "line")} more`);
  return element("div", { "data-waiting": one.name, class: "card" }, title, said,
    one.token ? button("Approve", `Approve ${one.name}${of}`,
      () => change("approve", server, { token: one.token }).catch(late), { class: "main" }) : "");
}

whenLooking(drawApprovals);
