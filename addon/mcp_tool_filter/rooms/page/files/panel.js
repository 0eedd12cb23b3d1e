// The panel beside a list: the details of a message, or the definition of a tool.

import { button, element, show } from "./draw.js";

const place = document.getElementById("panel");
let list = null;

export function openPanel(from, key, title, parts, takesFocus) {
  list = from;
  list.mark(key);
  place.hidden = false;
  place.parentElement.classList.add("with-panel");
  const name = element("h2", {}, title);
  const close = button("Close", "Close the details", () => closePanel(), { class: "small" });
  place.setAttribute("aria-label", `Details: ${title}`);
  show(place, element("header", {}, name, close), ...parts);
  place.scrollTop = 0;
  if (takesFocus) place.focus();
}

export function isOpenFor(from, key) {
  return !place.hidden && list === from && list.opened === key;
}

export function closePanel() {
  if (place.hidden) return;
  const isInside = place.contains(document.activeElement);
  place.hidden = true;
  place.parentElement.classList.remove("with-panel");
  const [from, key] = [list, list.opened];
  from.mark(null);
  if (isInside && from.places.has(key)) from.go(from.places.get(key));
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !place.hidden) closePanel();
});
