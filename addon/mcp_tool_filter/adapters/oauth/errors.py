"""The errors of logins, each in two lines that say what to type."""

from __future__ import annotations

from mcp_tool_filter.errors import StartError, printable


class LoginFailed(StartError):
    """A login failed; ``why`` is the other side's reason, or what to do."""

    def __init__(self, endpoint: str, *, why: str) -> None:
        super().__init__(f"Cannot log in to {printable(endpoint)}", why=printable(why))


class LoggedOut(StartError):
    """The stored login cannot be used any more."""

    def __init__(self, endpoint: str, problem: str | None = None) -> None:
        """``problem`` completes the sentence "The login to …"."""
        endpoint = printable(endpoint)
        what = f"The login to {endpoint} {problem}" if problem else f"Not logged in to {endpoint}"
        super().__init__(what, why=f"Type: {login_command(endpoint)}")

    @property
    def sentence(self) -> str:
        """The same for a client, in one sentence."""
        return f"{self.what}. {self.why}"


class RenewalFailed(StartError):
    """A login could not be renewed now; a later try may succeed."""

    def __init__(self, endpoint: str, *, why: str) -> None:
        super().__init__(f"Cannot renew the login to {printable(endpoint)}", why=printable(why))

    @property
    def sentence(self) -> str:
        """The same for a client, in one sentence."""
        return f"{self.what}: {self.why}"


def login_command(endpoint: str) -> str:
    """Return the command to log in."""
    return f"mcp-tool-filter login {endpoint}"
