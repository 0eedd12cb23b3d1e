// Our fixtures, served by the TypeScript SDK 2.4: 2026-07-28, and the older revisions beside it.
//
// Older revisions get sessions; with --stateless they get what this SDK does by itself for them.

import { randomUUID } from "node:crypto";

import { toNodeHandler } from "@modelcontextprotocol/node";
import {
  ProtocolError,
  ProtocolErrorCode,
  Server,
  WebStandardStreamableHTTPServerTransport,
  createMcpHandler,
  inputRequired,
  isLegacyRequest,
} from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

import {
  CAPABILITIES,
  FIXTURES,
  KeptEvents,
  Offer,
  completions,
  conclude,
  contentsOf,
  flags,
  promptMessages,
  serve,
} from "./fixtures.mjs";

const CACHEABLE = [
  "tools/list",
  "resources/list",
  "resources/templates/list",
  "resources/read",
  "prompts/list",
];

const args = flags();
const offer = new Offer(args);

function fixtures({ era }) {
  const hint = { ttlMs: 60_000, cacheScope: "private" };
  const server = new Server(
    { name: "fixtures-ts2", version: "1.0.0" },
    {
      capabilities: CAPABILITIES,
      instructions: "Read before you write.",
      cacheHints: Object.fromEntries(CACHEABLE.map((method) => [method, hint])),
    },
  );

  server.setRequestHandler("tools/list", ({ params }) => offer.page(params?.cursor));
  server.setRequestHandler("tools/call", async ({ params }, { mcpReq, http }) => {
    const { name, arguments: given = {} } = params;
    if (!offer.tools.has(name))
      throw new ProtocolError(ProtocolErrorCode.InvalidParams, `Tool ${name} not found`);
    // The second half of a call that is in the journal already.
    if (mcpReq.inputResponses?.asked) return conclude(name, mcpReq.inputResponses.asked);
    const client = {
      notify: (notification) =>
        notification.method === "notifications/message"
          ? mcpReq.log("info", notification.params.data, notification.params.logger)
          : mcpReq.notify(notification),
      // For a client of an older revision the SDK makes a request of its own from it.
      ask: (name, request) =>
        inputRequired({ inputRequests: { asked: request }, requestState: `state of ${name}` }),
      token: mcpReq._meta?.progressToken,
      hangUp: http?.closeSSE,
      listChanged: async () => {
        modern.notify.toolsChanged();
        if (era === "legacy") await server.sendToolListChanged();
      },
    };
    return offer.answer(name, given, mcpReq.signal, client);
  });
  server.setRequestHandler("resources/list", () => ({ resources: FIXTURES.resources }));
  server.setRequestHandler("resources/templates/list", () => ({
    resourceTemplates: FIXTURES.templates,
  }));
  server.setRequestHandler("resources/read", ({ params }) => {
    const contents = contentsOf(params.uri);
    if (!contents) throw new ProtocolError(ProtocolErrorCode.InvalidParams, "Resource not found");
    return { contents: [contents] };
  });
  server.setRequestHandler("prompts/list", () => ({ prompts: FIXTURES.prompts }));
  server.setRequestHandler("prompts/get", ({ params }) => {
    const messages = promptMessages(params.name, params.arguments ?? {});
    if (!messages) throw new ProtocolError(ProtocolErrorCode.InvalidParams, "Unknown prompt");
    return { messages };
  });
  server.setRequestHandler("completion/complete", ({ params }) => ({
    completion: { values: completions(params.argument.name, params.argument.value) },
  }));
  server.setRequestHandler("resources/subscribe", () => ({}));
  return server;
}

const modern = createMcpHandler(fixtures, {
  legacy: args.stateless ? "stateless" : "reject",
  responseMode: args.json ? "json" : "auto",
});
const sessions = new Map();

async function legacy(request) {
  const id = request.headers.get("mcp-session-id");
  if (sessions.has(id)) return sessions.get(id).handleRequest(request);
  if (id) return new Response(null, { status: 404 });
  const transport = new WebStandardStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    enableJsonResponse: args.json,
    eventStore: args.resumable ? new KeptEvents() : undefined,
    retryInterval: args.resumable ? 50 : undefined,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await fixtures({ era: "legacy" }).connect(transport);
  return transport.handleRequest(request);
}

const either = {
  fetch: async (request, options) =>
    !args.stateless && (await isLegacyRequest(request))
      ? legacy(request)
      : modern.fetch(request, options),
};

if (args.transport === "stdio") serveStdio(fixtures);
else serve(toNodeHandler(either), args.port);
