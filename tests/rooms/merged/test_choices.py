"""What a file says about merging, and its mistakes, which stop the start."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.config_file import ConfigFile, parse_file
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.messages.messages import Response, parse_message
from mcp_tool_filter.core.messages.tools import parse_listing
from mcp_tool_filter.core.policy.choice import Choice
from mcp_tool_filter.core.policy.taking import take_snapshot
from mcp_tool_filter.rooms.edits.editor import DefinitionEditor
from mcp_tool_filter.rooms.edits.tables import parse_edits
from mcp_tool_filter.rooms.merged.choices import judged_for
from tests.mcp_upstream import tool, tool_list
from tests.rows import each_row

TWO = '[servers.files]\nurl = "http://a"\n[servers.linear]\nurl = "http://b"\n'


def parsed(text: str) -> ConfigFile:
    return parse_file("f.toml", text.encode())


def problem(text: str) -> str:
    with pytest.raises(StartError) as caught:
        parsed(text).how_to_merge()
    return str(caught.value)


def test_each_server_has_a_prefix_of_its_own_or_its_name() -> None:
    text = (
        '[servers.files]\nurl = "http://a"\nprefix = "fs_"\n'
        '[servers."my.web"]\nurl = "http://b"\n'
        '[servers.none]\nurl = "http://c"\nprefix = ""\n'
        '[servers.old]\nurl = "http://d"\nmerge = false\n'
    )
    merging = parsed(text).how_to_merge()
    assert merging.prefixes == {"files": "fs_", "my.web": "my_web_", "none": ""}
    assert merging.profiles[0].servers == ("files", "my.web", "none")


def test_a_profile_has_servers_in_the_files_order_and_a_choice() -> None:
    more = '[profiles.review]\nservers = ["linear", "files"]\nread-only = true\n'
    merging = parsed(TWO + more).how_to_merge()
    profile = merging.profile("review")
    assert profile.servers == ("files", "linear")
    assert profile.path == "/review/mcp"
    assert profile.choice.hiding("a", b'{"name":"a"}') is not None
    read = b'{"name":"a","annotations":{"readOnlyHint":true}}'
    assert profile.choice.hiding("a", read) is None


def test_globs_allow_and_deny_in_a_profile() -> None:
    more = '[profiles.a]\nallow-glob = ["read_*"]\ndeny-glob = ["*_all"]\n'
    choice = parsed(TWO + more).how_to_merge().profile("a").choice
    shown = [name for name in ("read_a", "read_all", "write") if choice.hiding(name) is None]
    assert shown == ["read_a"]


@each_row(("more", "said"), [
    ("[profiles.files]\n", "a server and a profile called files"),
    ('[profiles.a]\nservers = ["file"]\n', "did you mean files?"),
    ("[profiles.a]\nservers = []\n", "must be a list of texts"),
    ('[profiles.a]\nexcept = ["b"]\n', "except cannot be in [profiles.a]"),
    ('[profiles.a]\nurl = "http://c"\n', "url cannot be in"),
    ('[profiles.a]\ncommand = ["x"]\n', "command cannot be in"),
    ('[profiles.a]\nheader = ["A: b"]\n', "header cannot be in"),
    ("[profiles.a]\nread_onli = true\n", "did you mean read-only?"),
    ('[profiles.a]\ndeny = ["("]\n', "[profiles.a]"),
    ("[profiles.a]\ndeny = []\n", "deny"),
    ('[profiles."a b"]\n', 'cannot be called "a b"'),
    ("[profiles]\na = 1\n", "must be a table"),
    ('profiles = "a"\n', "must be tables"),
])  # fmt: skip
def test_a_mistake_in_a_profile_stops_the_start(more: str, said: str) -> None:
    text = more + TWO if more.startswith("profiles") else TWO + more
    assert said in problem(text)


@each_row(("more", "said"), [
    ('prefix = "a b"\n', "prefix in [servers.one]"),
    ("prefix = 1\n", "prefix in [servers.one]"),
    ('merge = "no"\n', "must be true or false"),
    ("merges = false\n", "did you mean merge?"),
])  # fmt: skip
def test_a_mistake_in_a_server_stops_the_start(more: str, said: str) -> None:
    assert said in problem(f'[servers.one]\nurl = "http://a"\n{more}')


def test_two_equal_default_prefixes_stop_the_start() -> None:
    text = '[servers.a_b]\nurl = "http://a"\n[servers."a.b"]\nurl = "http://b"\n'
    assert "a_b and a.b" in problem(text)
    assert parsed(text + 'prefix = "c_"\n').how_to_merge().prefixes["a.b"] == "c_"


def test_a_profile_cannot_name_a_server_that_does_not_merge() -> None:
    text = TWO + 'merge = false\n[profiles.a]\nservers = ["linear"]\n'
    assert "linear has merge = false" in problem(text)


def test_a_profile_judges_the_definition_that_its_client_gets() -> None:
    """A server that is edited may define a tool otherwise later, or in another session."""
    merging = parsed(f"{TWO}[profiles.review]\nread-only = true\n").how_to_merge()
    reads, writes = (
        tool("mine", f', "annotations":{{"readOnlyHint":{said}}}') for said in ("true", "false")
    )
    message = parse_message(tool_list([reads]))
    assert isinstance(message, Response)
    listing = parse_listing(message)
    assert listing is not None
    editor = DefinitionEditor(parse_edits({"a": {"title": "A"}}))
    for one in (editor, None):
        hiding = judged_for(merging.profile("review"), take_snapshot([listing], Choice()), one)
        assert hiding("mine", reads) is None
        assert hiding("mine", writes) is not None
