"""The schemas that editors read say what our readers say."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import jsonschema
import pytest
from ruamel.yaml import YAML

from mcp_tool_filter.cli.commands.schema import config_schema, first_line, render
from mcp_tool_filter.cli.config_file import NOT_OF_A_SERVER, parse_file
from mcp_tool_filter.cli.options import OPTIONS
from mcp_tool_filter.cli.settings import Sources
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.edits.tables import parse_edits
from tests.cli.launched import Typed
from tests.proxy import REPOSITORY
from tests.rows import each_row

DOCS = REPOSITORY / "addon" / "mcp_tool_filter" / "docs"
CHECKER = jsonschema.Draft7Validator(config_schema())
_SETTINGS = [one for one in OPTIONS.values() if not one.only_typed]
_VALUES = (
    "true", "false", "[]", '[""]', '""', '"x"', '"10MB"', '"true"', '"open-world"', '"hide"',
    '["a", "b"]', "1", "-1", "0", "70000", "1.5", "1979-05-27", '{a = "b"}', "{a = 1}", "[1]",
)  # fmt: skip
_SERVERS = ('[servers.a]\nurl = "http://localhost:1"', '[servers.a]\ncommand = ["a"]')


def is_parsed(text: str) -> bool:
    try:
        parse_file("config.toml", text.encode())
    except StartError:
        return False
    return True


def is_right(text: str) -> bool:
    """Tell whether the filter would start with a file, as far as its texts tell."""
    try:
        file = parse_file("config.toml", text.encode())
        sources = Sources(file, {}, {}, {})
        sources.for_all_servers().config()
        for name in file.servers:
            sources.of_server(name)
    except StartError:
        return False
    return True


def fits(text: str) -> bool:
    table = json.loads(json.dumps(tomllib.loads(text), default=lambda _date: None))
    return bool(CHECKER.is_valid(table))


@pytest.mark.parametrize("name", ["config", "rules"])
def test_a_printed_schema_is_valid_and_is_the_one_in_the_package(name: str, typed: Typed) -> None:
    printed = typed("schema", name).out
    assert printed == render(name)
    shipped = (DOCS / f"{name}.schema.json").read_text("utf-8")
    assert printed == shipped, "run: python -m mcp_tool_filter.cli.commands.schema"
    schema = json.loads(printed)
    jsonschema.validators.validator_for(schema).check_schema(schema)


def test_an_unknown_schema_is_refused(typed: Typed) -> None:
    assert "did you mean config?" in typed("schema", "confg", status=2).err
    assert "It must be one of: config, rules" in typed("schema", status=2).err


def test_the_schema_says_what_the_reader_says() -> None:
    lines = [
        f"{spelt} = {value}"
        for one in _SETTINGS
        for spelt in {one.name, one.name.replace("-", "_")}
        for value in _VALUES
    ]
    texts = [*lines, *(f"{server}\n{line}" for server in _SERVERS for line in lines)]
    assert [text for text in texts if fits(text) and not is_parsed(text)] == []
    known = [text for text in texts if not re.search("^(strict|stdio|verbose) = ", text, re.M)]
    assert [text for text in known if is_right(text) and not fits(text)] == []
    assert sum(map(fits, texts)) > 500


@each_row(
    "text",
    [
        '[servers.a]\nurl = "http://a"\ncommand = ["a"]', "[servers.a]", "[servers]\na = 1",
        '[servers.a]\nurl = ""', "[servers.a]\ncommand = []", "[servers.a]\ncommand = [1]",
        '[servers."a b"]\nurl = "http://a"', '[servers.a]\nurl = "http://a"\nport = 1',
        '[servers.a]\nurl = "http://a"\nmerge = 1', '[servers.a]\nurl = "http://a"\nprefix = " "',
        'header = "A: b"\n[servers.a]\nurl = "http://a"', "no-such-setting = 1",
        '[profiles.p]\nexcept = "a"', "[profiles.p]\nservers = []", "profiles = 1", "tools = 1",
        "[tools.a]", "[tools.a]\nno = 1", "[tools.a]\nschema = 1", "[tools.a]\ndrop = [1]",
        "[tools.a.hints]\nreadonly = true", '[tools.a]\nname = "a b"', "[tools.a]\nfix = 1",
        "[tools.a.hints]\nread-only = 1",
    ],
)  # fmt: skip
def test_mistakes_are_mistakes_to_both(text: str) -> None:
    assert not fits(text)
    assert not is_edited(text)


def is_edited(text: str) -> bool:
    try:
        file = parse_file("config.toml", text.encode())
        for given in (file.top, *file.servers.values()):
            for tables in given.get("tools", ()):
                parse_edits(json.loads(tables))
    except StartError:
        return False
    return True


def test_the_examples_in_the_docs_fit() -> None:
    found = 0
    for page in [REPOSITORY / "README.md", *DOCS.glob("*.md")]:
        for text in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            table = tomllib.loads(text)
            servers = table.get("servers", {}).values()
            is_whole = all({"url", "command"} & one.keys() for one in servers)
            if is_whole:  # else it is an example of one server's tables
                found += 1
                assert [*CHECKER.iter_errors(table)] == [], (page.name, text)
    assert found > 3
    of_rules = jsonschema.Draft202012Validator(json.loads(render("rules")))
    for file in (DOCS / "rules").glob("*.yaml"):
        if not file.name.endswith(".cases.yaml"):
            path = file.read_text("utf-8").partition("\n")[0].partition("$schema=")[2]
            assert (file.parent / path).resolve() == DOCS / "rules.schema.json"
            assert [*of_rules.iter_errors(YAML(typ="safe").load(file))] == [], file.name


def test_each_setting_and_its_help_is_in_the_schema() -> None:
    schema = config_schema()
    for one in _SETTINGS:
        assert schema["definitions"][one.name]["description"] == one.help
        assert one.name in schema["properties"]
    server = schema["properties"]["servers"]["additionalProperties"]["properties"]
    named = {one.name for one in _SETTINGS} - NOT_OF_A_SERVER
    assert server.keys() == named | {"url", "command", "prefix", "merge", "tools"}


@pytest.mark.parametrize("name", ["config", "rules"])
def test_the_first_line_of_a_file_leads_to_the_schema(name: str) -> None:
    line = first_line(name)
    path = urlsplit(re.split("[ =]", line)[-1].strip()).path
    assert Path(unquote(path)).read_text("utf-8") == render(name)
    assert line.startswith("#")
