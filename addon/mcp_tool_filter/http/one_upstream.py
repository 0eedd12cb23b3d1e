"""What we know about one upstream: its policy, its sessions, and the paths we serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from secrets import token_bytes

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.memory import Fetched, Sessions
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.http.cors import CorsMemory
from mcp_tool_filter.http.exchange import HttpExchange
from mcp_tool_filter.http.guard import UpstreamNames
from mcp_tool_filter.http.head import (
    Head,
)
from mcp_tool_filter.http.legacy import LegacyEndpoints
from mcp_tool_filter.http.login_paths import LoginPaths
from mcp_tool_filter.http.operator_headers import HeaderPairs, headers_to_add
from mcp_tool_filter.policy.config import Config, plain_path
from mcp_tool_filter.policy.snapshot import Definitions, Snapshot

_NOTHING = Snapshot(allowed=Definitions([]), denied={})


@dataclass(slots=True, kw_only=True)
class OneUpstream:
    """The state that all parts of a listener share."""

    upstream: str
    policy: PolicyInForce
    names: UpstreamNames
    keeps_host: bool = False
    """True if the upstream gets the client's own Host header."""
    is_forward: bool = False
    """True for a forward proxy: clients use the upstream's own name, so URLs stay unchanged."""
    sessions: Sessions = field(init=False)
    _hash_key: bytes = field(default_factory=partial(token_bytes, 32), repr=False)
    legacy: LegacyEndpoints = field(default_factory=LegacyEndpoints)
    cors: CorsMemory = field(default_factory=CorsMemory)
    logins: LoginPaths = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.config.limits)
        self.logins = LoginPaths(self.upstream)

    @property
    def config(self) -> Config:
        return self.policy.config

    @property
    def fetched(self) -> Fetched:
        return self.policy.fetched

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the start; empty if the upstream lists its tools only to logged-in
        users."""
        return self.policy.snapshot if self.policy.kinds.start.is_listed else _NOTHING

    def unasked(self) -> HttpExchange:
        """Return an exchange whose request we have not seen."""
        return HttpExchange(Conversation(self.policy))

    def _is_endpoint(self, target: str) -> bool:
        return target == self.policy.fetched.endpoint or target in self.legacy.endpoints

    def serves(self, method: str, target: str) -> bool:
        """Tell whether we serve a path when only MCP and logins are served."""
        return self.takes_headers(target) or self.logins.has(method, target)

    def takes_headers(self, target: str) -> bool:
        """Tell whether the user's headers are sent to a path: an MCP endpoint, or a path that the
        user names."""
        endpoints = (self.fetched.endpoint, self.config.endpoint or self.fetched.endpoint)
        return (
            plain_path(target) in map(plain_path, endpoints)
            or target in self.legacy
            or self.config.header_paths.has(target)
        )

    def headers_for(self, head: Head) -> HeaderPairs:
        """Return which of the user's headers a request gets."""
        config = self.policy.config
        if not config.upstream_headers or not self.takes_headers(head.target):
            return ()
        return headers_to_add(head, config.upstream_headers, override=config.header_override)
