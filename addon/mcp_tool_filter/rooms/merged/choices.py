"""What the config file says about merging: prefixes, what is left out, and profiles.

    [servers.files]
    prefix = "fs_"
    [servers.legacy]
    merge = false
    [profiles.review]
    servers = ["files", "linear"]
    read-only = true

A profile judges the servers' own names, and only narrows what they show. Each mistake is an error
at the start: a profile that is not what its user thinks could show more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from mcp_tool_filter.cli.config_file import NAME, Table
from mcp_tool_filter.cli.flags import UsageError, closest
from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.settings import in_our_words, texts_of
from mcp_tool_filter.core.errors import StartError, printable
from mcp_tool_filter.core.policy.choice import Choice, Hider
from mcp_tool_filter.core.policy.patterns import parse_glob
from mcp_tool_filter.rooms.merged.lists import Hiding, default_prefix

NARROWS: Final = ("deny", "deny-glob", "deny-hint", "allow", "read-only", "ignore-case")
"""What a profile may set as a server may."""
_OWN: Final = ("servers", "allow-glob", "allow_glob")
_NOT_HERE: Final = ("except", "url", "upstream", "command", "header")
if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.situation import Editor
    from mcp_tool_filter.core.policy.snapshot import Snapshot
    from mcp_tool_filter.rooms.merged.service import Merged
    from mcp_tool_filter.rooms.merged.visits import Connect
    from mcp_tool_filter.rooms.serve.servers import Servers

PREFIX: Final = r"[A-Za-z0-9_./-]{0,64}"


@dataclass(frozen=True)
class Profile:
    """A choice of servers and tools under a name of its own."""

    name: str
    """Empty for what all servers have together."""
    servers: tuple[str, ...]
    """In the file's order."""
    choice: Choice = field(default_factory=Choice)

    @property
    def path(self) -> str:
        return f"/{self.name}/mcp" if self.name else "/mcp"


def judged_for(profile: Profile, snapshot: Snapshot | None, editor: Editor | None) -> Hiding:
    """Return what says which of a server's tools a profile hides: it judges their own names, and
    the definitions that its client gets, and believes what the operator says of them."""
    choice = profile.choice
    if snapshot is None or editor is None:
        return choice.hiding
    vouched = replace(choice, vouching=snapshot.choice.vouching)

    def hiding(name: str, raw: bytes) -> Hider | None:
        return vouched.hiding(editor.own(name, snapshot) or name, raw)

    return hiding


@dataclass(frozen=True)
class Merging:
    """All that a file says about it."""

    prefixes: Mapping[str, str]
    """Of all servers that merge, in the file's order."""
    profiles: tuple[Profile, ...]
    """First what all servers have together."""

    def open(self, servers: Servers, connect: Connect) -> Merged:
        """Serve it. ``connect`` reaches upstreams that are not in this process."""
        from mcp_tool_filter.rooms.merged.service import Merged

        return Merged(servers, self, connect)

    def profile(self, name: str) -> Profile:
        """Return a profile. Raises UsageError."""
        for one in self.profiles:
            if one.name == name:
                return one
        known = [one.name for one in self.profiles if one.name]
        raise _no_such("profile", name, known, "Write it as a table [profiles.NAME]")


