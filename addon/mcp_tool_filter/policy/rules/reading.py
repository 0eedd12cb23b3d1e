"""Read a checked value from each place of a rules file, and note every mistake.

After a mistake we continue with a harmless value, so that we find all mistakes. The result is used
only if there are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from mcp_tool_filter.policy.rules.mistakes import Mistake
from mcp_tool_filter.policy.rules.source import YamlNode, inner_path
from mcp_tool_filter.policy.rules.values import Json, Number

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in the file, and the list to which mistakes are added."""

    node: YamlNode
    path: str
    mistakes: list[Mistake]

    def wrong(self, text: str) -> None:
        self.mistakes.append(Mistake(self.node.line, self.node.column, self.path, text))

    def wrong_key(self, key: str, text: str) -> None:
        line, column = self.node.keys[key]
        self.mistakes.append(Mistake(line, column, self.path, text))

    # Scalars

    def text(self, *, example: str = "") -> str:
        value = self.node.value
        if isinstance(value, str):
            return value
        self._expected("a text", example)
        return ""

    def name(self, *, example: str = "") -> str:
        """Read a text that is not empty."""
        text = self.text(example=example)
        if not text and isinstance(self.node.value, str):
            self.wrong("expected a text that is not empty")
        return text

    def one_of(self, choices: Sequence[str]) -> str:
        text = self.node.value
        if isinstance(text, str) and text in choices:
            return text
        listed = " or ".join([", ".join(choices[:-1]), choices[-1]] if choices[1:] else choices)
        shown = f", not {text!r}" if isinstance(text, str) else f", not {self.node.kind}"
        self.wrong(f"expected {listed}{shown}{_did_you_mean(text, choices)}")
        return choices[0]

    def boolean(self) -> bool:
        if isinstance(self.node.value, bool):
            return self.node.value
        self._expected("true or false")
        return False

    def number(self) -> Number:
        if isinstance(self.node.value, Number):
            return self.node.value
        self._expected("a number")
        return Number("0")

    def real(self) -> float:
        number = self.number()
        value = float(number.text)
        if value in (float("inf"), float("-inf")):
            self.wrong("expected a smaller number")
            return 0.0
        return value

    def integer(self, least: int = -(2**53), most: int = 2**53) -> int:
        number = self.number()
        if not isinstance(self.node.value, Number):
            return least
        try:
            value = int(number.text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            bounds = f" of {least} or more" if most == 2**53 else f" from {least} to {most}"
            self.wrong(f"expected a whole number{bounds if least > -(2**53) else ''}")
            return least
        return value

    def duration(self, *, least: float = 0.0, most: float = 3650 * 86400.0) -> float:
        """Read seconds: a number, or a text such as 200ms."""
        value = self.node.value
        found = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if isinstance(value, Number):
            seconds = float(value.text)
        elif found is None:
            self._expected("a duration", "5s, 200ms, 1m, 2h, 1d, or a number of seconds")
            return 1.0
        else:
            seconds = float(found[1]) * _UNITS[found[2] or "s"]
        if not least <= seconds <= most:
            self.wrong(f"expected a duration from {_seconds(least)} to {_seconds(most)}")
            return 1.0
        return seconds

    def json(self) -> Json:
        return self.node.to_json()

    def parsed[T](self, parse: Callable[[str], T], default: T, *, example: str = "") -> T:
        """Read a text with a parser that raises ValueError."""
        if not isinstance(self.node.value, str):
            self._expected("a text", example)
            return default
        try:
            return parse(self.node.value)
        except ValueError as error:
            self.wrong(str(error))
            return default

    def parsed_json[T](self, parse: Callable[[Json], T], default: T) -> T:
        try:
            return parse(self.json())
        except ValueError as error:
            self.wrong(str(error))
            return default

    # Lists and mappings

    def items(self, *, what: str = "a list") -> Iterator[Spot]:
        if self.node.items is None:
            self._expected(what)
            return
        for number, item in enumerate(self.node.items):
            yield Spot(item, f"{self.path}[{number}]", self.mistakes)

    def texts(self) -> list[str]:
        """Read a list of texts that is not empty."""
        found = [item.text() for item in self.items(what="a list of texts")]
        if self.node.items == []:
            self.wrong("expected a list that is not empty")
        return found

    def table(self, required: Sequence[str] = (), optional: Sequence[str] = ()) -> Table:
        """Read a mapping; every key must be one of these."""
        members = self.node.members
        if members is None:
            listed = ", ".join([*required, *optional])
            self._expected("a mapping", f"with {listed}" if listed else "")
            return Table(self, {})
        known = [*required, *optional]
        for key in members:
            if key not in known:
                self.wrong_key(key, _unknown_key(key, known))
        missing = [key for key in required if key not in members]
        if missing and self.node.members is not None:
            self.wrong(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        return Table(self, {key: node for key, node in members.items() if key in known})

    def member(self, key: str, node: YamlNode) -> Spot:
        return Spot(node, inner_path(self.path, key), self.mistakes)

    def members(self) -> Iterator[tuple[str, Spot]]:
        """Yield a mapping's members, whatever their keys."""
        if self.node.members is None:
            self._expected("a mapping")
            return
        for key, node in self.node.members.items():
            yield key, self.member(key, node)

    def only_member(self, expected: str) -> tuple[str, Spot] | None:
        """Return the member of a mapping that must have one; None after a mistake."""
        if self.node.members is None or len(self.node.members) != 1:
            self.wrong(f"expected {expected}")
            return None
        (member,) = self.members()
        return member

    def _expected(self, what: str, example: str = "") -> None:
        such = f", such as {example}" if example and not example.startswith("with ") else ""
        more = f" {example}" if example.startswith("with ") else such
        self.wrong(f"expected {what}{more}, not {self.node.kind}")


@dataclass(frozen=True, slots=True)
class Table:
    spot: Spot
    _members: Mapping[str, YamlNode]

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def __getitem__(self, key: str) -> Spot:
        """Return a member; a missing one (noted already) reads as empty."""
        if key in self._members:
            return self.spot.member(key, self._members[key])
        return Spot(YamlNode(1, 1), key, [])

    def find(self, key: str) -> Spot | None:
        return self[key] if key in self._members else None

    def read[T](self, key: str, read: Callable[[Spot], T], default: T) -> T:
        return read(self[key]) if key in self._members else default


def _unknown_key(key: str, known: Sequence[str]) -> str:
    guess = _did_you_mean(key, known)
    listed = "" if guess or not known else f"; the keys here are {', '.join(known)}"
    return f"unknown key {key!r}{guess}{listed}"


def _did_you_mean(text: object, choices: Sequence[str]) -> str:
    if not isinstance(text, str):
        return ""
    plain = text.lower().replace("-", "_")
    close = get_close_matches(plain, choices, n=1, cutoff=0.6) or get_close_matches(
        plain.replace("_", ""), choices, n=1, cutoff=0.6
    )
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_choice(what: str, text: str, choices: Sequence[str]) -> str:
    """Return a sentence that there is no such choice, and what the user may have meant."""
    guess = _did_you_mean(text, choices)
    return f"there is no {what} {text!r}{guess or f'; there are {", ".join(choices)}'}"


def _seconds(value: float) -> str:
    return f"{value:g}s" if value < 3600 else f"{value / 3600:g}h"
