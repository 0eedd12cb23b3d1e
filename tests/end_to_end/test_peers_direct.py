"""What real clients and upstreams do with nobody between them: the ground we are judged on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .pairs import PAIRS, Pair, Server, steps
from .peer import SCRIPTS, Outcome, Upstream, conformance, need, play, upstream

TOOLS = [tool["name"] for tool in json.loads((SCRIPTS / "fixtures.json").read_text())["tools"]]


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """Each upstream once for all its clients."""
    server: Server = request.param
    with upstream(server.name, *server.flags) as started:
        yield started


@pytest.mark.parametrize(
    ("running", "pair"),
    [pytest.param(pair.server, pair, id=str(pair)) for pair in PAIRS],
    indirect=["running"],
    scope="module",
)
def test_a_pair_works(running: Upstream, pair: Pair) -> None:
    need(pair.client.name)
    already_called = len(running.calls())
    scenario = steps(pair)

    document = play(pair.client.name, running.url, [*scenario.values()], *pair.client.flags)

    assert (document.error, document.parting) == (None, None)
    assert document.protocol == pair.protocol
    outcomes = dict(zip(scenario, document.outcomes, strict=True))
    assert [tool["name"] for tool in outcomes["tools"]["result"]["tools"]] == TOOLS
    assert text(outcomes["read_file"]) == "contents of /ä/b.txt"
    assert text(outcomes["non_ascii"]) == "5 bytes"
    assert outcomes["header"]["result"]["structuredContent"] == {
        "rows": [{"database": "dä", "n": 1}]
    }
    assert [json.loads(text(echo)) for echo in outcomes["twenty"]["outcomes"]] == [
        {"n": n} for n in range(20)
    ]
    assert outcomes["fail"]["result"]["isError"] is True
    assert "no_such_tool" in refusal(outcomes["unknown"])
    assert names(outcomes["resources"], "resources") == ["one.md", "dot.gif", "drop_database"]
    assert names(outcomes["templates"], "resourceTemplates") == ["user"]
    assert outcomes["resource"]["result"]["contents"][0]["text"].startswith("# One")
    assert names(outcomes["prompts"], "prompts") == ["summarize", "drop_database"]
    assert "Which database" in json.dumps(outcomes["prompt"])
    assert outcomes["complete"]["result"]["completion"]["values"] == ["dansk", "deutsch"]
    assert outcomes["cancel"] == {"cancelled": True}
    assert text(outcomes["after"]) == "contents of again"
    if pair.tells_progress:
        assert outcomes["progress"]["progress"] == [[n, 3, f"step {n}"] for n in (1, 2, 3)]
    if pair.can_ask:
        assert text(outcomes["sample"]) == "the model said: a sample"
        assert json.loads(text(outcomes["elicit"]).partition("accept ")[2]) == {"answer": "yes"}
        assert text(outcomes["roots"]) == "roots: file:///home/ada"
        assert [asked["method"] for asked in document.asked] == [
            "sampling/createMessage",
            "elicitation/create",
            "roots/list",
        ]
    if pair.resumes:
        assert text(outcomes["hang_up"]) == "answered after the stream had ended"
    assert running.calls()[already_called:][:3] == [
        "read_file",
        "größe_messen_測る",
        "query_database",
    ]


def test_the_conformance_suite_finds_nothing_wrong() -> None:
    with upstream("conformance") as server:
        results = conformance(server.url)

    assert len(results) == 32
    assert sum(len(checks) for checks in results.values()) == 47
    assert {status for checks in results.values() for status in checks.values()} == {"SUCCESS"}


def text(outcome: Outcome) -> str:
    """What a tool said."""
    said: str = outcome["result"]["content"][0]["text"]
    return said


def refusal(outcome: Outcome) -> str:
    """Upstreams refuse an unknown tool with a result or with an error, as their SDK does it."""
    if "error" in outcome:
        message: str = outcome["error"]["message"]
        return message
    assert outcome["result"]["isError"] is True
    return text(outcome)


def names(outcome: Outcome, kind: str) -> list[Any]:
    return [item["name"] for item in outcome["result"][kind]]
