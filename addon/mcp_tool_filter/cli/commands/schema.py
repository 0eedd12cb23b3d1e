"""``mcp-tool-filter schema config|rules``: the JSON schema of a file that users write, for editors.

The schema of the config file derives from the table of options, and from the keys that its readers
know. Write the files in ``docs/`` anew after a change of these:

    python -m mcp_tool_filter.cli.commands.schema
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from mcp_tool_filter.cli.config_file import NAME, NOT_OF_A_SERVER, OF_MERGING, OTHERWISE
from mcp_tool_filter.cli.flags import WORDS, Given
from mcp_tool_filter.cli.options import A_COMMAND, A_URL, OPTIONS, SWITCH, Option

type Schema = dict[str, Any]

_DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
_FIRST_LINES: Final = {"config": "#:schema ", "rules": "# yaml-language-server: $schema="}
"""How an editor finds the schema, by the file's kind: taplo's way, and yaml-language-server's."""
_SETTINGS: Final = tuple(one for one in OPTIONS.values() if not one.only_typed)
_TEXT: Final[Schema] = {"type": "string"}
_MOST: Final = {"PORT": {"maximum": 65535, "pattern": r"^\d*$"}}


def run(typed: Given) -> int:
    """Print a schema; return the exit status."""
    [name] = typed[WORDS]
    print(render(name), end="")
    return 0


def render(name: str) -> str:
    make = config_schema
    if name == "rules":
        make = import_module("mcp_tool_filter.rooms.rules.policy").json_schema
    return json.dumps(make(), indent=2) + "\n"


def first_line(name: str) -> str:
    """Return the first line of a new file, which names the schema of this installation."""
    return f"{_FIRST_LINES[name]}{(_DOCS / f'{name}.schema.json').as_uri()}\n"


def config_schema() -> Schema:
    from mcp_tool_filter.rooms.edits.tables import TABLE
    from mcp_tool_filter.rooms.merged.choices import NARROWS, PREFIX

    tools = {"type": "object", "additionalProperties": TABLE}
    prefix = _TEXT | {"pattern": f"^{PREFIX}$"}
    merging = dict(zip(OF_MERGING, (prefix, {"type": "boolean"}), strict=True))
    words = {"type": "array", "items": _TEXT, "minItems": 1}
    sources = dict(zip(OTHERWISE.values(), (_TEXT | {"minLength": 1}, words), strict=True))
    own = [one for one in _SETTINGS if one.name not in NOT_OF_A_SERVER]
    server = _table(own, **sources, **merging, tools=tools) | {
        "oneOf": [
            {"required": ["url"], "patternProperties": _without(own, A_COMMAND)},
            {"required": ["command"], "patternProperties": _without(own, A_URL)},
        ]
    }
    texts = {"anyOf": [_TEXT, words]}
    narrows = [OPTIONS[name] for name in NARROWS]
    profile = _table(narrows, **{"servers": texts, "allow-glob": texts, "allow_glob": texts})
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "The config file of mcp-tool-filter",
        **_table(_SETTINGS, servers=_named(server), profiles=_named(profile), tools=tools),
        # A header at the top would go to all servers.
        "dependencies": {"servers": {"properties": {"header": False}}},
        "definitions": {one.name: _described(one) for one in _SETTINGS},
    }


def _table(options: Any, **more: Schema) -> Schema:
    """Return the schema of a table with these options, whose names may have _ instead of -."""
    by_name = {one.name: {"$ref": f"#/definitions/{one.name}"} for one in options}
    either = {_spelt(name): by_name[name] for name in by_name if "-" in name}
    return {
        "type": "object",
        "properties": by_name | more,
        "patternProperties": either,
        "additionalProperties": False,
    }


def _named(table: Schema) -> Schema:
    names = {"pattern": f"^{NAME.pattern}$"}
    return {"type": "object", "propertyNames": names, "additionalProperties": table}


def _without(options: list[Option], needed: str) -> Schema:
    nothing: Schema = {"enum": [[], {}]}
    return {_spelt(one.name): nothing for one in options if needed in one.needs}


def _spelt(name: str) -> str:
    return f"^{name.replace('-', '[-_]')}$"


def _described(option: Option) -> Schema:
    one = _value_of(option)
    if option.many:
        least = {"minItems": 1} if option.selects else {}
        one = {"anyOf": [one, {"type": "array", "items": one, **least}]}
    if option.name == "env":
        one["anyOf"].append({"type": "object", "additionalProperties": _TEXT})
    return one | {"description": option.help}


def _value_of(option: Option) -> Schema:
    if option.choices and option.many:  # several in one text
        each = rf"\s*({'|'.join(option.choices)})\s*"
        return _TEXT | {"pattern": f"^{each}(,{each})*$"}
    if option.choices:
        return {"enum": list(option.choices)}
    if option.is_number:
        kinds = ["integer", "string", *([] if option.value else ["boolean"])]
        return {"type": kinds, "minimum": 0, **_MOST.get(option.value, {})}
    if option.value:
        return _TEXT | ({"pattern": r"\S"} if option.selects else {})
    return {"anyOf": [{"type": "boolean"}, {"enum": list(SWITCH)}]}


if __name__ == "__main__":
    for kind in _FIRST_LINES:
        (_DOCS / f"{kind}.schema.json").write_text(render(kind), encoding="utf-8")
