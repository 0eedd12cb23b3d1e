r"""What rules read in a message: the fields at a path, and how their values compare.

>>> parse_field("content[*].text").steps
(Key(name='content'), <Every.EVERY: '*'>, Key(name='text'))
>>> parse_field(r"a\.b[0]").steps, parse_field("/a~1b/0").steps
((Key(name='a.b'), 0), (Token(name='a/b'), Token(name='0')))

We do not judge a path that two readers could read differently: a key on it that occurs twice, in
two spellings, or only in a spelling other than the rule's raises ``Unjudgeable``. The same holds
for a value that we compare, which we read completely. Values compare without rounding:

>>> Number("1") == Number("1.0"), Number("9007199254740993") == Number("9007199254740992")
(True, False)
>>> Number("-0.0") == Number("0"), Number("1e400") > Number("9e399")
(True, True)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache, total_ordering
from itertools import repeat
from json.encoder import encode_basestring_ascii
from operator import itemgetter

from jsregex.cost import FOR_A_MESSAGE, Budget, TooCostly
from jsregex.matcher import Matcher, PatternFinder, required_text
from jsregex.safety import is_safe
from jsregex.syntax import NotJavaScript, Regex, parse_regex
from mcp_tool_filter.core.errors import InvalidPattern, ProtocolError, UnsafePattern
from mcp_tool_filter.core.messages.messages import fold
from mcp_tool_filter.core.messages.scan import EACH, Member, Outline, Value, open_value

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
_LONGEST_EXPONENT = 1000  # digits; Python reads no more than 4300


@total_ordering
class Number:
    """A JSON number of any length. It keeps its text, to be written as it was read."""

    __slots__ = ("key", "text")

    def __init__(self, text: str) -> None:
        """Raises ValueError if the text is not a JSON number, or has a huge exponent."""
        number = _NUMBER.fullmatch(text)
        if number is None or len(number[4] or "") > _LONGEST_EXPONENT:
            raise ValueError("not a number that can be compared")
        self.text = text
        digits = (number[2] + (number[3] or "")).lstrip("0")
        # The value is 0.DIGITS * 10 ** exponent.
        exponent = int(number[4] or 0) - len(number[3] or "") + len(digits)
        sign = 0 if not digits else -1 if number[1] else 1
        self.key = sign, exponent if sign else 0, digits.rstrip("0")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Number) -> bool:
        are_negative = self.key[0] == other.key[0] == -1
        return other.key < self.key if are_negative else self.key < other.key

    def __repr__(self) -> str:
        return f"Number({self.text!r})"


@dataclass(frozen=True, slots=True)
class Object:
    members: tuple[tuple[str, Json], ...]

    def __eq__(self, other: object) -> bool:
        """Compare without the order of members."""
        return isinstance(other, Object) and dict(self.members) == dict(other.members)

    def __hash__(self) -> int:
        return hash(frozenset(self.members))


type Json = bool | Number | str | tuple[Json, ...] | Object | None


def render_json(value: Json) -> str:
    """Render a value, with numbers as they were read."""
    match value:
        case Number():
            return value.text
        case str():
            return quote(value)
        case tuple():
            return f"[{','.join(map(render_json, value))}]"
        case Object(members):
            return "{" + ",".join(f"{quote(key)}:{render_json(of)}" for key, of in members) + "}"
        case _:
            return json.dumps(value)


def quote(text: str) -> str:
    """Render a string in ASCII, so that no reader of lines or events finds a line end in it."""
    return encode_basestring_ascii(text)


_LONG = 256  # characters
_FOUND_AT_ONCE = 256  # characters in which we can find a known text in the time of one step


class PatternGivenUp(Exception):
    """Searching this text would take too long."""


@dataclass(frozen=True)
class RulePattern:
    text: str
    ignore_case: bool
    _regex: Regex = field(repr=False, compare=False)

    @cached_property
    def required(self) -> str:
        """A text that every match contains; empty if none is known."""
        return "" if self._regex.ignore_case else required_text(self._regex.root)

    def is_in(self, text: str, budget: Budget) -> bool:
        """Tell whether the pattern is found in a text. Raises PatternGivenUp."""
        try:
            if len(text) <= _LONG:
                return self._matcher.search(text, budget)
            key = self.text, self.ignore_case, text
            known = budget.known.get(key)
            if known is None:
                known = self._may_be_in(text, budget) and self._matcher.search(text, budget)
                budget.known[key] = known
            return known
        except TooCostly:
            raise PatternGivenUp(self.text) from None

    def _may_be_in(self, text: str, budget: Budget) -> bool:
        """Search for the required text first, in a fraction of the time."""
        budget.spend(len(text) // _FOUND_AT_ONCE)
        return self.required in text

    def find(self, units: str, budget: Budget) -> list[tuple[int, int]]:
        """Return where the pattern is found in UTF-16 code units. Raises PatternGivenUp."""
        try:
            return self._finder.find(units, budget) if self._may_be_in(units, budget) else []
        except TooCostly:
            raise PatternGivenUp(self.text) from None

    def spend(self, steps: int, budget: Budget) -> None:
        """Count the steps of preparing a text for the search. Raises PatternGivenUp."""
        try:
            budget.spend(steps)
        except TooCostly:
            raise PatternGivenUp(self.text) from None

    @cached_property
    def _matcher(self) -> Matcher:
        return Matcher(self._regex, FOR_A_MESSAGE)

    @cached_property
    def _finder(self) -> PatternFinder:
        return PatternFinder(self._regex)


@lru_cache(maxsize=4096)  # a file that is read again has most patterns as before
def parse_rule_pattern(text: str, *, ignore_case: bool = False) -> RulePattern:
    """Check a pattern. Raises InvalidPattern or UnsafePattern."""
    try:
        regex = parse_regex(text, ignore_case=ignore_case)
    except NotJavaScript as error:
        raise InvalidPattern(text) from error
    if not is_safe(regex.root):
        raise UnsafePattern(text)
    return RulePattern(text, ignore_case, regex)


_KEY, _AT = r"(?:[^.\[\]\\]|\\.)+", r"\[(?:\d{1,9}|\*)\]"
_DOTTED = re.compile(rf"(?:{_KEY}|{_AT})(?:\.{_KEY}|{_AT})*")
_STEP = re.compile(rf"({_KEY})|\[(\*)\]|\[(\d+)\]")
_LONGEST_KEPT = 64  # characters of a key
_SHORT = 64 * 1024  # characters; so few cannot have more parts than we may open
_FEW = 64  # members, among which we find one without an index
_INDEX = re.compile(r"0|[1-9]\d{0,8}")


class Unjudgeable(ProtocolError):
    """A field that two readers could read differently."""


class Every(Enum):
    EVERY = "*"


@dataclass(frozen=True, slots=True)
class Key:
    name: str


@dataclass(frozen=True, slots=True)
class Token:
    """A part of a JSON pointer: a key in an object, an index in a list."""

    name: str


type PathStep = Key | Token | int | Every
_NAMED = (Key, Token)  # a tuple: the union Key | Token would be built for each message


@dataclass(frozen=True, slots=True)
class Field:
    text: str
    steps: tuple[PathStep, ...]
    outlines: tuple[Outline, ...] = field(default=(), repr=False, compare=False)
    """For each step, what to open together with the value it leads to."""

    def __hash__(self) -> int:
        """Hash only the text, which caches its hash, because each message needs it."""
        return hash(self.text)


def parse_field(text: str) -> Field:
    """Parse a path. Raises ValueError, which says what would be right."""
    if text.startswith("/"):
        steps: tuple[PathStep, ...] = tuple(map(Token, parse_pointer(text)))
    else:
        steps = tuple(_dotted(text))
    return Field(text, steps, _outlines(steps))


def _outlines(steps: Sequence[PathStep]) -> tuple[Outline, ...]:
    """Return, for each step, an outline of the rest of the path."""
    outlines: list[Outline] = []
    inner: Outline | None = None
    for step in reversed(steps):
        outline = {EACH: None if isinstance(step, Key) else inner}
        if isinstance(step, _NAMED):
            outline[step.name] = inner
        outlines.append(outline)
        inner = outline
    return tuple(reversed(outlines))


def parse_pointer(text: str) -> list[str]:
    """Parse a JSON pointer (RFC 6901). Raises ValueError."""
    if text and not text.startswith("/"):
        raise ValueError("a JSON pointer begins with /")
    if re.search(r"~(?![01])", text):
        raise ValueError("in a JSON pointer, ~ is written ~0 and / is written ~1")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _dotted(text: str) -> Iterator[PathStep]:
    if not _DOTTED.fullmatch(text):
        raise ValueError(
            "a field is a path such as name, arguments.path, content[0].text, content[*].text, "
            r"a\.b for a dot in a key, or a JSON pointer such as /arguments/path"
        )
    for key, every, index in _STEP.findall(text):
        if key:
            yield Key(re.sub(r"\\(.)", r"\1", key))
        else:
            yield Every.EVERY if every else int(index)


@dataclass(slots=True)
class Document:
    """A message's text. Its parts are opened once, when they are read."""

    text: str
    _opened: dict[int, Value] = field(default_factory=dict)
    _indexes: dict[int, dict[str, list[Member]]] = field(default_factory=dict)
    """The members of large objects by their spellings."""

    def open(self, value: Value, outline: Outline | None = None) -> Value:
        """Return a value with its members or elements. Raises ProtocolError for too many.

        A short value is opened along an outline, so that it is not read again for inner members.
        """
        if value.members is not None or value.elements is not None:
            return value
        if self.text[value.start] not in "{[":
            return value
        known = self._opened.get(value.start)
        if known is None:
            if outline is None or value.end - value.start > _SHORT:
                known = open_value(self.text, value)
            else:
                known = open_value(self.text, value, outline)
            self._opened[value.start] = known
        return known

    def member(self, holder: Value, name: str) -> Member | None:
        """Return an opened object's member of that name, or None. Raises Unjudgeable."""
        members = holder.members or ()
        if len(members) <= _FEW:
            return find_member(members, name)
        index = self._indexes.get(holder.start)
        if index is None:
            index = self._indexes[holder.start] = _by_spelling(members)
        near = {member.start: member for way in _spellings(name) for member in index.get(way, ())}
        return find_member(tuple(near.values()), name)

    def written(self, value: Value) -> str:
        return self.text[value.start : value.end]

    def find(
        self, root: Value | None, steps: Sequence[PathStep], outlines: Sequence[Outline] = ()
    ) -> list[Value]:
        """Return the values at a path: one or none, or with ``[*]`` any number."""
        values = [] if root is None else [root]
        for step, outline in zip(steps, outlines or repeat(None), strict=False):
            if len(values) == 1:
                values = list(self._inside(values[0], step, outline))
            else:
                values = [inner for value in values for inner in self._inside(value, step, outline)]
        return values

    def _inside(self, value: Value, step: PathStep, outline: Outline | None) -> Sequence[Value]:
        value = self.open(value, outline)
        if value.members is not None and isinstance(step, _NAMED):
            member = self.member(value, step.name)
            return () if member is None else (member.value,)
        if value.elements is None or isinstance(step, Key):
            return ()
        if step is Every.EVERY:
            return value.elements
        index = index_of(step)
        return () if index is None else value.elements[index : index + 1]


