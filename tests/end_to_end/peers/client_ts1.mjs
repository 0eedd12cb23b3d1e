// A client of the TypeScript SDK 1.32: legacy HTTP+SSE, or streamable HTTP. See scenario.py.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

import * as scenario from "./scenario.mjs";

class Player extends scenario.Player {
  client = new Client(
    { name: "client-ts1", version: "1.0.0" },
    { capabilities: { sampling: {}, elicitation: {}, roots: { listChanged: true } } },
  );

  async perform(step, options) {
    const { client } = this;
    if (step.call)
      return client.callTool({ name: step.call, arguments: step.arguments }, undefined, options);
    return this.performAlike(client, step, options);
  }
}

async function connect(player) {
  const { url, transport, headers } = player.args;
  const { client } = player;
  for (const schema of [
    types.CreateMessageRequestSchema,
    types.ElicitRequestSchema,
    types.ListRootsRequestSchema,
  ])
    client.setRequestHandler(schema, (request) => player.answer(request));
  client.fallbackNotificationHandler = async (notification) => player.notice(notification);
  if (transport === "stdio") {
    const [command, ...args] = url;
    player.transport = new StdioClientTransport({ command, args, env: process.env });
    player.transport.setProtocolVersion = (version) =>
      void (player.transport.protocolVersion = version);
  } else {
    const Transport = transport === "sse" ? SSEClientTransport : StreamableHTTPClientTransport;
    player.transport = new Transport(url, { requestInit: { headers } });
  }
  await client.connect(player.transport, { timeout: 15_000 });
  return {
    server: client.getServerVersion(),
    protocol: player.transport.protocolVersion ?? player.transport._protocolVersion ?? null,
    session: player.transport.sessionId ?? null,
  };
}

async function part({ client, transport }) {
  await transport?.terminateSession?.();
  await client.close();
}

await scenario.run(new Player(scenario.flags()), connect, part);
