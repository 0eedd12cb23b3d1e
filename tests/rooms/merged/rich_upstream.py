"""A command with all that MCP has, for tests: pages, prompts, resources, questions, news.

    python tests/rooms/merged/rich_upstream.py [--name NAME] [--journal FILE]

Only the standard library is used: it has to start quickly.
"""

import json
import sys
import threading
from typing import Any

type Message = dict[str, Any]

_ARGUMENTS = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
NAME = _ARGUMENTS.get("--name", "rich")
_TOOLS = ["echo", "progress", "elicit", "sample", "roots", "wait", "change", "link", "touch", "log"]
_TOOLS.append("die")
_LOCK = threading.Lock()
_answers: dict[str, Message] = {}
_came = threading.Condition()
_cancelled: set[str] = set()
_more: list[str] = []
_number = 0


def say(message: Message) -> None:
    line = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False)
    with _LOCK:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def note(line: str) -> None:
    if path := _ARGUMENTS.get("--journal"):
        with open(path, "a") as file:
            file.write(line)


def ask(method: str, params: Message) -> Message:
    """Ask the client; ids are numbers and strings in turn."""
    global _number
    _number += 1
    id: Any = _number if _number % 2 else f'q"{_number}'
    say({"id": id, "method": method, "params": params})
    with _came:
        _came.wait_for(lambda: json.dumps(id) in _answers, timeout=20)
    return _answers.pop(json.dumps(id), {"error": "none"})


def tool(name: str) -> Message:
    return {
        "name": name,
        "title": f"The {name} of {NAME}",
        "description": "naïve “text” \u2028 here",
        "inputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
        "annotations": {"readOnlyHint": name in ("echo", "link")},
        "_meta": {"x.example/size": 12345678901234567890},
    }


def page(member: str, items: list[Any], params: Message) -> Message:
    """Return half of a list, and then the other half."""
    half = (len(items) + 1) // 2
    if params.get("cursor") == "second":
        return {member: items[half:]}
    return {member: items[:half], "nextCursor": "second"}


def call(id: Any, params: Message) -> Message:
    name, arguments = params["name"], params.get("arguments", {})
    token = params.get("_meta", {}).get("progressToken")
    match name:
        case "progress":
            for step in range(3):
                progress = {"progressToken": token, "progress": step, "total": 3}
                say({"method": "notifications/progress", "params": progress})
        case "elicit":
            schema = {"type": "object", "properties": {"a": {"type": "string"}}}
            said = ask("elicitation/create", {"message": "Sure?", "requestedSchema": schema})
            return text(said.get("result"))
        case "sample":
            content = {"role": "user", "content": {"type": "text", "text": "hi"}}
            asked = {"messages": [content], "maxTokens": 5, "_meta": {"progressToken": 99}}
            return text(ask("sampling/createMessage", asked).get("result"))
        case "roots":
            return text(ask("roots/list", {}).get("result"))
        case "wait":
            note("waits\n")
            with _came:
                _came.wait_for(lambda: json.dumps(id) in _cancelled, timeout=20)
            return text("woken")
        case "change":
            _more.append(arguments.get("tool", "later"))
            say({"method": "notifications/tools/list_changed"})
            say({"method": "notifications/prompts/list_changed"})
        case "link":
            uri = arguments.get("uri", f"opaque:{NAME}/7")
            return {"content": [{"type": "resource_link", "uri": uri, "name": "a"}]}
        case "touch":
            say({"method": "notifications/resources/updated", "params": {"uri": arguments["uri"]}})
        case "log":
            params = {"level": "info", "data": {"by": NAME}}
            say({"method": "notifications/message", "params": params})
        case "die":
            sys.exit(3)
        case _ if name not in (*_TOOLS, *_more):
            return {"content": [text(f"no {name}")], "isError": True}
    more = {"structuredContent": {"big": 12345678901234567890, "exact": 0.10}}
    return text({"tool": name, "arguments": arguments}) | more


def text(said: object) -> Message:
    return {"content": [{"type": "text", "text": json.dumps(said)}]}


def resources() -> list[Message]:
    uris = [f"file:///{NAME}/a", f"ui://{NAME}/widget", "common://both", f"opaque:{NAME}"]
    return [{"uri": uri, "name": uri} for uri in uris]


def result(message: Message) -> Message:
    params = message.get("params", {})
    match message["method"]:
        case "initialize":
            note("initialize " + json.dumps(params, sort_keys=True) + "\n")
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {
                    "tools": {"listChanged": True},
                    "prompts": {"listChanged": True},
                    "resources": {"subscribe": True},
                    "logging": {},
                    "completions": {},
                    "tasks": {},
                },
                "serverInfo": {"name": NAME, "version": "1"},
                "instructions": f"Use {NAME} with care.",
            }
        case "tools/list":
            return page("tools", [tool(name) for name in (*_TOOLS, *_more)], params)
        case "tools/call":
            return call(message["id"], params)
        case "prompts/list":
            names = ["greet", "part", *(f"p_{one}" for one in _more)]
            return page("prompts", [{"name": name, "description": NAME} for name in names], params)
        case "prompts/get":
            content = {"type": "text", "text": json.dumps(params)}
            return {"messages": [{"role": "user", "content": content}]}
        case "resources/list":
            return page("resources", resources(), params)
        case "resources/templates/list":
            template = {"uriTemplate": f"db://{NAME}/{{id}}", "name": "row"}
            return {"resourceTemplates": [template]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": f"{NAME}: {params['uri']}"}]}
        case "completion/complete":
            return {"completion": {"values": [NAME, json.dumps(params["ref"])]}}
        case "logging/setLevel":
            note(f"level {params['level']}\n")
            return {}
        case "ping" | "resources/subscribe" | "resources/unsubscribe":
            note(message["method"] + "\n")
            return {}
    raise LookupError


def take(message: Message) -> None:
    if "method" not in message:
        with _came:
            _answers[json.dumps(message["id"])] = message
            _came.notify_all()
    elif "id" not in message:
        note(message["method"] + "\n")
        if message["method"] == "notifications/cancelled":
            with _came:
                _cancelled.add(json.dumps(message["params"]["requestId"]))
                _came.notify_all()
    else:
        threading.Thread(target=reply, args=(message,), daemon=True).start()


def reply(message: Message) -> None:
    try:
        say({"id": message["id"], "result": result(message)})
    except LookupError:
        say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
    except SystemExit:
        import os

        os._exit(3)


if __name__ == "__main__":
    for line in sys.stdin:
        take(json.loads(line))
