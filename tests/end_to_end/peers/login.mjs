// A login by a client of either TypeScript SDK, with a scripted browser. See login_python.py.

import { setTimeout } from "node:timers/promises";

const CALLBACK = "http://127.0.0.1:49152/callback";

/** Log in, ask, wait, ask once more, and print what was seen; ``finish`` takes the code to the SDK. */
export async function run({ Client, Transport, UnauthorizedError, finish }) {
  const [url, seconds = "0"] = process.argv.slice(2);
  const seen = { visited: [] };
  let back;
  const provider = providerWith((visited, said) => {
    seen.visited.push(...visited);
    back = said;
  });

  async function connect() {
    const client = new Client({ name: "login", version: "1" });
    const transport = new Transport(new URL(url), { authProvider: provider });
    try {
      await client.connect(transport);
    } catch (error) {
      if (!(error instanceof UnauthorizedError)) throw error;
      await finish(transport, back);
      return connect();
    }
    return client;
  }

  const client = await connect();
  const call = async () =>
    (await client.callTool({ name: "read_file", arguments: { path: "a" } })).content[0].text;
  seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
  seen.called = await call();
  await setTimeout(1000 * Number(seconds));
  seen.called_later = await call();
  seen.iss = back?.get("iss") ?? null;
  console.log(JSON.stringify(seen));
  await client.close();
}

/** What an SDK keeps of a login, and a browser that follows redirects back to the client. */
function providerWith(cameBack) {
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
      const visited = [];
      let at = String(start);
      while (!at.startsWith(CALLBACK)) {
        visited.push(at);
        at = (await fetch(at, { redirect: "manual" })).headers.get("location");
      }
      cameBack(visited, new URL(at).searchParams);
    },
  };
  return provider;
}
