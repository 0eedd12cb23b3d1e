"""Attacks by an upstream, or by what it is made to say: lists of tools wherever one may stand.

Each is a request and the bytes that the upstream answers with. Nothing by which the denied tool
is known may come to the client, in whatever coding.
"""

from tests.attacks.answers.base import (
    ASKED,
    DEFINITION,
    GET,
    LIST,
    RESUME,
    SSE,
    TEXT,
    TOOLS,
    Attack,
    event,
    stream,
)
from tests.attacks.answers.codings import in_codings
from tests.attacks.answers.messages import in_messages, messages
from tests.attacks.answers.places import in_places
from tests.attacks.answers.streams import in_streams

__all__ = [
    "ASKED", "ATTACKS", "DEFINITION", "GET", "LIST", "RESUME", "SSE", "TEXT", "TOOLS", "Attack",
    "event", "in_codings", "in_messages", "in_places", "in_streams", "messages", "stream",
]  # fmt: skip

ATTACKS = [
    Attack(f"{room.__name__}: {one.name}", one.said, one.asked, one.ends)
    for room in (in_messages, in_places, in_codings, in_streams)
    for one in room()
]
