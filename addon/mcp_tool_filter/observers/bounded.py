"""Count by names that clients choose, without letting them fill our memory.

>>> from collections import Counter
>>> calls: Counter[str] = Counter()
>>> for name in ("a", "b", "a", "c"):
...     count_bounded(calls, name, most=2)
>>> dict(calls)
{'a': 2, 'b': 1}
"""

from __future__ import annotations

from collections import Counter


def count_bounded(counter: Counter[str], name: str, *, most: int) -> None:
    """Count a name, unless it is new and there are already ``most`` names."""
    if name in counter or len(counter) < most:
        counter[name] += 1
