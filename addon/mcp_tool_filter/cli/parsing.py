"""Read the settings from the texts that were typed, and check them once.

mitmproxy's options and our own flags both arrive here. An option whose key is a field of ``Config``
sets that field, by the kind of its value; the others are read one by one.

>>> parse_config(deny=["^file_,^db_"], message_limit="1 MB").limits.message
1048576
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from types import MappingProxyType
from typing import Any

from mcp_tool_filter.cli.options import KEYS, SWITCH, Texts
from mcp_tool_filter.core.errors import (
    BlankPattern,
    EmptyList,
    InvalidOption,
    NothingDenied,
    SpaceAfterComma,
    UnsetVariable,
)
from mcp_tool_filter.core.messages.limits import HTTP_TOKEN, MEBIBYTE, Limits
from mcp_tool_filter.core.policy.choice import READ_ONLY, Choice
from mcp_tool_filter.core.policy.config import AllowedHosts, Audit, Config, MetricsAt
from mcp_tool_filter.core.policy.patterns import (
    DENY_GLOB,
    EXCEPT,
    OF_CATALOG,
    Pattern,
    parse_glob,
    parse_pattern,
    refuse_other_than_utf8,
)


def _parse_several(
    values: Sequence[str], option: str, form: re.Pattern[str], why: str
) -> list[str]:
    """Split at commas; raise InvalidOption if one of the texts has another form."""
    texts = [text for value in values for part in value.split(",") if (text := part.strip())]
    if bad := next((text for text in texts if not form.fullmatch(text)), None):
        raise InvalidOption(option, bad, why=why)
    return texts


_UNFINISHED = Limits().unfinished
_UNITS = {"": 1, "k": 1024, "m": MEBIBYTE, "g": 1024 * MEBIBYTE}
_SIZE = re.compile(r"(\d{1,12})\s*([kmg]?)i?b?", re.IGNORECASE)
_AGE = re.compile(r"(\d{1,6})([smhd])")
_AGES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|\$)")
_TOKEN = re.compile(f"{HTTP_TOKEN}+")
# Headers that the HTTP connection sets itself.
_NOT_TO_SET = frozenset({
    "host", "content-length", "transfer-encoding", "connection", "upgrade", "accept-encoding",
    "content-encoding", "content-type", "range",
})  # fmt: skip


_FIELDS = frozenset(one.name for one in fields(Config))


class _Given:
    """The texts of all options, by their keys."""

    def __init__(self, texts: Mapping[str, Texts]) -> None:
        self._texts = {**{key: option.text for key, option in KEYS.items()}, **texts}
        assert self._texts.keys() == KEYS.keys()

    def one(self, key: str) -> str:
        text = self._texts[key]
        assert isinstance(text, str)
        return text

    def many(self, key: str) -> Sequence[str]:
        return self._texts[key] or ()

    def is_on(self, key: str) -> bool:
        if (is_on := SWITCH.get(self.one(key).strip().lower())) is None:
            raise InvalidOption(key, self.one(key), why="It must be true or false")
        return is_on

    def choice(self, key: str) -> str:
        text, choices = self.one(key), KEYS[key].choices
        if text not in choices:
            raise InvalidOption(key, text, why="It must be one of: " + ", ".join(choices))
        return text

    def seconds(self, key: str) -> float:
        text = self.one(key)
        if not re.fullmatch(r"\d{1,9}", text) or int(text) == 0:
            raise InvalidOption(key, text, why="It must be a number of milliseconds, 1 or more")
        return int(text) / 1000

    def port(self, key: str) -> int | None:
        text = self.one(key)
        if text and (not re.fullmatch(r"\d{1,5}", text) or int(text) > 65535):
            raise InvalidOption(key, text, why="It must be a number from 0 to 65535")
        return int(text) if text else None

    def number(self, key: str) -> int:
        text = self.one(key)
        if not re.fullmatch(r"\d{1,9}", text):
            raise InvalidOption(key, text, why="It must be a number")
        return int(text)

    def plain_fields(self) -> dict[str, Any]:
        """Return the fields of ``Config`` that an option sets by its kind alone."""
        kinds: dict[str, Callable[[str], object]] = {
            "": self.is_on,
            "HOW": self.choice,
            "MS": self.seconds,
            "PORT": self.port,
            "NUMBER": self.number,
            "FILE": self.one,
        }
        return {
            key: kinds[option.value](key)
            for key, option in KEYS.items()
            if key in _FIELDS and option.value in kinds
        }

    def patterns(self, key: str, parse: Callable[[str], Pattern]) -> tuple[Pattern, ...]:
        values = self._texts[key]
        if values is None:
            return ()
        if not values:
            raise EmptyList(key)
        return _parse_patterns(values, key, parse)

    def hints(self, key: str) -> tuple[str, ...]:
        """Return the hints, in the order of their choices."""
        values, choices = self._texts[key], KEYS[key].choices
        if values is None:
            return ()
        texts = [text.strip() for value in values for text in value.split(",")]
        if not any(texts):
            raise EmptyList(key)
        if bad := [text for text in texts if text not in choices]:
            from difflib import get_close_matches  # slow to import, and seldom needed

            close = get_close_matches(bad[0].lower(), choices, n=1)
            why = f"It must be {', '.join(choices[:-1])} or {choices[-1]}"
            if close:
                why = f"Did you mean {close[0]}?"
            elif bad[0].lower().replace("_", "-") == READ_ONLY:
                why = "read-only is an option of its own"
            raise InvalidOption(key, bad[0], why=why)
        return tuple(choice for choice in choices if choice in texts)


def parse_config(
    texts: Mapping[str, Texts] = MappingProxyType({}),
    /,
    *,
    environment: Mapping[str, str] = os.environ,
    allow_too: Sequence[str] = (),
    edit_tables: Sequence[str] = (),
    **more: Texts,
) -> Config:
    """Check the user's settings. Raises StartError, which quotes the wrong text.

    ``texts`` and ``more`` are the options' values by their keys. ``None`` means that ``deny`` or
    ``allow`` is not set; an empty list is an error. ``allow_too`` is another list that a tool must
    match. ``edit_tables`` are ``[tools]`` tables as JSON.
    """
    given = _Given({**texts, **more})
    config = Config(
        choice=_parse_choice(given, allow_too),
        of_catalog=_parse_of_catalog(given),
        judges_new_tools=_parse_new_tools(given.one("new_tools")),
        endpoint=_parse_endpoint(given.one("endpoint")),
        upstream_headers=tuple(
            parse_header(text, environment) for text in given.many("upstream_headers")
        ),
        uses_login=given.choice("login") == "auto",
        shows_secrets=given.is_on("show_secrets"),
        limits=_parse_limits(given.one("message_limit")),
        allowed_hosts=_parse_hosts(given.many("allowed_hosts")),
        hosts=_parse_named_hosts(given.many("hosts")),
        only_mcp=given.choice("paths") == "mcp",
        drain=_parse_drain(given.one("drain")),
        max_clients=_parse_max_clients(given.one("max_clients")),
        edit_tables=tuple(edit_tables),
        audit=_parse_audit(given),
        metrics=_parse_metrics(given, environment),
        **given.plain_fields(),
    )
    if config.strict and config.denies_nothing:
        raise NothingDenied
    return config


_PIECE = re.compile(r"\\.|\{[^{}]*\}|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def split_patterns(value: str, *, option: str = "deny") -> list[str]:
    r"""Split a value at its commas, but not within {}, [] or (), nor after a backslash.

    White space stays as typed, but ``"a, b"`` is refused: ``" b"`` would match no tool, and leave
    open what the user thinks is closed. Raises InvalidPattern, also for an empty part, and
    BlankPattern for one of only white space.

    >>> split_patterns(r"^a{1,2}$,[,],(?:b,c),d\,e")
    ['^a{1,2}$', '[,]', '(?:b,c)', 'd\\,e']
    """
    refuse_other_than_utf8(value, option)
    parts = [""]
    depth = 0
    for found in _PIECE.finditer(value):
        piece = found.group()
        if piece == "," and not depth:
            parts.append("")
            continue
        depth = max(0, depth + (piece == "(") - (piece == ")"))
        parts[-1] += piece
    for part in parts:
        if not part.strip():
            raise BlankPattern(part, option=option)
    if any(part[0].isspace() for part in parts[1:]):
        raise SpaceAfterComma(value, ",".join([parts[0], *map(str.lstrip, parts[1:])]), option)
    return parts


def _parse_patterns(
    values: Sequence[str], key: str, parse: Callable[[str], Pattern]
) -> tuple[Pattern, ...]:
    texts = [text for value in values for text in split_patterns(value, option=key)]
    return tuple(map(parse, dict.fromkeys(texts)))


def _parse_choice(given: _Given, allow_too: Sequence[str]) -> Choice:
    no_case = given.is_on("ignore_case")
    parse = partial(parse_pattern, ignore_case=no_case)
    return Choice(
        deny=(
            *given.patterns("deny", parse),
            *given.patterns(DENY_GLOB, partial(parse_glob, ignore_case=no_case)),
        ),
        allow=given.patterns("allow", partial(parse, option="allow")),
        allow_too=_parse_patterns(allow_too, "allow", partial(parse, option="allow")),
        exceptions=given.patterns(EXCEPT, partial(parse, option=EXCEPT)),
        hints=(*((READ_ONLY,) if given.is_on("read_only") else ()), *given.hints("deny_hint")),
    )


def _parse_of_catalog(given: _Given) -> tuple[tuple[Pattern, ...], ...]:
    no_case = given.is_on("ignore_case")
    parsed = tuple(
        tuple(given.patterns(key, partial(parse_pattern, option=key, ignore_case=no_case)))
        for key in OF_CATALOG
    )
    return parsed if any(parsed) else ()


def _parse_audit(given: _Given) -> Audit | None:
    file, rotate = given.one("audit_log"), given.one("audit_rotate")
    size, comma, age = rotate.partition(",")
    largest, oldest = _size(size), _AGE.fullmatch(age.strip() if comma else "1d")
    if largest < 1024 or not oldest or not int(oldest[1]):
        why = "It must be a size and an age, such as 100MB,1d (m: minutes, h: hours, d: days)"
        raise InvalidOption("audit_rotate", rotate, why=why)
    audit = Audit(
        file=file,
        arguments=given.choice("audit_arguments"),
        largest=largest,
        oldest=int(oldest[1]) * _AGES[oldest[2]],
    )
    return audit if file else None


def _parse_drain(text: str) -> float | None:
    if text and not re.fullmatch(r"\d{1,5}(?:\.\d{1,3})?", text):
        raise InvalidOption("drain", text, why="It must be a number of seconds, such as 30")
    return float(text) if text else None


def _parse_metrics(given: _Given, environment: Mapping[str, str]) -> MetricsAt | None:
    port, host = given.port("metrics_port"), given.one("metrics_host").strip().lower()
    if not _NAME_OR_ADDRESS.fullmatch(host):
        raise InvalidOption("metrics_host", host, why="It must be an address, such as 127.0.0.1")
    typed = given.one("metrics_token")
    token = expand_variables(typed, environment, option="metrics_token", given="…").strip()
    if typed and not _VISIBLE.fullmatch(token):
        why = "It must be one word of visible ASCII characters"
        raise InvalidOption("metrics_token", "…", why=why)
    return None if port is None else MetricsAt(port=port, host=host, token=token)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else 0


def parse_header(text: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Parse ``Name: value``, with $VAR and ${VAR} expanded ($$ is a dollar).

    No error text quotes the value.
    """
    name, colon, value = text.partition(":")
    name = name.strip()
    if not colon or not _TOKEN.fullmatch(name):
        why = 'Write a header as "Name: value"'
        raise InvalidOption("upstream_headers", name if colon else "…", why=why)
    if name.lower() in _NOT_TO_SET:
        raise InvalidOption("upstream_headers", name, why="This header is set by the connection")

    expanded = expand_variables(value, environment, option="upstream_headers", given=name).strip()
    if not expanded.isascii() or not expanded.isprintable():
        why = "Its value has characters that are not allowed in a header"
        raise InvalidOption("upstream_headers", name, why=why)
    return name, expanded


