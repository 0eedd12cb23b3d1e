"""What a stdio session knows of the upstream's tools, before and after its list."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.verdict import Reply
from tests.adapters.stdio.judging_lines import FORWARDED, Judged, names_in
from tests.make import answering, asking, calling, definition, error_in, listing


@pytest.mark.parametrize(("deny", "is_changed"), [(["^rm"], True), (["(?!)"], True), ([], False)])
def test_before_the_list_an_unknown_name_is_not_found_in_our_words(
    deny: list[str], is_changed: bool
) -> None:
    """The upstream's words would tell it from a denied name, which never gets there."""
    judged = Judged(deny)
    assert judged.client(calling("hammer")) == FORWARDED
    said = judged.upstream(
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Unknown tool: hammer"}}'
    )
    if is_changed:
        assert error_in(said) == (-32601, "Tool not found: hammer")
    else:
        assert said == FORWARDED
    assert judged.client(calling("hammer", id="2")) == FORWARDED
    assert judged.upstream(answering('{"content":[]}', id="2")) == FORWARDED


def test_a_name_that_no_allow_pattern_matches_is_refused_before_the_list_is_known() -> None:
    judged = Judged(config=parse_config(allow=["^read"]))
    assert isinstance(judged.client(calling("write_file")), Reply)
    assert judged.client(calling("read_file")) == FORWARDED


@pytest.mark.parametrize("name", ["x" * 257, "x" * 10_000, "\U0001f600" * 129])
def test_an_overlong_name_is_never_forwarded(name: str) -> None:
    assert isinstance(Judged().client(calling(name)), Reply)


def test_the_longest_name_is_forwarded() -> None:
    assert Judged().client(calling("x" * 256)) == FORWARDED


def test_the_whole_list_is_reported_once() -> None:
    judged = Judged(["^rm"])
    judged.lists("read_file", "rm_rf")
    judged.lists("read_file", "rm_rf", id="2")
    [snapshot] = judged.listed
    assert (list(snapshot.allowed), list(snapshot.denied)) == (["read_file"], ["rm_rf"])


def test_a_list_of_several_pages_is_known_after_the_last_one() -> None:
    judged = Judged(["^rm"])
    judged.lists("a", "rm_a", more=',"nextCursor":"2"')
    assert judged.client(calling("b", id="5")) == FORWARDED
    page = judged.lists("b", "rm_b", id="2", params='{"cursor":"2"}')
    assert names_in(page) == ["b"]
    assert isinstance(judged.client(calling("c", id="6")), Reply)
    assert judged.client(calling("a", id="7")) == FORWARDED
    assert [list(snapshot.allowed) for snapshot in judged.listed] == [["a", "b"]]


def test_a_tool_that_carries_the_definition_of_a_denied_one_is_hidden() -> None:
    """Although the denied tool itself may stand on another page."""
    judged = Judged(["^rm"])
    judged.client(asking("tools/list"))
    carrier = definition("a", f',"x":{definition("rm_rf").decode()}')
    page = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[%s,%s],"nextCursor":"2"}}'
    verdict = judged.upstream(page % (carrier, definition("b")))
    assert names_in(verdict) == ["b"]
    judged.lists("c", id="2", params='{"cursor":"2"}')
    judged.client(asking("tools/list", id="3"))
    again = judged.upstream(page.replace(b'"id":1', b'"id":3') % (carrier, definition("b")))
    assert names_in(again) == ["b"]
    [snapshot] = judged.listed
    assert snapshot.faults == ("the tool a has the definition of another tool: not exposed",)


def test_the_snapshot_answers_lists_if_the_user_wants_it() -> None:
    judged = Judged(config=parse_config(deny=["^b"], tools_list="cache"))
    assert names_in(judged.lists("a", "b")) == ["a"]
    answered = judged.client(asking("tools/list", id="2"))
    assert isinstance(answered, Reply)
    assert json.loads(answered.text) == json.loads(listing("a", id="2"))


def test_after_a_list_change_removed_tools_are_gone_and_new_ones_hidden() -> None:
    judged = Judged()
    judged.lists("a", "b")
    judged.upstream(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
    assert names_in(judged.lists("a", "c", id="2")) == ["a"]
    assert judged.client(calling("a", id="3")) == FORWARDED
    for name in ("b", "c"):
        assert isinstance(judged.client(calling(name, id="4")), Reply)


def test_new_tools_are_judged_if_the_user_wants_it() -> None:
    judged = Judged(config=parse_config(deny=["^rm"], new_tools="judge"))
    judged.lists("a")
    assert names_in(judged.lists("a", "rm_b", "c", id="2")) == ["a", "c"]
    assert judged.client(calling("c", id="3")) == FORWARDED
    assert isinstance(judged.client(calling("rm_b", id="4")), Reply)
    assert len(judged.listed) == 1


def test_each_variant_of_the_server_has_a_list_of_its_own() -> None:
    small = '{"_meta":{"io.modelcontextprotocol/server-variant":"small"}}'
    call = '{"name":"%s","_meta":{"io.modelcontextprotocol/server-variant":"small"}}'
    judged = Judged(["^rm"])
    judged.lists("read_file", "rm_rf")
    assert names_in(judged.lists("tiny", "rm_it", id="2", params=small)) == ["tiny"]
    assert judged.lists("read_file", "rm_rf", id="3") == judged.lists("read_file", "rm_rf", id="3")
    assert judged.client(asking("tools/call", id="4", params=call % "tiny")) == FORWARDED
    for name, params in (("tiny", '{"name":"tiny"}'), ("read_file", call % "read_file")):
        refused = judged.client(asking("tools/call", id="5", params=params))
        assert error_in(refused) == (-32601, f"Tool not found: {name}")
