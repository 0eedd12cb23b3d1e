"""A server's entry with the filter in front of it, or in a file of servers; and back."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tool_filter.cli.config_file import parse_file
from mcp_tool_filter.cli.parsing import parse_header
from mcp_tool_filter.cli.settings import Sources, read_settings
from mcp_tool_filter.rooms.clients import entries, moving
from mcp_tool_filter.rooms.clients.entries import CannotWrap, ServerEntry, unwrap, wrap
from mcp_tool_filter.rooms.clients.moving import moved_from, with_section, without_section
from tests.rows import each_row

PROGRAM = ["/opt/bin/mcp-tool-filter"]
FLAGS = ["--deny", "^rm"]
SECRET = "Bearer s3cr$et-$HOME"

A = "https://a.example/mcp"
ENTRIES: dict[str, ServerEntry] = {
    "command": {"command": "npx", "args": ["-y", "server", "--", "x"], "env": {"KEY": "k"}},
    "no variables": {"command": "server", "args": ["x"], "env": {}},
    "command alone": {"command": "server"},
    "stdio type": {"type": "stdio", "command": "uvx", "args": [], "disabled": True},
    "nested": {"command": {"path": "server", "args": ["a"], "env": {"A": "b"}}, "settings": {}},
    "opencode": {"type": "local", "command": ["npx", "-y", "a"], "environment": {"KEY": "k"}},
    "opencode alone": {"type": "local", "command": ["server"], "enabled": True},
    "opencode url": {"type": "remote", "url": A, "headers": {"A": "Bearer {env:TOKEN}"},
                     "enabled": True, "oauth": False, "environment": {"X": "y"}},
    "copilot": {"type": "local", "command": "npx", "args": ["-y", "a"], "tools": ["*"]},
    "cline": {"type": "streamableHttp", "url": A, "autoApprove": []},
    "goose": {"type": "streamable_http", "url": A, "headers": {"A": "Bearer ${TOKEN}"},
              "env_keys": ["TOKEN"], "env": {"X": "y"}},
    "url": {"url": "https://example.com/mcp"},
    "url with type": {"type": "http", "url": A, "headers": {"A": SECRET}},
    "url with environment": {"url": "https://a.example/sse", "env": {"X": "y"}, "timeout": 5},
    "httpUrl": {"httpUrl": A, "trust": True, "headers": {"A": "${A}"}},
    "serverUrl": {"serverUrl": A},
    "key in the URL": {"url": f"{A}?key=s3cr$et"},
    "key in the path": {"url": "https://a.example/s/sk_live_s3cr0123456789/mcp"},
    "id in the path": {"url": "https://a.example/s/0f8fad5b-d9cb-469f-a165-70867728950e/mcp"},
    "codex": {"url": A, "bearer_token_env_var": "TOKEN"},
    "codex login": {"url": A, "oauth": {"client_id": "x", "client_secret": "s3cr"},
                    "oauth_resource": "y", "scopes": ["a"]},
    "codex headers": {"url": A, "http_headers": {"X-A": SECRET}, "env_http_headers": {"X-B": "B"}},
}  # fmt: skip


@each_row("entry", ENTRIES.values())
def test_a_wrapped_entry_can_be_restored_or_wrapped_again(entry: ServerEntry) -> None:
    """No secret becomes an argument: every user of the machine can list these."""
    wrapped = wrap(entry, FLAGS, PROGRAM)
    keyed = wrap(entry, FLAGS, PROGRAM, "key")
    assert (entries.key_of(wrapped), str(entries.key_of(keyed)).rstrip("-")) == (None, "key")
    assert unwrap(keyed) == entry
    assert wrap(keyed, FLAGS, PROGRAM) == wrapped
    assert entries.start_of(keyed) == entries.start_of(wrapped)
    assert [entries.is_wrapped(one) for one in (entry, wrapped)] == [False, True]
    assert entries.flags_of(wrapped) == FLAGS
    assert unwrap(wrapped) == entry
    assert entries.target_of(wrapped) == entries.target_of(entry)
    assert wrap(wrapped, FLAGS, PROGRAM) == wrapped
    assert wrap(wrap(entry, ["--allow", "a"], PROGRAM), FLAGS, PROGRAM) == wrapped
    for secret in ("s3cr", "0f8fad5b"):
        assert secret not in json.dumps([wrapped["command"], wrapped.get("args")])
        assert secret not in entries.target_of(entry)
    is_list = entry.get("environment") is not None or isinstance(entry.get("command"), list)
    assert isinstance(wrapped["command"], list) == is_list


@each_row(
    "entry",
    [
        {}, {"command": ""}, {"command": 3}, {"args": ["x"]}, {"command": "x", "args": "-y z"},
        {"command": {"path": "x", "args": 3}}, {"command": "x", "url": A},
        *({"url": A, name: value} for name, value in (
            ("args", ["lost"]), ("headersHelper", "/bin/x"), ("auth", "chatgpt"),
            ("authProviderType", "google_credentials"),
        )),
        *({"type": "streamable_http", "url": url, "headers": {"A": value}} for url, value in (
            ("https://a.example/$KEY", "x"), (A, "Bearer $T"), (A, "${ T }"),
        )),
        {"command": "mcp-tool-filter", "args": ["--stdio", "--upstream", "https://a.example"]},
        {"url": A, "headers": {"X-A": "a\nAuthorization: Bearer ${SECRET}"}},
        *({"url": A, "env": {"X": "y", name: "evil"}} for name in (
            "PYTHONPATH", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "path", "MCP_TOOL_FILTER_CONFIG",
        )),
    ],
)  # fmt: skip
def test_an_entry_of_unknown_form_or_with_power_over_us_is_refused(
    entry: ServerEntry,
) -> None:
    with pytest.raises(CannotWrap) as raised:
        wrap(entry, FLAGS, PROGRAM)
    said = str(raised.value)
    assert ("would change the filter" in said) == ("evil" in str(entry))
    assert ("more than one line" in said) == ("\\n" in str(entry))


@pytest.mark.parametrize("was", ["[]", "1", "{", "[" * 200_000, '{"command": "evil"}'])
def test_an_entry_whose_noted_url_was_changed_is_refused(was: str) -> None:
    env = {"MCP_TOOL_FILTER_WRAPPED": was}
    entry: ServerEntry = {"command": "mcp-tool-filter", "args": ["--stdio"], "env": env}
    assert entries.target_of(entry) == "?"
    with pytest.raises(CannotWrap, match="has been changed"):
        unwrap(entry)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20))
@example(SECRET)
def test_any_header_value_reaches_the_filter_and_comes_back(value: str) -> None:
    entry: ServerEntry = {"url": A, "headers": {"X-A": value}}
    wrapped = wrap(entry, FLAGS, PROGRAM)
    assert unwrap(wrapped) == entry
    environment = wrapped["env"]
    assert isinstance(environment, dict)
    if "${" not in value:
        assert parse_header(environment["MCP_TOOL_FILTER_HEADER"], {}) == ("X-A", value)


def test_environment_variables_are_read_as_settings() -> None:
    wrapped = wrap(ENTRIES["key in the URL"], FLAGS, PROGRAM)
    environment = wrapped["env"]
    assert isinstance(environment, dict)
    settings = read_settings(FLAGS, {name: str(value) for name, value in environment.items()})
    assert settings.upstream == "https://a.example/mcp?key=s3cr$et"
    assert entries.target_of(ENTRIES["key in the URL"]) == "https://a.example/mcp?…"


def test_a_wrapped_codex_entry_has_no_members_of_a_url() -> None:
    """It does not start at all with a file that has one."""
    wrapped = wrap(ENTRIES["codex login"], FLAGS, PROGRAM)
    assert wrapped.keys() == {"command", "args", "env"}
    assert entries.logs_in(ENTRIES["codex login"])


def test_a_filter_typed_by_hand_is_recognised() -> None:
    words = ["--stdio", "-u", "https://a.example"]
    typed: ServerEntry = {"command": "mcp-tool-filter", "args": words}
    assert entries.is_filtered(typed)
    assert not entries.is_wrapped(typed)
    assert unwrap(typed) == typed
    assert not entries.is_filtered({"command": "npx", "args": ["mcp-tool-filter"]})


# An entry in a file of servers, and back
ORIGIN = "~/.cursor/mcp.json"
FILES = {
    "new": "",
    "blank lines": "\n\n",
    "other servers": '# mine\ndeny = ["^rm"] # all\n\n[servers.a]\nurl = "http://a"\n# the end\n',
    "Windows": 'deny = ["^rm"]\r\n\r\n[servers."b.c"]\r\ncommand = ["b"]\r\n',
}
WORDS = ["/opt/bin/mcp-tool-filter", "--server", "x", "--config", "/etc/x.toml"]


@each_row("text", FILES.values())
@each_row("entry", ENTRIES.values())
def test_every_entry_comes_back_and_the_file_stays_as_it_was(entry: ServerEntry, text: str) -> None:
    policy = {"deny": ["^rm", 'a"\\d'], "read-only": True, "message-limit": "1MB"}
    new = with_section(text, "x", entry, policy, ORIGIN)
    assert new.startswith(text)
    assert moved_from(new, "x", ORIGIN) == entry
    assert moved_from(new, "x", "~/other.json") is None
    assert without_section(new, "x") == text
    more = new + "\n# of y\n[servers.y]\nurl = 'http://y'\n"
    assert without_section(more, "x") == text + "\n# of y\n[servers.y]\nurl = 'http://y'\n"
    section = tomllib.loads(new.replace("\r\n", "\n"))["servers"]["x"]
    assert {key: section[key] for key in policy} == policy
    left = moving.entry_for(entry, WORDS)
    assert moving.server_named_in(left) == ("x", "/etc/x.toml")
    assert "s3cr" not in str(left)


def test_the_filter_starts_with_what_the_client_had_given() -> None:
    """A dollar that is no reference stays one; ${NAME} in any client's spelling is ours."""
    environment = {"A": "${T}", "B": "${env:T}", "C": "{env:T}", "D": "pa$$word$HOME", "E": "\x7f"}
    entry: ServerEntry = {"command": "a", "args": ["b c", "$x"], "env": environment, "cwd": "/srv"}
    text = with_section("", "x", entry, {}, ORIGIN)
    file = parse_file("/x.toml", text.encode())
    settings = Sources(file, {}, {}, {"T": "t-1"}).of_server("x", is_stdio=True)
    assert settings.command == ("a", "b c", "$x")
    assert settings.cwd == "/srv"
    wanted = {"A": "t-1", "B": "t-1", "C": "t-1", "D": "pa$$word$HOME", "E": "\x7f"}
    assert settings.env == wanted
    assert moved_from(text, "x", ORIGIN) == entry
    entry = {"type": "http", "url": "https://mcp.example/mcp?$top=1"}
    text = with_section("", "x", entry, {}, ORIGIN)
    settings = Sources(parse_file("/x.toml", text.encode()), {}, {}, {}).of_server("x")
    assert settings.upstream == entry["url"]
    assert moved_from(text, "x", ORIGIN) == entry


