"""The commands that the README and the pages show, and how each of them is tried.

A block of commands (``sh``, or ``console`` with its output) is run line by line by
``tests/test_shown_examples.py``, unless a comment in the line above it says who runs it instead, or
why nobody does:

    <!-- run by tests/test_testing.py::test_a_recording_is_served_in_an_event_loop -->
    <!-- not run: it needs an account at another host -->

>>> [shown] = blocks_of("<!-- not run: why -->\\n```sh\\nmcp-tool-filter demo   # a word\\n```\\n")
>>> shown.lines, shown.mark
(['mcp-tool-filter demo'], 'not run: why')
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.proxy import REPOSITORY

DOCS = REPOSITORY / "addon" / "mcp_tool_filter" / "docs"

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
_KINDS_OF_COMMANDS = ("sh", "bash", "console")


@dataclass(frozen=True)
class Block:
    """A block in fences."""

    kind: str
    text: str
    mark: str
    """What the comment above it says."""

    @property
    def is_commands(self) -> bool:
        return self.kind in _KINDS_OF_COMMANDS

    @property
    def lines(self) -> list[str]:
        """The commands, without prompts, comments and output; a line that ends with a backslash
        goes on."""
        text = self.text.replace("\\\n", " ")
        if self.kind == "console":
            text = "\n".join(re.findall(r"^\$ (.*)$", text, re.MULTILINE))
        lines = [re.sub(r"(?:^|\s+)# .*|\s&$", "", line).strip() for line in text.splitlines()]
        return [line for line in lines if line]


def pages() -> list[Path]:
    """Return the pages that users read."""
    github = (REPOSITORY / ".github").glob("*.md")
    return [REPOSITORY / "README.md", *sorted(github), *sorted(DOCS.rglob("*.md"))]


def blocks_of(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        yield Block(found["kind"], found["text"], found["mark"] or "")


def blocks() -> Iterator[Block]:
    for page in pages():
        yield from blocks_of(page.read_text("utf-8"))


def shown_commands(*, is_marked: bool | None = None) -> list[str]:
    """Return every command line that is shown; only those with, or without, a mark."""
    return sorted({
        line
        for block in blocks()
        if block.is_commands and is_marked in (None, bool(block.mark))
        for line in block.lines
    })  # fmt: skip