def expand_variables(text: str, environment: Mapping[str, str], *, option: str, given: str) -> str:
    """Expand $VAR and ${VAR} ($$ is a dollar). Raises UnsetVariable, which quotes ``given``."""

    def look_up(variable: re.Match[str]) -> str:
        wanted = variable[1] or variable[2]
        if wanted is None:
            return "$"
        if wanted not in environment:
            why = f"The environment variable {wanted} is not set"
            raise UnsetVariable(option, given, why=why)
        return environment[wanted]

    return _VARIABLE.sub(look_up, text)


def variables_in(text: str) -> set[str]:
    """Return the names of the variables that ``expand_variables`` looks up."""
    return {found[1] or found[2] for found in _VARIABLE.finditer(text)} - {None}


def _parse_endpoint(text: str) -> str | None:
    if not text:
        return None
    if not text.startswith("/") or text.startswith("//") or not re.fullmatch(r"[!-~]+", text):
        why = "It must be a path on the upstream, for example /mcp"
        raise InvalidOption("endpoint", text, why=why)
    return text.partition("#")[0]


def _parse_new_tools(text: str) -> bool:
    if text not in KEYS["new_tools"].choices:
        why = "It must be " + " or ".join(KEYS["new_tools"].choices)
        raise InvalidOption("new_tools", text, why=why)
    return text == "judge"


