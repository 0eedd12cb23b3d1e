"""Which real client meets which real upstream, and what they do together.

A pair is left out for one of three reasons:

- no SDK switches between HTTP+SSE and streamable HTTP by itself, so both sides speak one or both
  the other (`Client.meets`);
- a client pinned to 2026-07-28 refuses an upstream that does not speak it (`Client.meets`);
- it would show nothing new: before 2026-07-28, `auto` sends what `legacy` sends once its probe has
  failed, and the variants of an upstream (JSON, stateless, resumable) are met by `VISITORS` only.

And some pairs cannot do all of it, because their upstream cannot (`steps`):

- before 2026-07-28 an upstream that answers with JSON drops progress and questions (sampling,
  elicitation), and the caller waits for ever; in 2026-07-28 questions travel as results;
- a stateless upstream loses the answers to its questions: they come on another POST;
- there is something to resume only where events are kept.
"""

from dataclasses import dataclass
from itertools import product

from .peer import Step

MODERN, LEGACY = "2026-07-28", "2025-11-25"


@dataclass(frozen=True)
class Server:
    """An upstream as `peer.upstream` starts it."""

    name: str
    flags: tuple[str, ...] = ()

    @property
    def transport(self) -> str:
        return "sse" if "sse" in self.flags else "streamable"

    @property
    def variant(self) -> str | None:
        return next((one for one in self.flags if one not in ("--transport", "sse", "stdio")), None)

    @property
    def speaks_modern(self) -> bool:
        return self.name in ("mcp2", "ts2") and self.transport == "streamable"

    def __str__(self) -> str:
        return "-".join([self.name, *(flag.lstrip("-") for flag in self.flags)])


@dataclass(frozen=True)
class Client:
    """A client as `peer.play` starts it."""

    name: str
    transport: str = "streamable"
    mode: str | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        mode = ("--mode", self.mode) if self.mode else ()
        return ("--transport", self.transport, *mode)

    def meets(self, server: Server) -> bool:
        if self.transport != server.transport:
            return False
        match self.mode:
            case "legacy":  # against an older upstream it does what `auto` does
                return server.speaks_modern or self.transport == "sse"
            case "modern":
                return server.speaks_modern
            case _:
                return True

    def __str__(self) -> str:
        return "-".join(filter(None, [self.name, self.transport, self.mode]))


@dataclass(frozen=True)
class Pair:
    server: Server
    client: Client

    @property
    def protocol(self) -> str:
        """The revision they agree on."""
        # A server of mcp2 also speaks it over HTTP+SSE, if a client asks for it: one behind a pipe.
        is_piped = self.server.name == "mcp2" and self.client.transport == "stdio"
        speaks = self.server.speaks_modern or is_piped
        modern = speaks and self.client.mode in ("auto", "modern")
        return MODERN if modern else LEGACY

    @property
    def tells_progress(self) -> bool:
        return self.server.variant != "--json"

    @property
    def can_ask(self) -> bool:
        """Whether the upstream can ask the client for something."""
        return self.protocol == MODERN or self.server.variant in (None, "--resumable")

    @property
    def resumes(self) -> bool:
        return self.protocol == LEGACY and self.server.variant == "--resumable"

    def __str__(self) -> str:
        return f"{self.server}-{self.client}"


SSE = ("--transport", "sse")
SERVERS = (
    Server("mcp1", SSE), Server("mcp1"), Server("mcp2", SSE), Server("mcp2"),
    Server("ts1", SSE), Server("ts1"), Server("ts2"),  # whose SDK has no HTTP+SSE for servers
)  # fmt: skip
VARIANTS = tuple(
    Server(name, (flag,))
    for name, flags in (
        ("mcp1", ("--json", "--stateless", "--resumable")),
        ("mcp2", ("--json",)),
        ("ts1", ("--json", "--stateless", "--resumable")),
        ("ts2", ("--json", "--stateless")),
    )
    for flag in flags
)
CLIENTS = (
    Client("mcp1", "sse"), Client("mcp1"),
    Client("mcp2", "sse", "legacy"), Client("mcp2", mode="legacy"), Client("mcp2", mode="auto"),
    Client("ts1", "sse"), Client("ts1"),
    Client("ts2", "sse", "legacy"), Client("ts2", mode="legacy"), Client("ts2", mode="auto"),
    Client("ts2", mode="modern"),
)  # fmt: skip
VISITORS = (Client("mcp1"), Client("ts1"), Client("ts2", mode="auto"))

PAIRS = [
    Pair(server, client)
    for server, client in [*product(SERVERS, CLIENTS), *product(VARIANTS, VISITORS)]
    if client.meets(server)
]


def steps(pair: Pair) -> dict[str, Step]:
    """What a pair does together: a scenario, each step with a name."""
    everyone: dict[str, Step] = {
        "tools": {"list": "tools"},
        "read_file": {"call": "read_file", "arguments": {"path": "/ä/b.txt"}},
        "non_ascii": {"call": "größe_messen_測る", "arguments": {"text": "é\u2028"}},
        "header": {"call": "query_database", "arguments": {"database": "dä", "sql": "select"}},
        "twenty": {"parallel": [{"call": "echo", "arguments": {"n": n}} for n in range(20)]},
        "fail": {"call": "fail"},
        "unknown": {"call": "no_such_tool", "arguments": {"a": 1}},
        "resources": {"list": "resources"},
        "templates": {"list": "templates"},
        "resource": {"read": "file:///notes/one.md"},
        "prompts": {"list": "prompts"},
        "prompt": {"prompt": "drop_database"},
        "complete": {"complete": "summarize", "argument": "language", "value": "d"},
        "cancel": {"cancel": {"call": "slow", "arguments": {"ms": 9000}}, "after": 50},
        "after": {"call": "read_file", "arguments": {"path": "again"}},
    }
    some: dict[str, Step] = {}
    if pair.tells_progress:
        # The TypeScript SDKs lose progress that arrives in one chunk with the result; ``expected``
        # takes less of it from them, so the Python clients show that none is lost by us.
        unhurried = {"steps": 3, "ms": 40}
        some["progress"] = {"call": "progress", "arguments": unhurried, "progress": True}
    if pair.can_ask:
        some["sample"] = {"call": "sample", "arguments": {"prompt": "say something"}}
        some["elicit"] = {"call": "elicit", "arguments": {"question": "really?"}}
        some["roots"] = {"call": "roots"}
    if pair.resumes:
        some["hang_up"] = {"call": "hang_up", "arguments": {"ms": 100}}
    return everyone | some
