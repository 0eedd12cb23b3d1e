// What a client is asked to do, and how it tells what it saw: scenario.py in JavaScript.

import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

export function flags(more = {}) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      interactive: { type: "boolean", short: "i", default: false },
      transport: { type: "string", default: "streamable" },
      header: { type: "string", multiple: true, default: [] },
      ...more,
    },
  });
  const headers = Object.fromEntries(
    values.header.map((header) => {
      const colon = header.indexOf(":");
      return [header.slice(0, colon), header.slice(colon + 1).trim()];
    }),
  );
  const [url, scenario] = positionals;
  return { ...values, headers, url: values.transport === "stdio" ? JSON.parse(url) : new URL(url), scenario };
}

async function* stepsOf(args) {
  if (args.interactive) {
    for await (const line of createInterface({ input: process.stdin })) yield JSON.parse(line);
  } else {
    yield* JSON.parse(args.scenario ?? (await text(process.stdin)));
  }
}

/** Plays steps on a client; an SDK says in a subclass how one is done. */
export class Player {
  notifications = [];
  asked = [];
  outcomes = [];
  met; // server, protocol, session; once connected
  #waiting = new Set();

  constructor(args) {
    this.args = args;
  }

  /** Do what no other step is made of; options: onprogress, signal. Returns the result. */
  async perform() {
    throw new Error("not implemented");
  }

  /** Do what both versions of the TypeScript SDK do by the same methods. */
  performAlike(client, step, options, listOptions = options) {
    if (step.list) {
      const params = step.cursor ? { cursor: step.cursor } : undefined;
      const lists = {
        tools: () => client.listTools(params, listOptions),
        resources: () => client.listResources(params, listOptions),
        templates: () => client.listResourceTemplates(params, listOptions),
        prompts: () => client.listPrompts(params, listOptions),
      };
      return lists[step.list]();
    }
    if (step.read) return client.readResource({ uri: step.read }, options);
    if (step.prompt) return client.getPrompt({ name: step.prompt, arguments: step.arguments });
    if (step.complete)
      return client.complete({
        ref: { type: "ref/prompt", name: step.complete },
        argument: { name: step.argument, value: step.value },
      });
    if (step.ping) return client.ping(options);
    if (step.level) return client.setLoggingLevel(step.level);
    throw new Error(`this SDK cannot ${JSON.stringify(step)}`);
  }

  async play() {
    for await (const step of stepsOf(this.args)) {
      const outcome = await this.outcomeOf(step);
      this.outcomes.push(outcome);
      if (this.args.interactive) tell(outcome);
    }
  }

  async outcomeOf(step) {
    const seconds = step.timeout ?? 10;
    const late = new AbortController();
    const timeout = sleep(seconds * 1000, { timeout: seconds }, { signal: late.signal });
    timeout.catch(() => {});
    try {
      return await Promise.race([this.#outcomeInTime(step), timeout]);
    } catch (error) {
      return { error: described(error) };
    } finally {
      late.abort();
    }
  }

  async #outcomeInTime(step) {
    if (step.parallel)
      return { outcomes: await Promise.all(step.parallel.map((part) => this.outcomeOf(part))) };
    if ("sleep" in step) {
      await sleep(step.sleep);
      return { result: {} };
    }
    if (step.await) return { result: await this.#seen(step.await) };
    if (step.cancel) {
      const taken = new AbortController();
      const call = this.perform(step.cancel, { signal: taken.signal }).catch(() => {});
      await sleep(step.after ?? 100);
      taken.abort("no longer");
      await call;
      return { cancelled: true };
    }
    const progress = [];
    const onprogress = ({ progress: done, total = null, message = null }) =>
      void progress.push([done, total, message]);
    const result = await this.perform(step, step.progress ? { onprogress } : {});
    return step.progress ? { result, progress } : { result };
  }

  notice({ method, params }) {
    this.notifications.push({ method, params });
    for (const look of this.#waiting) look();
  }

  #seen(method) {
    return new Promise((resolve) => {
      const look = () => {
        const found = this.notifications.find((notification) => notification.method === method);
        if (!found) return;
        this.#waiting.delete(look);
        resolve(found);
      };
      this.#waiting.add(look);
      look();
    });
  }

  /** What this client answers when the server asks; in the order it was asked. */
  answer({ method, params = null }) {
    this.asked.push({ method, params });
    if (method === "sampling/createMessage")
      return {
        role: "assistant",
        content: { type: "text", text: "a sample" },
        model: "none",
      };
    if (method === "elicitation/create") return { action: "accept", content: { answer: "yes" } };
    return { roots: [{ uri: "file:///home/ada" }] };
  }

  document() {
    const { outcomes, notifications, asked } = this;
    return { ...this.met, outcomes, notifications, asked };
  }
}

function described(error) {
  const message = error?.message ?? String(error);
  return { code: error?.code ?? null, message, type: error?.constructor?.name ?? typeof error };
}

function tell(document, then) {
  process.stdout.write(JSON.stringify(document) + "\n", then);
}

/** Connect, play, part, print the document: whatever happens. */
export async function run(player, connect, part) {
  const trouble = {};
  try {
    player.met = await connect(player);
    await player.play();
  } catch (error) {
    console.error(error);
    trouble.error = described(error);
  }
  try {
    await part(player);
  } catch (error) {
    console.error(error);
    trouble.parting = described(error);
  }
  // Whatever an SDK may still wait for: it has parted.
  tell({ ...player.document(), ...trouble }, () => process.exit(0));
}
