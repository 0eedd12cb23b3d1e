"""A body that comes in pieces, in as much memory as its bytes.

A piece of two bytes is an object of 35, and a place in a list: ten megabytes in such pieces would
hold 200. So pieces are written one behind the other. A body that comes in one piece is not copied.

>>> body = Collected()
>>> body.add(b"{")
>>> body.add(b"}")
>>> body.size, body.take(), body.size
(2, b'{}', 0)
"""

from __future__ import annotations

from io import BytesIO


class Collected:
    """Bytes that have come so far."""

    __slots__ = ("_first", "_joined", "size")

    def __init__(self, first: bytes = b"") -> None:
        self._first = first
        self._joined: BytesIO | None = None
        self.size = len(first)

    def add(self, data: bytes) -> None:
        if not self.size:
            self._first = data
        else:
            if self._joined is None:
                self._joined = BytesIO(self._first)
                self._joined.seek(self.size)
                self._first = b""
            self._joined.write(data)
        self.size += len(data)

    def take(self) -> bytes:
        """Return all bytes, and forget them."""
        taken = self._first if self._joined is None else self._joined.getvalue()
        self._first, self._joined, self.size = b"", None, 0
        return taken
