"""A server's entry with the filter in front of it, and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.client_files.entries import (
    CannotWrap,
    ServerEntry,
    flags_of,
    is_filtered,
    is_wrapped,
    logs_in,
    target_of,
    unwrap,
    wrap,
)
from mcp_tool_filter.cli.settings import read_settings
from mcp_tool_filter.policy.config import parse_header

PROGRAM = ["/opt/bin/mcp-tool-filter"]
FLAGS = ["--deny", "^rm"]
SECRET = "Bearer s3cr$et-$HOME"

ENTRIES: dict[str, ServerEntry] = {
    "command": {"command": "npx", "args": ["-y", "server", "--", "x"], "env": {"KEY": "k"}},
    "command alone": {"command": "server"},
    "stdio type": {"type": "stdio", "command": "uvx", "args": [], "disabled": True},
    "nested": {"command": {"path": "server", "args": ["a"], "env": {"A": "b"}}, "settings": {}},
    "opencode": {"type": "local", "command": ["npx", "-y", "a"], "environment": {"KEY": "k"}},
    "opencode alone": {"type": "local", "command": ["server"], "enabled": True},
    "opencode url": {
        "type": "remote",
        "url": "https://a.example/mcp",
        "enabled": True,
        "headers": {"A": "Bearer {env:TOKEN}"},
        "oauth": False,
        "environment": {"X": "y"},
    },
    "copilot": {"type": "local", "command": "npx", "args": ["-y", "a"], "tools": ["*"]},
    "cline": {"type": "streamableHttp", "url": "https://a.example/mcp", "autoApprove": []},
    "goose": {
        "type": "streamable_http",
        "url": "https://a.example/mcp",
        "headers": {"A": "Bearer ${TOKEN}"},
        "env_keys": ["TOKEN"],
        "env": {"X": "y"},
    },
    "url": {"url": "https://example.com/mcp"},
    "url with type": {"type": "http", "url": "https://a.example/mcp", "headers": {"A": SECRET}},
    "url with environment": {"url": "https://a.example/sse", "env": {"X": "y"}, "timeout": 5},
    "httpUrl": {"httpUrl": "https://a.example/mcp", "trust": True, "headers": {"A": "${A}"}},
    "serverUrl": {"serverUrl": "https://a.example/mcp"},
    "key in the URL": {"url": "https://a.example/mcp?key=s3cr$et"},
    "key in the path": {"url": "https://a.example/s/sk_live_s3cr0123456789/mcp"},
    "id in the path": {"url": "https://a.example/s/0f8fad5b-d9cb-469f-a165-70867728950e/mcp"},
    "codex": {"url": "https://a.example/mcp", "bearer_token_env_var": "TOKEN"},
    "codex login": {
        "url": "https://a.example/mcp",
        "oauth": {"client_id": "x", "client_secret": "s3cr"},
        "oauth_resource": "y",
        "scopes": ["a"],
    },
    "codex headers": {
        "url": "https://a.example/mcp",
        "http_headers": {"X-A": SECRET},
        "env_http_headers": {"X-B": "B"},
    },
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_wrapped_entry_can_be_restored_or_wrapped_again(entry: ServerEntry) -> None:
    """No secret becomes an argument: every user of the machine can list these."""
    wrapped = wrap(entry, FLAGS, PROGRAM)
    assert (is_wrapped(entry), is_wrapped(wrapped), flags_of(wrapped)) == (False, True, FLAGS)
    assert unwrap(wrapped) == entry
    assert target_of(wrapped) == target_of(entry)
    assert wrap(wrapped, FLAGS, PROGRAM) == wrapped
    assert wrap(wrap(entry, ["--allow", "a"], PROGRAM), FLAGS, PROGRAM) == wrapped
    for secret in ("s3cr", "0f8fad5b"):
        assert secret not in json.dumps([wrapped["command"], wrapped.get("args")])
        assert secret not in target_of(entry)
    is_list = entry.get("environment") is not None or isinstance(entry.get("command"), list)
    assert isinstance(wrapped["command"], list) == is_list


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"command": ""},
        {"command": 3},
        {"args": ["x"]},
        {"command": "x", "args": "-y z"},
        {"command": {"path": "x", "args": 3}},
        {"command": "x", "url": "https://a.example/mcp"},
        {"url": "https://a.example/mcp", "args": ["lost"]},
        {"url": "https://a.example/mcp", "headersHelper": "/bin/x"},
        {"url": "https://a.example/mcp", "authProviderType": "google_credentials"},
        {"url": "https://a.example/mcp", "auth": "chatgpt"},
        {"url": "https://a.example/$KEY", "type": "streamable_http"},
        {"url": "https://a.example", "type": "streamable_http", "headers": {"A": "Bearer $T"}},
        {"url": "https://a.example", "type": "streamable_http", "headers": {"A": "${ T }"}},
        {"command": "mcp-tool-filter", "args": ["--stdio", "--upstream", "https://a.example"]},
        {"url": "https://a.example", "headers": {"X-A": "a\nAuthorization: Bearer ${SECRET}"}},
        *(
            {"url": "https://a.example/mcp", "env": {"X": "y", name: "evil"}}
            for name in ("PYTHONPATH", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "path")
        ),
        {"url": "https://a.example/mcp", "env": {"MCP_TOOL_FILTER_CONFIG": "evil"}},
    ],
)
def test_an_entry_of_unknown_form_or_with_power_over_the_filter_is_refused(
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
    assert target_of(entry) == "?"
    with pytest.raises(CannotWrap, match="has been changed"):
        unwrap(entry)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20))
@example(SECRET)
def test_any_header_value_reaches_the_filter_and_comes_back(value: str) -> None:
    entry: ServerEntry = {"url": "https://a.example/mcp", "headers": {"X-A": value}}
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
    assert target_of(ENTRIES["key in the URL"]) == "https://a.example/mcp?…"


def test_a_wrapped_codex_entry_has_no_members_of_a_url() -> None:
    """It does not start at all with a file that has one."""
    wrapped = wrap(ENTRIES["codex login"], FLAGS, PROGRAM)
    assert wrapped.keys() == {"command", "args", "env"}
    assert logs_in(ENTRIES["codex login"])


def test_a_filter_typed_by_hand_is_recognised() -> None:
    typed: ServerEntry = {
        "command": "mcp-tool-filter",
        "args": ["--stdio", "-u", "https://a.example"],
    }
    assert is_filtered(typed)
    assert not is_wrapped(typed)
    assert unwrap(typed) == typed
    assert not is_filtered({"command": "npx", "args": ["mcp-tool-filter"]})
