r"""Deny and allow patterns: JavaScript regexes, checked for validity and safety.

>>> [delete, archived] = [parse_pattern(text) for text in ("^delete_", "_v[1,2]$")]
>>> delete.matches("delete_file"), archived.matches("report_v2")
(True, True)
>>> parse_pattern("(a+)+")
Traceback (most recent call last):
mcp_tool_filter.core.errors.UnsafePattern: Error: Unsafe regex pattern detected: "(a+)+"
Pattern could cause catastrophic backtracking

A pattern means what ``new RegExp(text).test(name)`` means in an ES2024 engine (Node 20): it may
match anywhere, is case-sensitive, and sees UTF-16 code units. We refuse patterns on which
JavaScript's backtracking could blow up, although ours does not: the same pattern is probably used
elsewhere, and a pattern that nobody understands protects nothing.

Authors get hints about what they probably meant:

>>> hint("delete_*")
'_* matches any number of _, even none; if you mean a glob: ^delete_'
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from jsregex.cost import LONGEST_NAME, Budget, TooCostly
from jsregex.glob import render_glob
from jsregex.matcher import Matcher
from jsregex.safety import is_safe
from jsregex.syntax import NotJavaScript, Regex, parse_regex
from mcp_tool_filter.core.errors import InvalidGlob, InvalidPattern, NotUtf8, UnsafePattern

DENY_GLOB = "deny_glob"
EXCEPT = "except"
OF_CATALOG = ("deny_prompts", "deny_resources", "deny_skills")
"""The options for what an upstream offers besides tools."""
ALLOW_ALL = ("allow", "^")
"""The option and the pattern that allow every tool on purpose."""
MAX_NAME = LONGEST_NAME  # UTF-16 code units; a tool with a longer name is never exposed


@dataclass(frozen=True, slots=True)
class Pattern:
    """A checked pattern."""

    text: str
    """The pattern as it was typed."""
    option: str
    ignore_case: bool
    _matcher: Matcher = field(repr=False, compare=False)

    def matches(self, name: str, budget: Budget | None = None) -> bool:
        """Tell whether the pattern matches the name. Always fast, even for long names.

        A name of up to MAX_NAME units is always judged exactly. For a longer name we may give up:
        then a deny pattern counts as matching, and an allow pattern or an exception as not
        matching. The same if a budget for many names is spent.
        """
        try:
            return self._matcher.search(name, budget)
        except TooCostly:
            return self.option not in ("allow", EXCEPT)

    @property
    def thing(self) -> str:
        """What it hides: tools, or prompts, resources, skills."""
        return self.option[len("deny_") : -1] if self.option in OF_CATALOG else "tool"

    @property
    def says(self) -> str:
        """Why a tool is hidden that this pattern denies."""
        return f"denied by {self.text}"

    @property
    def regex(self) -> str:
        """The pattern as a JavaScript regex, also where a glob was typed."""
        return render_glob(self.text) if self.option == DENY_GLOB else self.text

    @property
    def hint(self) -> str | None:
        """What the user may have meant instead, if the pattern is odd."""
        return None if self.option == DENY_GLOB else hint(self.text)


_AS_IN_CONTRACT = "a class is not closed"
"""The contract has the error for its example ``^[a-z`` to the letter, with no third line."""


# (Whoever reads the settings again, for one more server or at SIGHUP, has most of them already.)
@lru_cache(maxsize=4096)
def parse_pattern(text: str, *, option: str = "deny", ignore_case: bool = False) -> Pattern:
    """Check a pattern. Raises InvalidPattern or UnsafePattern."""
    try:
        regex = parse_regex(text, ignore_case=ignore_case)
    except NotJavaScript as error:
        why = str(error) if str(error) != _AS_IN_CONTRACT else None
        raise InvalidPattern(text, option=option, hint=hint(text) or why) from error
    if (matcher := _usable(regex)) is None:
        raise UnsafePattern(text, hint=hint(text))
    return Pattern(text, option, ignore_case, matcher)


@lru_cache(maxsize=4096)
def parse_glob(glob: str, *, ignore_case: bool = False) -> Pattern:
    """Check a glob, which must fit the whole name. Raises InvalidGlob or UnsafePattern."""
    try:
        regex = parse_regex(render_glob(glob), ignore_case=ignore_case)
    except NotJavaScript as error:
        raise InvalidGlob(glob, why=str(error).capitalize()) from error
    if (matcher := _usable(regex)) is None:
        raise UnsafePattern(glob)
    return Pattern(glob, DENY_GLOB, ignore_case, matcher)


@lru_cache(maxsize=100)
def in_any_case(pattern: Pattern) -> Pattern | None:
    """Return a pattern that also matches names in other case; None if that could take long."""
    try:
        return parse_pattern(pattern.regex, option=pattern.option, ignore_case=True)
    except UnsafePattern:
        return None


def _usable(regex: Regex) -> Matcher | None:
    """Return the matcher, or None if matching could take long."""
    matcher = Matcher(regex)
    return matcher if is_safe(regex.root) and matcher.is_affordable() else None


# An escaped character, braces or a class with their content, or any single character.
def refuse_other_than_utf8(text: str, option: str) -> None:
    """Raise NotUtf8 for bytes of a command line that Python could not decode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotUtf8(text, option=option) from None


_MAY_BE_GLOB = re.compile(r"[\w./:*-]+")
_LITERAL = re.compile(r"/(.+)/([dgimsuyv]*)", re.DOTALL)


def hint(text: str, *, in_rules: bool = False) -> str | None:
    """Return a sentence for people, or None. Flags do not apply to patterns in rules."""
    if "*" in text and ".*" not in text and _MAY_BE_GLOB.fullmatch(text):
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
