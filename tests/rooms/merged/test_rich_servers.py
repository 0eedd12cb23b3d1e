"""What a client sees of two servers through ``/mcp``, and of each directly."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.rooms.merged.lists import PROMPTS, TOOLS, ListKind, parse_page
from tests.rooms.merged.talking import Talking, rich, talking
from tests.rooms.serve.test_serve import Serving, serving
from tests.waiting import eventually


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("served")
    text = f"""
        dashboard = 0
        [servers.one]
        {rich("one", "--journal", str(folder / "one"))}
        [servers.two]
        {rich("two")}
        [profiles.plain]
        servers = ["one"]
        [profiles.few]
        read-only = true
        allow-glob = ["e*", "l*"]
        deny = ["^link$"]
    """
    with serving(folder, text) as running:
        running.says("two: http")
        yield running


def everything(client: Talking, prefix: str) -> dict[str, Any]:
    """Play all that a client can do; return what it sees, without prefixes."""
    level = client.ask("logging/setLevel", '{"level":"debug"}')
    seen: dict[str, Any] = {
        "level": level,
        "tools": definitions(client, TOOLS),
        "prompts": definitions(client, PROMPTS),
    }
    client.count_from(100)
    seen |= {
        "echo": client.call(f"{prefix}echo", '{"n":1.0e2,"a":"\\u00e9"}', id='"an \\u0069d"'),
        "prompt": client.ask("prompts/get", f'{{"name":"{prefix}greet","arguments":{{"a":"1"}}}}'),
        "read": client.ask("resources/read", '{"uri":"file:///one/a"}'),
        "opaque": client.ask("resources/read", '{"uri":"opaque:one"}'),
        "template": client.ask("resources/read", '{"uri":"db://one/7"}'),
        "complete": client.ask(
            "completion/complete",
            f'{{"ref":{{"type":"ref/prompt","name":"{prefix}greet"}},"argument":{{}}}}',
        ),
        "subscribe": client.ask("resources/subscribe", '{"uri":"file:///one/a"}'),
        "link": client.call(f"{prefix}link"),
        "linked": client.ask("resources/read", '{"uri":"opaque:one/7"}'),
    }
    for name in ("elicit", "sample", "roots"):
        seen[name] = client.call(f"{prefix}{name}")
    client.call(f"{prefix}progress", more=',"_meta":{"progressToken":"my \\"token\\""}')
    client.call(f"{prefix}log")
    client.call(f"{prefix}touch", '{"uri":"file:///one/a"}')
    client.hears("resources/updated")
    without = [one.replace(b'"one:', b'"') for one in client.heard]
    seen["questions"] = sorted(
        re.sub(rb'"id": ?("(?:\\.|[^"])*"|\d+)', b"", one)
        for one in without
        if b"list_changed" not in one and b"progressToken" not in one
    )
    seen["progress"] = [one for one in client.heard if b"notifications/progress" in one]
    return {key: unprefixed(one, prefix) for key, one in seen.items()}


def definitions(client: Talking, kind: ListKind) -> list[bytes]:
    """Return the bytes of all that is listed, on all pages."""
    found: list[bytes] = []
    cursor: str | None = ""
    while cursor is not None:
        params = json.dumps({"cursor": cursor} if cursor else {})
        page = parse_page(kind, client.ask(kind.method, params, id='"list"'))
        found += [raw for _, raw in page.elements]
        cursor = page.cursor
    return found


def unprefixed(said: Any, prefix: str) -> Any:
    """Return what a client has seen, with own names and without the envelope of lists."""
    if isinstance(said, list):
        return [unprefixed(one, prefix) for one in said]
    assert isinstance(said, bytes)
    return said.replace(f'"name": "{prefix}'.encode(), b'"name": "') if prefix else said


def test_a_server_is_the_same_through_mcp_and_directly(served: Serving) -> None:
    """Names and the ids of servers apart, all bytes are the server's own."""
    with talking(served, "/one/mcp") as client:
        direct = everything(client, "")
    with talking(served, "/plain/mcp") as client:
        merged = everything(client, "one_")
    assert json.loads(merged.pop("level")) == json.loads(direct.pop("level"))
    for name, said in direct.items():
        assert merged[name] == said, name