def index_of(step: PathStep) -> int | None:
    """Return the list index that a step means, or None."""
    if isinstance(step, Token):
        return int(step.name) if _INDEX.fullmatch(step.name) else None
    return step if isinstance(step, int) else None


def find_member(members: Sequence[Member], name: str) -> Member | None:
    """Return the member of that name, or None.

    Raises Unjudgeable if another could be taken for it.
    """
    match = None
    for member in members:
        key = member.key
        if key == name or could_be(key, name):
            if match is not None or key != name:
                raise Unjudgeable(f"the key {name!r} appears twice or in another spelling")
            match = member
    return match


def could_be(key: str, name: str) -> bool:
    """Tell whether careless readers could take a key for another."""
    if len(key) <= _LONGEST_KEPT:  # cached, because the same few keys come again and again
        return _could_be_cached(key, name)
    return _share_a_spelling(key, name)


def _share_a_spelling(key: str, name: str) -> bool:
    return not _spellings(key).isdisjoint(_spellings(name))


_could_be_cached = lru_cache(maxsize=4096)(_share_a_spelling)


def _by_spelling(members: Sequence[Member]) -> dict[str, list[Member]]:
    index: dict[str, list[Member]] = {}
    for member in members:
        for spelling in _spellings(member.key):
            index.setdefault(spelling, []).append(member)
    return index


