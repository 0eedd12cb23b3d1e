"""The user's settings as one checked value, from the command line, environment and config file.

A flag beats the environment, which beats the file; in the file, a server's own table beats the top.
Only what is denied adds up, patterns and hints, so that one more on the command line does not
disable those in the file. Within one source, a setting with one value must not be repeated: the
second would silently override the first. An empty ``deny`` or ``allow`` is refused in every source,
because it is probably a slip (an unset variable) that disables the filter. Each error is a
UsageError, which quotes what was typed.

>>> gather({"deny": ["^b"]}, {"MCP_TOOL_FILTER_DENY": "^a"})
{'deny': ['^a', '^b']}
>>> read_settings(["-u", "http://localhost:3000/mcp", "--deny", "^rm"], {}).endpoint
'/mcp'
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_tool_filter.cli.flags import (
    COMMAND,
    EDITS,
    Given,
    MissingUpstream,
    UsageError,
    closest,
    parse_flags,
    refuse_empty,
)
from mcp_tool_filter.cli.options import (
    A_COMMAND,
    KEYS,
    OPTIONS,
    OUR_FILE,
    PREFIX,
    SWITCH,
    Texts,
    instead_of,
)
from mcp_tool_filter.core.errors import InvalidOption, StartError

if TYPE_CHECKING:
    from ssl import SSLContext

    from mcp_tool_filter.cli.config_file import ConfigFile
    from mcp_tool_filter.core.policy.config import Config
    from mcp_tool_filter.core.upstream.target import Target


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
    without: frozenset[str]
    """Variables that the command does not get: what the config file has for other servers."""
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
    name: str = ""
    """What the config file calls the server; empty if it is not from there."""
    allow_too: tuple[str, ...] = ()
    """Another allow list, that of all servers: a tool must match both."""
    edit_tables: tuple[str, ...] = field(default=(), repr=False)  # may contain secrets
    """The tables ``tools`` of the config file, as JSON; a server's own one comes first."""
    sources: Sources | None = field(default=None, repr=False)
    """Where the settings are from, if a config file is among them."""

    @property
    def config_file(self) -> str:
        """The file that names the server; empty if none does."""
        return self.sources.file.path if self.name and self.sources and self.sources.file else ""

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
        from mcp_tool_filter.core.http.shown import shown_url
        from mcp_tool_filter.rooms.secrets.shown import shown_command

        return shown_command(self.command) if self.command else shown_url(self.upstream)

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
        with in_our_words():
            return self._read(self.texts)

    def with_patterns(self, deny: Sequence[str], exceptions: Sequence[str], now: Config) -> Config:
        """Return a configuration with these instead of all deny patterns and globs; ``now`` is the
        one in force. Raises StartError."""
        patterns: dict[str, Texts] = {"deny": tuple(deny) or None, "deny_glob": None}
        patterns["except"] = tuple(exceptions) or None
        return self._read({**self.texts, **patterns}, now)

    def _read(self, texts: Mapping[str, Texts], known: Config | None = None) -> Config:
        from mcp_tool_filter.cli.parsing import parse_config  # --help need not wait for it
        from mcp_tool_filter.cli.rooms import ROOMS
        from mcp_tool_filter.core.process.plugs import settled

        config = parse_config(texts, allow_too=self.allow_too, edit_tables=self.edit_tables)
        return settled(ROOMS, config, known)


@contextmanager
def in_our_words() -> Iterator[None]:
    """Make errors name our flag instead of mitmproxy's option."""
    try:
        yield
    except InvalidOption as error:
        flag = f"--{_flag_of(error.option)}"
        raise type(error)(flag, error.given, why=error.why) from None


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
    for key in (spec.partition("=")[0] for spec in many.get("set", ())):
        if instead := instead_of(key):
            raise UsageError(f"There is no option {key} any more", why=instead)
        if (flag := _flag_of(key)) in OPTIONS:  # with two ways, it is unclear which counts
            raise UsageError(f"--set {key}=…: use --{flag} instead")
    for option in OPTIONS.values():
        # An unset variable, as in --rules "$RULES", must not start a filter without rules.
        if option.protects and one.get(option.name) == "":
            raise UsageError(f"--{option.name} has no file", why="Name one, or leave the flag out")
    if not (host := _value(one, "host")):  # to sockets, an empty one is every address
        raise InvalidOption("--host", host, why="It must be an address, such as 127.0.0.1")
    return Settings(
        origin=origin,
        command=command,
        env=dict(map(parse_variable, many.get("env", ()))),
        without=frozenset(),
        cwd=one.get("cwd"),
        is_stdio=_is_stdio(one, is_command=bool(command)),
        max_children=parse_number("max-children", _value(one, "max-children"), least=1),
        host=host,
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
        verbosity=-1 if is_on(one, "quiet") else _loudness(given.get("verbose", [])),
        set=many.get("set", ()),
        edit_tables=many.get(EDITS, ()),
    )


