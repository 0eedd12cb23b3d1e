// What is looked at: the tab, the server and the filters. All of it lives in the address, so that a
// view can be kept as a bookmark, and survives a reload.

const USUAL = { tab: "activity", server: "", q: "", client: "", tool: "", outcome: "",
  search: "", shown: "", sort: "" };

export const view = { ...USUAL };
const onChange = [];

function read() {
  const given = new URLSearchParams(location.search);
  for (const name of Object.keys(USUAL)) view[name] = given.get(name) ?? USUAL[name];
  if (!["activity", "tools", "approvals", "sessions"].includes(view.tab)) view.tab = USUAL.tab;
}

function write(isStep) {
  const address = new URL(location.href);
  for (const [name, usual] of Object.entries(USUAL)) {
    if (view[name] === usual) address.searchParams.delete(name);
    else address.searchParams.set(name, view[name]);
  }
  if (address.href === location.href) return;
  if (isStep) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

// Changes the view; `isStep` if the browser's Back leads to the one before.
export function look(changes, isStep = false) {
  Object.assign(view, changes);
  write(isStep);
  for (const each of onChange) each();
}

export function whenLooking(each) {
  onChange.push(each);
}

addEventListener("popstate", () => {
  read();
  for (const each of onChange) each();
});
read();
