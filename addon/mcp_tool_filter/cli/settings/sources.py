"""Combine the settings from the command line, the environment and a config file.

A flag beats the environment, which beats the file. Only deny patterns add up, so that an additional
pattern on the command line does not disable those in the file. Within one source, a setting with
one value must not be repeated: the second would silently override the first. An empty ``deny`` or
``allow`` is refused in every source, because it is probably a slip (an unset variable) that
disables the filter.

>>> gather({"deny": ["^b"]}, {"MCP_TOOL_FILTER_DENY": "^a"})
{'deny': ['^a', '^b']}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcp_tool_filter.cli.settings.flags import COMMAND, FLAGS, Flag, Given
from mcp_tool_filter.cli.settings.usage import UsageError, closest, no_such
from mcp_tool_filter.errors import EmptyList

_PREFIX = "MCP_TOOL_FILTER_"
_NOT_OURS = ("WRAPPED", "WRAPPED_LOGIN", "PEERS", "PICTURES")  # variables of wrap and of our tests
_ADD_UP = ("deny", "deny-glob")
_PATTERNS = ("deny", "allow", "deny-glob")
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
    known = [flag.name for flag in FLAGS.values() if not flag.only_typed]
    if name not in known:
        raise no_such(f"setting in {path} called", name, known)
    flag = FLAGS[name]
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


def _fits(value: object, flag: Flag) -> bool:
    if isinstance(value, str):
        return True
    if isinstance(value, bool):
        return not flag.value or flag.choices == ("true", "false")
    return isinstance(value, int) and flag.is_number


def _what_fits(flag: Flag) -> str:
    if not flag.value or flag.choices == ("true", "false"):
        return f"Write it as {flag.name} = true"
    if flag.is_number:
        return f"Write it as {flag.name} = 1"
    example = f'{flag.name} = "{flag.value}"'
    return (
        f'Write it as {example} or {flag.name} = ["{flag.value}"]'
        if flag.many
        else (f"Write it as {example}")
    )


def _refuse_empty(name: str, texts: Sequence[str], *, source: str) -> None:
    if name in _PATTERNS and not any(text.strip() for text in texts):
        raise EmptyList(name, source=source)


def _read_environment(environment: Mapping[str, str]) -> Given:
    """Read MCP_TOOL_FILTER_DENY and so on; repeatable settings have one value per line."""
    names = {flag.name.upper().replace("-", "_"): flag for flag in FLAGS.values()}
    given: Given = {}
    for variable, text in environment.items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX)
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
                raise UsageError(f"{variable} is not a setting: did you mean {_PREFIX}{meant}?")
            _warn(f"{variable} is not a setting and has no effect")
    return given


def _warn(text: str) -> None:
    from mcp_tool_filter.cli.terminal import say  # seldom needed

    say(f"Warning: {text}")


def _meant(name: str, known: Mapping[str, object]) -> str | None:
    longer = next((each for each in known if name.startswith(f"{each}_") or name == f"{each}S"), "")
    return longer or closest(name, known)
