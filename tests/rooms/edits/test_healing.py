"""What ``doctor --client`` says of tools that the client refuses, and what heals them."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

from mcp_tool_filter.core.messages.tools import Definition
from mcp_tool_filter.rooms.edits.definitions import edited_definition
from mcp_tool_filter.rooms.edits.healing import CLIENTS, problems_for
from mcp_tool_filter.rooms.edits.tables import parse_edits
from tests.cli.launched import Typed
from tests.mcp_upstream import tool
from tests.stdio_client import UPSTREAM

BRANCHY = b'{"name":"branchy","inputSchema":{"type":"object","anyOf":[{}]}}'


def test_what_heals_is_an_edit_after_which_nothing_is_wrong() -> None:
    named = Definition("n" * 100, None, tool("n" * 100))
    for client in CLIENTS:
        wrong = list(problems_for(client, "s", [named, Definition("branchy", None, BRANCHY)]))
        assert [one.tool for one in wrong][:1] == ["n" * 100], client
        tables = tomllib.loads("\n".join(one.edit for one in wrong))["servers"]["s"]["tools"]
        edits = parse_edits(tables)
        for one in wrong:
            edit = edits.for_tool(one.tool)
            raw = edited_definition(tool(one.tool) if one.tool != "branchy" else BRANCHY, edit)
            healed = Definition(edit.name or one.tool, None, raw)
            assert list(problems_for(client, "s", [healed])) == [], client


def test_doctor_asks_the_servers_of_the_client(home: Path, typed: Typed) -> None:
    command = {"command": sys.executable, "args": [UPSTREAM, "--tools", "read," + "n" * 90]}
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"files": command}}))
    said = typed("doctor", "--client", "cursor", status=1).out
    assert "more than 60 characters" in said
    assert f"[servers.files.tools.{'n' * 90}]" in said
    assert "read:" not in said
