"""What hides a tool: patterns, exceptions, and what its definition claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.errors import EmptyList, InvalidOption, NothingDenied
from mcp_tool_filter.core.policy.choice import UNDECIDED, Choice, claims_in
from mcp_tool_filter.core.policy.config import refuse_to_open
from mcp_tool_filter.core.policy.snapshot import Standing
from mcp_tool_filter.core.policy.taking import UnlistedTools, take_snapshot
from tests.make import listing_of, page
from tests.rows import each_row

HINTS = ("destructive", "open-world", "not-idempotent")


def annotated(**hints: str) -> str:
    """Write annotations; a hint without a value is left out."""
    said = ",".join(f'"{key}":{value}' for key, value in hints.items() if value)
    return f',"annotations":{{{said}}}'


def written(name: str, more: str) -> bytes:
    return f'{{"name":"{name}","inputSchema":{{"type":"object"}}{more}}}'.encode()


def is_hidden(hint: str, reads: str, destructive: str, idempotent: str, open_world: str) -> bool:
    """Read the table in the specification: a default is the worst case."""
    worst = {
        "read-only": reads != "true",
        "open-world": open_world != "false",
        "destructive": destructive != "false" and reads != "true",
        "not-idempotent": idempotent != "true" and reads != "true",
    }
    return worst[hint]


@dataclass(frozen=True)
class Approved:
    """A lock of one tool, with a definition that may be another one."""

    name: str = "delete_file"
    is_same: bool = True

    @property
    def tools(self) -> set[str]:
        return {self.name}

    def problem_in(self, instructions: str | None) -> str:
        return ""

    def judge(self, name: str, definition: bytes) -> str | None:
        if name != self.name:
            return "not approved"
        return None if self.is_same else "changed"


LOCKS = (None, Approved(), Approved(is_same=False), Approved("other"))


@each_row("deny", [None, ["^del"], ["^x"]])
@each_row("allow", [None, ["_file$"], ["^x"]])
@each_row("spare", [None, ["file"], ["^x"]])
@each_row("lock", LOCKS)
def test_every_combination_of_patterns_hints_lock_and_definitions(
    deny: list[str] | None, allow: list[str] | None, spare: list[str] | None, lock: Approved | None
) -> None:
    """A tool is exposed if (allow is not set, or matches) and (except matches, or (no deny matches
    and no hint hides it)), and if the lock agrees. The reason names what hides it: what a name
    alone tells comes first."""
    is_allowed, is_spared = allow in (None, ["_file$"]), spare == ["file"]
    for read_only, *hints in product(("false", "true"), *[("", hint) for hint in HINTS]):
        given = [hint for hint in hints if hint]
        choice = parse_config(
            {"deny": deny, "allow": allow, "except": spare, "read_only": read_only},
            deny_hint=given[::-1] or None,
        ).choice
        choice = replace(choice, lock=lock)
        flags = {hint: f"--deny-hint {hint}" for hint in given}
        flags = {"read-only": "--read-only", **flags} if read_only == "true" else flags
        surely = None
        if deny == ["^del"] and not is_spared:
            surely = "^del"
        elif not is_allowed:
            surely = ""
        elif lock == LOCKS[3]:
            surely = "--lock"
        needs_definition = lock is not None or (bool(flags) and not is_spared)
        by_name = choice.hiding("delete_file")
        if surely is not None:
            assert by_name is not None
            assert (by_name.text, by_name is UNDECIDED) == (surely, False)
        else:
            assert by_name is (UNDECIDED if needs_definition else None)
        for said in product(("", "true", "false"), repeat=4):
            keys = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
            raw = written("delete_file", annotated(**dict(zip(keys, said, strict=True))))
            by, wanted = choice.hiding("delete_file", raw), surely
            if wanted is None and lock == LOCKS[2]:
                wanted = "--lock"
            if wanted is None and not is_spared:
                wanted = next((flags[hint] for hint in flags if is_hidden(hint, *said)), None)
            assert (by and by.text) == wanted


@pytest.mark.parametrize(("hint", "key", "value"), [
    ("read-only", "readOnlyHint", "true"), ("destructive", "destructiveHint", "false"),
    ("not-idempotent", "idempotentHint", "true"), ("open-world", "openWorldHint", "false"),
])  # fmt: skip
def test_what_is_not_said_clearly_is_the_worst_case(hint: str, key: str, value: str) -> None:
    choice = Choice(hints=(hint,))
    assert choice.hiding("a", written("a", annotated(**{key: value}))) is None
    other = "false" if value == "true" else "true"
    inside = [
        f'"{key}":{value},"{key}":{value}', f'"{key}":{other},"{key}":{value}',
        f'"{key.upper()}":{other},"{key}":{value}', f'"{key}":{value},"{_snake(key)}":{other}',
        f'"{key}":{value},"{key} ":{other}', f'"{_snake(key)}":{value}',
        f'"{key}":{{"{key}":{value}}}',
        *(f'"{key}":{odd}' for odd in ('"true"', "1", "0", "null", "[true]", other)),
    ]  # fmt: skip
    unclear = [
        "", ',"annotations":null', ',"annotations":[]',
        f',"annotations":"{{\\"{key}\\":{value}}}"', f',"Annotations":{{"{key}":{value}}}',
        f',"annotations":{{"{key}":{value}}},"annotations":{{"{key}":{value}}}',
        f',"annotations":{{"{key}":{value}}},"ANNOTATIONS":{{}}',
        f',"_meta":{{"annotations":{{"{key}":{value}}}}}',
        *(f',"annotations":{{{one}}}' for one in inside),
    ]  # fmt: skip
    for more in unclear:
        raw = written("a", more)
        assert choice.hiding("a", raw) is not None, more
        assert not take_snapshot([page(listing_of(raw))], choice).allowed, more
    escaped = f',"\\u0061nnotations":{{"{key[:-1]}\\u0074":{value}}}'
    assert choice.hiding("a", written("a", escaped)) is None


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


READING = annotated(readOnlyHint="true")
READ, WRITE = written("read", READING), written("write", "")


def test_a_snapshot_names_the_hint_and_the_first_definition_counts() -> None:
    later = written("write", READING)
    choice = parse_config(deny_hint=["open-world,destructive"], deny=["^rm"]).choice
    pages = [page(listing_of(READ, WRITE, written("rm", ""))), page(listing_of(later))]
    found = take_snapshot(pages, choice)
    assert not found.allowed
    hides = {"read": "--deny-hint open-world", "write": "--deny-hint destructive", "rm": "^rm"}
    assert {name: by.text for name, by in found.denied.items()} == hides
    found = take_snapshot(pages, parse_config(read_only="true").choice)
    assert (list(found.allowed), found.denied["write"].text) == (["read"], "--read-only")


def test_until_a_definition_is_known_a_hint_makes_its_name_unknown() -> None:
    """Also page by page: the definition that was seen first counts."""
    choice = parse_config({"except": ["^spared$"]}, read_only="true", deny=["^rm"]).choice
    learning = UnlistedTools(choice)

    def standings() -> list[Standing]:
        return [learning.snapshot.standing(name) for name in ("read", "write", "rm", "spared")]

    allowed, denied, unknown = Standing
    assert standings() == [unknown, unknown, denied, allowed]
    of_page = learning.judge_page(page(listing_of(READ, WRITE)))
    assert (list(of_page.allowed), of_page.denied["write"].text) == (["read"], "--read-only")
    assert standings() == [allowed, denied, denied, allowed]
    changed = page(listing_of(written("read", ""), written("write", READING)))
    of_page = learning.judge_page(changed)
    assert (of_page.allowed["read"], list(of_page.denied)) == (READ, ["write"])
    assert standings()[:2] == [allowed, denied]


def test_a_tool_may_not_carry_the_definition_of_one_that_a_hint_hides() -> None:
    more = READING + ',"result":{"tools":[%s]}'
    carrying = written("carrying", more % written("write", "").decode())
    own = written("own", READING + ',"x":{"inputSchema":{}},"tools":{"write_all":{}}')
    learning = UnlistedTools(parse_config(read_only="true").choice)
    of_page = learning.judge_page(page(listing_of(READ, own, carrying, WRITE)))
    assert list(of_page.allowed) == ["read", "own"]
    assert [fault for fault in of_page.faults if "carrying" in fault]


def test_marks_are_only_what_a_definition_says_clearly() -> None:
    def marks(**hints: str) -> str:
        return claims_in(written("a", annotated(**hints))).marks

    assert marks() == marks(readOnlyHint="1", destructiveHint='"true"') == ""
    assert marks(readOnlyHint="true", destructiveHint="true") == "read-only"
    assert marks(destructiveHint="true", openWorldHint="true") == "destructive, open-world"


@pytest.mark.parametrize(("typed", "why"), [
    (["destrucive"], "Did you mean destructive?"),
    (["Open_World"], "Did you mean open-world?"),
    (["destructive,"], "It must be destructive, open-world or not-idempotent"),
    (["read-only"], "read-only is an option of its own"),
    (["x"], "It must be destructive, open-world or not-idempotent"),
])  # fmt: skip
def test_a_hint_that_does_not_exist_is_refused(typed: Sequence[str], why: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        parse_config(deny_hint=typed)
    assert refused.value.why == why


def test_an_empty_hint_is_refused_and_hints_are_a_filter() -> None:
    for empty in ([], [""], [" , "]):
        with pytest.raises(EmptyList):
            parse_config(deny_hint=empty)
    for given in ({"read_only": "true"}, {"deny_hint": ["destructive"]}):
        assert not parse_config(given, strict="true").denies_nothing
    with pytest.raises(NothingDenied):
        parse_config({"except": ["^a"]}, strict="true")
    with pytest.raises(EmptyList):
        refuse_to_open(parse_config(deny_hint=["destructive"]), parse_config())
    refuse_to_open(parse_config(read_only="true"), parse_config())  # false is no slip


def test_only_patterns_can_match_nothing() -> None:
    choice = parse_config({"except": ["^none"]}, read_only="true").choice
    found = take_snapshot([page(listing_of(READ))], choice)
    assert [one.text for one in found.unmatched] == ["^none"]
    assert list(found.allowed) == ["read"]
