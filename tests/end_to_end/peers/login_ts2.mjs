// A client of the TypeScript SDK 2.4 that logs in with a scripted browser. See login_python.py.

import { setTimeout } from "node:timers/promises";

import {
  Client,
  StreamableHTTPClientTransport,
  UnauthorizedError,
} from "@modelcontextprotocol/client";

const CALLBACK = "http://127.0.0.1:49152/callback";
const [url, seconds = "0"] = process.argv.slice(2);
const seen = { visited: [] };
let back;

const provider = {
  state: () => "mine",
  redirectUrl: CALLBACK,
  clientMetadata: {
    client_name: "login",
    redirect_uris: [CALLBACK],
    token_endpoint_auth_method: "none",
  },
  clientInformation: () => provider.client,
  saveClientInformation: (client) => (provider.client = client),
  tokens: () => provider.kept,
  saveTokens: (tokens) => (provider.kept = tokens),
  codeVerifier: () => provider.verifier,
  saveCodeVerifier: (verifier) => (provider.verifier = verifier),
  async redirectToAuthorization(start) {
    let at = String(start);
    while (!at.startsWith(CALLBACK)) {
      seen.visited.push(at);
      at = (await fetch(at, { redirect: "manual" })).headers.get("location");
    }
    back = new URL(at).searchParams;
  },
};

async function connect() {
  const client = new Client({ name: "login", version: "1" });
  const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });
  try {
    await client.connect(transport);
  } catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
    await transport.finishAuth(back);
    return connect();
  }
  return client;
}

const client = await connect();
const call = async () => (await client.callTool({ name: "read_file", arguments: { path: "a" } })).content[0].text;
seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
seen.called = await call();
await setTimeout(1000 * Number(seconds));
seen.called_later = await call();
seen.iss = back?.get("iss") ?? null;
console.log(JSON.stringify(seen));
await client.close();
