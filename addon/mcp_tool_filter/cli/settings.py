"""The user's settings as one checked value, from the command line, environment and config file.

A flag beats the environment, which beats the file. Only what is denied adds up, patterns and hints,
so that one more on the command line does not disable those in the file. Within one source, a
setting with one value must not be repeated: the second would silently override the first. An empty
``deny`` or
``allow`` is refused in every source, because it is probably a slip (an unset variable) that
disables the filter. Each error is a UsageError, which quotes what was typed.

>>> gather({"deny": ["^b"]}, {"MCP_TOOL_FILTER_DENY": "^a"})
{'deny': ['^a', '^b']}
>>> read_settings(["-u", "http://localhost:3000/mcp", "--deny", "^rm"], {}).endpoint
'/mcp'
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_tool_filter.cli.flags import COMMAND, Given, UsageError, closest, no_such, parse_flags
from mcp_tool_filter.errors import EmptyList, InvalidOption
from mcp_tool_filter.options import A_COMMAND, KEYS, OPTIONS, PREFIX, RETIRED, Option, Texts

if TYPE_CHECKING:
    from ssl import SSLContext

    from mcp_tool_filter.adapters.upstream.target import Target
    from mcp_tool_filter.policy.config import Config


_FLAGS_OF_MITMPROXY = {  # of mitmproxy's own options that our flags set
    "mode": "upstream",
    "ssl_verify_upstream_trusted_ca": "ca",
    "client_certs": "client-cert",
}


@dataclass(frozen=True, kw_only=True, eq=False)  # generating __eq__ takes time
class Settings:
    """The settings. Values that mitmproxy or ``parse_config`` checks are still text."""

    origin: str
    """Scheme, host and port of the upstream."""
    command: tuple[str, ...]
    """The words of the upstream's command; empty if the upstream is a URL."""
    env: Mapping[str, str] = field(repr=False)  # contains secrets
    cwd: str | None
    is_stdio: bool
    """True if our client has started us and talks over stdin and stdout."""
    max_children: int
    host: str
    allow_remote: bool
    port: int
    texts: dict[str, Texts] = field(repr=False)
    """What ``parse_config`` checks."""
    ca: str | None
    client_cert: str | None
    cert: str | None
    insecure: bool
    inspect: bool
    browser: bool
    record: str | None
    log_format: str
    """text, json or none: how messages are shown."""
    verbosity: int
    """-1 for quiet, 0, 1, 2."""
    set: tuple[str, ...]

    @property
    def endpoint(self) -> str:
        """Path and query; empty if not given."""
        return str(self.texts["endpoint"])

    def many(self, key: str) -> Sequence[str]:
        """Return the values of an option that can be repeated."""
        return self.texts[key] or ()

    @property
    def upstream(self) -> str:
        return shlex.join(self.command) if self.command else self.origin + self.endpoint

    @property
    def shown_upstream(self) -> str:
        """The same for people, without secrets."""
        from mcp_tool_filter.observers.redaction.shown import shown_command, shown_url

        return shown_command(self.command) if self.command else shown_url(self.upstream)

    @property
    def may_have_rules(self) -> bool:
        """True if there is a rules file, or mitmproxy's own options may name one."""
        return bool(self.texts["rules"] or self.set)

    @property
    def listens_at(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def is_quiet(self) -> bool:
        return self.verbosity < 0

    def config(self) -> Config:
        """Check our own options, once. Raises StartError, which quotes the wrong text."""
        return self._config

    @cached_property
    def _config(self) -> Config:
        from mcp_tool_filter.policy.config import parse_config  # --help need not wait for it

        with in_our_words():
            return parse_config(self.texts)


@contextmanager
def in_our_words() -> Iterator[None]:
    """Make errors name our flag instead of mitmproxy's option."""
    try:
        yield
    except InvalidOption as error:
        flag = f"--{_flag_of(error.option)}"
        raise InvalidOption(flag, error.given, why=error.why) from None


def _flag_of(key: str) -> str:
    if key in KEYS:
        return KEYS[key].name
    return _FLAGS_OF_MITMPROXY.get(key, key.replace("_", "-"))


def read_settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read the settings from all three sources. Raises UsageError."""
    return settle(gather(parse_flags(argv), environment))


def settle(given: Given) -> Settings:
    """Check the given settings, and fill in defaults."""
    one = {name: values[-1] for name, values in given.items() if values}
    many = {name: tuple(values) for name, values in given.items()}
    command = many.get(COMMAND) or split_command(one.get("upstream-cmd", ""))
    if is_on(one, "stdio") and not command and not one.get("upstream"):
        why = "mcp-tool-filter --stdio --upstream URL, or mcp-tool-filter -- COMMAND ARGS"
        raise UsageError("--stdio needs a server", why=why)
    origin, path = ("", "") if command else split_upstream(one.get("upstream", ""))
    for option in OPTIONS.values() if not command else ():
        if A_COMMAND in option.needs and option.name in one:
            raise UsageError(f"--{option.name} is for an upstream that is a command")
    _refuse_own_options(many.get("set", ()))
    _refuse_no_file(one)
    return Settings(
        origin=origin,
        command=command,
        env=dict(map(parse_variable, many.get("env", ()))),
        cwd=one.get("cwd"),
        is_stdio=_is_stdio(one, is_command=bool(command)),
        max_children=parse_number("max-children", _value(one, "max-children"), least=1),
        host=_value(one, "host"),
        allow_remote=is_on(one, "allow-remote"),
        port=parse_number("port", _value(one, "port")),
        texts=_texts({"endpoint": path} | one, many),
        ca=one.get("ca"),
        client_cert=one.get("client-cert"),
        cert=one.get("cert"),
        insecure=is_on(one, "insecure"),
        inspect=is_on(one, "inspect"),
        browser=not is_on(one, "no-browser"),
        record=one.get("record"),
        log_format=one_of("log-format", _value(one, "log-format")),
        verbosity=_verbosity(given),
        set=many.get("set", ()),
    )


def _value(one: Mapping[str, str], name: str) -> str:
    return one.get(name, OPTIONS[name].default)


def _texts(one: Mapping[str, str], many: Mapping[str, Sequence[str]]) -> dict[str, Texts]:
    """Return our own options by their keys; those that are not given have their default."""
    texts: dict[str, Texts] = {}
    for key, option in KEYS.items():
        if option.many:
            texts[key] = many.get(option.name) or option.text
        elif option.value:
            texts[key] = _value(one, option.name)
        else:
            texts[key] = "true" if is_on(one, option.name) is not option.negates else "false"
    return texts


def _is_stdio(one: Mapping[str, str], *, is_command: bool) -> bool:
    """Tell whether we talk over stdin and stdout instead of listening."""
    asked = is_on(one, "stdio")
    listens = "port" in one or is_on(one, "inspect")
    if asked and listens:
        other = "--port" if "port" in one else "--inspect"
        raise UsageError(f"--stdio listens on no port: leave out {other} or --stdio")
    return asked or (is_command and not listens)


def _refuse_no_file(one: Mapping[str, str]) -> None:
    """An unset variable, as in --rules "$RULES", must not start a filter without rules."""
    for name in ("rules", "audit-log"):
        if one.get(name) == "":
            raise UsageError(f"--{name} has no file", why="Name one, or leave the flag out")


def _refuse_own_options(sets: Iterable[str]) -> None:
    """Refuse our own options in --set: with two ways to set one, it is unclear which counts."""
    for option in (spec.partition("=")[0] for spec in sets):
        if (flag := _flag_of(option)) in OPTIONS:
            raise UsageError(f"--set {option}=…: use --{flag} instead")


def _verbosity(given: Given) -> int:
    one = {name: values[-1] for name, values in given.items()}
    if is_on(one, "quiet"):
        return -1
    louder = given.get("verbose", [])
    return int(louder[0]) if louder and louder[0] in ("1", "2") else louder.count("true")


_NOT_OURS = ("WRAPPED", "WRAPPED_LOGIN", "PEERS", "PICTURES")  # variables of wrap and of our tests
_ADD_UP = ("deny", "deny-glob", "deny-hint")
_UPSTREAMS = ("upstream", "upstream-cmd", COMMAND)  # the ways to set the upstream


def gather(typed: Given, environment: Mapping[str, str]) -> Given:
    """Combine the three sources; the command line is parsed already."""
    surrounding = _read_environment(environment)
    files = typed.get("config") or surrounding.get("config")
    given: Given = {}
    for source in (read_file(files[-1]) if files else {}, surrounding, typed):
        if _names_upstream(source):
            given = {name: values for name, values in given.items() if name not in _UPSTREAMS}
        sums = {name: given.get(name, []) + source.get(name, []) for name in _ADD_UP}
        given |= source | {name: values for name, values in sums.items() if values}
    for option in RETIRED:
        if given.pop(option.name, None):
            _warn(f"--{option.name} {option.help}")
    return given


def _names_upstream(source: Given) -> bool:
    """Tell whether this source sets the upstream. Raises UsageError if it sets two."""
    named = [name for name in _UPSTREAMS if name in source]
    if len(named) > 1:
        first, second = ("the command after --" if one == COMMAND else f"--{one}" for one in named)
        raise UsageError(f"Give {first} or {second}, not both")
    return bool(named)


def read_file(path: str) -> Given:
    """Read a TOML file whose keys are the flags' names."""
    import tomllib

    try:
        with open(path, "rb") as file:
            table = tomllib.loads(file.read().decode("utf-8-sig"))  # some editors write the mark
    except OSError as error:
        raise UsageError(f"Cannot read the config file {path}", why=str(error.strerror)) from None
    except UnicodeDecodeError:
        raise UsageError(f"The config file {path} is not UTF-8", why="Save it as UTF-8") from None
    except ValueError as error:
        raise UsageError(f"The config file {path} is not TOML", why=str(error)) from None
    given: Given = {}
    for key, value in table.items():
        name, texts = _read_entry(path, key.replace("_", "-"), value)
        if name in given:
            raise UsageError(
                f"{name} is in {path} twice", why="It is there once with _ and once with -"
            )
        given[name] = texts
    return given


def _read_entry(path: str, name: str, value: object) -> tuple[str, list[str]]:
    known = [flag.name for flag in OPTIONS.values() if not flag.only_typed]
    if name not in known:
        raise no_such(f"setting in {path} called", name, known)
    flag = OPTIONS[name]
    if isinstance(value, list) and not flag.many:
        raise UsageError(f"{name} in {path} must be one value, not a list")
    values = value if isinstance(value, list) else [value]
    if wrong := [each for each in values if not _fits(each, flag)]:
        what = f"{name} in {path} cannot be {_KINDS.get(type(wrong[0]), 'a date or time')}"
        raise UsageError(what, why=_what_fits(flag))
    texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
    _refuse_empty(name, texts, source=f"{name} in {path}")
    return name, texts


_KINDS = {  # names of TOML's types
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a fraction",
    list: "a list",
    dict: "a table",
}


def _fits(value: object, flag: Option) -> bool:
    if isinstance(value, str):
        return True
    if isinstance(value, bool):
        return not flag.value or flag.choices == ("true", "false")
    return isinstance(value, int) and flag.is_number


def _what_fits(flag: Option) -> str:
    example = f'"{flag.value}"'
    if not flag.value or flag.choices == ("true", "false"):
        example = "true"
    elif flag.is_number:
        example = "1"
    several = f" or {flag.name} = [{example}]" if flag.many and flag.value else ""
    return f"Write it as {flag.name} = {example}{several}"


def _refuse_empty(name: str, texts: Sequence[str], *, source: str) -> None:
    if OPTIONS[name].selects and not any(text.strip() for text in texts):
        raise EmptyList(name, source=source)


def _read_environment(environment: Mapping[str, str]) -> Given:
    """Read MCP_TOOL_FILTER_DENY and so on; repeatable settings have one value per line."""
    names = {flag.variable.removeprefix(PREFIX): flag for flag in OPTIONS.values()}
    given: Given = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX)
        flag = names.get(name)
        if flag and not flag.only_typed:
            _refuse_empty(flag.name, [text], source=variable)
            if text:
                lines = [line for line in text.splitlines() if line.strip()]
                given[flag.name] = lines if flag.many else [text]
        elif flag:
            _warn(f"{variable} has no effect: type --{flag.name} on the command line")
        elif name not in _NOT_OURS:
            if meant := _meant(name, names):
                raise UsageError(f"{variable} is not a setting: did you mean {PREFIX}{meant}?")
            _warn(f"{variable} is not a setting and has no effect")
    return given


