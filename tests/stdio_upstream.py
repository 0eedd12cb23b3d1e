"""A command that speaks MCP over stdio, as awkwardly as a test wants.

    python tests/stdio_upstream.py [--journal FILE] [--tools a,b,c] [--hints JSON] [--HABIT …]

It writes each line that reaches it to the journal, as it came. Some tools have an effect:
``crash`` exits with code 3, ``vanish`` is a SIGKILL, ``close`` closes stdout, ``noise`` prints
lines that are no messages, ``say`` prints its argument ``raw`` as it is, ``fill`` a long line,
``ask`` asks the client for its roots, ``sleep`` sleeps, ``big`` answers with so many bytes,
``flood`` sends notifications, ``change`` lists other ``tools`` from now on and says so,
``announce`` says after its answer that what is in ``--file`` has changed, ``env``, ``cwd`` and
``argv`` tell what it was started with. Anything else is answered with the tool's name.
``subscriptions/listen`` and ``vendor/slow`` are never answered.

Only the standard library is used: it has to start quickly.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import IO, Any

type Message = dict[str, Any]

CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}

THINGS: dict[str, Message] = {
    "prompts/list": {"prompts": [{"name": "secret"}, {"name": "greet"}]},
    "prompts/get": {"messages": []},
    "completion/complete": {"completion": {"values": []}},
    "resources/list": {"resources": [{"uri": "file:///etc/a"}, {"uri": "file:///b"}]},
    "resources/templates/list": {
        "resourceTemplates": [{"uriTemplate": "file:///etc/{a}"}, {"uriTemplate": "file:///{a}"}]
    },
    "resources/read": {"contents": [{"uri": "file:///b", "text": "b"}]},
    "resources/subscribe": {},
    "skills/list": {"skills": [{"uri": f"skill://{name}/SKILL.md"} for name in ("hide", "a")]},
    "skills/get": {"skill": {"uri": "skill://a/SKILL.md"}},
}
"""What it has besides tools: its answer to each method, whatever is asked for."""


def main() -> None:
    args = _arguments()
    if args.pid:
        with open(args.pid, "w") as file:
            file.write(str(os.getpid()))
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.exit_on_term is not None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(args.exit_on_term))
    if args.exit_on_int is not None:
        signal.signal(signal.SIGINT, lambda *_: os._exit(args.exit_on_int))
    if args.grandchild:
        _start_grandchild(args.grandchild, args.ignore_term)
    if args.stderr:
        print(args.stderr, file=sys.stderr, flush=True)  # noqa: T201
    time.sleep(args.slow)
    with open(args.journal or os.devnull, "ab", buffering=0) as journal:
        _serve(args, journal)
    while args.ignore_eof:
        time.sleep(60)
    sys.exit(args.exit)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal")
    parser.add_argument("--pid", help="write its pid to this file")
    parser.add_argument("--tools", default="read_file,write_file,delete_file")
    parser.add_argument("--hints", type=json.loads, default={}, help="annotations, by tool")
    parser.add_argument("--file", help='it lists the "tools" of this file, in their own bytes')
    parser.add_argument("--page", type=int, default=0, help="tools on each page of the list")
    parser.add_argument("--exit", type=int, default=0, help="exit code after EOF")
    parser.add_argument("--ignore-eof", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--exit-on-term", type=int)
    parser.add_argument("--exit-on-int", type=int)
    parser.add_argument("--grandchild", help="start one, and write its pid to this file")
    parser.add_argument("--stderr", default="")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds before it reads")
    parser.add_argument("--deaf", action="store_true", help="never read")
    parser.add_argument("--strict", action="store_true", help="refuse all before initialized")
    parser.add_argument("--modern", action="store_true", help="speak only 2026-07-28")
    parser.add_argument("--crlf", action="store_true", help="end lines with CRLF")
    return parser.parse_args()


def _start_grandchild(pid_file: str, ignores_term: bool) -> None:
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if ignores_term else ""
    new = f"{pid_file}.new"
    code = (
        f"import os, signal, time\n{ignoring}open({new!r}, 'w').write(str(os.getpid()))\n"
        f"os.replace({new!r}, {pid_file!r})\ntime.sleep(600)\n"
    )
    subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    while not os.path.exists(pid_file):
        time.sleep(0.01)


def _serve(args: argparse.Namespace, journal: IO[bytes]) -> None:
    ready = not args.strict
    while args.deaf:
        time.sleep(60)
    for line in sys.stdin.buffer:
        journal.write(line)
        message = json.loads(line)
        if isinstance(message, list):
            _tell(args, [_answer(args, one, ready) for one in message if "id" in one])
            continue
        if message.get("method") == "notifications/initialized":
            ready = True
        if "id" in message and "method" in message and (answer := _answer(args, message, ready)):
            _tell(args, answer)
        if args.file and message.get("params", {}).get("name") == "announce":
            _tell(args, CHANGED)


def _tell(args: argparse.Namespace, said: object) -> None:
    text = json.dumps(said)
    if args.file and '"TOOLS"' in text:
        [tools] = re.findall(r'"tools"\s*:\s*(\[.*\])', _file(args), re.DOTALL)
        text = text.replace('"TOOLS"', tools)
    _write(text.encode() + (b"\r\n" if args.crlf else b"\n"))


def _file(args: argparse.Namespace) -> str:
    """Return what its file says now."""
    if not args.file:
        return "{}"
    with open(args.file) as file:
        return file.read()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _answer(args: argparse.Namespace, message: Message, ready: bool) -> Message:
    method, params = message["method"], message.get("params") or {}
    if not ready and method not in ("initialize", "ping"):
        return _error(message, -32002, "Not initialized")
    if args.modern and method == "initialize":
        return _error(message, -32601, "Method not found")
    match method:
        case "initialize":
            known, name = json.loads(_file(args)), "srv" if args.file else "stdio-upstream"
            result = {
                "protocolVersion": params.get("protocolVersion", "2025-11-25"),
                "capabilities": {"tools": {"listChanged": True} if args.file else {}},
                "serverInfo": {"name": name, "version": known.get("version", "1")},
            }
            result |= {"instructions": known["instructions"]} if "instructions" in known else {}
        case "server/discover" if args.modern:
            result = {
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "modern", "version": "2"}},
            }
        case "tools/list":
            result = _list(args, params)
        case "tools/call":
            result = _call(args, params)
        case "ping":
            result = {}
        case "subscriptions/listen" | "vendor/slow":
            return {}
        case _ if method in THINGS:
            result = THINGS[method]
        case _:
            return _error(message, -32601, "Method not found")
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _error(message: Message, code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": text}}


def _list(args: argparse.Namespace, params: Message) -> Message:
    if args.file:
        return {"tools": "TOOLS"}
    names = args.tools.split(",") if args.tools else []
    tools: list[Message] = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    for tool in tools:
        tool |= {"annotations": args.hints[tool["name"]]} if tool["name"] in args.hints else {}
    result: Message = {"tools": tools}
    if args.page:
        start = int(params.get("cursor") or 0)
        result["tools"] = tools[start : start + args.page]
        if start + args.page < len(tools):
            result["nextCursor"] = str(start + args.page)
    if args.modern:
        result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    return result


def _call(args: argparse.Namespace, params: Message) -> Message:
    name, arguments = params["name"], params.get("arguments") or {}
    text = name
    match name:
        case "crash":
            os._exit(arguments.get("code", 3))
        case "vanish":
            os.kill(os.getpid(), signal.SIGKILL)
        case "close":
            os.close(1)
            time.sleep(600)
        case "noise":
            _write(b"Loading the model ...\nnot { JSON\n")
        case "say":
            end = "\n" if arguments.get("ended", True) else ""
            _write((arguments["raw"] + end).encode("latin-1"))
        case "fill":  # a line of so many bytes
            _write(arguments.get("head", "").encode() + b"x" * arguments["bytes"] + b"\n")
        case "ask":
            _tell(args, {"jsonrpc": "2.0", "id": "q1", "method": "roots/list"})
            text = sys.stdin.buffer.readline().decode()
        case "sleep":
            time.sleep(arguments["seconds"])
        case "big":
            text = "x" * arguments["bytes"]
        case "flood":
            for number in range(arguments["messages"]):
                note = {"level": "info", "data": f"{number}" + "x" * 1000}
                _tell(args, {"jsonrpc": "2.0", "method": "notifications/message", "params": note})
        case "change":  # the tools, and say so
            args.tools = arguments["tools"]
            _tell(args, CHANGED)
        case "env":
            text = os.environ.get(arguments["name"], "unset")
        case "cwd":
            text = os.getcwd()
        case "argv":
            text = json.dumps(sys.argv)
    return {"content": [{"type": "text", "text": text}]}


if __name__ == "__main__":
    main()
