"""Where authorization servers are, which clients log in, and how each is started."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tests.end_to_end.peer import INSTALLED, NODE, SCRIPTS, need, script

OLD = {"has_resource_metadata": False, "binds_audience": False}
PLACES: dict[str, dict[str, Any]] = {
    "same origin": {},
    "other origin, any audience": {"elsewhere": True, "binds_audience": False},
    "other origin": {"elsewhere": True},
    "other origin, sends iss": {"elsewhere": True, "sends_issuer": True},
    "same origin, sends iss": {"sends_issuer": True},
    "2025-03-26": {**OLD, "challenge": 'Bearer error="invalid_token"'},
    "2025-03-26, without metadata": {**OLD, "has_server_metadata": False, "challenge": "Bearer"},
}
CLIENTS = ("mcp1", "mcp2", "fastmcp", "ts1", "ts2", "remote")
SERVERS = ("login_mcp1", "login_mcp2", "login_ts1")
ALL = os.environ.get("FILTER_TESTS_PAIRS") == "all"
"""Whether to try everything, as .ci/full does, or each client and each place once."""


def combinations(others: Sequence[str], clients: Sequence[str] = CLIENTS) -> list[tuple[str, str]]:
    """Return clients with the others: all pairs, or so many that each is among them."""
    if ALL:
        return list(product(clients, others))
    count = max(len(clients), len(others))
    return [(clients[n % len(clients)], others[n % len(others)]) for n in range(count)]


def command_of(client: str) -> list[str]:
    """Return the command of a client that logs in."""
    if client == "remote":
        program = INSTALLED / "remote" / "node_modules" / "mcp-remote" / "dist" / "proxy.js"
        return [sys.executable, str(SCRIPTS / "login_remote.py"), str(NODE), str(program)]
    if client.startswith("ts"):
        return script(f"login_{client}")
    file = "login_fastmcp.py" if client == "fastmcp" else "login_python.py"
    return [str(INSTALLED / client / "bin" / "python"), str(SCRIPTS / file)]


def assert_served(seen: dict[str, Any], text: str = "done") -> None:
    """Fail unless a client saw one tool, and called it with its first and with a later token."""
    assert seen["tools"] == ["read_file"]
    assert seen["called"] == seen["called_later"] == text


async def log_in(
    client: str, url: str, seconds: float = 0, ca: Path | None = None
) -> dict[str, Any]:
    """Let a client log in, list and call; what it saw."""
    need(*(("node", "remote") if client == "remote" else (client,)))
    trusted = {"SSL_CERT_FILE": str(ca), "NODE_EXTRA_CA_CERTS": str(ca)} if ca else {}
    words, env = [*command_of(client), url, str(seconds)], {**os.environ, **trusted}
    ended = await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, timeout=60, check=False, env=env
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    seen: dict[str, Any] = json.loads(ended.stdout)
    return seen
