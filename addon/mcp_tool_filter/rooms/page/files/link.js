// Asks the filter. The token is in the address, but only until we have it: it stays with this tab,
// and goes nowhere by itself. In mitmweb, mitmweb's own cookie lets us in.

function tokenOfTab() {
  const address = new URL(location.href);
  const given = address.searchParams.get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
  return given || sessionStorage.getItem("token");
}

const token = tokenOfTab();

export async function ask(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const xsrf = /(?:^|; )_mitmproxy_xsrf=([^;]*)/.exec(document.cookie);
  if (xsrf) headers["X-XSRFToken"] = xsrf[1];
  const how = { method: "POST", credentials: "same-origin", headers, body: JSON.stringify(body) };
  const answer = await fetch(`/mcp/${path}`, how);
  if (answer.status === 403) throw new Error("Log in again");
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}
