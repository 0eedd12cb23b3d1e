"""Errors of logins: two lines for people, one sentence for clients, each with what to type."""

from __future__ import annotations

from mcp_tool_filter.adapters.oauth.store import LoggedOut, LoginFailed, RenewalFailed

URL = "https://mcp.example/mcp"


def test_a_login_that_is_over_says_what_to_type() -> None:
    assert str(LoggedOut(URL)) == (
        f"Error: Not logged in to {URL}\nType: mcp-tool-filter login {URL}"
    )
    assert str(LoggedOut(URL, "has expired")) == (
        f"Error: The login to {URL} has expired\nType: mcp-tool-filter login {URL}"
    )


def test_a_login_that_fails_says_why() -> None:
    failed = LoginFailed(URL, why="It asks for no login")
    assert str(failed) == f"Error: Cannot log in to {URL}\nIt asks for no login"


def test_clients_get_one_sentence() -> None:
    over = LoggedOut(URL, "has expired").sentence
    assert over == f"The login to {URL} has expired. Type: mcp-tool-filter login {URL}"
    failed = RenewalFailed(URL, why="Connection refused").sentence
    assert failed == f"Cannot renew the login to {URL}: Connection refused"
