"""The longer pages of ``mcp-tool-filter help TOPIC``: Markdown, rendered for the terminal.

>>> print(render("## A *list*\\n\\n* one\\n  line, `code`\\n", 40, is_terminal=False))
## A *list*
<BLANKLINE>
* one line, `code`
>>> table = "| flag | means |\\n| --- | --- |\\n| `-a` | all |\\n"
>>> print(render(table, 40, is_terminal=False))
flag  means
`-a`  all
>>> print(render(table, 8, is_terminal=False))
`-a`
  all
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from mcp_tool_filter.cli.flags import WORDS, Given
from mcp_tool_filter.cli.table import TOPICS
from mcp_tool_filter.cli.terminal import Colour, is_terminal

_WIDEST = 100
_STYLES = (
    (re.compile(r"^#+ +(\S[^\n]*)", re.MULTILINE), Colour.BOLD),
    (re.compile(r"\*\*([^*]+)\*\*"), Colour.BOLD),
    (re.compile(r"`([^`]+)`"), Colour.GREEN),
)
_LINK = re.compile(r"\[([^\[\]]+)\]\(([^()]+)\)")
_UNSEEN = re.compile(r"^(?:<!--.*?-->|!\[[^\]]*\]\([^)]*\))\n", re.MULTILINE | re.DOTALL)
_LIST = re.compile(r"( *)([*-]|\d+\.) +")


def print_page(typed: Given) -> int:
    """Print a page that explains more than ``--help``, or list the topics."""
    if WORDS not in typed:
        print("Read a page with: mcp-tool-filter help TOPIC. The topics are:")
        print("\n".join(f"  {topic:<16}{about}" for topic, about in TOPICS.items()))
        return 0
    [topic] = typed[WORDS]
    name = "CHANGELOG" if topic == "changelog" else topic
    page = Path(__file__).resolve().parents[1] / "docs" / f"{name}.md"
    size = shutil.get_terminal_size()
    text = render(
        page.read_text(encoding="utf-8"),
        min(size.columns, _WIDEST),
        is_terminal=is_terminal(sys.stdout) and not os.environ.get("NO_COLOR"),
    )
    if not (is_terminal(sys.stdout) and text.count("\n") >= size.lines and _page(text)):
        print(text)
    return 0


def _page(text: str) -> bool:
    """Show a long text in the user's pager; return whether that worked."""
    pager = os.environ.get("PAGER") or "less"
    try:
        words = shlex.split(pager)
    except ValueError:  # a quote is missing
        words = []
    if os.environ.get("TERM") == "dumb" or not words or not shutil.which(words[0]):
        return False
    environment = {"LESS": "FRX", **os.environ}  # with colours, and no pause for a short text
    return subprocess.run(words, input=text.encode(), env=environment, check=False).returncode == 0


def render(page: str, width: int, *, is_terminal: bool) -> str:
    """Return a page of Markdown as text of this width."""
    lines: list[str] = []
    for block in _blocks(_UNSEEN.sub("", page)):
        lines += [] if block[0].strip() else [""]
        lines += _render_block(block, width)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    return _coloured(text) if is_terminal else text


def _blocks(page: str) -> Iterator[list[str]]:
    """Yield the blocks of a page: paragraphs, items of lists, tables, and code with its fences."""
    block: list[str] = []
    is_code = False
    for line in page.splitlines():
        is_fence = line.lstrip().startswith("```")
        begins = is_fence or line.startswith("#") or bool(_LIST.match(line)) or not line.strip()
        begins = begins or (bool(block) and block[0].lstrip().startswith(("#", "```")))
        if begins and not is_code and block:
            yield block
            block = []
        block.append(line)
        is_code = is_code is not is_fence
    if block:
        yield block


def _render_block(block: Sequence[str], width: int) -> list[str]:
    lines = [line for line in block if line.strip()]
    if not lines:
        return []
    if lines[0].lstrip().startswith("```"):
        return [f"    {line}" for line in textwrap.dedent("\n".join(block[1:-1])).split("\n")]
    if lines[0].startswith("|"):
        return _render_table([_cells(line) for line in lines], width)
    if lines[0].startswith("#"):
        return lines
    text = _LINK.sub(_shown_link, " ".join(line.strip() for line in lines))
    item = _LIST.match(lines[0])
    begin = item[1] if item else ""
    rest = begin + " " * len(item[0].lstrip()) if item else ""
    return textwrap.wrap(
        text,
        width,
        initial_indent=begin,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _cells(line: str) -> tuple[str, ...]:
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return tuple(_LINK.sub(_shown_link, cell.strip().replace("\\|", "|")) for cell in cells)


def _shown_link(link: re.Match[str]) -> str:
    name, _, _ = link[2].partition(".md")
    is_topic = name in TOPICS and link[1] != name
    return f"{link[1]} (help {name})" if is_topic else link[1]


def _render_table(rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """Align a table that fits; otherwise, put the other cells of a row below the first."""
    head, *body = [row for row in rows if not set("".join(row)) <= set("-: ")]
    columns = max(map(len, (head, *body)))
    filled = [(*row, *[""] * (columns - len(row))) for row in (head, *body)]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    if sum(widths) + 2 * (columns - 1) <= width:
        cells = (
            [f"{cell:<{size}}" for cell, size in zip(row, widths, strict=True)] for row in filled
        )
        return ["  ".join(row).rstrip() for row in cells]
    lines: list[str] = []
    for first, *others in filled[1:]:
        lines += textwrap.wrap(first, width, break_long_words=False)
        for title, cell in zip(filled[0][1:], others, strict=True):
            said = f"{title}: {cell}" if title and columns > 2 else cell
            wrapped = textwrap.wrap(
                said, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False
            )
            lines += wrapped if cell else []
    return lines


def _coloured(text: str) -> str:
    """Show headings, bold text and code as a terminal does."""
    lines: list[str] = []
    for is_code, group in groupby(text.split("\n"), lambda line: line.startswith("    ")):
        part = "\n".join(group)
        if not is_code:
            for pattern, colour in _STYLES:
                part = pattern.sub(f"\x1b[{colour}m\\1\x1b[0m", part)
        lines.append(part)
    return "\n".join(lines)