def read_merging(
    path: str, servers: Mapping[str, Mapping[str, object]], profiles: object
) -> Merging:
    """Check what a file says. ``servers`` are their ``prefix`` and ``merge``, as far as they are
    given; ``profiles`` are tables. Raises UsageError."""
    prefixes: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for name, said in servers.items():
        own = _checked(f"[servers.{name}] of {path}", said)
        if said.get("merge", True) is False:
            continue
        prefix = prefixes[name] = default_prefix(name) if own is None else own
        if own is None and (other := defaults.setdefault(prefix, name)) != name:
            what = f"{other} and {name} in {path} would both have the prefix {prefix}"
            raise UsageError(what, why=f'Give one of them its own: prefix = "{name[:1]}_"')
    found = [Profile("", tuple(prefixes))]
    if not isinstance(profiles, dict):
        raise UsageError(f"profiles in {path} must be tables", why="Write [profiles.NAME]")
    for name, table in profiles.items():
        if not NAME.fullmatch(name):
            why = "It has letters, digits, _ . and -, begins with a letter or digit"
            what = f'A profile in {path} cannot be called "{printable(name[:80])}"'
            raise UsageError(what, why=f"{why}, and is at most 64")
        if name in servers:
            what = f"{path} has a server and a profile called {name}"
            raise UsageError(what, why=f"Both would be at /{name}/mcp: rename one of them")
        found.append(_profile(path, name, table, prefixes, servers))
    return Merging(prefixes, tuple(found))


def _profile(
    path: str,
    name: str,
    table: object,
    prefixes: Mapping[str, str],
    servers: Mapping[str, object],
) -> Profile:
    where = f"[profiles.{name}] of {path}"
    if not isinstance(table, dict):
        raise UsageError(f"profiles.{name} in {path} must be a table", why=f"Write {where}")
    chosen, globs = (_texts(where, table, key) for key in ("servers", "allow-glob"))
    for key in table:
        if key.replace("_", "-") in _NOT_HERE:
            why = f"A profile only narrows: {', '.join(NARROWS)}"
            raise UsageError(f"{key} cannot be in {where}", why=why)
    rest = {key: one for key, one in table.items() if key not in _OWN}
    given = Table(path, where, [*NARROWS, *_OWN]).read(rest)
    for one in chosen or ():
        if one not in servers:
            why = f"Its servers: {', '.join(servers) or 'none'}"
            raise _no_such("server", one, servers, why, f", which {where} names")
        if one not in prefixes:
            what = f"{one} has merge = false, and {where} names it"
            raise UsageError(what, why="Leave it out, or let it merge")
    kept = [one for one in prefixes if chosen is None or one in chosen]
    try:
        with in_our_words():
            choice = parse_config(texts_of(given, given)).choice
            allowed = tuple(parse_glob(one) for one in globs or ())
            choice = replace(choice, allow=(*choice.allow, *allowed))
    except StartError as error:
        what = re.sub(r"(?<![\w-])--(?=[a-z])", "", error.what)
        error.what = f"[profiles.{name}] in {path}: {what}"
        raise
    return Profile(name, tuple(kept), choice)


def _checked(where: str, said: Mapping[str, object]) -> str | None:
    """Return a server's own prefix. Raises UsageError."""
    prefix, merge = said.get("prefix"), said.get("merge", True)
    if not isinstance(merge, bool):
        raise UsageError(f"merge in {where} must be true or false", why="Write it as merge = false")
    if prefix is None:
        return None
    if not isinstance(prefix, str) or not re.fullmatch(PREFIX, prefix):
        why = "It has letters, digits, _ - . and / only, and at most 64; it may be empty"
        raise UsageError(f"prefix in {where} cannot be used in names", why=why)
    return prefix


def _texts(where: str, table: Mapping[str, object], key: str) -> list[str] | None:
    """Return a list of texts; None if it is not given. Raises UsageError."""
    given = table.get(key, table.get(key.replace("-", "_")))
    if given is None:
        return None
    values = given if isinstance(given, list) else [given]
    texts = [one for one in values if isinstance(one, str) and one]
    if len(texts) < len(values) or not texts:
        raise UsageError(f"{key} in {where} must be a list of texts", why=f'{key} = ["…"]')
    return texts


def _no_such(
    kind: str, name: str, known: Sequence[str] | Mapping[str, object], why: str, where: str = ""
) -> UsageError:
    meant = closest(name, list(known))
    did_you = f": did you mean {meant}?" if meant else ""
    return UsageError(f"There is no {kind} {name}{where}{did_you}", why=why)
