"""The rules behind the filter: random policies, each with a guard whose promise anyone can check.

A policy is made from a number, so that the fuzzer may choose it. Its first and last rules are the
guard: whatever the rules between do to a message, no reader may find in what leaves us what the
guard blocks, and no secret in what reaches the client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from textwrap import indent

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.policy.verdict import Forward, Rewrite
from mcp_tool_filter.rooms.rules.judge import RulesLink
from mcp_tool_filter.rooms.rules.policy import Policy, load_policy
from tests.fuzz.oracle import require
from tests.fuzz.readers import Json, text_readings
from tests.fuzz.subject import SECRET
from tests.make import at_once, judge_from_upstream
from tests.make import policy as policy_for
from tests.rooms.rules.judging import Host

_COPIES = "copy-"
_MISSING = object()

type Blocks = Callable[[dict[str, Json]], bool]
"""Tells whether the guard blocks a call, by its params as somebody reads them."""


def _path(params: dict[str, Json]) -> object:
    arguments = params.get("arguments")
    return arguments.get("path", _MISSING) if isinstance(arguments, dict) else _MISSING


def _begins_in_etc(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/etc")


def _any_path(params: dict[str, Json]) -> bool:
    arguments = params.get("arguments")
    paths = arguments.get("paths") if isinstance(arguments, dict) else None
    return isinstance(paths, list) and any(map(_begins_in_etc, paths))


_GUARDS: tuple[tuple[str, Blocks], ...] = (
    ("param_matches: {field: arguments.path, pattern: ^/etc}", lambda p: _begins_in_etc(_path(p))),
    ("param_matches: {field: /arguments/path, pattern: ^/etc}", lambda p: _begins_in_etc(_path(p))),
    ("param_equals: {field: arguments.path, value: /etc/passwd}",
     lambda p: _path(p) == "/etc/passwd"),
    ("param_in: {field: arguments.path, values: [/etc/passwd, null, [1]]}",
     lambda p: _path(p) is None or _path(p) in ("/etc/passwd", ["1"])),
    ("param_exists: arguments.path", lambda p: _path(p) is not _MISSING),
    ("param_is_null: arguments.path", lambda p: _path(p) is None),
    ("param_is_array: arguments.path", lambda p: isinstance(_path(p), list)),
    ("not: {param_in: {field: arguments.path, values: [/home]}}", lambda p: _path(p) != "/home"),
    ("not: {param_matches: {field: arguments.path, pattern: ^/home$}}",
     lambda p: _path(p) != "/home"),
    ("any: [tool_equals: other, param_matches: {field: 'arguments.paths[*]', pattern: ^/etc}]",
     _any_path),
    ("all: [tool_matches: file$, param_equals: {field: name, value: write_file}]",
     lambda p: p.get("name") == "write_file"),
)  # fmt: skip
_CONDITIONS = (
    "method_equals: tools/call", "method_starts_with: tools/", "method_matches: call$",
    "from: client",
    "tool_in: [read_file, write_file]", "param_exists: arguments", "param_exists: arguments.other",
    "param_matches: {field: arguments.other, pattern: e}", "not: {tool_equals: write_file}",
    "param_greater_than: {field: arguments.n, value: 1}", "from: server",
    "param_less_than: {field: arguments.n, value: 1e400}", "result_exists: 'content[*].text'",
    "result_matches: {field: 'content[0].text', pattern: k}", "error_code_equals: -1",
    "error_message_contains: e", "param_equals: {field: arguments, value: {other: 1, path: [a]}}",
    "any: [param_is_null: arguments.other, not: {param_is_array: 'arguments.paths[0]'}]",
    "session_age_greater_than: 1h", "result_equals: {field: content, value: []}",
)  # fmt: skip
_ACTIONS = (
    "set_param: {field: arguments.path, value: /etc/passwd}",
    "set_param: {field: arguments.path, value: '${params.arguments.other}'}",
    "set_param: {field: 'arguments.paths[*]', value: '/etc/${id}'}", "remove_param: arguments.path",
    "set_param: {field: name, value: '${params.arguments.other}'}", "remove_param: arguments",
    "set_param: {field: /arguments/paths/0, value: [1, {a: '${tool}'}]}",
    "transform: {json_patch: [{op: move, from: /arguments/other, path: /arguments/path}]}",
    "transform: {json_patch: [{op: copy, from: /arguments/other, path: /name}]}",
    "transform: {json_patch: [{op: add, path: /arguments/paths/-, value: /etc/passwd}]}",
    "transform: {merge_patch: {arguments: {path: /etc/passwd, other: null}}}",
    "transform: {merge_patch: {name: wipe_disk}}", "redact: {pattern: e, with: '${params.name}'}",
    "redact: {field: arguments.path, pattern: ^., with: /etc/}",
    "block: '${params.arguments.path}'", "delay: 1s",
    "inject_error: {code: 7, message: '${params_hash}', data: ['${params.arguments}']}",
    "log: {message: '${result.content[*].text}${session_id}'}", "fork: {copies: 2}",
    "metric: {name: m, value: '${params.arguments.n}'}",
    "cache: {key: '${method}${params_hash}', ttl: 1h}",
    "rate_limit: {key: '${params.arguments.path}', limit: 3, window: 1h}",
    "webhook: {url: 'http://h/${tool}', include_message: true}",
    "set_result: {field: content, value: [{type: text, text: '${params.arguments.other}'}]}",
)  # fmt: skip
_TOPS = (
    "fail_fast: true", "fail_fast: false", "parallel: true", "on_error: allow", "timeout: 1s",
    "default_action: block", "on_error: block",
)  # fmt: skip
_MASK = f"redact: {{pattern: '{SECRET}'}}"
SAFE = "set_param: {field: arguments.safe, value: true}"


@dataclass(frozen=True, slots=True)
class Guarded:
    text: str
    policy: Policy
    blocks: Blocks
    only_sets_safe: bool


@cache
def guarded(number: int) -> Guarded:
    """Make a policy from a number."""
    random = Random(number)
    conditions, blocks = random.choice(_GUARDS)
    only_sets_safe = random.random() < 0.2
    others = [SAFE] if only_sets_safe else random.choices(_ACTIONS, k=random.randrange(9))
    lines = [
        f"{{id: {name}-{priority}, on: {on}, priority: {priority}, conditions: [{what}], "
        f"actions: [{action}]}}"
        for priority in (100, -100)
        for name, on, what, action in (
            ("guard", "request", f"method_equals: tools/call, {conditions}", "block: guarded"),
            ("mask", "any", "from: server", _MASK),
        )
    ]
    for each, action in enumerate(others):
        picked = random.choices(_CONDITIONS, k=random.randrange(3))
        if only_sets_safe:
            picked = ["method_equals: tools/call"]
        on = _direction(action, picked, random)
        lines.append(
            f"{{id: r{each}, {on}priority: {random.randrange(-50, 50)}, "
            f"conditions: [{', '.join(picked)}], "
            f"actions: [{action}, log: {{message: '${{rule}}'}}]}}"
        )
    text = f"interceptor:\n  chain: {{{random.choice(_TOPS)}}}\n  rules:\n"
    text += indent("".join(f"- {line}\n" for line in lines), "    ")
    return Guarded(text, load_policy(text.encode()), blocks, only_sets_safe)


def _direction(action: str, conditions: list[str], random: Random) -> str:
    """Leave a rule its own direction if it refers to a response or changes requests only."""
    told = " ".join([action, *conditions])
    if any(word in told for word in ("result", "error_", "param: ", "fork", "cache")):
        return "on: any, " if "result" in told or "error_" in told else ""
    return random.choice(("", "on: any, ", "on: request, "))


def judge_by_rules(how: int, said: bytes, heard: bytes) -> None:
    """Let a client say something, and the upstream something back."""
    made = guarded(how)
    host = Host()
    link = RulesLink(made.policy, host.at_once, copies=_COPIES, clock=host.clock)
    force = policy_for("read_file", "write_file", "wipe_disk", deny="^wipe", links=(link,))
    force.keeps_requests = bool(how & 1)
    conversation = Conversation(force)
    left = _left(said, at_once(conversation.from_client(said)))
    for params in _calls(left):
        require(not made.blocks(params), "a guarded call leaves", made.text, said, left)
        require(params.get("name") != "wipe_disk", "a denied tool is called", made.text, left)
    if made.only_sets_safe and left not in (b"", said):
        _is_a_small_change(said, left)
    back = _left(heard, at_once(judge_from_upstream(conversation, heard)))
    for text in _strings_shown(back):
        require(SECRET not in text, "a secret reaches the client", made.text, said, heard, back)
    require(_COPIES.encode() not in back, "an answer to a copy", heard)


def _left(raw: bytes, judged: Judged) -> bytes:
    match judged.verdict:
        case Forward():
            return raw
        case Rewrite(text):
            json.loads(text, parse_int=str)
            return text
    return b""


def _messages(raw: bytes) -> Iterator[dict[str, Json]]:
    for value in text_readings(raw.decode()) if raw else ():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield one


def _calls(raw: bytes) -> Iterator[dict[str, Json]]:
    """Yield the params of each call that some reader finds."""
    for message in _messages(raw):
        if message.get("method") == "tools/call":
            params = message.get("params")
            yield params if isinstance(params, dict) else {}


def _strings_shown(raw: bytes) -> Iterator[str]:
    for message in _messages(raw):
        if "method" in message or "result" in message:
            yield from _strings_in(message.get("result"))
            yield from _strings_in(message.get("params"))


def _strings_in(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings_in(one)


def _is_a_small_change(came: bytes, left: bytes) -> None:
    """Only ``arguments.safe`` was set: one piece is another, all else is the same."""
    if came.lstrip()[:1] == b"[":
        return
    before, after = came.strip(b" \t\r\n"), left.strip(b" \t\r\n")
    start = _common(before, after)
    end = min(_common(before[::-1], after[::-1]), len(before) - start, len(after) - start)
    piece = after[start : len(after) - end]
    require(any(piece in one for one in _PIECES), "more is changed than one field", came, left)
    was, changed = json.loads(before, parse_int=str), json.loads(after, parse_int=str)
    changed_arguments = changed["params"]["arguments"]
    require(changed_arguments.pop("safe") is True, "the field is not set", came, left)
    arguments = was.get("params", {}).get("arguments", {})
    arguments.pop("safe", None)
    require(changed_arguments == arguments, "another argument is changed", came, left)


_PIECES = (
    b',"safe":true',
    b',"arguments":{"safe":true}',
    b'{"safe":true',
    b',"params":{"arguments":{"safe":true}}',
)


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes two texts begin with in common."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
