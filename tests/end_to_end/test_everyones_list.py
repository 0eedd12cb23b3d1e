"""Servers that list other tools to other clients: each gets the list that it gets directly."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.browser import listens_on
from tests.raw_upstream import free_port
from tests.stdio_client import started
from tests.waiting import eventually

from .filtering import mitmdump
from .peer import NODE, SERVERS, Document, Step, client, need, play, upstream

EVERYTHING = SERVERS / "server-everything" / "dist" / "index.js"
CLIENTS = [("mcp1", ()), ("mcp2", ("--mode", "auto")), ("ts1", ()), ("ts2", ("--mode", "auto"))]
TOOLS_FOR_ALL = {
    "get-roots-list", "simulate-research-query",
    "trigger-sampling-request", "trigger-elicitation-request",
}  # fmt: skip
LIST: Step = {"list": "tools"}


@contextmanager
def everything() -> Iterator[str]:
    """Run server-everything over HTTP; yield its origin."""
    need("node", "servers")
    port = free_port()
    words, env = [str(NODE), str(EVERYTHING), "streamableHttp"], {"PORT": str(port)}
    with (
        tempfile.TemporaryDirectory() as home,
        started(*words, home=Path(home), environment=env) as it,
    ):
        eventually(lambda: listens_on(port), it.stderr)
        yield f"http://127.0.0.1:{port}"


def names_in(document: Document) -> list[str]:
    assert document.error is None, document.error
    return [tool["name"] for tool in document.outcomes[0]["result"]["tools"]]


def test_a_client_with_all_capabilities_gets_all_tools_of_server_everything() -> None:
    """server-everything lists some tools only to clients that declare a capability for them."""
    call: Step = {"call": "get-roots-list", "arguments": {}}
    with everything() as origin, mitmdump(origin, deny="^get-env$", endpoint="/mcp") as between:
        for name, flags in CLIENTS:
            need(name)
            direct = play(name, f"{origin}/mcp", [LIST, call], *flags)
            filtered = play(name, between.url("/mcp"), [LIST, call], *flags)
            names = names_in(direct)
            assert set(names) >= TOOLS_FOR_ALL, name
            assert names_in(filtered) == [one for one in names if one != "get-env"], name
            tools = direct.outcomes[0]["result"]["tools"]
            kept = [tool for tool in tools if tool["name"] != "get-env"]
            assert filtered.outcomes[0]["result"]["tools"] == kept, name
            assert "result" in filtered.outcomes[1], name


@pytest.mark.parametrize("server", ["users_mcp1", "users_ts1"])
def test_each_user_gets_the_tools_of_their_token_and_no_others(server: str) -> None:
    with (
        upstream(server) as origin,
        mitmdump(origin.origin, deny="^delete_", endpoint="/mcp") as between,
        ExitStack() as all_,
    ):
        url = between.url("/mcp")
        for name, flags in CLIENTS:
            ann, bob = (
                all_.enter_context(
                    client(name, url, *flags, "--header", f"Authorization: Bearer {user}")
                )
                for user in ("ann", "bob")
            )
            anybody = all_.enter_context(client(name, url, *flags))
            for who, user, other in ((ann, "ann", "bob"), (bob, "bob", "ann")) * 2:
                # The call comes first: nobody has seen this user's list yet.
                called = who.do({"call": f"of_{user}", "arguments": {}})
                assert called["result"]["content"][0]["text"] == f"did of_{user}", name
                tools = who.do(LIST)["result"]["tools"]
                assert [tool["name"] for tool in tools] == ["shared", f"of_{user}"], name
                for hidden in (f"of_{other}", f"delete_of_{user}", f"delete_of_{other}"):
                    refused = who.do({"call": hidden, "arguments": {}})["error"]
                    assert refused["code"] == -32601, (name, refused)
                    assert f"Tool not found: {hidden}" in refused["message"]
            assert [tool["name"] for tool in anybody.do(LIST)["result"]["tools"]] == ["shared"]
            assert anybody.do({"call": "of_ann", "arguments": {}})["error"]["code"] == -32601
