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


def test_no_error_shows_a_secret_in_the_url_or_obeys_a_server() -> None:
    """Clients and log files get these texts."""
    url = "https://mcp.example/s/Zk3v9QpX7dRt5WmN2bLc/mcp?key=k-1"
    for error in (LoginFailed(url, why="\x1b[2J"), RenewalFailed(url, why="a\nb"), LoggedOut(url)):
        text = str(error)
        assert "https://mcp.example/s/…/mcp?key=…" in text
        assert len(text.splitlines()) == 2
        assert all(line.isprintable() for line in text.splitlines())
