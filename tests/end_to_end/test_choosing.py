"""One choice of tools by names and hints, in every shape of the filter: a call before the list, the
list, and a call after it agree, and nothing else reaches the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mcp_upstream import tool
from tests.shapes import Options, Server, call, not_found, notification, shape

CHOICE: Options = {
    "allow": "(?:_file|mine)$", "deny": "^delete_", "except": "^write_mine$",
    "read-only": True, "deny-hint": "open-world",
}  # fmt: skip
# Its own exceptions and hints add to those for all servers, and its allow list narrows.
FOR_ALL: Options = {
    "allow": "_file|mine|y$", "deny": "^delete_", "except": "^write_m", "deny-hint": "open-world",
}  # fmt: skip
ITS_OWN: Options = {"allow": "(?:_file|mine)$", "except": "^none", "read-only": True}

CLOSED = '"readOnlyHint":true,"openWorldHint":false'
READING = f"{{{CLOSED}}}"
ANNOTATIONS = {
    "write_file": "{}", "odd_file": READING.replace("true", '"true"'),
    "twice_file": f"{{{CLOSED},{CLOSED}}}", "open_file": '{"readOnlyHint":true}',
    "read_file": READING, "delete_file": READING, "write_mine": '{"destructiveHint":true}',
    "say": READING,
}  # fmt: skip
TOOLS = [tool(name, f',"annotations":{said}') for name, said in ANNOTATIONS.items()]
EXPOSED = ["read_file", "write_mine"]

ANN = {"who": "Bearer ann"}
IN_TWO_PARTS = {"options": FOR_ALL, "own": ITS_OWN}
SHAPES: dict[str, dict[str, Any]] = {
    "JSON": {"name": "launcher", **ANN},
    "events": {"name": "launcher", "server": {"as_events": True}, **ANN},
    "our own asker": {"name": "launcher"},
    "environment": {"name": "environment", **ANN},
    "legacy stream": {
        "name": "launcher", "transport": "legacy stream", "server": {"is_legacy": True}, **ANN,
    },
    "mitmdump": {"name": "mitmdump", **ANN},
    "forward proxy": {"name": "forward proxy", **ANN},
    "relay": {"name": "relay"},
    "config file": {"name": "config file"},
    "--server": {"name": "--server", **IN_TWO_PARTS},
    "pipe": {"name": "pipe"},
    "bridge": {"name": "bridge", **ANN},
    "serve": {"name": "serve", **IN_TWO_PARTS},
}  # fmt: skip
QUICK = ("relay", "pipe")


@pytest.mark.parametrize("is_listed", [False, True], ids=["before the list", "after it"])
@pytest.mark.parametrize(
    "row", [one if one in QUICK else pytest.param(one, marks=pytest.mark.rest) for one in SHAPES]
)
async def test_lists_and_calls_agree_in_every_shape(
    row: str, is_listed: bool, tmp_path: Path
) -> None:
    given = {"options": CHOICE, **SHAPES[row]}
    server = Server(TOOLS, **given.pop("server", {}))
    async with shape(server=server, home=tmp_path, **given) as talk:
        if is_listed:
            assert await talk.names() == EXPOSED
        for one in (*ANNOTATIONS, "none"):
            await talk.tell(notification("tools/call", name=one))
            answered = await talk.ask(call(one))
            if one in EXPOSED:
                assert answered["result"]["content"][0]["text"] == one
            else:
                assert answered == not_found(one)
        every = [call(one, at, task={"ttl": 1}) for at, one in enumerate(ANNOTATIONS)]
        answers = await talk.ask_all(*every, notification("tools/call", name="odd_file"))
        for at, one in enumerate(ANNOTATIONS):
            assert ("result" in answers[at]) is (one in EXPOSED)
        assert await talk.names() == EXPOSED
        for one in ("say", "open_file"):
            assert await talk.ask(call(one)) == not_found(one)
        assert sorted(server.called()) == sorted(3 * EXPOSED)
