// A client of the TypeScript SDK 1.32 that logs in with a scripted browser. See login_python.py.

import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

import { run } from "./login.mjs";

const finish = (transport, back) => transport.finishAuth(back.get("code"));
await run({ Client, Transport: StreamableHTTPClientTransport, UnauthorizedError, finish });