def test_two_servers_are_one(served: Serving) -> None:
    with talking(served) as client:
        tools, prompts, uris = client.names(), client.names("prompts"), client.names("resources")
        said = client.introduction
        read = [
            client.ask("resources/read", json.dumps({"uri": uri}))
            for uri in ("ui://two/widget", "db://two/1", "common://both", "none://a")
        ]
    assert tools[0] == "one_echo"
    assert tools[11] == "two_echo"
    assert prompts == ["one_greet", "one_part", "two_greet", "two_part"]
    assert [uri for uri in uris if uri == "common://both"] == []
    assert "common://both" in served.says("both have the resource .*")[0]
    assert b"two: ui://two/widget" in read[0]
    assert b"two: db://two/1" in read[1]
    assert [json.loads(one)["error"]["code"] for one in read[2:]] == [-32002, -32002]
    assert said["capabilities"] == {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "logging": {},
        "completions": {},
    }
    assert said["instructions"].endswith("one: Use one with care.\n\ntwo: Use two with care.")


def test_a_profile_only_narrows(served: Serving) -> None:
    with talking(served, "/few/mcp") as client:
        tools = client.names()
        hidden = client.call("one_link")
        unknown = client.call("one_none")
    assert tools == ["one_echo", "two_echo"]
    assert hidden.replace(b"one_link", b"one_none").replace(b'"id":2', b'"id":3') == unknown


def test_a_cancelled_request_is_cancelled_at_its_server(served: Serving, tmp_path: Path) -> None:
    journal = served.file.parent / "one"
    with talking(served) as client:
        client.call("one_echo")
        waiting = threading.Thread(target=client.call, args=("one_wait",), kwargs={"id": '"w"'})
        waiting.start()
        assert eventually(lambda: "waits" in journal.read_text())
        client.notify("notifications/cancelled", '{"requestId":"w"}')
        waiting.join(10)
        assert not waiting.is_alive()
    assert eventually(lambda: "notifications/cancelled" in journal.read_text())


def test_a_changed_list_is_told_once(served: Serving) -> None:
    with talking(served) as client:
        client.names("prompts")
        client.call("two_change", '{"tool":"later"}')
        client.hears("prompts/list_changed")
        names = client.names("prompts")
        heard = [one for one in client.heard if b"prompts/list_changed" in one]
    assert "two_p_later" in names
    assert len(heard) == 1


def test_clients_and_servers_may_use_the_same_ids(served: Serving) -> None:
    """Both servers ask with the id 1."""
    with talking(served) as client:
        for server in ("one", "two"):
            assert b"accept" in client.call(f"{server}_elicit", id="1")
        asked = [json.loads(one)["id"] for one in client.heard if b"elicitation" in one]
    assert [one.partition(":")[0] for one in asked] == ["one", "two"]


def test_the_report_and_the_page_show_it(served: Serving) -> None:
    said = served.says("merged: http.*")[0]
    assert said.endswith("/mcp -> 2 servers: 22 tools, 0 hidden")
    assert served.says("few: http.*")[0].endswith("/few/mcp -> 2 servers: 2 tools, 20 hidden")
    port = served.says(r"Dashboard: http://127.0.0.1:(\d+)/\S*token=(\S+)")
    page = Talking(int(port[1]), "/mcp/state")
    shown = page.send("GET", authorization=f"Bearer {port[2]}").json()["listeners"]
    named = {one["mode"]: one for one in shown}
    assert set(named) == {"one", "two", "merged", "plain", "few"}
    assert (named["merged"]["exposed"], named["few"]["hidden"]) == (22, 20)
