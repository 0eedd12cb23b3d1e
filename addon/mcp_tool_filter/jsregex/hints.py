"""Hints for a refused or odd pattern: what its author probably meant.

>>> hint("delete_*")
'_* matches any number of _, even none; if you mean a glob: ^delete_'
"""

from __future__ import annotations

import re

from mcp_tool_filter.jsregex.ambiguity import is_safe
from mcp_tool_filter.jsregex.names import NotJavaScript
from mcp_tool_filter.jsregex.syntax import parse_regex

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
