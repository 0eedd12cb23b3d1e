// What the server suite of the official conformance package asks for, served by the SDK 1.32:
//
//     conformance server --url http://127.0.0.1:PORT/mcp --suite all
//
// Names and contents are those the suite's scenarios look for.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { toNodeHandler } from "@modelcontextprotocol/node";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { WebStandardStreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

import { CAPABILITIES, KeptEvents, Offer, flags, serve, text } from "./fixtures.mjs";

const PNG = {
  data: "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=",
  mimeType: "image/png",
};
const WAV = {
  data: "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA==",
  mimeType: "audio/wav",
};

const OPTIONS = ["option1", "option2", "option3"];
const titled = (...titles) => titles.map((title, n) => ({ const: `value${n + 1}`, title }));

const FORMS = {
  test_elicitation: {
    username: { type: "string", description: "User's response" },
    email: { type: "string", description: "User's email address" },
  },
  test_elicitation_sep1034_defaults: {
    name: { type: "string", default: "John Doe" },
    age: { type: "integer", default: 30 },
    score: { type: "number", default: 95.5 },
    status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
    verified: { type: "boolean", default: true },
  },
  test_elicitation_sep1330_enums: {
    untitledSingle: { type: "string", enum: OPTIONS },
    titledSingle: { type: "string", oneOf: titled("First Option", "Second Option") },
    legacyEnum: {
      type: "string",
      enum: ["opt1", "opt2", "opt3"],
      enumNames: ["Option One", "Option Two", "Option Three"],
    },
    untitledMulti: { type: "array", items: { type: "string", enum: OPTIONS } },
    titledMulti: { type: "array", items: { anyOf: titled("First Choice", "Second Choice") } },
  },
};

const elicit = async ({ name, given, extra }) => {
  const requestedSchema = { type: "object", properties: FORMS[name] };
  const params = { mode: "form", message: given.message ?? "Please fill in", requestedSchema };
  const said = await extra.sendRequest(
    { method: "elicitation/create", params },
    types.ElicitResultSchema,
  );
  return text(
    `Elicitation completed: action=${said.action}, content=${JSON.stringify(said.content)}`,
  );
};

const TOOLS = {
  test_simple_text: () => text("This is a simple text response for testing."),
  test_image_content: () => ({ content: [{ type: "image", ...PNG }] }),
  test_audio_content: () => ({ content: [{ type: "audio", ...WAV }] }),
  test_embedded_resource: () => ({
    content: [embedded("test://embedded-resource", "This is an embedded resource content.")],
  }),
  test_multiple_content_types: () => ({
    content: [
      ...text("Multiple content types test:").content,
      { type: "image", ...PNG },
      embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json"),
    ],
  }),
  test_tool_with_logging: async ({ extra }) => {
    for (const data of ["started", "processing data", "completed"]) {
      const params = { level: "info", data: `Tool execution ${data}` };
      await extra.sendNotification({ method: "notifications/message", params });
      await sleep(50);
    }
    return text("Logged.");
  },
  test_tool_with_progress: async ({ extra }) => {
    const progressToken = extra._meta?.progressToken;
    for (const progress of [0, 50, 100]) {
      const params = { progressToken, progress, total: 100 };
      if (progressToken !== undefined)
        await extra.sendNotification({ method: "notifications/progress", params });
      await sleep(50);
    }
    return text("Done.");
  },
  test_error_handling: () => ({
    ...text("This tool intentionally returns an error for testing"),
    isError: true,
  }),
  test_reconnection: async ({ extra }) => {
    extra.closeSSEStream?.();
    await sleep(100);
    return text("Answered after the stream had ended.");
  },
  test_sampling: async ({ given, extra }) => {
    const content = { type: "text", text: given.prompt };
    const params = { messages: [{ role: "user", content }], maxTokens: 100 };
    const said = await extra.sendRequest(
      { method: "sampling/createMessage", params },
      types.CreateMessageResultSchema,
    );
    return text(`LLM response: ${said.content.text}`);
  },
  test_elicitation: elicit,
  test_elicitation_sep1034_defaults: elicit,
  test_elicitation_sep1330_enums: elicit,
  json_schema_2020_12_tool: ({ given }) => text(JSON.stringify(given)),
};

const one = (name) => ({
  type: "object",
  properties: { [name]: { type: "string" } },
  required: [name],
});
const SCHEMAS = {
  test_sampling: one("prompt"),
  test_elicitation: one("message"),
  json_schema_2020_12_tool: {
    $schema: "https://json-schema.org/draft/2020-12/schema",
    type: "object",
    $defs: {
      address: {
        type: "object",
        properties: { street: { type: "string" }, city: { type: "string" } },
      },
    },
    properties: { name: { type: "string" }, address: { $ref: "#/$defs/address" } },
    additionalProperties: false,
  },
};

