// A server of the TypeScript SDK 1.32 that lists other tools to each user, by their token.

import { randomUUID } from "node:crypto";

import express from "express";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";

const given = process.argv.slice(2).map((flag) => flag.replace(/^--/, "").split("="));
const args = Object.fromEntries(given);

function makeServer(authorization) {
  const server = new McpServer({ name: "users", version: "1" });
  const user = (authorization ?? "").replace(/^Bearer /, "");
  for (const name of ["shared", ...(user ? [`of_${user}`, `delete_of_${user}`] : [])])
    server.registerTool(name, {}, async () => ({
      content: [{ type: "text", text: `did ${name}` }],
    }));
  return server;
}

const app = express();
const sessions = new Map();
app.all("/mcp", express.json(), async (request, response) => {
  let transport = sessions.get(request.headers["mcp-session-id"]);
  if (!transport) {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => sessions.set(id, transport),
    });
    await makeServer(request.headers.authorization).connect(transport);
  }
  await transport.handleRequest(request, response, request.body);
});
const listening = app.listen(Number(args.port ?? 0), "127.0.0.1", () =>
  console.log(`listening on ${listening.address().port}`),
);
process.on("SIGTERM", () => process.exit(0));
