"""The filter at a glance, as the page and the commands of mitmproxy show it."""

from __future__ import annotations

from mcp_tool_filter.adapters.watch.dashboard import (
    Overview,
    render_sessions,
    render_statistics,
    render_tools,
)
from mcp_tool_filter.conversation.policy_in_force import RulesAtWork
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.observers.statistics import JsonObject, Statistics
from mcp_tool_filter.policy.config import parse_config
from tests.http.listening import INITIALIZE, INITIALIZED, RM, answer, ask, asked, listener
from tests.make import answering, calling, listing

MODE = "reverse:http://127.0.0.1:3000"
WHERE = "http://127.0.0.1:3000/mcp"


def watched(door: Listener) -> Overview:
    """Count what this listener's clients do from now on."""
    counted = Statistics()
    door.policy.observe = lambda judged: counted.note(judged, now=100.0)
    return Overview({MODE: door}, {MODE: counted}, clock=lambda: 107.0)


def lines_of(overview: Overview) -> JsonObject:
    (lines,) = overview.render()
    return lines


def test_tools_are_shown_with_what_became_of_their_calls() -> None:
    door = listener()
    overview = watched(door)
    ask(calling("read"), door)
    for _ in range(2):
        ask(calling("rm"), door)
    assert list(render_tools(overview.render())) == [
        f"{WHERE}: 1 exposed, 1 hidden",
        "  read: exposed, 1 calls",
        "  rm: hidden, denied by ^rm, 2 refused",
    ]
    read, rm = lines_of(overview)["tools"]
    assert (read["exposed"], read["by_deny"], read["why"]) == (True, False, "")
    assert (rm["exposed"], rm["by_deny"], rm["bytes"]) == (False, True, 0)


def test_only_what_an_exception_would_expose_can_be_shown_by_a_click() -> None:
    names = ("read", "rm", "say")
    door = listener(listing(*names))

    def hidden() -> dict[str, tuple[str, bool]]:
        return {
            one["name"]: (one["why"], one["by_deny"]) for one in lines_of(watched(door))["tools"]
        }

    hinted = ("denied by --read-only", True)
    door.policy.adopt(parse_config(deny=["^rm"], read_only="true"))
    assert hidden() == {"read": hinted, "rm": ("denied by ^rm", True), "say": hinted}
    door.policy.adopt(parse_config(deny=["^rm"], allow=["^read"], read_only="true"))
    assert hidden() == {
        "read": hinted,
        "rm": ("denied by ^rm", False),
        "say": ("matches no allow pattern", False),
    }


def test_the_counts_are_shown_in_words() -> None:
    door = listener()
    overview = watched(door)
    ask(calling("rm"), door)
    ask(b"{", door)
    at_work = RulesAtWork(hits=(("stop", 3),), metrics=(("slow", 1.5),))
    door.policy.rules_at_work = lambda: at_work
    assert list(render_statistics(overview.render())) == [
        WHERE,
        "  messages: 2, of which 0 invalid",
        f"  lists: 0, each {len(RM):,} bytes shorter",
        "  calls: 0, refused: 2",
        "  rule stop: 3 hits",
        "  metric slow: 1.5",
    ]


def test_refusals_say_when_and_why() -> None:
    door = listener()
    overview = watched(door)
    ask(calling("rm"), door)
    ask(b"{", door)
    newest, oldest = lines_of(overview)["refusals"]
    assert (oldest["tool"], oldest["why"], oldest["seconds_ago"]) == ("rm", "denied by ^rm", 7.0)
    assert (newest["tool"], newest["why"]) == ("malformed", "not valid JSON")
    door.policy.adopt(parse_config(deny=["^read"]))
    assert lines_of(overview)["refusals"] == [newest, oldest]


def test_a_session_is_shown_without_enough_of_its_id_to_take_it_over() -> None:
    door = listener()
    hello = asked(INITIALIZE, door)
    door.note_answer_head(hello, 200, "0123456789abcdef")
    answer(door, hello, 200, "application/json", "", INITIALIZED)
    overview = watched(door)
    (line,) = lines_of(overview)["sessions"]
    assert line["id"] == "…89abcdef"
    assert next(render_sessions(overview.render())) == f"{WHERE}: 1 sessions"


def test_a_name_that_could_draw_on_the_terminal_is_shown_escaped_and_kept_as_it_is() -> None:
    """A click on a tool needs its real name."""
    door = listener(answering('{"tools":[{"name":"a\\u001b[2J","inputSchema":{"type":"object"}}]}'))
    (tool,) = lines_of(watched(door))["tools"]
    assert tool["id"] == "a\x1b[2J"
    assert tool["name"].isprintable()


def test_a_command_is_shown_as_people_call_it() -> None:
    door = listener()
    door.called = "npx server"
    assert lines_of(watched(door))["upstream"] == "npx server"
