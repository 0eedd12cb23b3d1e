r"""Help for authors of patterns: hints about what they probably meant, and globs.

>>> hint("delete_*")
'_* matches any number of _, even none; if you mean a glob: ^delete_'

A glob becomes a regex; it must fit the whole name:

>>> render_glob("write_*"), render_glob("*.{md,txt}"), render_glob("file_[!a-c]?")
('^write_', '\\.(?:md|txt)$', '^file_[^a-c][^]$')
"""

from __future__ import annotations

import re

from mcp_tool_filter.jsregex.safety import is_safe
from mcp_tool_filter.jsregex.syntax import NotJavaScript, parse_regex

_GLOB = re.compile(r"[\w./:*-]*\*[\w./:*-]*")
_LITERAL = re.compile(r"/(.+)/([dgimsuyv]*)", re.DOTALL)


def hint(text: str, *, in_rules: bool = False) -> str | None:
    """Return a sentence for people, or None. Flags do not apply to patterns in rules."""
    if _GLOB.fullmatch(text) and ".*" not in text:
        return _hint_for_glob(text, "" if in_rules else "use --deny-glob, or ")
    no_case = "write ignore_case: true beside the pattern" if in_rules else "use --ignore-case"
    if text.startswith("(?i)"):
        return f"JavaScript has no (?i); {no_case} and: {text.removeprefix('(?i)')}"
    if literal := _LITERAL.fullmatch(text):
        flag = f" and {no_case}" if "i" in literal[2] else ""
        return f"Slashes are part of the pattern; leave them out{flag}: {literal[1]}"
    return _hint_for_ends(text)


def _hint_for_glob(text: str, flag: str) -> str:
    parts = [re.sub(r"\.", r"\\.", part) for part in text.split("*")]
    regex = ".*".join(["^" + parts[0] if parts[0] else "", *parts[1:-1], parts[-1]])
    regex = regex + "$" if parts[-1] else regex
    regex = regex.removeprefix(".*").removesuffix(".*") or ".*"
    if not _is_regex(text):
        return f"That is a glob; {flag}as a regex: {regex}"
    before = text[text.index("*") - 1]
    return f"{before}* matches any number of {before}, even none; if you mean a glob: {regex}"


def _hint_for_ends(text: str) -> str | None:
    """Suggest to drop ``.*`` at the ends: it adds nothing, because a pattern may match anywhere."""
    inner = text.removeprefix("^").removeprefix(".*").removesuffix("$").removesuffix(".*")
    if inner in {text, ""} or not _is_regex(text) or not _is_regex(inner):
        return None
    if is_safe(parse_regex(text).root) or not is_safe(parse_regex(inner).root):
        return None
    return f"A pattern is searched for anywhere in a name; leave out .* at its ends: {inner}"


def _is_regex(text: str) -> bool:
    try:
        parse_regex(text)
    except NotJavaScript:
        return False
    return True


# A class, an escaped character, or any one character.
_PIECE = re.compile(r"\[[!^]?+(?:\][^\]]*|[^\]]+)\]|\\.|.", re.DOTALL)


def render_glob(glob: str) -> str:
    """Return the equivalent regex. Raises NotJavaScript for braces that do not match."""
    parts: list[str] = []
    depth = 0
    for piece in _PIECE.findall(glob):
        if piece == "{":
            depth += 1
            parts.append("(?:")
        elif piece == "}" and depth:
            depth -= 1
            parts.append(")")
        elif piece == "," and depth:
            parts.append("|")
        else:
            parts.append(_render(piece))
    if depth:
        raise NotJavaScript("a brace of the glob is not closed")
    return _without_ends("".join(["^", *parts, "$"]))


def _render(piece: str) -> str:
    if piece == "*":
        return "[^]*"
    if piece == "?":
        return "[^]"
    if len(piece) > 2:  # a class
        negated = piece[1] in "!^"
        inside = (
            piece[1 + negated : -1].replace("\\", "\\\\").replace("]", "\\]").replace("^", "\\^")
        )
        return f"[{'^' if negated else ''}{inside}]"
    char = piece[-1]
    return char if char.isalnum() or char in "_-" or not char.isascii() else f"\\{char}"


def _without_ends(regex: str) -> str:
    """Return ``a`` for ``^[^]*a[^]*$``, which means the same: a regex may match anywhere."""
    while regex.startswith("^[^]*"):
        regex = regex.removeprefix("^[^]*")
        regex = f"^{regex}" if regex.startswith("[^]*") else regex
    while regex.endswith("[^]*$"):
        regex = regex.removesuffix("[^]*$")
        regex = f"{regex}$" if regex.endswith("[^]*") else regex
    return regex
