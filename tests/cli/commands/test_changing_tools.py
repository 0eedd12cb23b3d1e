"""A command that changes its tools while a client is connected, over stdio."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stdio_client import StdioClient, filtered, upstream

CHANGED = "notifications/tools/list_changed"
DENY = ("--deny", "^delete_")
BEFORE = "change,stays,goes,stays,delete_a"
AFTER = "change,stays,comes,stays,delete_b"


def names_of(client: StdioClient, id: str) -> list[str]:
    return [tool["name"] for tool in client.asks("tools/list", id=id)["result"]["tools"]]


def is_found(client: StdioClient, name: str, id: str) -> bool:
    answer = client.calls(name, id=id)
    if "result" in answer:
        return True
    assert answer["error"] == {"code": -32601, "message": f"Tool not found: {name}"}
    return False


@pytest.mark.parametrize("quiet", [(), ("-q",)], ids=["usual", "quiet"])
@pytest.mark.parametrize("source", ["auto", "cache"])
@pytest.mark.parametrize("new_tools", ["hide", "judge"])
def test_a_client_sees_removed_tools_go_and_new_ones_only_with_judge(
    new_tools: str, source: str, quiet: tuple[str, ...], tmp_path: Path
) -> None:
    judges = new_tools == "judge"
    flags = (*quiet, *DENY, "--new-tools", new_tools, "--tools-list", source)
    with filtered(*flags, "--", *upstream("--tools", BEFORE), home=tmp_path) as client:
        client.opens()
        for id in ("1", "2"):
            assert names_of(client, id) == ["change", "stays", "goes"]
        client.say(
            b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"change",'
            b'"arguments":{"tools":"%s"}}}' % AFTER.encode()
        )
        assert client.hears()["method"] == CHANGED
        assert client.hears()["id"] == 3
        for id in ("4", "5"):
            assert names_of(client, id) == ["change", "stays", *["comes"] * judges]
        assert is_found(client, "stays", "6")
        assert not is_found(client, "goes", "7")
        assert is_found(client, "comes", "8") is judges
        assert not is_found(client, "delete_b", "9")
        assert client.leaves() == 0
        said = client.stderr()
    new = "new tool comes: hidden until you restart the filter; with --new-tools judge"
    assert said.count(new) == (not judges)
    assert said.count("lists stays twice") == 1
    assert "new tool delete_b" not in said
