// A long list of which only the visible rows are in the document: ten thousand messages stay quick.
//
// One row has the focus, the arrow keys move it, Enter opens it. A row is kept while it is visible,
// so that a click or a selection in it survives; one with the focus is kept in any case.

import { element } from "./draw.js";

const BESIDE = 8;  // rows above and below the visible ones
const narrow = matchMedia("(max-width: 44rem)");

export class List {
  // `columns` are [title, class, sort]; `cells` returns the content of each for an item.
  constructor(place, { label, columns, cells, key, kind = () => "", open = () => {}, press, nothing }) {
    Object.assign(this, { cells, key, kind, open, press });
    this.items = [];
    this.places = new Map();  // the place of an item in the list, by its key
    this.rows = new Map();
    this.active = null;
    this.heads = columns;
    this.head = element("div", { class: "row head", role: "row" });
    this.body = element("div", { class: "rows", role: "rowgroup" });
    this.nothing = element("div", { class: "nothing" }, nothing || "");
    this.scrolled = element("div", { class: "list", role: "grid", "aria-label": label,
      "aria-colcount": columns.length },
    element("div", { role: "rowgroup", class: "heads" }, this.head), this.body);
    this.place = element("div", { class: "listed" }, this.scrolled, this.nothing);
    place.append(this.place);
    this.drawHeads();
    this.scrolled.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.scrolled);
    narrow.addEventListener("change", () => this.draw());
    this.body.addEventListener("keydown", (event) => this.onKey(event));
    this.body.addEventListener("click", (event) => this.onClick(event));
  }

  drawHeads(sort = "", onSort = null) {
    this.head.replaceChildren(...this.heads.map(([title, kind, by]) => {
      const cell = element("div", { role: "columnheader", class: kind });
      if (by && onSort) {
        const [order, name] = [sort.startsWith("-") ? "descending" : "ascending", sort.replace("-", "")];
        if (name === by) cell.setAttribute("aria-sort", order);
        const made = element("button", { type: "button" }, title);
        made.onclick = () => onSort(by);
        cell.append(made);
      } else {
        cell.append(title ? element("span", {}, title) : element("span", { class: "unseen" }, "Switch"));
      }
      return cell;
    }));
  }

  get height() {
    return narrow.matches ? 48 : 28;
  }

  // Shows other items; what is at the top stays there, unless the list is at its beginning.
  set(items) {
    const top = this.scrolled.scrollTop;
    const first = this.items[Math.floor(top / this.height)];
    this.items = items;
    this.places = new Map(items.map((item, at) => [this.key(item), at]));
    this.body.style.height = `${items.length * this.height}px`;
    this.scrolled.setAttribute("aria-rowcount", items.length + 1);
    const at = first && top > 0 ? this.places.get(this.key(first)) : undefined;
    if (at !== undefined) this.scrolled.scrollTop = at * this.height + (top % this.height);
    this.nothing.hidden = items.length > 0;
    this.draw();
  }

  draw() {
    const { height, items, scrolled } = this;
    if (!scrolled.clientHeight) return;  // in a view that is hidden
    this.body.style.height = `${items.length * height}px`;
    const first = Math.max(0, Math.floor(scrolled.scrollTop / height) - BESIDE);
    const last = Math.min(items.length,
      Math.ceil((scrolled.scrollTop + scrolled.clientHeight) / height) + BESIDE);
    const wanted = new Set();
    const focused = this.focused;
    if (focused !== null && this.places.has(focused)) wanted.add(focused);
    for (let at = first; at < last; at += 1) wanted.add(this.key(items[at]));
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    if (!this.places.has(this.active)) this.active = items.length ? this.key(items[first]) : null;
    for (const key of wanted) this.drawRow(key, this.places.get(key));
  }

  get focused() {
    const row = document.activeElement?.closest?.(".row[data-key]");
    return row && this.body.contains(row) ? row.dataset.key : null;
  }

  drawRow(key, at) {
    const item = this.items[at];
    let row = this.rows.get(key);
    if (!row) {
      row = element("div", { role: "row", "data-key": key });
      this.rows.set(key, row);
      this.body.append(row);
    }
    row.style.top = `${at * this.height}px`;
    row.setAttribute("aria-rowindex", at + 2);
    row.className = `row ${this.kind(item)}${at % 2 ? " odd" : ""}`;
    const isActive = key === this.active;
    row.tabIndex = isActive ? 0 : -1;
    row.setAttribute("aria-selected", key === this.opened);
    this.cells(item).forEach((cell, number) => this.drawCell(row, number, cell));
    for (const one of row.querySelectorAll("button")) one.tabIndex = isActive ? 0 : -1;
  }

  // Only a cell that has changed is made anew: a button that is about to be pressed stays.
  drawCell(row, number, cell) {
    const text = cell instanceof Node ? cell.outerHTML : String(cell ?? "");
    row.texts ||= [];
    if (row.texts[number] === text) return;
    row.texts[number] = text;
    const made = element("div", { role: "gridcell", class: this.heads[number][1],
      title: cell instanceof Node ? undefined : text || undefined }, cell ?? "");
    const old = row.children[number];
    if (!old) {
      row.append(made);
      return;
    }
    const had = old.contains(document.activeElement);
    old.replaceWith(made);
    if (had) (made.querySelector("button") || row).focus();
  }

  // Moves the focus to a row, which may have to come into the document first.
  go(at, { focus = true } = {}) {
    if (!this.items.length) return;
    const to = Math.max(0, Math.min(this.items.length - 1, at));
    this.active = this.key(this.items[to]);
    const { scrolled, height } = this;
    const head = this.head.offsetHeight;
    if (to * height < scrolled.scrollTop) scrolled.scrollTop = to * height;
    const end = (to + 1) * height + head - scrolled.clientHeight;
    if (end > scrolled.scrollTop) scrolled.scrollTop = end;
    this.draw();
    if (focus) this.rows.get(this.active)?.focus({ preventScroll: true });
  }

  mark(key) {
    this.opened = key;
    this.draw();
  }

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const at = this.places.get(this.active) ?? 0;
    const page = Math.max(1, Math.floor(this.scrolled.clientHeight / this.height) - 2);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page,
      Home: 0, End: this.items.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.go(to);
      if (this.opened !== undefined && this.opened !== null) this.open(this.items[this.places.get(this.active)], false);
      return;
    }
    if (event.target.closest("button")) return;
    const item = this.items[at];
    if (event.key === "Enter" && item) {
      event.preventDefault();
      this.open(item, true);
    } else if (event.key === " " && item) {
      event.preventDefault();
      (this.press || this.open)(item, true);
    }
  }

  onClick(event) {
    const row = event.target.closest(".row[data-key]");
    if (!row || event.target.closest("button, a")) return;
    if (String(getSelection())) return;  // a text was selected
    this.active = row.dataset.key;
    this.draw();
    row.focus({ preventScroll: true });
    this.open(this.items[this.places.get(this.active)], false);
  }
}
