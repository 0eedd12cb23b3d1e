"""How large each part of the house is: python -m tests.house writes it into CONTRIBUTING.

A line counts if it holds code: blanks, comments and docstrings do not. The test of the table allows
a quarter of difference, so that not every change has to write it again.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ADDON = Path(__file__).parents[1] / "addon"
PACKAGE = ADDON / "mcp_tool_filter"
PAGE = Path(__file__).parents[1] / ".github" / "CONTRIBUTING.md"
ROW = re.compile(r"^\| `((?:rooms/|core|cli|addon/)[\w/]*)` \| (.*) \| ([\d,]+) \|$", re.MULTILINE)
_NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(source: str) -> int:
    """Count the lines that hold code.

    >>> lines_of_code('"A docstring."\\n\\n# a comment\\nx = (1,\\n     2)\\n')
    2
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE and token.string.strip():
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        body: object = getattr(node, "body", None)
        for part in body if isinstance(body, list) else ():
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                lines -= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return len(lines)


def sizes() -> dict[str, int]:
    """Return the lines of code of each room, and of the other parts."""
    parts = {f"rooms/{one.parent.name}": one.parent for one in PACKAGE.glob("rooms/*/__init__.py")}
    parts |= {"core": PACKAGE / "core", "cli": PACKAGE / "cli", "addon/jsregex": ADDON / "jsregex"}
    return {
        name: sum(lines_of_code(file.read_text("utf-8")) for file in folder.rglob("*.py"))
        for name, folder in parts.items()
    }


def main() -> int:
    now = sizes()

    def row(found: re.Match[str]) -> str:
        return f"| `{found[1]}` | {found[2]} | {round(now[found[1]], -1):,} |"

    PAGE.write_text(ROW.sub(row, PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
