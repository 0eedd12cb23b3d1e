"""What other gateways lose of two rich servers: python -m tests.bench.gateways

Each gateway serves the same two commands (``tests/rooms/merged/rich_upstream.py``) as one server,
as its documentation shows it. The same client asks each for the same things, and prints a table.
The others are installed by ``tests/end_to_end/peers/setup fastmcp gateways``; one that is not there
is left out. (We hide tools that come later unless ``new-tools`` says otherwise, so it is set here.)
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from tests.bench.merged import accepts
from tests.proxy import REPOSITORY
from tests.raw_upstream import free_port
from tests.rooms.merged import talking
from tests.rooms.merged.talking import RICH, Talking, asked, events_in
from tests.waiting import eventually

_PATIENCE = 6.0  # seconds for each answer
_FASTMCP = REPOSITORY / ".peers" / "fastmcp" / "bin" / "python"
_HUB = REPOSITORY / ".peers" / "gateways" / "node_modules" / ".bin" / "mcp-hub"
_FASTMCP_CODE = """
import json, sys
from fastmcp.server import create_proxy
proxy = create_proxy(json.load(open(sys.argv[1])), name="both")
proxy.run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), path="/mcp", show_banner=False)
"""
_EXACT = partial(json.loads, parse_int=str, parse_float=str)


@dataclass
class OverSse(Talking):
    """The same client over HTTP+SSE: all messages come on one stream."""

    place: str = ""
    _answers: dict[str, bytes] = field(default_factory=dict)

    def opens(self, capabilities: str = talking.CAPABILITIES) -> Talking:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", self.path, headers={"accept": "text/event-stream"})
        self._events = events_in(connection.getresponse())
        self.place = next(self._events).decode()
        Thread(target=self._listen, daemon=True).start()
        info = '"clientInfo":{"name":"test","version":"1"}'
        version = f'"protocolVersion":"{self.revision}"'
        params = f'{{{version},"capabilities":{capabilities},{info}}}'
        self.introduction = json.loads(self.ask("initialize", params))["result"]
        self.notify("notifications/initialized")
        return self

    def _listen(self) -> None:
        with suppress(OSError, ValueError, AttributeError):
            for raw in self._events:
                message = json.loads(raw)
                if "method" in message:
                    self.take(raw)
                else:
                    self._answers[json.dumps(message["id"])] = raw

    def listens(self, **_headers: str) -> Talking:
        return self

    def send(self, method: str, body: bytes = b"", **headers: str) -> Any:
        path, self.path = self.path, self.place
        try:
            return super().send(method, body, **headers)
        finally:
            self.path = path

    def notify(self, method: str, params: str = "{}") -> None:
        self.send("POST", f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}'.encode())

    def ask(self, method: str, params: str = "{}", id: str = "") -> bytes:
        self._number += 1
        id = id or str(self._number)
        self.send("POST", asked(method, params, id))
        end = time.monotonic() + _PATIENCE
        while id not in self._answers:
            assert time.monotonic() < end, "no answer"
            time.sleep(0.01)
        return self._answers.pop(id)


@dataclass(frozen=True)
class Gateway:
    """How to start one with two commands, and what it calls a tool."""

    name: str
    words: Callable[[Path, int], list[str]]
    """Given a folder with ``servers.json`` and ``servers.toml``, and a port."""
    joint: str
    client: type[Talking] = Talking
    is_ready: Callable[[int], bool] = accepts


def _hub_is_ready(port: int) -> bool:
    """mcp-hub accepts connections before it has looked at its servers."""
    with (
        suppress(OSError, ValueError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5) as answer,
    ):
        return bool(json.load(answer)["state"] == "ready")
    return False


def gateways() -> Iterator[Gateway]:
    ours = [sys.executable, "-m", "mcp_tool_filter", "serve", "--config"]
    yield Gateway(
        "mcp-tool-filter", lambda at, port: [*ours, f"{at}/servers.toml", "--port", str(port)], "_"
    )
    if _FASTMCP.exists():
        code = [str(_FASTMCP), "-c", _FASTMCP_CODE]
        words: Callable[[Path, int], list[str]] = lambda at, port: [  # noqa: E731
            *code, f"{at}/servers.json", str(port),
        ]  # fmt: skip
        yield Gateway("FastMCP", words, "_")
    if _HUB.exists():
        yield Gateway(
            "mcp-hub",
            lambda at, port: [str(_HUB), "--port", str(port), "--config", f"{at}/servers.json"],
            "__",
            OverSse,
            _hub_is_ready,
        )


@contextmanager
def serving(gateway: Gateway, *, third: list[str] | None = None) -> Iterator[tuple[int, Path]]:
    """Run a gateway with the two servers, and perhaps a broken one."""
    with tempfile.TemporaryDirectory() as folder:
        at, port = Path(folder), free_port()
        servers = {
            name: [*RICH, "--name", name, "--journal", str(at / name)] for name in ("one", "two")
        }
        servers |= {"third": third} if third else {}
        entries = {name: {"command": one[0], "args": one[1:]} for name, one in servers.items()}
        (at / "servers.json").write_text(json.dumps({"mcpServers": entries}))
        tables = [
            f"[servers.{name}]\ncommand = {json.dumps(one)}\n" for name, one in servers.items()
        ]
        (at / "servers.toml").write_text('new-tools = "judge"\n' + "".join(tables))
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            gateway.words(at, port), cwd=at, stdin=quiet, stdout=quiet, stderr=quiet
        ) as process:
            try:
                eventually(lambda: gateway.is_ready(port))
                yield port, at
            finally:
                process.kill()


def opened(gateway: Gateway, port: int) -> Talking:
    """Open a session; some gateways accept connections before they can answer."""

    found: list[Talking] = []

    def attempt() -> bool:
        with suppress(OSError, KeyError, IndexError, AssertionError, StopIteration):
            found.append(gateway.client(port, "/mcp").opens().listens())
        return bool(found)

    eventually(attempt)
    return found[0]


# What is compared. Each check returns how much there is, "yes", or raises.


@dataclass
class Both:
    """A client of a gateway, and how names look there."""

    client: Talking
    joint: str
    folder: Path

    def named(self, server: str, tool: str) -> str:
        return f"{server}{self.joint}{tool}"

    def call(self, tool: str, arguments: str = "{}", server: str = "one", more: str = "") -> Any:
        return _EXACT(self.client.call(self.named(server, tool), arguments, more))["result"]

    def listed(self, kind: str, method: str = "") -> list[Any]:
        """Return all that a list has, with all its pages."""
        found: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            params = json.dumps({"cursor": cursor} if cursor else {})
            result = _EXACT(self.client.ask(method or f"{kind}/list", params))["result"]
            found += result[kind]
            cursor = result.get("nextCursor")
        return found

    def text(self, result: Any) -> Any:
        return _EXACT(result["content"][0]["text"])

    def says(self, server: str, line: str) -> bool:
        """Tell whether a server has noted something by now."""
        file, end = self.folder / server, time.monotonic() + 2
        while time.monotonic() < end:
            if file.exists() and line in file.read_text():
                return True
            time.sleep(0.05)
        return False

    def hears(self, part: str) -> bool:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            if any(part.encode() in one for one in list(self.client.heard)):
                return True
            time.sleep(0.05)
        return False


def _of(found: int, expected: int) -> str:
    return "yes" if found == expected else f"{found} of {expected}"


def _tools(it: Both) -> str:
    return _of(len({one["name"] for one in it.listed("tools")}), 22)


def _definitions(it: Both) -> bool:
    [own] = [one for one in it.listed("tools") if one["name"] == it.named("one", "echo")]
    said = {
        "name": it.named("one", "echo"), "title": "The echo of one",
        "description": "naïve “text” \u2028 here", "annotations": {"readOnlyHint": True},
        "inputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
        "_meta": {"x.example/size": "12345678901234567890"},
    }  # fmt: skip
    return bool(own == said)


def _prompts(it: Both) -> str:
    listed = {one["name"] for one in it.listed("prompts")}
    answers = 0
    for name in listed:
        with suppress(Exception):
            params = json.dumps({"name": name, "arguments": {}})
            answers += "result" in json.loads(it.client.ask("prompts/get", params))
    return _of(answers, 4)


_FORMS = ("file:///{}/a", "ui://{}/widget", "opaque:{}")
_URIS = [form.format(name) for name in ("one", "two") for form in _FORMS]


def _resources(it: Both) -> str:
    """Count the resources that are listed under their own URI and lead to their own server."""
    listed = {one["uri"] for one in it.listed("resources")}
    return _of(sum(uri in listed and _reads(it, uri) for uri in _URIS), len(_URIS))


def _reads(it: Both, uri: str) -> bool:
    with suppress(Exception):
        said = json.loads(it.client.ask("resources/read", json.dumps({"uri": uri})))
        name = "one" if "one" in uri else "two"
        return bool(said["result"]["contents"][0]["text"].startswith(f"{name}: "))
    return False


def _template(it: Both) -> bool:
    return _reads(it, "db://two/7")


def _linked(it: Both) -> bool:
    """Read what no list has, but a result has named."""
    it.call("link", server="two")
    return _reads(it, "opaque:two/7")


def _arguments(it: Both) -> bool:
    said = it.call("echo", '{"n":12345678901234567890,"x":1.50,"é":"\\u2028"}')
    return bool(it.text(said)["arguments"]["n"] == "12345678901234567890")


def _results(it: Both) -> bool:
    exact = {"big": "12345678901234567890", "exact": "0.1"}
    return bool(it.call("echo")["structuredContent"] == exact)


def _progress(it: Both) -> str:
    it.call("progress", more=',"_meta":{"progressToken":"t"}')
    time.sleep(0.3)
    found = [one for one in it.client.heard if b"notifications/progress" in one and b'"t"' in one]
    return _of(len(found), 3)


def _asks(tool: str, method: str) -> Callable[[Both], bool]:
    def check(it: Both) -> bool:
        said = json.loads(it.call(tool, server="two")["content"][0]["text"])
        return bool(said == json.loads(talking.ANSWERS[method]))

    return check


def _logs(it: Both) -> bool:
    it.call("log")
    return it.hears("notifications/message")


def _changes(it: Both) -> bool:
    it.call("change", '{"tool":"later"}')
    told = it.hears("notifications/tools/list_changed")
    return told and it.named("one", "later") in {one["name"] for one in it.listed("tools")}


def _updated(it: Both) -> bool:
    uri = '{"uri":"file:///two/a"}'
    it.client.ask("resources/subscribe", uri)
    it.call("touch", uri, server="two")
    return it.says("two", "resources/subscribe") and it.hears("notifications/resources/updated")


def _completes(it: Both) -> bool:
    ref = {"type": "ref/prompt", "name": it.named("two", "greet")}
    params = json.dumps({"ref": ref, "argument": {"name": "a", "value": "b"}})
    said = json.loads(it.client.ask("completion/complete", params))
    return bool(said["result"]["completion"]["values"][0] == "two")


def _level(it: Both) -> bool:
    it.client.ask("logging/setLevel", '{"level":"warning"}')
    it.call("echo")
    it.call("echo", server="two")
    return it.says("one", "level warning") and it.says("two", "level warning")


def _cancels(it: Both) -> bool:
    name = it.named("two", "wait")
    body = asked("tools/call", f'{{"name":"{name}","arguments":{{}}}}', '"c"')
    Thread(target=lambda: _quietly(it.client.send, "POST", body), daemon=True).start()
    if not it.says("two", "waits"):
        return False
    it.client.notify("notifications/cancelled", '{"requestId":"c"}')
    return it.says("two", "notifications/cancelled")


def _quietly(act: Callable[..., object], *given: object) -> None:
    with suppress(Exception):
        act(*given)


def _instructions(it: Both) -> bool:
    said = it.client.introduction.get("instructions") or ""
    return "Use one with care." in said and "Use two with care." in said


def _unknown(it: Both) -> bool:
    """A tool that does not exist is an error of the protocol."""
    return "error" in json.loads(it.client.call("no_such_tool"))


CHECKS: dict[str, Callable[[Both], bool | str]] = {
    "all pages of the tools": _tools,
    "definitions as they are, but for the name": _definitions,
    "prompts, each answered by its server": _prompts,
    "resources (`file:`, `ui:`, opaque) under their own URI, each read": _resources,
    "a URI of a template": _template,
    "a URI that only a result has named": _linked,
    "large numbers in arguments": _arguments,
    "large numbers in results": _results,
    "progress": _progress,
    "elicitation": _asks("elicit", "elicitation/create"),
    "sampling": _asks("sample", "sampling/createMessage"),
    "roots": _asks("roots", "roots/list"),
    "log messages": _logs,
    "`list_changed`, and the new list": _changes,
    "subscription and `updated`": _updated,
    "completion": _completes,
    "`logging/setLevel` at both servers": _level,
    "cancellation reaches the server": _cancels,
    "both servers' instructions": _instructions,
    "an unknown tool is an error": _unknown,
}
_BROKEN = {
    "with a command that does not start": ["/no/such/program"],
    "with a server that hangs": [sys.executable, "-c", "import time; time.sleep(600)"],
}


def measure(gateway: Gateway) -> dict[str, str]:
    found: dict[str, str] = {}
    with serving(gateway) as (port, folder):
        both = Both(opened(gateway, port), gateway.joint, folder)
        for name, check in CHECKS.items():
            found[name] = _outcome(lambda check=check: check(both))  # type: ignore[misc]
    for name, broken in _BROKEN.items():
        found[f"the other servers {name}"] = _outcome(lambda broken=broken: _is_up(gateway, broken))  # type: ignore[misc]
    return found


def _is_up(gateway: Gateway, third: list[str]) -> str:
    with serving(gateway, third=third) as (port, folder):
        return _tools(Both(opened(gateway, port), gateway.joint, folder))


def _outcome(check: Callable[[], bool | str]) -> str:
    try:
        said = check()
    except Exception:
        return "no"
    return said if isinstance(said, str) else "yes" if said else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only")
    args = parser.parse_args()
    talking.TIMEOUT = _PATIENCE  # type: ignore[attr-defined]
    every = [one for one in gateways() if args.only in (None, one.name)]
    results = [measure(one) for one in every]
    print("| of two servers | " + " | ".join(one.name for one in every) + " |")
    print("| --- " * (len(every) + 1) + "|")
    for name in results[0]:
        print(f"| {name} | " + " | ".join(one[name] for one in results) + " |")


if __name__ == "__main__":
    main()
