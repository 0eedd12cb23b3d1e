"""What honest servers say passes byte for byte, whatever the policy: a name hides something only
where a definition or a call can stand.

The first rows come from server-everything, FastMCP and the recordings; the others write a member
that a filter may take for a tool (``tools``, ``name``, ``inputSchema``) where it is none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.situation import Client, Via
from mcp_tool_filter.core.policy.verdict import Forward
from mcp_tool_filter.rooms.catalog.catalog import with_catalog
from mcp_tool_filter.rooms.lock.lock import Lock, parse_json
from tests.attacks.corpus import cells, rows
from tests.make import answering, asking, at_once, judge_from_upstream, listing_of

HINTS = b'"annotations":{"readOnlyHint":true,"destructiveHint":false,"openWorldHint":false}'
READ = b'{"name":"read","inputSchema":{"type":"object"},%s}' % HINTS

POLICIES: dict[str, dict[str, Any]] = {
    "deny": {"deny": ["^rm$"]},
    "wide deny": {"deny": ["^(?!read$)"]},
    "allow": {"allow": ["^read$"]},
    "read-only": {"read_only": "true"},
    "deny-hint": {"deny_hint": ["destructive", "open-world", "not-idempotent"]},
    "lock": {},
    "except": {"deny": [".*"], "except": ["^read$"]},
    "shadow": {"deny": ["^(?!read$)"], "shadow": "true"},
    "deny-prompts": {"allow": ["^read$"], "deny_prompts": ["^secret"]},
    "deny-resources": {"allow": ["^read$"], "deny_resources": ["^file:"]},
    "deny-skills": {"allow": ["^read$"], "deny_skills": ["^secret"]},
}

ANSWERS = cells("honest_answers", "answers")
TOOLS = rows("honest_answers", "tools")
SENT = rows("honest_answers", "sent")


def config_for(name: str, definition: bytes = READ) -> Config:
    config = with_catalog(parse_config(POLICIES[name]))
    if name != "lock":
        return config
    lock = Lock(tools={"read": parse_json(definition)})
    return replace(config, choice=replace(config.choice, lock=lock))


def talk(config: Config, definition: bytes = READ, *, is_listed: bool = True) -> Conversation:
    fetched = replace(example(), pages=(listing_of(definition),))
    if is_listed:
        return Conversation(PolicyInForce(config=config, fetched=fetched))
    unlisted = replace(fetched, pages=(), is_listed=False)
    return Conversation(PolicyInForce(config=config, fetched=unlisted), Client(via=Via.STDIO))


def lost_in(between: Conversation, method: str, params: str, raw: bytes) -> bool:
    """Tell whether a request or its answer does not pass as it was."""
    asked = at_once(between.from_client(asking(method, params=params))).verdict
    if asked != Forward():
        return True
    heard: bool = at_once(judge_from_upstream(between, raw)).verdict != Forward()
    return heard


def test_the_corpus_has_fifty_five_answers() -> None:
    assert len(ANSWERS) >= 55
    assert len(POLICIES) == 11


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_honest_answer_passes(policy: str, *, is_listed: bool) -> None:
    config, lost = config_for(policy), []
    for label, (asked, result) in ANSWERS:
        method, _, params = asked.decode().partition(" ")
        raw = answering(result.decode())
        if method == "tools/list":
            params = '{"cursor":"2"}'  # else the snapshot may answer
        elif method == "tools/call" and not is_listed and config.choice.needs_definitions:
            continue  # its definition must be known first
        if lost_in(talk(config, is_listed=is_listed), method, params, raw):
            lost.append(label)
    assert lost == []


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_honest_tool_is_listed(policy: str, *, is_listed: bool) -> None:
    lost = []
    for label, more in TOOLS:
        schema = b"" if b'"inputSchema":{' in more[:15] else b'"inputSchema":{"type":"object"},'
        parts = b",".join(filter(None, (schema.rstrip(b","), HINTS, more)))
        definition = b'{"name":"read",%s}' % parts
        between = talk(config_for(policy, definition), definition, is_listed=is_listed)
        raw = listing_of(definition)
        if lost_in(between, "tools/list", '{"cursor":"2"}', raw):
            lost.append(label)
    assert lost == []


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_what_an_honest_server_sends_passes(policy: str, *, is_listed: bool) -> None:
    config, lost = config_for(policy), []
    for label, raw in SENT:
        between = talk(config, is_listed=is_listed)
        if at_once(judge_from_upstream(between, raw)).verdict != Forward():
            lost.append(label)
    assert lost == []
