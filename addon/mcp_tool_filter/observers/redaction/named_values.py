"""Find values after a secret name in free text: ``password=…``, ``"token": "…"``, ``--api-key …``.

>>> from mcp_tool_filter.observers.redaction.names import is_secret_name
>>> text = "password=p-1, token: 'two words', and a password: none of your business"
>>> [text[one.start:one.end] for one in named_values_in(text, is_secret_name)]
['p-1', 'two words']

Code and prose contain such names too, so a value without quotes must look like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_NAMED = re.compile(
    r"(?<![A-Za-z0-9_.])(--?)?([A-Za-z_][A-Za-z0-9_.-]{1,63}+)(\\*[\"'])?"
    r"(?:([ \t]{0,4})(=>?|:)([ \t]{0,4})|([ \t]{1,4}))"
)
_QUOTED = re.compile(r"(\\*)([\"'])((?:(?!\1\2)[^\r\n])*+)")
_PLAIN = re.compile(
    r"(?:(?:bearer|basic|token|digest) +)?([^\s,;&\"'<>(){}\[\]\\]++)(.?)", re.IGNORECASE
)
_ELEMENT = re.compile(
    r"<(?:[A-Za-z0-9]{1,32}:)?([A-Za-z_][A-Za-z0-9_.-]{1,63}+)[^<>]{0,200}>([^<>]++)</"
)
_INPUT = re.compile(r"name=[\"']([^\"'<>]{1,100})[\"'][^<>]{0,200}?\svalue=[\"']([^\"'<>]++)")
_PROSE = re.compile(
    r"(?<![A-Za-z0-9_-])(?:password|passphrase|secret|token|credential|api[ -]?key)"
    r"(?:\s{1,2}(?:is|was))?\s{0,2}[:=]?\s{1,4}[\"'`]?([A-Za-z0-9_.+/=-]{12,}+)",
    re.IGNORECASE,
)
_UNQUOTED = re.compile(r"[^\r\n\"']*+")
_SHELL_VARIABLE = re.compile(r"\$[A-Z0-9_]*")
_COOKIE = re.compile(r"(?:set-)?cookie", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NamedValue:
    start: int
    end: int
    is_quoted: bool = False
    is_cookie: bool = False
    """True for a list of cookies: names and values."""


def named_values_in(text: str, is_secret_name: Callable[[str], bool]) -> Iterator[NamedValue]:
    """Yield the values that are secret by their name."""
    done = 0
    for one in _NAMED.finditer(text):
        if one.start() < done or not is_secret_name(one[2]) or not (one[5] or one[1]):
            continue
        if _COOKIE.fullmatch(one[2]) and (line := _UNQUOTED.match(text, one.end())):
            yield NamedValue(*line.span(), is_cookie=True)
            done = line.end()
        elif quoted := _QUOTED.match(text, one.end()):
            yield NamedValue(*quoted.span(3), is_quoted=True)
        elif (plain := _PLAIN.match(text, one.end())) and _is_value(one, plain):
            yield NamedValue(*plain.span(1))
    for pattern in (_ELEMENT, _INPUT) if "<" in text else ():
        for one in pattern.finditer(text):
            if is_secret_name(one[1]):
                yield NamedValue(*one.span(2))
    for one in _PROSE.finditer(text):
        if _is_random(one[1]) and any(char.isalpha() for char in one[1]):
            yield NamedValue(*one.span(1))


def _is_value(name: re.Match[str], plain: re.Match[str]) -> bool:
    if plain[2] == "(" or _SHELL_VARIABLE.fullmatch(plain[1]):
        return False
    is_tight = name[5] == "=" and not name[4] and not name[6]
    is_code = plain[2] == "[" or _ends_with(plain[1], name[2])
    return (is_tight and not is_code) or _is_random(plain[1])


def _is_random(value: str) -> bool:
    """Tell whether a value looks like a secret rather than a word."""
    return len(value) >= 6 and any(char.isdigit() for char in value)


def _ends_with(value: str, name: str) -> bool:
    """Tell whether a value is a variable: ``token=token``, ``password=args.password``."""
    return value.lower().replace("-", "_").endswith(name.lower().replace("-", "_"))