def _value(one: Mapping[str, str], name: str) -> str:
    return one.get(name, OPTIONS[name].default)


def texts_of(given: Given, names: Iterable[str]) -> dict[str, str | Sequence[str]]:
    """Return some of our own options by their keys, as far as they are given."""
    options = [OPTIONS[name] for name in names if name in given]
    return {
        option.key: tuple(given[option.name]) if option.many else given[option.name][-1]
        for option in options
    }


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


def _loudness(typed: Sequence[str]) -> int:
    return int(typed[0]) if typed and typed[0] in ("1", "2") else typed.count("true")


_NOT_OURS = ("WRAPPED", "WRAPPED_LOGIN", "ENTRY", "PEERS", "PICTURES")  # of wrap and our tests
_ADD_UP = [option.name for option in OPTIONS.values() if option.adds_up]
_UPSTREAMS = ("upstream", "upstream-cmd", COMMAND)  # the ways to set the upstream
_WAYS = ("server", *_UPSTREAMS)


def gather(typed: Given, environment: Mapping[str, str]) -> Given:
    """Combine the three sources; the command line is parsed already."""
    return read_sources(typed, environment).given()


def chosen(typed: Given, environment: Mapping[str, str], ignored: Collection[str] = ()) -> Settings:
    """Return the settings of the server that ``--server`` names, or else of the upstream that is
    set; without those that are ignored. Raises StartError."""
    sources = replace(read_sources(typed, environment), ignored=ignored)
    if not (names := typed.get("server")):
        return sources.settled(sources.given())
    _names_upstream(typed)
    if sources.file is None:
        why = f"Name one with --config FILE, or make {OUR_FILE}"
        raise UsageError("--server needs a config file", why=why)
    return sources.of_server(names[-1], is_stdio=not sources.listens)


def read_sources(typed: Given, environment: Mapping[str, str]) -> Sources:
    """Read the environment, and the file that it or the command line names, or the default one."""
    surrounding = _read_environment(environment)
    named = typed.get("config") or surrounding.get("config")
    path = named[-1] if named else default_file(environment)
    file = None
    if path is not None:
        from mcp_tool_filter.cli.config_file import read_file  # most have none

        file = read_file(path, is_default=not named)
    return Sources(file, surrounding, typed, environment)


def default_file(environment: Mapping[str, str], *, may_be_missing: bool = False) -> str | None:
    """Return the file that is read if none is named; None if it is not there, unless it may be
    missing."""
    if sys.platform == "win32":
        folder = environment.get("APPDATA", "")
    else:
        home = environment.get("HOME", "")
        folder = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    path = os.path.join(folder, "mcp-tool-filter", "config.toml")
    is_there = may_be_missing or os.path.exists(path)
    return path if os.path.isabs(path) and is_there else None