def _spellings(key: str) -> frozenset[str]:
    return frozenset((fold(key), key.casefold()))


def equals(document: Document, value: Value, wanted: Json) -> bool:
    """Tell whether a value equals the wanted one: 1 equals 1.0, but ``true`` does not equal 1."""
    if value.text is not None:
        return isinstance(wanted, str) and value.text == wanted
    match document.text[value.start]:
        case "{":
            return isinstance(wanted, Object) and _equals_object(document, value, wanted)
        case "[":
            elements = document.open(value).elements or ()
            return (
                isinstance(wanted, tuple)
                and len(elements) == len(wanted)
                and all(equals(document, *pair) for pair in zip(elements, wanted, strict=True))
            )
        case "t" | "f" | "n":
            # Not "in (None, True, False)": 1 == True in Python.
            return (wanted is None or isinstance(wanted, bool)) and (
                json.dumps(wanted) == document.written(value)
            )
        case _:
            return isinstance(wanted, Number) and number_in(document, value) == wanted


def number_in(document: Document, value: Value) -> Number | None:
    """Return a number's value; None for anything else."""
    if document.text[value.start] not in "-0123456789":
        return None
    try:
        return Number(document.written(value))
    except ValueError as error:
        raise Unjudgeable(str(error)) from None


def _equals_object(document: Document, value: Value, wanted: Object) -> bool:
    opened = document.open(value)
    members = opened.members or ()
    if len({fold(member.key) for member in members}) != len(members):
        raise Unjudgeable("keys that could be taken for one another")
    for key, inner in wanted.members:
        member = document.member(opened, key)
        if member is None or not equals(document, member.value, inner):
            return False
    return len(members) == len(wanted.members)


