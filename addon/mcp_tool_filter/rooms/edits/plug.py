"""Where edits plug in: the configuration gets an editor, and each site is checked at its start."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mcp_tool_filter.cli.whole_file import read_whole
from mcp_tool_filter.core.errors import StartError, reason_of
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.process.plugs import Plug
from mcp_tool_filter.core.process.site import Site
from mcp_tool_filter.rooms.edits.editor import DefinitionEditor
from mcp_tool_filter.rooms.edits.tables import BadEdit, Edits, parse_edits

_LARGEST = 4 * 1024 * 1024  # bytes of a file of edits


def with_edits(config: Config, known: Config | None = None) -> Config:
    """Return the configuration with what makes its edits. Raises StartError.

    The tables of a server come first, then those of the file, then those for all servers.
    """
    if config.editor is not None:
        return config
    own, *for_all = config.edit_tables or ("{}",)
    edits = Edits()
    for text in reversed(for_all):
        edits = parse_edits(json.loads(text), os.environ, more=edits)
    if config.edits:
        edits = parse_edits(_tables_of(config.edits), os.environ, more=edits)
    edits = parse_edits(json.loads(own), os.environ, more=edits)
    for new, tool in edits.own_names.items():
        if by := next((one for one in config.choice.deny if one.matches(new)), None):
            what = f"The new name of {shown(tool)} is denied"
            raise BadEdit(what, why=f'"{by.text}" matches {shown(new)}')
    before = known.editor if known is not None else None
    if isinstance(before, DefinitionEditor) and before.edits == edits:
        editor = before
    else:
        editor = DefinitionEditor(edits)
    return replace(config, editor=editor, choice=replace(config.choice, vouching=edits))


def _tables_of(path: str) -> Mapping[str, object]:
    """Read a file of edits. Raises StartError."""
    try:
        raw = read_whole(os.path.expanduser(path), _LARGEST)
    except OSError as error:
        raise BadEdit(f"Cannot read the edits: {path}", why=reason_of(error)) from None
    if len(raw) > _LARGEST:
        raise BadEdit(f"Cannot read the edits: {path}", why=f"It is over {_LARGEST} bytes")
    try:
        table = tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadEdit(f"The edits in {path} are not TOML", why=str(error)) from None
    tables = table.pop("tools", {})
    if table or not isinstance(tables, dict):
        what = f"{path} has more than [tools.NAME]" if table else f"tools in {path} is no table"
        raise BadEdit(what, why="A file of edits has only tables [tools.NAME]")
    return tables


class Editing(Plug):
    """Checks the edits of each site against its tools, and reports what they do."""

    def adopt(self, config: Config) -> None:
        editor = _ours(config)
        if editor is None or editor.edits == _edits_in(self.proxy.config):
            return  # what a server has got since then is hidden, and ends nothing
        editor.refuse_start([site.listener.snapshot for site in self._listed])

    def adopted(self, before: Config) -> None:
        if _edits_in(before) != _edits_in(self.proxy.config):
            for site in self._listed:
                self.proxy.log.warn_of(self.warnings(site))

    @property
    def _listed(self) -> list[Site]:
        """The sites whose edits are judged here; one of several servers has a plug of its own."""
        every = [] if self.proxy.runs else self.proxy.sites.values()
        return [one for one in every if one.listener.fetched.is_listed]

    async def open(self, site: Site) -> None:
        editor = _ours(site.listener.config)
        if editor is not None and site in self._listed:
            editor.refuse_start([site.listener.snapshot])

    def report(self, site: Site) -> Iterable[str]:
        editor = _ours(site.listener.config)
        return editor.report(site.listener.snapshot) if editor and site in self._listed else ()

    def warnings(self, site: Site) -> Iterable[str]:
        editor, whole = _ours(site.listener.config), self.proxy.whole
        if editor is None or site not in self._listed:
            return ()
        return editor.warnings(site.listener.snapshot, whole.config.editor if whole else None)

    def reload(self) -> None:
        """Read the file of edits again; a broken one changes nothing."""
        config = self.proxy.config
        if not config.edits:
            return
        try:
            bare = replace(config, editor=None, choice=replace(config.choice, vouching=None))
            changed = with_edits(bare, config)
            if changed.editor is not config.editor:
                self.proxy.adopt(changed)
                self.proxy.warn("SIGHUP: the edits have changed")
        except StartError as error:
            self.proxy.warn(f"Warning: SIGHUP: the old edits stay in force: {error.one_line}")


def _ours(config: Config) -> DefinitionEditor | None:
    return config.editor if isinstance(config.editor, DefinitionEditor) else None


def _edits_in(config: Config) -> Edits | None:
    return config.editor.edits if isinstance(config.editor, DefinitionEditor) else None
