"""Attacks by a client: some server, somewhere, would take each for a call of the denied tool.

Each is bytes on a connection. None of them may bring the tool's name to the upstream, in whatever
coding; an attack that is let through without the name was disarmed.
"""

from tests.attacks.hostile_requests.base import (
    ALLOWED,
    CALL,
    HOST,
    JSON,
    PING,
    PLAIN,
    SMUGGLED,
    Attack,
    chunked,
    post,
)
from tests.attacks.hostile_requests.bodies import bodies, in_bodies
from tests.attacks.hostile_requests.codings import in_codings
from tests.attacks.hostile_requests.framing import in_framing
from tests.attacks.hostile_requests.heads import in_heads
from tests.attacks.hostile_requests.upgrades import in_upgrades, masked

__all__ = [
    "ALLOWED", "ATTACKS", "CALL", "HOST", "JSON", "PING", "PLAIN", "SMUGGLED", "Attack", "bodies",
    "chunked", "in_bodies", "in_codings", "in_framing", "in_heads", "in_upgrades", "masked", "post",
]  # fmt: skip

ATTACKS = [*in_bodies(), *in_codings(), *in_framing(), *in_heads(), *in_upgrades()]
