"""Variables in the texts of actions, and the hashes that they give."""

from __future__ import annotations

import pytest

from mcp_tool_filter.rules.subject import Circumstances
from tests.rules.judging import Host, call, judged, request, rule

VARIABLES = [
    ("${session_id}", "s-1"),
    ("${method}", "tools/call"),
    ("${id}", "a\u00e9"),
    ("${tool}", "read"),
    ("${rule}", "r"),
    ("$$ $x $", "$ $x $"),
    ("[${params.missing}]", "[]"),
    ("${params.arguments.n}", "1.50"),
    ("${params.arguments.o}", '{"a": [1, 2.0]}'),
    ("${params.arguments.l[*]}", "[1,2]"),
    ("${params./arguments/n}", "1.50"),
]


@pytest.mark.parametrize(("template", "expected"), VARIABLES)
def test_templates_insert_fields_of_the_message(template: str, expected: str) -> None:
    text = (
        '{"jsonrpc":"2.0","id":"a\\u00e9","method":"tools/call","params":{"name":"read",'
        '"arguments":{"n":1.50,"o":{"a": [1, 2.0]},"l":[1,2]}}}'
    )
    policy = rule("", f"block: '{template}'")
    found = judged(policy, text, about=Circumstances(session_id="s-1"))
    assert found.refusal
    assert found.refusal.message == expected


def test_a_template_over_an_unclear_field_is_refused() -> None:
    found = judged(rule("", "block: '${params.a}'"), request("m", {"a": 1, "A": 2}))
    assert found.refusal
    assert found.refusal.code == -32600


def test_the_credential_is_a_salted_hash(host: Host) -> None:
    policy = rule("", "block: '${credential}'", host)
    found = [
        judged(policy, call(), host=host, about=Circumstances(credentials=who)).refusal
        for who in (b"a", b"b", b"a")
    ]
    texts = [one.message for one in found if one]
    assert texts[0] == texts[2] != texts[1]
    assert all(len(text) == 16 for text in texts)


def test_the_hash_of_params_forgets_spelling_and_progress_tokens(host: Host) -> None:
    policy = rule("", "block: '${params_hash}'", host)

    def hashed(params: str) -> str:
        text = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'
        refusal = judged(policy, text, host=host).refusal
        assert refusal
        return refusal.message

    same = [
        '{"a":1,"b":"x"}',
        '{"b":"\\u0078", "a":1.0}',
        '{"_meta":{"progressToken":1},"a":1,"b":"x"}',
    ]
    other = ['{"a":1,"b":"y"}', '{"a":1}', '{"a":1,"b":"x","c":null}', '{"a":1,"a":1,"b":"x"}',
             '{"a":"1","b":"x"}', '{"_meta":{"x":1},"a":1,"b":"x"}']  # fmt: skip
    assert len({hashed(one) for one in same}) == 1
    assert len({hashed(one) for one in [same[0], *other]}) == 1 + len(other)
