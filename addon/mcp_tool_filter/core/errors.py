"""Our errors, in the words that people read.

There are two kinds. A ``StartError`` is for the user who starts us: two lines on stderr, what went
wrong (quoting what they typed), then why. A ``ProtocolError`` is about a peer: bytes that we cannot
judge. Any other exception is a bug in our code.
"""

from __future__ import annotations

import os


class StartError(Exception):
    """We cannot start. ``str()`` is the text for stderr."""

    exit_status = 1

    def __init__(self, what: str, *, why: str, hint: str | None = None) -> None:
        super().__init__(what, why)
        self.what = what
        self.why = why
        self.hint = hint
        """What to do about it, if known: a third line."""

    @property
    def one_line(self) -> str:
        return f"{self.what}. {self.why}".replace("\n", ". ")

    def __str__(self) -> str:
        text = f"Error: {self.what}\n{self.why}"
        return safe_lines(f"{text}\nHint: {self.hint}" if self.hint else text)


class Mistake(StartError):
    """The command line, the environment or the config file is wrong.

    (A regex that is invalid or unsafe is none: the contract ends these with 1.)
    """

    exit_status = 2


_IN_UTF_8 = "Type it in UTF-8, or write its characters as \\uXXXX"


class InvalidPattern(StartError):
    def __init__(self, pattern: str, *, option: str = "deny", hint: str | None = None) -> None:
        what = f'Invalid regex pattern in {option} list: "{pattern}"'
        super().__init__(what, why="Pattern must be valid JavaScript regex", hint=hint)


class NotUtf8(Mistake):
    """A text from the command line or the environment, where Python keeps bytes as surrogates."""

    def __init__(self, text: str, *, option: str) -> None:
        typed = text.encode("utf-8", "backslashreplace").decode()
        super().__init__(f'The pattern "{typed}" in {option} list is not UTF-8', why=_IN_UTF_8)


class InvalidGlob(Mistake):
    def __init__(self, glob: str, *, why: str) -> None:
        super().__init__(f'Invalid glob in deny_glob list: "{glob}"', why=why)


class BlankPattern(InvalidPattern):
    """An empty pattern, or one of only white space: valid JavaScript, but never intended."""

    exit_status = Mistake.exit_status

    def __init__(self, pattern: str, *, option: str = "deny") -> None:
        if pattern:
            what = f'Blank pattern in {option} list: "{pattern}"'
            why = "A pattern of white space matches no tool name; leave it out"
        else:
            what = f'Invalid regex pattern in {option} list: ""'
            why = "An empty pattern matches every tool name; leave it out"
        StartError.__init__(self, what, why=why)


class SpaceAfterComma(InvalidPattern):
    """A list of patterns as people write lists, but the white space is part of a pattern."""

    exit_status = Mistake.exit_status

    def __init__(self, value: str, meant: str, option: str) -> None:
        what = f'A pattern in {option} list begins with a space: "{value}"'
        StartError.__init__(self, what, why=f'No tool name has one. Write "{meant}"')


class EmptyList(Mistake):
    """Deny or allow was set to nothing: probably a slip that would disable the filter."""

    def __init__(self, option: str, *, source: str = "") -> None:
        on_purpose = {
            "allow": "; to allow every tool on purpose, use ^, which matches every name",
            "deny": "; to deny nothing on purpose, use (?!), which matches no name",
        }.get(option, "")
        kind = "hint" if option in ("deny_hint", "deny-hint") else "pattern"
        what = f"{source or option} has no {kind}"
        super().__init__(what, why=f"Give a {kind}, or leave it out{on_purpose}")


class UnsafePattern(StartError):
    def __init__(self, pattern: str, *, hint: str | None = None) -> None:
        what = f'Unsafe regex pattern detected: "{pattern}"'
        super().__init__(what, why="Pattern could cause catastrophic backtracking", hint=hint)


class NothingDenied(StartError):
    """No filter is set, and the user wants an error then."""

    def __init__(self) -> None:
        what = "Nothing is denied: there is no deny or allow pattern"
        super().__init__(what, why="With the option strict, there must be at least one")


class UnmatchedPattern(StartError):
    def __init__(self, pattern: str, *, thing: str = "tool", hint: str | None = None) -> None:
        what = f'The pattern "{pattern}" matches no {thing}'
        why = f"With the option strict, every pattern must match a {thing}"
        super().__init__(what, why=why, hint=hint)


class LockError(StartError):
    """A lock cannot be used."""


class InvalidOption(Mistake):
    """An option has an invalid value; ``why`` says what would be right."""

    def __init__(self, option: str, given: object, *, why: str) -> None:
        super().__init__(f"Invalid value for {option}: {given!r}", why=why)
        self.option = option
        self.given = given


class UnsetVariable(InvalidOption):
    """A value needs an environment variable that is not set."""


class UnknownOption(Mistake):
    def __init__(self, option: str, *, why: str) -> None:
        super().__init__(f"Unknown option: {option}", why=why)


class ConnectFailed(StartError):
    def __init__(self, url: str, *, why: str, hint: str | None = None) -> None:
        super().__init__(f"Failed to connect to upstream MCP at {url}", why=why, hint=hint)


class FetchFailed(StartError):
    def __init__(self, *, why: str, hint: str | None = None) -> None:
        super().__init__("Failed to fetch tool list from upstream MCP", why=why, hint=hint)


class ListsAfterLogin(FetchFailed):
    """The upstream lists its tools only to logged-in users, and says how to log in."""

    def __init__(self, *, why: str, hint: str | None = None, path: str) -> None:
        super().__init__(why=why, hint=hint)
        self.path = path


class LostUpstream(StartError):
    """The upstream was lost at run time; printed in the same form."""

    def __init__(self) -> None:
        super().__init__("Lost connection to upstream MCP", why="Shutting down proxy")


class ProtocolError(Exception):
    """A peer sent something that we cannot judge.

    ``str()`` says what, without quoting it at length.
    """


def printable(text: str) -> str:
    """Escape control characters and everything else that a terminal or log could interpret."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def safe_lines(text: str) -> str:
    """Do the same to each line of a text."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def reason_of(error: OSError) -> str:
    """Return the system's own words for an error: asyncio has another text if it cannot listen."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)
