"""Show a command to people without its secrets, because what we print ends in log files.

>>> shown_command(["npx", "db", "--connectionString", "mongodb://admin:p4ss@h/db", "--token=t-1"])
'npx db --connectionString *** --token=***'

We rather hide too much here than too little: nobody parses what we show.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from mcp_tool_filter.core.http.shown import CUT, looks_secret, shown_url
from mcp_tool_filter.core.messages.limits import HTTP_TOKEN

MASK = "***"
_URL = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+:(?://)?[^\s\"'<>]*")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNED = re.compile(r"-{0,2}([A-Za-z_][\w.-]*)=")
_HEADER = re.compile(rf"({HTTP_TOKEN}{{1,64}})(:\s*)(\S.*)", re.DOTALL)
_USER = frozenset({"-u", "--user", "--userpwd", "--basic-auth", "--proxy-user", "-U"})
_FLAG_NAMES = frozenset({"pat", "pw", "pwd", "dsn", "psk", "bearer", "creds", "keys"})
_RUN = re.compile(r"[A-Za-z0-9]+")
_INNER = re.compile(r"(?<!\S)(--?[A-Za-z][\w.-]*)([ \t]+|=)([^\s\"']+)")  # in a script
_TOKEN = re.compile(r"[A-Za-z0-9+=_.-]{16,}")
_NAMES = re.compile(r"(?:[A-Za-z]:)?[A-Za-z0-9@/\\._+-]*")
_VERSION = re.compile(r"@[0-9][0-9.]{0,11}$")
_DIGIT = re.compile(r"[0-9]")
_QUOTED_MASK = "__MASK__"  # shlex.quote leaves it alone


def shown_command(words: Sequence[str]) -> str:
    """Return a command line with masks in the place of its secrets."""
    shown = (shlex.quote(word.replace(MASK, _QUOTED_MASK)) for word in shown_words(words))
    return " ".join(shown).replace(_QUOTED_MASK, MASK)


def shown_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with masks in the place of their secrets."""
    return [_masked(word, before) for before, word in pairwise(["", *words])]


def secrets_in_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line that are a secret as a whole."""
    for word, shown in zip(words, shown_words(words), strict=True):
        if shown == MASK:
            yield word


def _masked(word: str, before: str) -> str:
    if _FLAG.fullmatch(before) and not word.startswith("--"):
        if _is_secret_flag(before):
            return MASK
        if before in _USER and ":" in word and "://" not in word:
            return f"{word.partition(':')[0]}:{MASK}"
    start = 0
    while (assigned := _ASSIGNED.match(word, start)) and assigned.end() < len(word):
        start = assigned.end()
        if _is_secret_flag(assigned[1]):
            return word[:start] + MASK
    return word[:start] + _masked_value(word[start:])


def _masked_value(word: str) -> str:
    from mcp_tool_filter.rooms.secrets.names import is_secret_header

    if _is_plain(word):
        return word
    header = _HEADER.fullmatch(word)
    if header and not header[3].startswith("//") and is_secret_header(header[1].lower()):
        return header[1] + header[2] + MASK
    urls = _URL.sub(lambda url: shown_url(url[0]).replace(CUT, MASK), word)
    if _TOKEN.fullmatch(urls) and looks_secret(urls):
        return MASK
    from mcp_tool_filter.rooms.secrets.finder import redact  # slow to import

    return redact(_INNER.sub(_masked_flag, urls), MASK)


def _is_plain(word: str) -> bool:
    """Tell whether a word is certainly no secret: a name, a path, a package with its version."""
    if not _NAMES.fullmatch(word):
        return False
    for segment in re.split("[/\\\\]", _VERSION.sub("", word)):
        runs = _RUN.findall(segment)
        is_text = all(len(run) < 12 or (run.islower() and len(run) < 24) for run in runs)
        if len(segment) >= 12 and not (is_text and not _DIGIT.search(segment)):
            return False
    return True


def _masked_flag(found: re.Match[str]) -> str:
    return found[1] + found[2] + (MASK if _is_secret_flag(found[1]) else found[3])


def _is_secret_flag(flag: str) -> bool:
    from mcp_tool_filter.rooms.secrets.names import is_secret_parameter

    name = flag.lstrip("-")
    return is_secret_parameter(name) or name.lower().rpartition("-")[2] in _FLAG_NAMES