@dataclass(frozen=True)
class Sources:
    """All that is set, by its source."""

    file: ConfigFile | None
    surrounding: Given
    typed: Given
    environment: Mapping[str, str] = field(repr=False)
    ignored: Collection[str] = ()
    """Settings that do not count, whoever sets them."""

    def given(self) -> Given:
        """Return what is set for one upstream, which may be missing. Raises UnsetVariable."""
        top = self._with_variables(self.file.top) if self.file else {}
        given = self._merged(top)
        is_a_relay = not self.listens and {"stdio", "upstream-cmd", COMMAND} & given.keys()
        if self.file and self.file.is_default and is_a_relay:
            given = self._merged(_without(top, _OF_LISTENERS))
        return _without(given, self.ignored)

    def settled(self, given: Given) -> Settings:
        """Return the settings for what is given."""
        return replace(settle(given), sources=self if self.file else None)

    def _merged(self, *files: Given) -> Given:
        given: Given = {}
        for source in (*files, self.surrounding, self.typed):
            if _names_upstream(source):
                given = _without(given, _UPSTREAMS)
            sums = {name: given.get(name, []) + source.get(name, []) for name in _ADD_UP}
            given |= source | {name: values for name, values in sums.items() if values}
        return given

    @property
    def listens(self) -> bool:
        """True if the command line or the environment, which know the client, ask for a port."""
        return not {"port", "inspect"}.isdisjoint(self.surrounding | self.typed)

    @property
    def is_strict(self) -> bool:
        given = self._merged(self.file.top if self.file else {})
        return is_on({"strict": given.get("strict", ["false"])[-1]}, "strict")

    def for_all_servers(self) -> Settings:
        """Return what is set for the whole process that serves the file's servers."""
        top = self.file.top if self.file else {}
        given = _without(self._merged(top), (*_UPSTREAMS, *_OF_ONE_SERVER))
        given.setdefault("port", [OPTIONS["port"].default])
        return settle(given | {"upstream": ["http://servers.invalid"]})

    def of_server(self, name: str, *, is_stdio: bool = False) -> Settings:
        """Return the settings of one of the file's servers.

        Raises UnsetVariable if they need one, and another StartError for a mistake; each names the
        server and the file.
        """
        from mcp_tool_filter.cli.config_file import ConfigFile

        file = self.file or ConfigFile("the config file")
        section = file.section(name)
        try:
            settings = self._settings_of(file.top, section, is_stdio=is_stdio)
            settings.config()
        except StartError as error:
            raise file.at(name, error) from None
        return replace(settings, name=name, sources=self, without=file.variables_of_others(name))

    def _settings_of(self, top: Given, section: Given, *, is_stdio: bool) -> Settings:
        if is_stdio:
            top = _without(top, _OF_LISTENERS)
        if COMMAND in section:
            top = self._with_variables(top)
        top = _without(top, ("endpoint",))  # it belongs to the upstream of the top
        other = _without(self._merged(top), _UPSTREAMS)
        own = section | self._expanded(section)
        typed = self.surrounding | self.typed
        given = {**other, **own, **{name: other[name] for name in typed if name in other}}
        for key in (EDITS, *_ADD_UP, "except"):
            if values := other.get(key, []) + section.get(key, []):
                given[key] = values[::-1] if key == EDITS else values
        if "upstream" in section:
            given = _without(given, ("env", "cwd"))
        narrows = "allow" in section and "allow" in other
        if "allow" in section:
            given["allow"] = section["allow"]
        if is_stdio:
            given["stdio"] = ["true"]
        else:
            given.setdefault("port", [OPTIONS["port"].default])
        settings = settle(_without(given, self.ignored))
        return replace(settings, allow_too=tuple(other["allow"])) if narrows else settings

    def _with_variables(self, top: Given) -> Given:
        return top | self._expanded({"env": top.get("env", [])})

    def _expanded(self, section: Given) -> Given:
        """Return a server's URL, and the environment of its command, with the values of variables.
        Raises UnsetVariable."""
        from mcp_tool_filter.cli.parsing import expand_variables

        found: Given = {}
        for text in section.get("upstream", ()):  # it may be secret
            url = expand_variables(text, self.environment, option="url", given="…")
            if url != text:
                _refuse_bad_url(url, text)
            found["upstream"] = [url]
        for text in section.get("env", ()):
            name, value = parse_variable(text)
            value = expand_variables(value, self.environment, option="env", given=name)
            found.setdefault("env", []).append(f"{name}={value}")
        return found


class AllSet(dict[str, str]):
    """An environment in which every variable is set."""

    def __contains__(self, _name: object) -> bool:
        return True

    def __missing__(self, _name: str) -> str:
        return "0"


_OF_LISTENERS = (
    "port", "host", "allow-remote", "cert", "inspect", "no-browser", "record", "set", "dashboard",
    "metrics-port",
)  # fmt: skip
"""What a file says for ``serve`` and does not fit a process that talks over stdio."""
_OF_ONE_SERVER = ("header", "env", "cwd", "endpoint", "stdio", "strict", "rules", "lock")
"""What a server has and not the process that serves all of them."""


def _without(given: Given, names: Collection[str]) -> Given:
    return {name: values for name, values in given.items() if name not in names}


