"""Denied prompts, resources and skills are gone in every shape of the filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import test_choosing
from tests.mcp_upstream import tool
from tests.shapes import Options, Server, message, notification, shape
from tests.stdio_upstream import THINGS

OPTIONS: Options = {
    "deny": "^delete_",
    "deny-prompts": "^secret",
    "deny-resources": "^file:///etc/",
    "deny-skills": "^hide$",
}
LISTED = {
    "prompts/list": {"prompts": [{"name": "greet"}]},
    "resources/list": {"resources": [{"uri": "file:///b"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "file:///{a}"}]},
    "skills/list": {"skills": [{"uri": "skill://a/SKILL.md"}]},
}
REFUSED: list[tuple[str, dict[str, Any], int]] = [
    ("prompts/get", {"name": "secret"}, -32602),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "secret"}}, -32602),
    ("resources/read", {"uri": "FILE:///x/../etc/%61"}, -32002),
    ("resources/read", {"uri": "skill://x/hide/a.md"}, -32002),
    ("resources/subscribe", {"uri": "file:///etc/a"}, -32002),
    ("skills/get", {"uri": "skill://hide/SKILL.md"}, -32602),
    ("tools/resolve", {"name": "read_file"}, -32601),
    ("prompts/render", {"name": "greet"}, -32601),
    ("completion/complete", {"ref": {"type": "ref/tool", "name": "delete_file"}}, -32601),
    ("tasks/create", {"method": "tools/call", "params": {"name": "delete_file"}}, -32601),
    ("tasks/create", {"request": {"method": "prompts/get", "params": {"name": "secret"}}}, -32602),
]
PASSING = [
    ("prompts/get", {"name": "greet"}),
    ("resources/read", {"uri": "file:///b"}),
    ("skills/get", {"uri": "skill://a/SKILL.md"}),
]
NEWS = [
    notification("notifications/resources/updated", uri=uri)
    for uri in ("file:///etc/a", "file:///b")
]
SHAPES = {
    row: test_choosing.SHAPES[row]
    for row in (
        "JSON", "events", "mitmdump", "relay", "pipe", "bridge", "legacy stream",
    )
} | {"mitmdump events": {"name": "mitmdump", "server": {"as_events": True}}}  # fmt: skip


@pytest.mark.parametrize("row", SHAPES)
async def test_denied_things_are_not_listed_and_not_reached(row: str, tmp_path: Path) -> None:
    given = dict(SHAPES[row])
    tools = [tool("read_file"), tool("delete_file")]
    server = Server(tools, results=THINGS, news=NEWS, **given.pop("server", {}))
    async with shape(server=server, home=tmp_path, options=OPTIONS, **given) as talk:
        for method, result in LISTED.items():
            assert (await talk.ask(message(method)))["result"] == result, method
        for method, params in PASSING:
            assert (await talk.ask(message(method, **params)))["result"] == THINGS[method], method
        for method, params, code in REFUSED:
            assert (await talk.ask(message(method, **params)))["error"]["code"] == code, method
        # Members of a batch are judged one by one.
        answers = await talk.ask_all(
            message("prompts/get", name="secret"), message("prompts/list", 2)
        )
        assert answers[1]["error"]["code"] == -32602
        assert answers[2]["result"] == LISTED["prompts/list"]
    for forbidden in ("secret", "/etc/", "%61", "hide/", "tools/resolve", "ref/tool", "tasks/"):
        assert forbidden not in str(server.heard)
    # News of a denied resource are dropped, too.
    assert {one["params"]["uri"] for one in talk.news} <= {"file:///b"}
    assert talk.news or row in ("JSON", "mitmdump", "pipe")  # these have JSON upstreams
