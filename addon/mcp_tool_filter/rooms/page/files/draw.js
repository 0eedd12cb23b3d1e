// Makes elements and redraws them. All text goes in as text: tool names are not ours.

const SVG = "http://www.w3.org/2000/svg";
const SECOND = 1000;

export function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== "" && child !== null));
  return made;
}

export function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function button(text, label, action, attributes = {}) {
  const made = element("button", { type: "button", "aria-label": label, ...attributes }, text);
  made.onclick = action;
  return made;
}

// Redraws what has changed and leaves the rest in place, so that a click or a selection survives.
// A button never becomes another one: a click that comes late would press the wrong one.
export function show(place, ...wanted) {
  const had = [...place.childNodes];
  const made = wanted.flat().filter((one) => one !== "" && one !== null)
    .map((one) => (one instanceof Node ? one : document.createTextNode(one)));
  made.forEach((one, at) => (at < had.length ? renew(had[at], one) : place.append(one)));
  had.slice(made.length).forEach((one) => one.remove());
}

function renew(old, made) {
  const isOther = made.nodeName === "BUTTON"
    && old.getAttribute?.("aria-label") !== made.getAttribute("aria-label");
  if (old.nodeName !== made.nodeName || isOther) {
    old.replaceWith(made);
  } else if (made instanceof Text) {
    if (old.data !== made.data) old.data = made.data;
  } else {
    for (const name of old.getAttributeNames()) {
      const isOurs = name === "open" || name === "style";  // set by a reader, or by a script
      if (!made.hasAttribute(name) && !isOurs) old.removeAttribute(name);
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

export function isPressed() {
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

// Words and numbers

export function number(value) {
  return (value ?? 0).toLocaleString("en");
}

export function counted(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

// 39,083 tokens are 39.1k where there is little room.
export function short(value) {
  if (value < 1000) return String(value);
  return value < 100_000 ? `${(value / 1000).toFixed(1)}k` : `${Math.round(value / 1000)}k`;
}

export function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  return bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / 1048576).toFixed(1)} MB`;
}

export function ago(seconds) {
  if (seconds === null) return "open";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

export function laidOut(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export function copying(text, what, name = "Copy") {
  const made = button(name, `Copy ${what}`, async () => {
    await navigator.clipboard.writeText(text).catch(() => prompt(`Copy ${what}`, text));
    made.textContent = "Copied";
    setTimeout(() => { made.textContent = name; }, 2 * SECOND);
  }, { class: "small" });
  return made;
}
