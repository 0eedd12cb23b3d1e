"""The result of a search for secrets: places, and parts that could not be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mcp_tool_filter.observers.redaction.views import View

_PLACEHOLDER = re.compile(r"\$?\{\{?[\w .-]*\}?\}|<[\w -]*>|\*+|\.{3}|null|none|true|false", re.I)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, and its place."""

    start: int
    end: int
    value: str
    """The secret without escapes."""
    is_number: bool = False


@dataclass(slots=True)
class Findings:
    """The findings in one text."""

    secrets: list[Secret] = field(default_factory=list)
    related: list[str] = field(default_factory=list)
    """Secrets contained in another form, such as the password in a Basic credential."""
    unread: list[str] = field(default_factory=list)
    """Descriptions of the parts that could not be read."""

    def mark(self, view: View, start: int = 0, end: int | None = None) -> None:
        """Note a secret, each of its lines separately, so that line ends stay."""
        text = view.text[start : len(view.text) if end is None else end]
        for line in re.finditer(r"[^\r\n]+", text):
            if not _PLACEHOLDER.fullmatch(line[0].strip()):
                raw = view.raw_span(start + line.start(), start + line.end())
                self.secrets.append(Secret(*raw, line[0]))

    def mark_number(self, view: View) -> None:
        raw = view.raw_span(0, len(view.text))
        self.secrets.append(Secret(*raw, view.text, is_number=True))

    def sorted(self) -> Findings:
        """Return the findings without overlaps: of two secrets, keep the outer or first one."""
        apart: list[Secret] = []
        done = 0
        for one in sorted(self.secrets, key=lambda one: (one.start, -one.end)):
            if one.start >= done and one.end > one.start:
                apart.append(one)
                done = one.end
            elif one.end > done:  # the rest of a secret that begins within another
                rest = one.value[-(one.end - done) :]
                apart.append(Secret(done, one.end, rest, one.is_number))
                done = one.end
        return Findings(apart, self.related, list(dict.fromkeys(self.unread)))


def replace(text: str, secrets: Iterable[Secret], mask: Callable[[Secret], str]) -> str:
    """Return the text with each secret replaced. (They must be sorted, without overlaps.)"""
    parts: list[str] = []
    done = 0
    for one in secrets:
        parts += [text[done : one.start], mask(one)]
        done = one.end
    return "".join([*parts, text[done:]])
