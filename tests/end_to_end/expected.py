"""The result of a pair's scenario, with or without the filter between them."""

import json
from collections.abc import Sequence
from typing import Any

from .pairs import Pair, steps
from .peer import SCRIPTS, Document, Outcome

TOOLS = [tool["name"] for tool in json.loads((SCRIPTS / "fixtures.json").read_text())["tools"]]


def assert_all_worked(pair: Pair, document: Document, *, tools: Sequence[str]) -> None:
    """Fail unless every step of the pair's scenario did what it does without a filter."""
    assert (document.error, document.parting) == (None, None)
    assert document.protocol == pair.protocol
    outcomes = dict(zip(steps(pair), document.outcomes, strict=False))
    assert names(outcomes["tools"], "tools") == list(tools)
    assert text(outcomes["read_file"]) == "contents of /ä/b.txt"
    assert text(outcomes["non_ascii"]) == "5 bytes"
    rows = [{"database": "dä", "n": 1}]
    assert outcomes["header"]["result"]["structuredContent"] == {"rows": rows}
    echoes = [json.loads(text(echo)) for echo in outcomes["twenty"]["outcomes"]]
    assert echoes == [{"n": n} for n in range(20)]
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
        told, sent = outcomes["progress"]["progress"], [[n, 3, f"step {n}"] for n in (1, 2, 3)]
        if pair.client.name.startswith("ts"):  # on a busy machine the last may come with the result
            sent = sent[: max(2, len(told))]
        assert told == sent, told
    if pair.can_ask:
        _assert_asked(document, outcomes)
    if pair.resumes:
        assert text(outcomes["hang_up"]) == "answered after the stream had ended"


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


def _assert_asked(document: Document, outcomes: dict[str, Outcome]) -> None:
    assert text(outcomes["sample"]) == "the model said: a sample"
    assert json.loads(text(outcomes["elicit"]).partition("accept ")[2]) == {"answer": "yes"}
    assert text(outcomes["roots"]) == "roots: file:///home/ada"
    asked = ["sampling/createMessage", "elicitation/create", "roots/list"]
    assert [one["method"] for one in document.asked] == asked