def _names_upstream(source: Given) -> bool:
    """Tell whether this source sets the upstream. Raises UsageError if it sets two."""
    named = [name for name in _WAYS if name in source]
    if len(named) > 1:
        first, second = (
            "the command after --" if one == COMMAND else f"--{one}" for one in named[:2]
        )
        raise UsageError(f"Give {first} or {second}, not both")
    return bool(named)


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
            refuse_empty(flag.name, [text], source=variable)
            if text or flag.protects:
                lines = [line for line in re.split(r"\r?\n", text) if line.strip()]
                given[flag.name] = lines if flag.many else [text]
        elif flag:
            _warn(f"{variable} has no effect: type --{flag.name} on the command line")
        elif why := instead_of(name):
            raise UsageError(f"{variable} is not a setting any more", why=why)
        elif name not in _NOT_OURS:
            if meant := _meant(name, names):
                raise UsageError(f"{variable} is not a setting: did you mean {PREFIX}{meant}?")
            _warn(f"{variable} is not a setting and has no effect")
    return given


def warn_about_lonely(typed: Given, settings: Settings) -> None:
    """Warn about typed flags that change nothing without another one, which is not set."""
    for option in filter(None, map(OPTIONS.get, typed)):
        for other in filter(OPTIONS.__contains__, option.needs):
            if not settings.texts[OPTIONS[other].key]:
                _warn(f"--{option.name} has no effect without --{other}")


def _warn(text: str) -> None:
    from mcp_tool_filter.cli.terminal import say  # seldom needed

    say(f"Warning: {text}")


def _meant(name: str, known: Mapping[str, object]) -> str | None:
    longer = next((each for each in known if name.startswith(f"{each}_") or name == f"{each}S"), "")
    return longer or closest(name, known)


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
    if not re.fullmatch(r"\d{1,5}", text) or not least <= int(text) <= 65535:
        why = f"It must be a number from {least} to 65535"
        raise UsageError(f"--{flag} cannot be {text}", why=why)
    return int(text)


def is_on(one: Mapping[str, str], name: str) -> bool:
    if (is_on := SWITCH.get(one.get(name, "false").lower())) is None:
        raise UsageError(f"{name} cannot be {one[name]}", why="It must be true or false")
    return is_on


def one_of(name: str, text: str) -> str:
    choices = OPTIONS[name].choices
    if text not in choices:
        why = f"It must be one of: {', '.join(choices)}"
        raise UsageError(f"--{name} cannot be {text}", why=why)
    return text


def _refuse_bad_url(url: str, written: str) -> None:
    """Raise UsageError for a URL with variables, whose values may be secret."""
    try:
        split_upstream(url)
    except UsageError:
        what = f"{written} is not a valid URL with the values of its variables"
        raise UsageError(what, why=_LIKE_THIS) from None


def split_upstream(url: str) -> tuple[str, str]:
    """Split a URL into its origin, and its path and query."""
    if not url:
        raise MissingUpstream
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
    if path.startswith("//") or not re.fullmatch(r"[!-~]*", path):
        raise UsageError("--upstream is not a valid URL", why=_LIKE_THIS)
    return origin + (f":{port}" if port else ""), "" if path == "/" else path


def with_scheme(url: str) -> str:
    """Add a missing scheme: https, or http for this machine.

    >>> with_scheme("mcp.example/mcp"), with_scheme("localhost:3000/mcp")
    ('https://mcp.example/mcp', 'http://localhost:3000/mcp')
    """
    if re.match(r"[a-z+]+://", url, re.IGNORECASE):
        return url
    from mcp_tool_filter.core.policy.config import is_loopback

    host = urlsplit(f"//{url}").hostname or ""
    return f"{'http' if is_loopback(host) else 'https'}://{url}"


def target_of(settings: Settings) -> Target:
    """Return the target of the fetch. Raises StartError for wrong settings."""
    from mcp_tool_filter.cli.rooms import stored_logins
    from mcp_tool_filter.core.upstream.target import target_for  # a relay need not wait for it

    tls = None
    if settings.origin.startswith("https:"):
        tls = _tls(settings.insecure, settings.ca, settings.client_cert)
    target = target_for(settings.config(), settings.origin or settings.shown_upstream, tls)
    return replace(target, logins=stored_logins())


@cache  # several servers share one: each takes memory
def _tls(insecure: bool, ca: str | None, client_cert: str | None) -> SSLContext:
    from mcp_tool_filter.core.sockets.connect import make_tls_context

    with in_our_words():
        return make_tls_context(insecure=insecure, trusted_ca=ca, client_cert=client_cert)
