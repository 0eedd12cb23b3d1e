"""What requests and answers have in common as they come over the wire."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class RawMessage:
    """A head, and a body without the chunk framing."""

    head: bytes
    body: bytes

    def all(self, name: str) -> list[str]:
        """Every value of one header, in order."""
        found = re.findall(rb"(?im)^" + re.escape(name.encode()) + rb":[ \t]*(.*?)\r$", self.head)
        return [value.decode("latin-1") for value in found]
