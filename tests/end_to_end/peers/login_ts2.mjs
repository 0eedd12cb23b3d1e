// A client of the TypeScript SDK 2.4 that logs in with a scripted browser. See login_python.py.

import {
  Client,
  StreamableHTTPClientTransport,
  UnauthorizedError,
} from "@modelcontextprotocol/client";

import { run } from "./login.mjs";

const finish = (transport, back) => transport.finishAuth(back);
await run({ Client, Transport: StreamableHTTPClientTransport, UnauthorizedError, finish });
