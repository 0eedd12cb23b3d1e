"""What all our servers offer, whatever SDK they are made with.

The definitions are in fixtures.json; here is what the tools do that need nothing from an SDK, and
the frame of every server: it takes a port, says `listening on PORT` once it can be reached, keeps a
journal of the calls that really reached it, and ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

HERE = Path(__file__).resolve().parent
FIXTURES = json.loads((HERE / "fixtures.json").read_text(encoding="utf-8"))
USERS = ["ada", "grace", "žofie"]


def arguments(description: str, *transports: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--transport", choices=transports, default=transports[-1])
    parser.add_argument("--json", action="store_true", help="answer with JSON, not with a stream")
    parser.add_argument("--stateless", action="store_true", help="give out no session ids")
    parser.add_argument("--resumable", action="store_true", help="keep events for Last-Event-ID")
    parser.add_argument("--page-size", type=int, default=0, help="0: all tools on one page")
    parser.add_argument("--journal", type=Path, help="a line for each call that reached us")
    return parser.parse_args()


class Offer:
    """The tools as they are now, and a journal of the calls to them."""

    def __init__(self, *, page_size: int, journal: Path | None) -> None:
        self.tools: dict[str, dict[str, Any]] = {tool["name"]: tool for tool in FIXTURES["tools"]}
        self._page_size = page_size
        self._journal = journal
        if journal:
            journal.touch()

    def page(self, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """One page of tools, and the cursor of the next if there is one."""
        tools = list(self.tools.values())
        start = int(cursor or 0)
        end = start + (self._page_size or len(tools))
        return tools[start:end], str(end) if end < len(tools) else None

    def add(self, name: str, description: str) -> None:
        """Add a tool, or describe it anew; an empty description takes it away."""
        if not description:
            del self.tools[name]
            return
        bare = {"name": name, "inputSchema": {"type": "object"}}
        self.tools[name] = self.tools.get(name, bare) | {"description": description}

    @contextmanager
    def recorded(self, name: str, arguments: dict[str, Any]) -> Iterator[None]:
        """Write down a call; and once more if the client takes it back or goes away."""
        self._write({"name": name, "arguments": arguments})
        try:
            yield
        except asyncio.CancelledError:
            self._write({"name": name, "arguments": arguments, "cancelled": True})
            raise

    def _write(self, entry: dict[str, Any]) -> None:
        if self._journal:
            with self._journal.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(entry, ensure_ascii=False) + "\n")


RESULTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "read_file": lambda given: text(f"contents of {given['path']}"),
    "write_file": lambda given: text(f"wrote {len(given.get('content', ''))} characters"),
    "delete_file": lambda given: text(f"deleted {given['path']}"),
    "list_users": lambda _: structured({"users": USERS}),
    "query_database": lambda given: structured({"rows": [{"database": given["database"], "n": 1}]}),
    "drop_database": lambda given: text(f"dropped {given['database']}"),
    "echo": lambda given: text(json.dumps(given, ensure_ascii=False)),
    "größe_messen_測る": lambda given: text(f"{len(given['text'].encode())} bytes"),
    "slow": lambda _: text("done at last"),
    "fail": lambda _: text("this went wrong") | {"isError": True},
}


async def plain_result(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a tool that sends no other messages, as JSON; None for other tools."""
    if name == "slow":
        await asyncio.sleep(arguments.get("ms", 1000) / 1000)
    return RESULTS[name](arguments) if name in RESULTS else None


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def structured(content: dict[str, Any]) -> dict[str, Any]:
    return text(json.dumps(content, ensure_ascii=False)) | {"structuredContent": content}


def plain_answer(method: str, asked: Any) -> dict[str, Any] | None:
    """The result of a request that is about no tool; None if there is no such thing."""
    match method:
        case "resources/list":
            return {"resources": FIXTURES["resources"]}
        case "resources/templates/list":
            return {"resourceTemplates": FIXTURES["templates"]}
        case "resources/read":
            return _contents_of(str(asked.uri))
        case "prompts/list":
            return {"prompts": FIXTURES["prompts"]}
        case "prompts/get":
            return _prompt(asked.name, asked.arguments or {})
        case "completion/complete":
            known = {"language": FIXTURES["languages"], "name": USERS}[asked.argument.name]
            values = [value for value in known if value.startswith(asked.argument.value)]
            return {"completion": {"values": values, "hasMore": False}}
    return {}


def _contents_of(uri: str) -> dict[str, Any] | None:
    if uri.startswith("users://"):
        said = {
            "mimeType": "application/json",
            "text": json.dumps({"name": uri[len("users://") :]}),
        }
    elif resource := next((r for r in FIXTURES["resources"] if r["uri"] == uri), None):
        said = {"mimeType": resource["mimeType"]} | FIXTURES["contents"][uri]
    else:
        return None
    return {"contents": [{"uri": uri} | said]}


def _prompt(name: str, arguments: dict[str, str]) -> dict[str, Any] | None:
    language, given = arguments.get("language", "English"), arguments.get("text", "")
    words = {
        "summarize": f"Summarize in {language}: {given}",
        "drop_database": "Which database shall I drop?",
    }
    content = {"type": "text", "text": words.get(name)}
    return {"messages": [{"role": "user", "content": content}]} if name in words else None


class _Announcing(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self.started:
            print(f"listening on {sockets[0].getsockname()[1]}", flush=True)


def listening(port: int) -> socket.socket:
    # With the protocol named, or else asyncio does not set TCP_NODELAY: 40 ms for each message.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def serve(app: Any, port: int | socket.socket) -> None:
    """Serve an ASGI application on loopback until SIGTERM."""
    listener = listening(port) if isinstance(port, int) else port
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="on")
    _Announcing(config).run(sockets=[listener])