_MESSAGE_LIMIT = "It must be a size of at least 1KB with its unit, such as 500KB or 10MB"


def _parse_limits(text: str) -> Limits:
    size = _size(text)
    if size < 1024:
        raise InvalidOption("message_limit", text, why=_MESSAGE_LIMIT)
    return Limits(message=size, pending=2 * size, unfinished=max(_UNFINISHED, 8 * size))


_VISIBLE = re.compile(r"[!-~]+")
_NAME_OR_ADDRESS = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_HOST_AND_PORT = re.compile(r"(?:[^\s/@:\[\]]{1,253}|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?|[0-9a-f:.]+")


def _parse_hosts(values: Sequence[str]) -> AllowedHosts:
    why = "It must be a host name, host:port, an origin, or *"
    hosts = _parse_several([one.lower() for one in values], "allowed_hosts", _VISIBLE, why)
    return AllowedHosts(frozenset(host.rstrip("/") for host in hosts))


def _parse_named_hosts(values: Sequence[str]) -> tuple[str, ...]:
    why = "It must be a host name or an address, or one with a port"
    return tuple(_parse_several([one.lower() for one in values], "hosts", _HOST_AND_PORT, why))


def _parse_max_clients(text: str) -> int | None:
    if text.strip().lower() == "auto":
        return None
    if not re.fullmatch(r"\d{1,6}", text) or int(text) == 0:
        raise InvalidOption("max_clients", text, why="It must be a number of clients, 1 or more")
    return int(text)
