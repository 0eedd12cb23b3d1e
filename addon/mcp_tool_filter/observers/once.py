"""Say each thing once: a log in which one line stands a thousand times is not read.

>>> said = Once(most=2)
>>> [said.is_new(text) for text in ("a", "a", "b", "c")]
[True, False, True, False]
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

_MOST = 1000
"""Different texts; peers choose some of their words, and must not fill our memory or the log."""


class Once:
    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._said: set[str] = set()

    def is_new(self, text: str) -> bool:
        """Tell whether a text is to be said: not a second time, and not after too many others."""
        if text in self._said or len(self._said) >= self._most:
            return False
        self._said.add(text)
        return True

    def log(self, logger: logging.Logger, level: int, text: str, *values: object) -> None:
        whole = text % values if values else text
        if self.is_new(whole):
            logger.log(level, "%s", whole)


def counted(texts: Iterable[str]) -> Iterator[str]:
    """Return each text once, with the number of times if there are several.

    >>> list(counted(["a", "b", "a"]))
    ['a (2 times)', 'b']
    """
    for text, count in Counter(texts).items():
        yield text if count == 1 else f"{text} ({count} times)"
