"""Errors of logins: two lines for people, one sentence for clients, each with what to type."""

from __future__ import annotations

from mcp_tool_filter.adapters.oauth.errors import LoggedOut, RenewalFailed

URL = "https://mcp.example/mcp"


def test_a_login_that_is_over_says_what_to_type() -> None:
    assert str(LoggedOut(URL)) == (
        f"Error: Not logged in to {URL}\nType: mcp-tool-filter login {URL}"
    )
    assert str(LoggedOut(URL, "has expired")) == (
        f"Error: The login to {URL} has expired\nType: mcp-tool-filter login {URL}"
    )


def test_clients_get_one_sentence() -> None:
    over = LoggedOut(URL, "has expired").sentence
    assert over == f"The login to {URL} has expired. Type: mcp-tool-filter login {URL}"
    failed = RenewalFailed(URL, why="Connection refused").sentence
    assert failed == f"Cannot renew the login to {URL}: Connection refused"