const DEFINITIONS = Object.keys(TOOLS).map((name) => ({
  name,
  description: `What the suite wants of ${name}`,
  inputSchema: SCHEMAS[name] ?? { type: "object", properties: {} },
}));

const RESOURCES = {
  "test://static-text": {
    mimeType: "text/plain",
    text: "This is the content of the static text resource.",
  },
  "test://static-binary": { mimeType: PNG.mimeType, blob: PNG.data },
  "test://watched-resource": { mimeType: "text/plain", text: "Watched." },
};

const PROMPTS = {
  test_simple_prompt: () => [{ type: "text", text: "This is a simple prompt for testing." }],
  test_prompt_with_arguments: ({ arg1, arg2 }) => [
    { type: "text", text: `Prompt with arguments: arg1='${arg1}', arg2='${arg2}'` },
  ],
  test_prompt_with_embedded_resource: ({ resourceUri }) => [
    embedded(resourceUri, "Embedded resource content for testing."),
    { type: "text", text: "Please process the embedded resource above." },
  ],
  test_prompt_with_image: () => [
    { type: "image", ...PNG },
    { type: "text", text: "Please analyze the image above." },
  ],
};
const PROMPT_ARGUMENTS = {
  test_prompt_with_arguments: ["arg1", "arg2"],
  test_prompt_with_embedded_resource: ["resourceUri"],
};

function embedded(uri, words, mimeType = "text/plain") {
  return { type: "resource", resource: { uri, mimeType, text: words } };
}

const args = flags();
const offer = new Offer(args);

function everything() {
  const server = new Server(
    { name: "fixtures-conformance", version: "1.0.0" },
    {
      capabilities: CAPABILITIES,
    },
  );
  const answer = (schema, handler) => server.setRequestHandler(schema, handler);

  answer(types.ListToolsRequestSchema, () => ({ tools: DEFINITIONS }));
  answer(types.CallToolRequestSchema, ({ params }, extra) => {
    const { name, arguments: given = {} } = params;
    if (!TOOLS[name]) throw new types.McpError(-32602, `Tool ${name} not found`);
    return offer.recorded(name, given, extra.signal, () => TOOLS[name]({ name, given, extra }));
  });
  answer(types.ListResourcesRequestSchema, () => ({
    resources: Object.entries(RESOURCES).map(([uri, { mimeType }]) => ({
      uri,
      name: uri.slice("test://".length),
      description: "What the suite reads",
      mimeType,
    })),
  }));
  answer(types.ListResourceTemplatesRequestSchema, () => ({
    resourceTemplates: [{ uriTemplate: "test://template/{id}/data", name: "template" }],
  }));
  answer(types.ReadResourceRequestSchema, ({ params: { uri } }) => {
    if (RESOURCES[uri]) return { contents: [{ uri, ...RESOURCES[uri] }] };
    const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
    if (!id) throw new types.McpError(-32002, "Resource not found");
    const words = JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` });
    return { contents: [{ uri, mimeType: "application/json", text: words }] };
  });
  answer(types.SubscribeRequestSchema, () => ({}));
  answer(types.UnsubscribeRequestSchema, () => ({}));
  answer(types.ListPromptsRequestSchema, () => ({
    prompts: Object.keys(PROMPTS).map((name) => ({
      name,
      description: `What the suite wants of ${name}`,
      arguments: (PROMPT_ARGUMENTS[name] ?? []).map((name) => ({ name, required: true })),
    })),
  }));
  answer(types.GetPromptRequestSchema, ({ params: { name, arguments: given = {} } }) => {
    if (!PROMPTS[name]) throw new types.McpError(-32602, "Unknown prompt");
    return { messages: PROMPTS[name](given).map((content) => ({ role: "user", content })) };
  });
  answer(types.CompleteRequestSchema, () => ({ completion: { values: [], hasMore: false } }));
  return server;
}

const sessions = new Map();
const LOCAL = /^(https?:\/\/)?(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$/;

async function answered(request) {
  for (const name of ["host", "origin"]) {
    const value = request.headers.get(name);
    if (value !== null && !LOCAL.test(value)) return new Response(null, { status: 403 });
  }
  const id = request.headers.get("mcp-session-id");
  if (sessions.has(id)) return sessions.get(id).handleRequest(asOfLate(request));
  if (id) return new Response(null, { status: 404 });
  const transport = new WebStandardStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new KeptEvents(),
    retryInterval: 50,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await everything().connect(transport);
  return transport.handleRequest(request);
}

/**
 * The suite negotiates 2025-11-25, then says 2025-03-26 where it looks for resumption. The SDK
 * resumes nothing for a client that old, and we want it to be seen.
 */
function asOfLate(request) {
  const headers = new Headers(request.headers);
  if (request.method === "POST" && headers.get("mcp-protocol-version") === "2025-03-26")
    headers.set("mcp-protocol-version", "2025-11-25");
  return new Request(request, { headers });
}

serve(toNodeHandler({ fetch: answered }), args.port);
