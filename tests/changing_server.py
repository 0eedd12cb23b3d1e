"""An MCP server over stdio whose tools are in a file, so that they change between two runs, or
while it runs: ``python -m tests.changing_server TOOLS.json``.

The file has ``{"tools": [...]}``, as text that is sent as it is, and optionally
``version`` and ``instructions``. A call of ``announce`` sends ``list_changed``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_TOOLS = re.compile(r'"tools"\s*:\s*(\[.*\])', re.DOTALL)


def write_tools(file: Path, *definitions: str, **more: str) -> list[str]:
    """Write the server's file; return the command that starts the server."""
    said = [f'"{key}": {json.dumps(value)}' for key, value in more.items()]
    file.write_text("{" + ", ".join([*said, f'"tools": [{", ".join(definitions)}]']) + "}")
    return [sys.executable, "-m", "tests.changing_server", str(file)]


def main() -> None:
    file = Path(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = _result(message, file)
            id = json.dumps(message["id"])
            _send(f'{{"jsonrpc":"2.0","id":{id},{result}}}')
        if message.get("params", {}).get("name") == "announce":
            _send('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')


def _send(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _result(message: Any, file: Path) -> str:
    text = file.read_text()
    match message["method"]:
        case "initialize":
            known = json.loads(text)
            return '"result":' + json.dumps({
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "srv", "version": known.get("version", "1")},
                **({"instructions": known["instructions"]} if "instructions" in known else {}),
            })  # fmt: skip
        case "tools/list":
            found = _TOOLS.search(text)
            assert found
            return f'"result":{{"tools":{found[1]}}}'
        case "tools/call":
            ran = json.dumps(f"ran {message['params']['name']}")
            return f'"result":{{"content":[{{"type":"text","text":{ran}}}]}}'
    return '"error":{"code":-32601,"message":"no such method"}'


if __name__ == "__main__":
    main()
