"""Our options in mitmproxy: declare and read them, and detect those without effect.

We declare every option as text, so that mitmproxy cannot fail to parse it and then lose the addon
(mitmproxy issue 8013). ``parse_config`` checks the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.mitmproxy.settings import was_set
from mcp_tool_filter.errors import EmptyList, InvalidOption, StartError, UnknownOption
from mcp_tool_filter.options import KEYS, Option, Texts
from mcp_tool_filter.policy.config import Config, parse_config

if TYPE_CHECKING:
    from mitmproxy.addonmanager import Loader
    from mitmproxy.options import Options


def declare_options(loader: Loader) -> None:
    """Declare our options to mitmproxy, also for its ``--options`` and its web page."""
    for key, option in KEYS.items():
        default = (option.text,) if isinstance(option.text, str) else option.text or ()
        loader.add_option(key, Sequence[str], default, option.help_in_mitmproxy)


class ConfigReader:
    """Checks our options, the same texts only once."""

    def __init__(self, texts: Mapping[str, Texts] | None = None, config: Config | None = None):
        """``config`` is the already checked meaning of the ``texts``, if any."""
        self._config = config
        self._texts = {key: option.text for key, option in KEYS.items()} | dict(texts or {})

    def read(self, options: Options) -> Config:
        """Return the configuration. Raises StartError, which quotes the wrong text."""
        given = {option.key: _read(options, option) for option in KEYS.values()}
        if self._config is None or given != self._texts:
            self._config = parse_config(**given)  # type: ignore[arg-type]  # no key is "environment"
            self._texts = given
        return self._config


def unknown_option(deferred: Iterable[str]) -> UnknownOption | None:
    """Return an error for an undeclared option, which mitmproxy would silently ignore."""
    for name in deferred:
        close = get_close_matches(name, KEYS, n=1)
        why = f"Did you mean {close[0]}?" if close else "mitmdump --options lists all options"
        return UnknownOption(name, why=why)
    return None


def overruled_option(options: Options, argv: Sequence[str]) -> StartError | None:
    """Return an error for an option of ours that was typed but has no effect.

    mitmproxy silently prefers its file config.yaml to ``--set``; and it drops a ``--set deny``
    without a value if there is another one with a value.
    """
    typed: dict[str, list[str]] = {}
    for text in _sets_in(argv):
        name, equals, value = text.partition("=")
        if equals and name in KEYS:
            typed.setdefault(name, []).append(value)
        elif name in KEYS and KEYS[name].is_pattern:
            return EmptyList(name, source=f"--set {name}")
    for name, values in typed.items():
        if list(getattr(options, name)) != values:
            why = f"config.yaml in {options.confdir} has another value, and mitmproxy prefers it"
            return InvalidOption(f"--set {name}", ", ".join(values), why=why)
    return None


def _sets_in(argv: Sequence[str]) -> Iterator[str]:
    for flag, text in pairwise([*argv, ""]):
        if flag == "--set":
            yield text
        elif flag.startswith("--set="):
            yield flag.removeprefix("--set=")


def _read(options: Options, option: Option) -> Texts:
    if option.is_pattern and not was_set(options, option.key):
        return None
    values: Sequence[str] = getattr(options, option.key)
    if option.many:
        return tuple(values)
    if len(values) > 1:
        raise InvalidOption(option.key, ", ".join(values), why="It can be given only once")
    return values[0] if values else option.text