def test_what_was_edited_in_the_section_is_kept() -> None:
    entry: ServerEntry = {"command": "npx", "args": ["a@1"], "env": {"KEY": "old", "X": 1}, "z": 2}
    text = with_section("", "x", entry, {}, ORIGIN)
    text = text.replace("a@1", "a@2").replace('"old"', '"new"')
    now = moved_from(text, "x", ORIGIN)
    assert now == {"command": "npx", "args": ["a@2"], "env": {"KEY": "new", "X": 1}, "z": 2}


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx", "args": ["${workspaceFolder}"]},
        {"command": "npx", "args": ["{file:~/key}"]},
        {"command": "npx", "env": {"KEY": "${input:key}"}},
        {"command": "npx", "env": {"KEY": "${KEY:-x}"}},
        {"url": "https://${HOST}/mcp"},
    ],
)
def test_what_only_the_client_knows_stays_with_it(entry: ServerEntry) -> None:
    with pytest.raises(CannotWrap, match="The client fills in"):
        with_section("", "x", entry, {}, ORIGIN)


@pytest.mark.parametrize("text", ["servers = {}\n", "[servers]\n[servers.a\n", "a = 1\na = 2"])
def test_a_file_that_cannot_take_a_section_is_left_alone(text: str) -> None:
    with pytest.raises(CannotWrap):
        with_section(text, "x", {"command": "a"}, {}, ORIGIN)


def test_a_name_that_is_taken_gets_a_number() -> None:
    text = '[servers.a]\nurl="http://a"\n[servers.a-2]\nurl="http://a"\n'
    names = [moving.free_name(text, name) for name in ("a", "b", "-Ä b/c", "", "x" * 90)]
    assert names == ["a-3", "b", "b-c", "server", "x" * 60]


_TEXTS = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=12)


@example(words=["x"], values={"0": "\x85#"})  # ends a line for Python, and not for TOML
@given(
    words=st.lists(_TEXTS.filter(lambda one: "${" not in one and "{" not in one), min_size=1),
    values=st.dictionaries(_TEXTS.filter(bool), _TEXTS.filter(lambda one: "{" not in one)),
)
def test_any_text_comes_back(words: list[str], values: dict[str, str]) -> None:
    entry: ServerEntry = {"command": words[0] or "x", "args": words[1:], "env": values}
    text = with_section("a = 1\n", "x", entry, {}, ORIGIN)
    assert moved_from(text, "x", ORIGIN) == entry
    assert without_section(text, "x") == "a = 1\n"
    assert tomllib.loads(text)["servers"]["x"]["command"] == [words[0] or "x", *words[1:]]
