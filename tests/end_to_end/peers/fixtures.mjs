// What all our servers offer, whatever SDK they are made with: fixtures.py in JavaScript.

import { appendFileSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

export const FIXTURES = JSON.parse(readFileSync(new URL("fixtures.json", import.meta.url), "utf8"));
export const CAPABILITIES = {
  tools: { listChanged: true },
  resources: { subscribe: true },
  prompts: {},
  completions: {},
  logging: {},
};
const USERS = ["ada", "grace", "žofie"];

export function flags() {
  const { values } = parseArgs({
    options: {
      port: { type: "string", default: "0" },
      transport: { type: "string", default: "streamable" },
      json: { type: "boolean", default: false },
      stateless: { type: "boolean", default: false },
      resumable: { type: "boolean", default: false },
      "page-size": { type: "string", default: "0" },
      journal: { type: "string" },
    },
  });
  return { ...values, port: Number(values.port), pageSize: Number(values["page-size"]) };
}

/** The tools as they are now, and a journal of the calls to them. */
export class Offer {
  #pageSize;
  #journal;

  constructor({ pageSize, journal }) {
    this.tools = new Map(FIXTURES.tools.map((tool) => [tool.name, tool]));
    this.#pageSize = pageSize;
    this.#journal = journal;
  }

  /** One page of tools, and the cursor of the next if there is one. */
  page(cursor) {
    const tools = [...this.tools.values()];
    const start = Number(cursor ?? 0);
    const end = start + (this.#pageSize || tools.length);
    const page = { tools: tools.slice(start, end) };
    return end < tools.length ? { ...page, nextCursor: String(end) } : page;
  }

  /** Add a tool, or describe it anew; an empty description takes it away. */
  add(name, description) {
    if (!description) return void this.tools.delete(name);
    const bare = { name, inputSchema: { type: "object" } };
    this.tools.set(name, { ...(this.tools.get(name) ?? bare), description });
  }

  /** Write down a call; and once more if the client takes it back or goes away. */
  async recorded(name, given, signal, work) {
    this.#write({ name, arguments: given });
    const cancelled = () => this.#write({ name, arguments: given, cancelled: true });
    signal.addEventListener("abort", cancelled);
    try {
      return await work();
    } finally {
      signal.removeEventListener("abort", cancelled);
    }
  }

  /** Write down a call, and answer it as all our TypeScript servers do. */
  async answer(name, given, signal, client) {
    return this.recorded(
      name,
      given,
      signal,
      async () => (await plainResult(name, given, signal)) ?? talk(name, given, client, this),
    );
  }

  #write(entry) {
    if (this.#journal) appendFileSync(this.#journal, JSON.stringify(entry) + "\n");
  }
}

export const text = (words) => ({ content: [{ type: "text", text: words }] });

const structured = (content) => ({ ...text(JSON.stringify(content)), structuredContent: content });

/** The result of a tool that talks to nobody; undefined if it is not one of those. */
async function plainResult(name, given, signal) {
  switch (name) {
    case "read_file":
      return text(`contents of ${given.path}`);
    case "write_file":
      return text(`wrote ${(given.content ?? "").length} characters`);
    case "delete_file":
      return text(`deleted ${given.path}`);
    case "list_users":
      return structured({ users: USERS });
    case "query_database":
      return structured({ rows: [{ database: given.database, n: 1 }] });
    case "drop_database":
      return text(`dropped ${given.database}`);
    case "echo":
      return text(JSON.stringify(given));
    case "größe_messen_測る":
      return text(`${Buffer.byteLength(given.text)} bytes`);
    case "slow":
      await sleep(given.ms ?? 1000, undefined, { signal });
      return text("done at last");
    case "fail":
      return { ...text("this went wrong"), isError: true };
  }
}

/** The tools that talk to the client while they run, in the way of the revisions up to 2025. */
async function talk(name, given, { notify, ask, token, hangUp, listChanged }, offer) {
  switch (name) {
    case "progress": {
      const total = given.steps ?? 3;
      for (let progress = 1; progress <= total; progress++) {
        const params = { progressToken: token, progress, total, message: `step ${progress}` };
        if (token !== undefined) await notify({ method: "notifications/progress", params });
        await sleep(given.ms ?? 0);
      }
      return text(`${total} steps`);
    }
    case "sample":
    case "elicit":
    case "roots":
      return ask(name, question(name, given));
    case "log": {
      const params = { level: "info", logger: "log", data: given.text ?? "" };
      await notify({ method: "notifications/message", params });
      return text("logged");
    }
    case "add_tool":
      offer.add(given.name, given.description ?? "New");
      await listChanged();
      return text(`added ${given.name}`);
    case "hang_up":
      hangUp?.();
      await sleep(given.ms ?? 100);
      return text("answered after the stream had ended");
    default: // one that add_tool brought
      return text(`${name} was called`);
  }
}

function question(name, given) {
  if (name === "sample") {
    const content = { type: "text", text: given.prompt ?? "" };
    const params = { messages: [{ role: "user", content }], maxTokens: 100 };
    return { method: "sampling/createMessage", params };
  }
  if (name === "elicit") {
    const requestedSchema = { type: "object", properties: { answer: { type: "string" } } };
    const params = { mode: "form", message: given.question ?? "?", requestedSchema };
    return { method: "elicitation/create", params };
  }
  return { method: "roots/list" };
}

/** The result of a call once the client has answered our question. */
export function conclude(name, answer) {
  if (name === "sample") return text(`the model said: ${answer.content.text}`);
  if (name === "elicit")
    return text(`the user said: ${answer.action} ${JSON.stringify(answer.content)}`);
  return text(`roots: ${answer.roots.map((root) => root.uri).join(" ")}`);
}

/** The contents of a resource; undefined if there is no such resource. */
export function contentsOf(uri) {
  if (uri.startsWith("users://")) {
    const name = uri.slice("users://".length);
    return { uri, mimeType: "application/json", text: JSON.stringify({ name }) };
  }
  const resource = FIXTURES.resources.find((resource) => resource.uri === uri);
  return resource && { uri, mimeType: resource.mimeType, ...FIXTURES.contents[uri] };
}

/** The messages of a prompt; undefined if there is no such prompt. */
export function promptMessages(name, given) {
  const words = {
    summarize: `Summarize in ${given.language ?? "English"}: ${given.text ?? ""}`,
    drop_database: "Which database shall I drop?",
  }[name];
  return words && [{ role: "user", content: { type: "text", text: words } }];
}

export function completions(argument, begun) {
  const known = { language: FIXTURES.languages, name: USERS }[argument] ?? [];
  return known.filter((value) => value.startsWith(begun));
}

/** All events of all streams, in order. */
export class KeptEvents {
  #events = [];

  async storeEvent(streamId, message) {
    this.#events.push({ streamId, message });
    return String(this.#events.length);
  }

  async getStreamIdForEventId(eventId) {
    return this.#events[Number(eventId) - 1]?.streamId;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const { streamId } = this.#events[Number(lastEventId) - 1];
    for (let number = Number(lastEventId) + 1; number <= this.#events.length; number++) {
      const event = this.#events[number - 1];
      // A stream begins with an event that is there for its id only.
      if (event.streamId === streamId && Object.keys(event.message).length)
        await send(String(number), event.message);
    }
    return streamId;
  }
}

/** Serve HTTP on loopback until SIGTERM. */
export function serve(handle, port) {
  const server = createServer((request, response) => {
    handle(request, response).catch((error) => {
      console.error(error);
      if (!response.headersSent) response.writeHead(500);
      response.end();
    });
  });
  server.keepAliveTimeout = 60_000;
  server.listen(port, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
  process.on("SIGTERM", () => process.exit(0));
}
