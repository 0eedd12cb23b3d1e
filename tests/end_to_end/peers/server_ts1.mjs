// Our fixtures, served by the TypeScript SDK 1.32: legacy HTTP+SSE, or streamable HTTP.

import { randomUUID } from "node:crypto";

import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { SSEServerTransport } from "@modelcontextprotocol/sdk/server/sse.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

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

const ANSWERS = {
  sample: types.CreateMessageResultSchema,
  elicit: types.ElicitResultSchema,
  roots: types.ListRootsResultSchema,
};

const args = flags();
const offer = new Offer(args);

function fixtures() {
  const server = new Server(
    { name: "fixtures-ts1", version: "1.0.0" },
    {
      capabilities: CAPABILITIES,
      instructions: "Read before you write.",
    },
  );
  const answer = (schema, handler) => server.setRequestHandler(schema, handler);

  answer(types.ListToolsRequestSchema, ({ params }) => offer.page(params?.cursor));
  answer(types.CallToolRequestSchema, async ({ params }, extra) => {
    const { name, arguments: given = {} } = params;
    if (!offer.tools.has(name))
      throw new types.McpError(types.ErrorCode.InvalidParams, `Tool ${name} not found`);
    const client = {
      notify: extra.sendNotification,
      ask: async (name, request) =>
        conclude(name, await extra.sendRequest(request, ANSWERS[name])),
      token: extra._meta?.progressToken,
      hangUp: extra.closeSSEStream,
      listChanged: () => server.sendToolListChanged(),
    };
    return offer.answer(name, given, extra.signal, client);
  });
  answer(types.ListResourcesRequestSchema, () => ({ resources: FIXTURES.resources }));
  answer(types.ListResourceTemplatesRequestSchema, () => ({
    resourceTemplates: FIXTURES.templates,
  }));
  answer(types.ReadResourceRequestSchema, ({ params }) => {
    const contents = contentsOf(params.uri);
    if (!contents) throw new types.McpError(-32002, "Resource not found");
    return { contents: [contents] };
  });
  answer(types.ListPromptsRequestSchema, () => ({ prompts: FIXTURES.prompts }));
  answer(types.GetPromptRequestSchema, ({ params }) => {
    const messages = promptMessages(params.name, params.arguments ?? {});
    if (!messages) throw new types.McpError(types.ErrorCode.InvalidParams, "Unknown prompt");
    return { messages };
  });
  answer(types.CompleteRequestSchema, ({ params }) => ({
    completion: { values: completions(params.argument.name, params.argument.value) },
  }));
  answer(types.SubscribeRequestSchema, () => ({}));
  return server;
}

const sessions = new Map();

async function streamable(request, response) {
  const known = sessions.get(request.headers["mcp-session-id"]);
  if (known) return known.handleRequest(request, response);
  if (request.headers["mcp-session-id"]) return response.writeHead(404).end();
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: args.stateless ? undefined : randomUUID,
    enableJsonResponse: args.json,
    eventStore: args.resumable ? new KeptEvents() : undefined,
    retryInterval: args.resumable ? 50 : undefined,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await fixtures().connect(transport);
  return transport.handleRequest(request, response);
}

async function sse(request, response) {
  const url = new URL(request.url, "http://127.0.0.1");
  if (request.method === "GET" && url.pathname === "/sse") {
    const transport = new SSEServerTransport("/messages", response);
    sessions.set(transport.sessionId, transport);
    response.on("close", () => sessions.delete(transport.sessionId));
    return fixtures().connect(transport);
  }
  const known = sessions.get(url.searchParams.get("sessionId"));
  if (request.method === "POST" && known) return known.handlePostMessage(request, response);
  return response.writeHead(404).end();
}

if (args.transport === "stdio") await fixtures().connect(new StdioServerTransport());
else serve(args.transport === "sse" ? sse : streamable, args.port);
