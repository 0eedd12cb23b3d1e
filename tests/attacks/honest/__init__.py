"""Honest exchanges that strict filters break. Each passes byte for byte, both ways.

What a proxy must change is no more than the host, the codings it asks for, and how a body is cut
into chunks; ``plain`` leaves that out of the comparison.
"""

from tests.attacks.honest.base import (
    CALL,
    FORM,
    GET,
    OK,
    PING,
    SSE,
    Exchange,
    plain,
)
from tests.attacks.honest.documents import in_documents
from tests.attacks.honest.messages import calls, events, in_bodies, methods, results
from tests.attacks.honest.requests import in_requests
from tests.attacks.honest.responses import in_responses

__all__ = [
    "CALL", "EXCHANGES", "FORM", "GET", "OK", "PING", "SSE", "Exchange", "calls", "events",
    "in_bodies", "in_documents", "in_requests", "in_responses", "methods", "plain", "results",
]  # fmt: skip

EXCHANGES = [*in_bodies(), *in_requests(), *in_documents(), *in_responses()]
