"""Answers at once what a host can answer at once, so that only the rest must be waited for."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import cast

from mcp_tool_filter.policy.effects import Deciding, Effect


class Later(Enum):
    LATER = "later"


type AtOnce = Callable[[Effect], object]
"""Returns what came of an effect, or LATER if it must be waited for; raises EffectFailed."""


def answered[Outcome](deciding: Deciding[Outcome], at_once: AtOnce) -> Deciding[Outcome]:
    """Yield only the effects of a decision that must be waited for."""
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
        except BaseException as error:  # what came of the effect; it is for the decision
            resume = partial(deciding.throw, error)
        else:
            resume = partial(deciding.send, came)
