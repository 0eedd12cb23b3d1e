"""What edits cost: python -m tests.bench.edits

One server with 100 tools, without edits, with edits of 10 of them, and with a value for each call
of one. CPU time of the filter; all figures are of one run: compare them with each other.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from subprocess import Popen

from tests.bench.merged import Client, accepts, cost
from tests.raw_upstream import free_port
from tests.rooms.serve.test_serve import serving
from tests.waiting import eventually

_CALLS, _LISTS, _ROUNDS = 500, 100, 7
_TITLES = "".join(f'[servers.s.tools.tool_{number}]\ntitle = "T"\n' for number in range(10))
_FIX = '[servers.s.tools.tool_5]\nfix = {a = "b"}\n'
_EDITS = {"no edits": "", "10 of 100 edited": _TITLES, "a fixed parameter": _FIX}


def main() -> None:
    port = free_port()
    with ExitStack() as stack:
        server = stack.enter_context(Popen([sys.executable, "-m", "tests.bench.merged", str(port)]))
        stack.callback(server.kill)
        assert eventually(partial(accepts, port))
        clients = {}
        for name, edits in _EDITS.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            text = f'[servers.s]\nurl = "http://127.0.0.1:{port}/mcp"\n{edits}'
            it = stack.enter_context(serving(folder, text, report="s: http"))
            clients[name] = Client(it.port, "/s/mcp"), it.process.pid
        calls: dict[str, list[float]] = {name: [] for name in clients}
        lists: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(_ROUNDS):  # in turn, so that what else runs disturbs all alike
            for name, (client, pid) in clients.items():
                arguments = {} if name == "a fixed parameter" else {"a": "b"}
                call = client.request("tools/call", {"name": "tool_5", "arguments": arguments})
                calls[name].append(cost(pid, partial(client.send, call), _CALLS))
                listing = client.request("tools/list", {})
                lists[name].append(cost(pid, partial(client.send, listing), _LISTS))
    for name in clients:
        print(f"{name}: a call {min(calls[name]):.0f} us, a list {min(lists[name]):.0f} us")


if __name__ == "__main__":
    main()