def _warn(text: str) -> None:
    from mcp_tool_filter.cli.terminal import say  # seldom needed

    say(f"Warning: {text}")


def _meant(name: str, known: Mapping[str, object]) -> str | None:
    longer = next((each for each in known if name.startswith(f"{each}_") or name == f"{each}S"), "")
    return longer or closest(name, known)


_MOST = 65535
_LIKE_THIS = "It must look like http://localhost:3000/mcp"


def split_command(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:  # a quote is not closed
        raise UsageError("--upstream-cmd cannot be split into words", why=str(error)) from None


def parse_variable(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE. No error quotes the value."""
    name, equals, value = text.partition("=")
    if not equals or not name or "\0" in text:
        raise UsageError("Write --env as KEY=VALUE")
    return name, value


def parse_number(flag: str, text: str, *, least: int = 0) -> int:
    """Parse a port, or another number of this size."""
    if not re.fullmatch(r"\d{1,5}", text) or not least <= int(text) <= _MOST:
        why = f"It must be a number from {least} to {_MOST}"
        raise UsageError(f"--{flag} cannot be {text}", why=why)
    return int(text)


def is_on(one: Mapping[str, str], name: str) -> bool:
    match one.get(name, "false").lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise UsageError(f"{name} cannot be {one[name]}", why="It must be true or false")


def one_of(name: str, text: str) -> str:
    choices = OPTIONS[name].choices
    if text not in choices:
        raise UsageError(
            f"--{name} cannot be {text}", why="It must be one of: " + ", ".join(choices)
        )
    return text


def split_upstream(url: str) -> tuple[str, str]:
    """Split a URL into its origin, and its path and query."""
    if not url:
        why = (
            "Give its URL: mcp-tool-filter --upstream http://localhost:3000/mcp\n"
            "Or its command: mcp-tool-filter [FLAGS] -- COMMAND ARGS"
        )
        raise UsageError("Missing --upstream URL", why=why)
    if re.search(r"\s", url.strip()):
        command = f"A server's command comes after --: mcp-tool-filter -- {url.strip()}"
        why = _LIKE_THIS if "://" in url else command  # the URL may contain a password
        raise UsageError("--upstream is not a valid URL", why=why)
    if not re.match(r"[a-z+]+://", url, re.IGNORECASE):
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # its text may quote a password
        raise UsageError("--upstream is not a valid URL", why=_LIKE_THIS) from None
    if parts.username is not None:
        why = 'Send them as a header: --header "Authorization: Basic $CREDENTIALS"'
        raise UsageError("Credentials in --upstream would be shown", why=why)
    if not host:
        raise UsageError("--upstream is not a valid URL", why=_LIKE_THIS)
    if parts.scheme.lower() not in ("http", "https"):
        raise UsageError(f"Unsupported URL scheme: {parts.scheme}", why=_LIKE_THIS)
    origin = f"{parts.scheme.lower()}://{f'[{host}]' if ':' in host else host}"
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return origin + (f":{port}" if port else ""), "" if path == "/" else path


def with_scheme(url: str) -> str:
    """Add a missing scheme: https, or http for this machine.

    >>> with_scheme("mcp.example/mcp"), with_scheme("localhost:3000/mcp")
    ('https://mcp.example/mcp', 'http://localhost:3000/mcp')
    """
    if re.match(r"[a-z+]+://", url, re.IGNORECASE):
        return url
    from mcp_tool_filter.policy.config import is_loopback

    host = urlsplit(f"//{url}").hostname or ""
    return f"{'http' if is_loopback(host) else 'https'}://{url}"


def target_of(settings: Settings) -> Target:
    """Return the target of the fetch. Raises StartError for wrong settings."""
    from mcp_tool_filter.adapters.upstream.target import target_for  # a relay need not wait for it

    tls = _tls_of(settings) if settings.origin.startswith("https:") else None
    return target_for(settings.config(), settings.origin or settings.shown_upstream, tls)


def _tls_of(settings: Settings) -> SSLContext:
    from mcp_tool_filter.adapters.sockets.connect import make_tls_context

    with in_our_words():
        return make_tls_context(
            insecure=settings.insecure,
            trusted_ca=settings.ca,
            client_cert=settings.client_cert,
        )
