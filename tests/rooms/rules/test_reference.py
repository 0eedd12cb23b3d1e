"""The reference of rules: each condition and action has a meaning, and an example that works."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_tool_filter.rooms.rules.actions import ACTIONS, described
from mcp_tool_filter.rooms.rules.conditions import CONDITIONS
from mcp_tool_filter.rooms.rules.forms import Machine
from mcp_tool_filter.rooms.rules.policy import json_schema, load_policy
from mcp_tool_filter.rooms.rules.reference import (
    PAGE,
    described_conditions,
    render_help,
    render_page,
)
from tests.cli.launched import Typed
from tests.rows import each_row

CONDITIONS_AND_ACTIONS = [*described_conditions(), *described()]


class AnyMachine(Machine):
    """A machine that has every script and every function."""

    def import_object(self, name: str) -> object:
        return print

    def find_script(self, path: str) -> str:
        return path


def test_no_condition_or_action_is_left_out() -> None:
    """Also those of which there are several kinds are in it."""
    names = [name for name, _, _ in CONDITIONS_AND_ACTIONS]
    assert list(dict.fromkeys(names)) == [*CONDITIONS, *ACTIONS]


@each_row("entry", CONDITIONS_AND_ACTIONS)
def test_an_entry_without_a_sentence_or_a_working_example_is_refused(
    entry: tuple[str, str, str],
) -> None:
    name, means, example = entry
    assert means[:1].isupper()
    assert means.endswith(".")
    assert example
    lines = "interceptor:\n  rules:\n  - id: a\n    "
    if name in CONDITIONS:
        lines += f"conditions:\n    - {name}: {example}\n    actions: [allow]\n"
    else:
        lines += f"actions:\n    - {name}: {example}\n"
    policy = load_policy(lines.encode(), machine=AnyMachine())
    assert len(policy.rules) == 1


def test_the_page_is_what_the_tables_say() -> None:
    """If not: python -m mcp_tool_filter.rooms.rules.reference."""
    assert PAGE.read_text("utf-8") == render_page()


def texts_in(schema: object) -> Iterator[str]:
    """Yield all descriptions in a schema."""
    for key, inner in schema.items() if isinstance(schema, dict) else ():
        if key == "description":
            yield inner
        yield from texts_in(inner)
    for inner in schema if isinstance(schema, list) else ():
        yield from texts_in(inner)


def test_editors_and_help_say_the_same(typed: Typed) -> None:
    described = list(texts_in(json_schema()))
    said = " ".join(typed("rules", "--help").out.split())
    assert said.endswith(" ".join(render_help().split()))
    for _, means, example in CONDITIONS_AND_ACTIONS:
        inner = example[1:-1]  # that of one kind of transform
        assert any(means in one and (example in one or inner in one) for one in described), means
        assert means in said
