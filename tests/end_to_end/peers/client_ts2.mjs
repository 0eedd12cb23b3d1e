// A client of the TypeScript SDK 2.4: 2026-07-28, or an older revision. See scenario.py.

import {
  Client,
  SSEClientTransport,
  StreamableHTTPClientTransport,
} from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

import * as scenario from "./scenario.mjs";

const MODES = { modern: { pin: "2026-07-28" }, auto: "auto", legacy: "legacy" };

class Player extends scenario.Player {
  constructor(args) {
    super(args);
    this.client = new Client(
      { name: "client-ts2", version: "1.0.0" },
      {
        capabilities: { sampling: {}, elicitation: {}, roots: { listChanged: true } },
        versionNegotiation: { mode: MODES[args.mode] },
      },
    );
  }

  async perform(step, options) {
    const { client } = this;
    if (step.call) {
      const logLevel = { "io.modelcontextprotocol/logLevel": "debug" };
      const params = { name: step.call, arguments: step.arguments };
      const modern = client.getNegotiatedProtocolVersion() >= "2026";
      return client.callTool(modern ? { ...params, _meta: logLevel } : params, options);
    }
    if (step.listen) {
      const filter = Object.fromEntries(step.listen.map((kind) => [`${kind}ListChanged`, true]));
      this.subscription = await client.listen(filter, options);
      return { honored: this.subscription.honored };
    }
    const fresh = { ...options, cacheMode: "refresh" }; // a list that is asked for shall be asked for
    return this.performAlike(client, step, options, fresh);
  }
}

async function connect(player) {
  const { url, transport, headers } = player.args;
  const { client } = player;
  for (const method of ["sampling/createMessage", "elicitation/create", "roots/list"])
    client.setRequestHandler(method, (request) => player.answer(request));
  client.fallbackNotificationHandler = async (notification) => player.notice(notification);
  if (transport === "stdio") {
    const [command, ...args] = url;
    player.transport = new StdioClientTransport({ command, args, env: process.env });
  } else {
    const Transport = transport === "sse" ? SSEClientTransport : StreamableHTTPClientTransport;
    player.transport = new Transport(url, { requestInit: { headers } });
  }
  await client.connect(player.transport, { timeout: 15_000 });
  return {
    server: client.getServerVersion(),
    protocol: client.getNegotiatedProtocolVersion(),
    session: player.transport.sessionId ?? null,
  };
}

async function part({ client, transport, subscription }) {
  await subscription?.close();
  await transport?.terminateSession?.();
  await client.close();
}

const more = { mode: { type: "string", default: "legacy" } };
await scenario.run(new Player(scenario.flags(more)), connect, part);
