// How Node (llhttp) reads bytes: a line of JSON in, [kind, base64], a line out, [[first, second, body, complete], …].
import http from "node:http";
import { createInterface } from "node:readline";
import { Duplex } from "node:stream";

const turn = () => new Promise((done) => setImmediate(done));

function wire() {
  return new Duplex({ read() {}, write(_data, _coding, done) { done(); } });
}

function note(list, message, first, second) {
  const one = [first, second, "", false];
  const parts = [];
  list.push(one);
  message.on("data", (data) => { parts.push(data); one[2] = Buffer.concat(parts).toString("base64"); });
  message.on("end", () => { one[3] = message.complete; });
  message.on("error", () => {});
}

async function requests(raw, upgrades) {
  const list = [];
  const server = new http.Server({ requireHostHeader: false, keepAliveTimeout: 0 }, (request, response) => {
    note(list, request, request.method, request.url);
    response.end();
  });
  server.on("clientError", () => {});
  const tunnel = (request, _socket, rest) =>
    list.push([request.method, request.url, rest.toString("base64"), true]);
  if (upgrades) server.on("upgrade", tunnel);
  server.on("connect", tunnel);
  const expecting = (request, response) => {
    note(list, request, request.method, request.url);
    response.end();
  };
  server.on("checkContinue", expecting);
  server.on("checkExpectation", expecting);
  const socket = wire();
  socket.on("error", () => {});
  server.emit("connection", socket);
  socket.push(raw);
  for (let n = 0; n < 6; n++) await turn();
  socket.push(null);
  for (let n = 0; n < 3; n++) await turn();
  socket.destroy();
  return list;
}

async function answer(raw, method) {
  const list = [];
  const socket = wire();
  const request = http.request({ method, createConnection: () => socket, headers: { host: "x" } });
  request.on("response", (message) => note(list, message, "", message.statusCode));
  request.on("upgrade", (message, _socket, rest) =>
    list.push(["", message.statusCode, rest.toString("base64"), true]));
  request.on("error", () => {});
  request.end();
  await turn();
  socket.push(raw);
  for (let n = 0; n < 6; n++) await turn();
  socket.push(null);
  for (let n = 0; n < 3; n++) await turn();
  socket.destroy();
  return list;
}

for await (const line of createInterface({ input: process.stdin })) {
  const said = await Promise.all(
    JSON.parse(line).map(([kind, raw]) => {
      const bytes = Buffer.from(raw, "base64");
      if (kind === "requests" || kind === "upgrades") return requests(bytes, kind === "upgrades");
      return answer(bytes, kind);
    }),
  );
  process.stdout.write(JSON.stringify(said) + "\n");
}
