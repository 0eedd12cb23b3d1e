// A server behind a login, of the TypeScript SDK 1.32; its user always agrees.

import { randomUUID } from "node:crypto";

import express from "express";
import { InvalidGrantError } from "@modelcontextprotocol/sdk/server/auth/errors.js";
import { requireBearerAuth } from "@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js";
import {
  getOAuthProtectedResourceMetadataUrl,
  mcpAuthRouter,
} from "@modelcontextprotocol/sdk/server/auth/router.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

const given = process.argv.slice(2).map((flag) => flag.replace(/^--/, "").split("="));
const args = Object.fromEntries(given);
const lifetime = Number(args.lifetime ?? 3);
const clients = new Map();
const codes = new Map();
const access = new Map();
const refresh = new Map();

function issue(client, scopes, resource) {
  const token = randomUUID();
  const next = randomUUID();
  const expiresAt = Date.now() / 1000 + lifetime;
  access.set(token, { token, clientId: client.client_id, scopes, expiresAt, resource });
  refresh.set(next, { scopes, resource });
  return {
    access_token: token,
    token_type: "bearer",
    expires_in: lifetime,
    refresh_token: next,
    scope: scopes.join(" "),
  };
}

const provider = {
  clientsStore: {
    getClient: (id) => clients.get(id),
    registerClient: (client) => {
      clients.set(client.client_id, client);
      return client;
    },
  },
  async authorize(client, params, response) {
    const code = randomUUID();
    codes.set(code, params);
    const back = new URL(params.redirectUri);
    back.searchParams.set("code", code);
    if (params.state) back.searchParams.set("state", params.state);
    response.redirect(back.toString());
  },
  challengeForAuthorizationCode: async (_client, code) => codes.get(code).codeChallenge,
  async exchangeAuthorizationCode(client, code) {
    const { scopes = [], resource } = codes.get(code);
    codes.delete(code);
    return issue(client, scopes, resource);
  },
  async exchangeRefreshToken(client, token) {
    const found = refresh.get(token);
    if (!found) throw new InvalidGrantError("used before");
    refresh.delete(token);
    return issue(client, found.scopes, found.resource);
  },
  async verifyAccessToken(token) {
    const found = access.get(token);
    if (!found) throw new Error("unknown token");
    return found;
  },
};

function makeServer() {
  const server = new McpServer({ name: "behind-a-login", version: "1" });
  const said = (text) => ({ content: [{ type: "text", text }] });
  const path = { path: z.string() };
  server.registerTool("read_file", { inputSchema: path }, async ({ path }) =>
    said(`the text of ${path}`),
  );
  server.registerTool("delete_file", { inputSchema: path }, async () => said("gone"));
  return server;
}

const app = express();
const listening = app.listen(Number(args.port ?? 0), "127.0.0.1", () => {
  const { port } = listening.address();
  const origin = new URL(`http://127.0.0.1:${port}`);
  const endpoint = new URL("/mcp", origin);
  app.use(
    mcpAuthRouter({
      provider,
      issuerUrl: origin,
      resourceServerUrl: endpoint,
      scopesSupported: ["user"],
    }),
  );
  const guard = requireBearerAuth({
    verifier: provider,
    requiredScopes: ["user"],
    resourceMetadataUrl: getOAuthProtectedResourceMetadataUrl(endpoint),
  });
  const sessions = new Map();
  app.all("/mcp", guard, express.json(), async (request, response) => {
    let transport = sessions.get(request.headers["mcp-session-id"]);
    if (!transport) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
      });
      await makeServer().connect(transport);
    }
    await transport.handleRequest(request, response, request.body);
  });
  console.log(`listening on ${port}`);
});
process.on("SIGTERM", () => process.exit(0));
