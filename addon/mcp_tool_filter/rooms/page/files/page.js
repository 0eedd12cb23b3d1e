// Brings the parts together: asks what is new once a second, and draws what is looked at.

import { drawActivity, focusSearch } from "./activity.js";
import { allWaiting, drawApprovals, onFailure } from "./approvals.js";
import { drawChanges, onChange } from "./changes.js";
import { isPressed } from "./draw.js";
import { ask } from "./link.js";
import * as model from "./model.js";
import { closePanel } from "./panel.js";
import { drawServers } from "./servers.js";
import { drawSessions } from "./sessions.js";
import { drawTools, focusToolSearch } from "./tools.js";
import { look, view, whenLooking } from "./view.js";

const SECOND = 1000;
const live = document.getElementById("live");
const refused = document.getElementById("refused");
const tabs = [...document.querySelectorAll("[role=tab]")];

// Tabs

function nameOf(tab) {
  return tab.getAttribute("aria-controls");
}

function drawTabs() {
  for (const tab of tabs) {
    const isChosen = nameOf(tab) === view.tab;
    tab.setAttribute("aria-selected", isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
    document.getElementById(nameOf(tab)).hidden = !isChosen;
  }
}

for (const tab of tabs) {
  tab.addEventListener("click", () => look({ tab: nameOf(tab) }, true));
  tab.addEventListener("keydown", ({ key }) => {
    const at = tabs.indexOf(tab) + ({ ArrowRight: 1, ArrowLeft: -1 }[key] || 0);
    const to = { Home: tabs[0], End: tabs.at(-1) }[key] || tabs.at(at % tabs.length);
    if (to !== tab) {
      look({ tab: nameOf(to) }, true);
      to.focus();
    }
  });
}

let tabBefore = view.tab;
let serverBefore = view.server;
whenLooking(() => {
  if (tabBefore !== view.tab || serverBefore !== view.server) closePanel();
  [tabBefore, serverBefore] = [view.tab, view.server];
  draw();
});

addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input, select, textarea");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (view.tab === "tools") focusToolSearch();
    else {
      if (view.tab !== "activity") look({ tab: "activity" });
      focusSearch();
    }
  }
});

// Drawing

function draw() {
  const focused = document.activeElement?.getAttribute?.("aria-label");
  const isIn = document.activeElement?.closest?.("#servers, #pending");
  drawTabs();
  drawServers();
  const waits = allWaiting().length;
  document.getElementById("tab-approvals").textContent = waits ? `Approvals (${waits})` : "Approvals";
  drawActivity();
  drawTools();
  drawApprovals();
  drawSessions();
  drawChanges().catch(late);
  if (focused && isIn && !document.activeElement?.closest?.("#servers, #pending")) {  // a keyboard stays where it was
    const begin = focused.split(",")[0];
    [...isIn.querySelectorAll("button")].find((one) => one.getAttribute("aria-label").split(",")[0] === begin)?.focus();
  }
}

function late(error) {
  document.body.classList.add("late");
  live.textContent = `Not up to date: ${error.message}`;
}

onChange((how) => {
  if (how?.again) lookHere().then(lookAround).catch(late);
  else draw();
}, late);
onFailure(late);

// What is new

const texts = {};  // what was answered last
let isNew = true;
const isWaiting = [];  // messages that are not shown yet

async function lookHere() {
  const state = await ask("look", { after: model.ownProcess()?.last || 0 });
  isWaiting.push(...model.take(state, { isOwn: true }));
  document.getElementById("flows").hidden = !state.flows;
  if (state.refused_edit) {
    refused.textContent = `The last edit of an option was not adopted. ${state.refused_edit}`;
  } else if (refused.textContent.startsWith("The last edit")) {
    refused.textContent = "";
  }
  drawIfNew("here", JSON.stringify(state));
  document.body.classList.remove("late");
  if (live.textContent !== "Live") live.textContent = "Live";
}

async function lookAround() {
  const { running, pid } = await ask("others", { after: model.afterOf() });
  const pids = new Set([pid]);
  for (const { state, ...said } of running) {
    if (said.pid === pid) continue;
    pids.add(said.pid);
    if (state) isWaiting.push(...model.take(state, { said }));
    else model.note(said.pid, said);
  }
  model.end(pids);
  const ended = [...model.processes.values()].filter((one) => one.ended).length;
  drawIfNew("around", JSON.stringify([running, ended, model.processes.size]));
}

function drawIfNew(name, text) {
  isNew ||= texts[name] !== text || isWaiting.length > 0;
  texts[name] = text;
  if (!isNew || isPressed()) return;
  isNew = false;
  model.add(isWaiting.splice(0));
  draw();
}

async function repeat(doing, failed) {
  await doing().catch(failed);
  setTimeout(() => repeat(doing, failed), SECOND);
}

drawTabs();
repeat(lookHere, late).then(() => repeat(lookAround, () => {}));  // the first one says what is wrong
