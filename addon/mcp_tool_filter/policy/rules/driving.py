"""Answer at once the effects that a host can answer at once, so that only the rest must wait."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import cast

from mcp_tool_filter.policy.effects import Deciding, Effect


class Later(Enum):
    LATER = "later"


type AtOnce = Callable[[Effect], object]
"""Returns the result of an effect, or LATER if it must wait; raises EffectFailed."""


def answered[Outcome](deciding: Deciding[Outcome], at_once: AtOnce) -> Deciding[Outcome]:
    """Yield only those effects of a decision that must wait."""
    resume: Callable[[], Effect] = partial(next, deciding)
    while True:
        try:
            effect = resume()
        except StopIteration as made:
            return cast("Outcome", made.value)
        try:
            came = at_once(effect)
            if came is Later.LATER:
                came = yield effect
        except GeneratorExit:
            deciding.close()
            raise
        except BaseException as error:  # the effect's failure, for the decision
            resume = partial(deciding.throw, error)
        else:
            resume = partial(deciding.send, came)
