"""A server that speaks 2026-07-28 only, over HTTP; it asks for input in results."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.http_server import Handler, serving

META = "io.modelcontextprotocol/"
REVISION = "2026-07-28"


@dataclass
class NewerUpstream:
    name: str
    url: str = ""
    journal: list[tuple[dict[str, str], Any]] = field(default_factory=list)
    news: threading.Event = field(default_factory=threading.Event)
    lists: threading.Event = field(default_factory=threading.Event)
    """It answers no request for its tools before this is set, as it is at first."""
    tools: list[str] = field(default_factory=lambda: ["echo", "ask", "ask_for_ever", "header"])


@contextmanager
def newer_upstream(name: str) -> Iterator[NewerUpstream]:
    upstream = NewerUpstream(name)
    upstream.lists.set()
    with serving(_Handler, upstream=upstream) as port:
        upstream.url = f"http://127.0.0.1:{port}/mcp"
        yield upstream
        upstream.news.set()
        upstream.lists.set()


class _Handler(Handler):
    upstream: NewerUpstream

    def do_GET(self) -> None:
        self.say(405)

    def do_DELETE(self) -> None:
        self.say(405)

    def do_POST(self) -> None:
        message = json.loads(self.read_body())
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.upstream.journal.append((headers, message))
        meta = message.get("params", {}).get("_meta", {})
        is_newer = meta.get(f"{META}protocolVersion") == headers.get("mcp-protocol-version")
        if not is_newer or headers.get("mcp-method") != message["method"]:
            error = {"code": -32022, "message": "No", "data": {"supported": [REVISION]}}
            return self._json({"jsonrpc": "2.0", "id": message.get("id"), "error": error}, 400)
        if message["method"] == "subscriptions/listen":
            return self._listen(message)
        result = self._result(message)
        if result is None:
            error = {"code": -32601, "message": "Method not found"}
            return self._json({"jsonrpc": "2.0", "id": message["id"], "error": error})
        said = {"resultType": "complete", **result}
        return self._json({"jsonrpc": "2.0", "id": message["id"], "result": said})

    def _result(self, message: Any) -> dict[str, Any] | None:
        params = message.get("params", {})
        match message["method"]:
            case "server/discover":
                return {
                    "supportedVersions": [REVISION],
                    "capabilities": {"tools": {"listChanged": True}, "resources": {}},
                    "instructions": f"Newer {self.upstream.name}.",
                }
            case "tools/list":
                self.upstream.lists.wait(20)
                tools = [
                    {"name": name, "inputSchema": {"type": "object", "properties": PROPERTIES}}
                    for name in self.upstream.tools
                ]
                return {"tools": tools, "ttlMs": 90_000, "cacheScope": "public"}
            case "resources/list":
                uri = f"new://{self.upstream.name}"
                return {"resources": [{"uri": uri, "name": "a"}], "ttlMs": 30_000}
            case "resources/templates/list":
                return {"resourceTemplates": [], "ttlMs": 1000}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": self.upstream.name}]}
            case "tools/call":
                return self._call(params)
        return None

    def _call(self, params: Any) -> dict[str, Any]:
        name, answers = params["name"], params.get("inputResponses")
        if name == "ask_for_ever" or (name == "ask" and not answers):
            schema = {"type": "object", "properties": {}}
            question = {
                "method": "elicitation/create",
                "params": {"message": "Sure?", "requestedSchema": schema},
            }
            more = {"inputRequests": {"q 1": question, "r": {"method": "roots/list"}}}
            return {"resultType": "input_required", "requestState": "state é", **more}
        said = json.dumps({key: one for key, one in params.items() if key != "_meta"})
        return {"content": [{"type": "text", "text": said}]}

    def _listen(self, message: Any) -> None:
        self.say_head(200, ("content-type", "text/event-stream"), ("transfer-encoding", "chunked"))
        meta = {"_meta": {f"{META}subscriptionId": message["id"]}}
        agreed = {**meta, "notifications": message["params"]["notifications"]}
        self._event("notifications/subscriptions/acknowledged", agreed)
        self.upstream.news.wait(20)
        self._event("notifications/tools/list_changed", meta)
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, method: str, params: Any) -> None:
        said = json.dumps({"jsonrpc": "2.0", "method": method, "params": params})
        data = f"data: {said}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, message: Any, status: int = 200) -> None:
        self.say(status, json.dumps(message).encode(), ("content-type", "application/json"))


PROPERTIES = {"a": {"type": "string", "x-mcp-header": "A"}}