def hash_params(document: Document, params: Value | None) -> str:
    """Return a short hash that is the same for all spellings of the same params.

    Leaves out the progress token, which differs from request to request. Raises Unjudgeable.
    """
    members: object = _Members()
    if params is not None:
        try:
            members = json.loads(
                document.written(params),
                object_pairs_hook=_Members,
                parse_int=_by_value,
                parse_float=_by_value,
            )
        except ValueError as error:
            raise Unjudgeable(str(error)) from None
    if isinstance(members, _Members):
        members = _Members(_without_token(members))
    return hashlib.sha256(_canonical(members).encode()).hexdigest()[:32]


class _Members(list[tuple[str, object]]):
    """An object's members by key; the same key may come several times, in their order."""

    def __init__(self, pairs: Iterable[tuple[str, object]] = ()) -> None:
        super().__init__(sorted(pairs, key=itemgetter(0)))


def _by_value(text: str) -> tuple[int, int, str]:
    return Number(text).key


def _canonical(value: object) -> str:
    match value:
        case _Members():
            return "{" + ",".join(f"{quote(key)}:{_canonical(of)}" for key, of in value) + "}"
        case list():
            return f"[{','.join(map(_canonical, value))}]"
        case tuple():
            return repr(value)
        case _:
            return json.dumps(value)


def _without_token(params: _Members) -> Iterator[tuple[str, object]]:
    for key, value in params:
        if key == "_meta" and isinstance(value, _Members):
            value = _Members(member for member in value if member[0] != "progressToken")
            if not value:
                continue
        yield key, value
