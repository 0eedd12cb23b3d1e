"""Report each text once: nobody reads a log that repeats one line a thousand times.

>>> said = Once(most=2)
>>> [said.is_new(text) for text in ("a", "a", "b", "c")]
[True, False, True, False]
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

_MOST = 1000
"""Limit on different texts: peers choose some of the words, and must not fill our memory or the
log."""


class Once:
    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._said: set[str] = set()

    def is_new(self, text: str) -> bool:
        """Tell whether to report a text: it is new, and there were not too many others."""
        if text in self._said or len(self._said) >= self._most:
            return False
        self._said.add(text)
        return True

    def log(self, logger: logging.Logger, level: int, text: str, *values: object) -> None:
        whole = text % values if values else text
        if self.is_new(whole):
            logger.log(level, "%s", whole)


def counted(texts: Iterable[str]) -> Iterator[str]:
    """Yield each text once, with its count if it is repeated.

    >>> list(counted(["a", "b", "a"]))
    ['a (2 times)', 'b']
    """
    for text, count in Counter(texts).items():
        yield text if count == 1 else f"{text} ({count} times)"
