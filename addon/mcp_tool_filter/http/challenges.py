"""What a 401 or 403 asks for: the header WWW-Authenticate (RFC 9110, section 11.6.1).

One header may hold several challenges, and an answer several headers. Values are quoted or not:

>>> parse_challenges(['Basic realm="a, b", Bearer scope=read, error="invalid_token"'])[1].params
{'scope': 'read', 'error': 'invalid_token'}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_LONGEST = 8192
_MOST_SCOPES = 50
_SCOPE = re.compile(r"[!#-\[\]-~]{1,256}")  # RFC 6749, section 3.3
# A token, then what may follow it: a value, or nothing, or (after a scheme) a blank.
_WORD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BLANK = re.compile(r"[ \t]*")
_EQUALS = re.compile(r"[ \t]*=[ \t]*")
_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"|[^",\s]+')
_SEPARATOR = re.compile(r"[ \t,]*")
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Challenge:
    scheme: str
    """In lower case, such as ``bearer``."""
    params: dict[str, str] = field(default_factory=dict)
    """By name in lower case; the first of a name counts."""


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """Parse the values of all WWW-Authenticate headers, each up to the first unreadable part."""
    return [challenge for header in headers for challenge in _challenges_in(header[:_LONGEST])]


def bearer_challenge(headers: Iterable[str]) -> Challenge | None:
    """Return the first challenge that asks for a bearer token."""
    return next((one for one in parse_challenges(headers) if one.scheme == "bearer"), None)


def missing_scopes(status: int, challenges: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes that an answer asks for because the token lacks them."""
    challenge = bearer_challenge(challenges) if status == 403 else None
    if challenge is None or challenge.params.get("error") != "insufficient_scope":
        return ()
    return scopes_in(challenge)


def scopes_in(challenge: Challenge) -> tuple[str, ...]:
    """Return the scopes that a challenge names."""
    said = challenge.params.get("scope", "").split()
    return tuple(scope for scope in said if _SCOPE.fullmatch(scope))[:_MOST_SCOPES]


def _challenges_in(header: str) -> Iterator[Challenge]:
    current: Challenge | None = None
    at = 0
    while at < len(header):
        at = _end(_SEPARATOR, header, at)
        if not (word := _WORD.match(header, at)):
            break
        at = word.end()
        if equals := _EQUALS.match(header, at):
            value = _VALUE.match(header, equals.end())
            if current is None or value is None:
                break
            current.params.setdefault(word[0].lower(), _plain(value[0]))
            at = value.end()
            continue
        if current:
            yield current
        current = Challenge(word[0].lower())
        at = _end(_BLANK, header, at)
    if current:
        yield current


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _plain(value: str) -> str:
    return _ESCAPE.sub(r"\1", value[1:-1]) if value.startswith('"') else value
