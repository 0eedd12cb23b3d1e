"""Values in free text that are secret by the name before them."""

from __future__ import annotations

import pytest

from mcp_tool_filter.observers.redaction.finder import named_values_in
from mcp_tool_filter.observers.redaction.names import is_secret_name


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("password=p-1&x=2", ["p-1"]),
        ('api_key: "two words"', ["two words"]),
        ("--api-key k3yk3y next", ["k3yk3y"]),
        ("password=$PASSWORD", []),
        ("token=args.token", []),
        ("password: please", []),
        ("Cookie: a=1; b=2", ["a=1; b=2"]),
        ("<password>p-1</password>", ["p-1"]),
        ("the password is Zq7Hidden9Secret", ["Zq7Hidden9Secret"]),
    ],
)
def test_a_value_after_a_secret_name_is_found(text: str, values: list[str]) -> None:
    found = [text[one.start : one.end] for one in named_values_in(text, is_secret_name)]
    assert [one.strip() for one in dict.fromkeys(found)] == values
