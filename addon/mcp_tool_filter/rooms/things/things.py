"""The filter of prompts, resources and skills: which are listed, and which may be asked for.

They are filtered as tools are, with one difference: nothing is fetched or pinned. The patterns
alone judge names and URIs, so a name that no pattern denies goes to the upstream, known or not.

One table (``_LISTS``, ``_ASKING``) says where each kind is listed, which members of an element name
it, and which requests ask for it. A message that could name two different things is refused.

A skill (SEP-2640) is a folder of resources, at ``skill://PATH/FILE``. Its name is the last part of
its path. All of its files are denied with it, and so are the skills in it:

>>> from mcp_tool_filter.core.policy.patterns import parse_pattern
>>> things = Things((), (), [parse_pattern("^refunds$")])
>>> [things.denying_uri(uri) is not None for uri in (
...     "skill://acme/refunds/SKILL.md", "skill://acme/refunds/a/b.py", "skill://acme/SKILL.md")]
[True, True, False]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import starmap
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import R2026_07_28, Limits
from mcp_tool_filter.core.messages.messages import (
    Message,
    Notification,
    Request,
    Response,
    Single,
    bare_json,
    fold,
    is_misleading,
    is_too_long_to_open,
    parse_message,
    quote_harmlessly,
    refuse_misreadable,
    singles,
)
from mcp_tool_filter.core.messages.scan import EACH, Value, has_lone_surrogate, open_value, scan
from mcp_tool_filter.core.messages.tools import (
    CONTENT_FOLDED,
    Edit,
    cache_edits,
    edited,
    fold_key,
    with_edits,
    without,
)
from mcp_tool_filter.core.policy.effects import LET_OTHERS_GO_ON, Deciding
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.snapshot import Thing, shown
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.rooms.things.uris import (
    FOR_A_URI,
    LONGEST_URI,
    UnclearUri,
    Work,
    has_many_marks,
    is_costly,
    spellings_of,
    without_invisible,
)

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.situation import Situation

PROMPT: Final = "prompt"
RESOURCE: Final = "resource"
SKILL: Final = "skill"


class _List(NamedTuple):
    """How a member of a result lists things."""

    kind: str
    named_by: tuple[str, ...]
    """The members of an element that name it; the first that is there names it to people."""
    is_known: bool = True
    """True if each element must have a name. In a list that MCP does not define, others stay."""


_LISTS: Final = {
    "prompts": _List(PROMPT, ("name",)),
    "resources": _List(RESOURCE, ("uri",)),
    "resourceTemplates": _List(RESOURCE, ("uriTemplate",)),
    "skills": _List(SKILL, ("uri", "url", "path", "name")),
}
_CONTENT: Final = _List(RESOURCE, ("uri",))
_CONTENTS: Final = {"contents": _CONTENT}
"""What resources/read returns: perhaps all files of a folder."""
_ONE: Final = {kind: _LISTS[f"{kind}s"] for kind in (PROMPT, RESOURCE, SKILL)}
"""Members of a result that describe one thing, as in the answer to skills/get."""
_WITHIN: Final = {
    "prompts/": _LISTS["prompts"]._replace(is_known=False),
    "resources/": _List(RESOURCE, ("uri", "uriTemplate"), is_known=False),
    "skills/": _LISTS["skills"]._replace(is_known=False),
}
"""How any other list in the answer to such a method lists things."""
_OTHER_LISTS: Final = frozenset(
    {"", "items", "entries", "children", "results", "nodes", "matches", "names", "uris"}
)
"""What such a list may be called. Under any other name, only URIs tell that it is one."""
_NO_LISTS: Final = CONTENT_FOLDED | {"arguments"}
_FOLDED: Final = {fold(name): name for name in (*_LISTS, *_CONTENTS, *_ONE)}
_LISTS_FOLDED: Final = tuple(map(fold, _LISTS))
_MAY_LIST: Final = frozenset({*_LISTS_FOLDED, *_OTHER_LISTS}) - {""}
_URIS: Final = frozenset({"uri", "uriTemplate"})
_LISTING: Final = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "resources/directory/read": "resources",
    "resources/read": "contents",
    "skills/list": "skills",
    "skills/get": "skill",
}
"""The methods whose answers must list in this way."""
_ASKING: Final = {
    "prompts/": _List(PROMPT, ("name", "prompt", "promptName")),
    "resources/": _List(RESOURCE, ("uri", "uriTemplate", "resource")),
    "skills/": _List(SKILL, ("uri", "url", "path", "name", "id", "skill", "skillName")),
}
"""What requests and notifications whose methods begin so name. (A member with an s at its end names
several.)"""
_LISTED_BY: Final = {
    PROMPT: ("prompts/list",),
    RESOURCE: ("resources/list", "resources/templates/list"),
    SKILL: ("skills/list", "resources/list"),
}
_COMPLETE, _LISTEN = "completion/complete", "subscriptions/listen"
_NAMED_EXACTLY: Final = (
    *(method for method in _LISTING if "list" not in method),
    "prompts/get", "resources/subscribe", "resources/unsubscribe", _COMPLETE, _LISTEN,
)  # fmt: skip
_OTHERS_CONTENT: Final = frozenset({"tools/call", "prompts/get", _COMPLETE})
"""Their results carry no lists of things; links in the result of a tool stay."""
_KNOWN: Final = frozenset(
    {name for asked in _ASKING.values() for name in asked.named_by}
    | {"names", "uris", "ref", "cursor", "arguments", "argument", "context", "_meta"}
    | {"notifications", "resourceSubscriptions"}
)
_KNOWN_FOLDED: Final = frozenset(map(fold, _KNOWN))
_REVISION: Final = "io.modelcontextprotocol/protocolVersion"
_INVALID_PARAMS: Final = -32602
_RESOURCE_NOT_FOUND: Final = -32002  # before 2026-07-28
_NOT_A_LETTER = re.compile(r"[\W_]")
_LONGEST_NAME = 64 * 1024  # characters of a prompt's name
# A string that may name a thing, in an array or as a member (its key may have escapes, too).
_COSTLY_STRING = re.compile(
    r'(?:[\[,]|"(?:uri|url|path|uriTemplate|name|[^"\\]*+\\[^"]*+)"[ \t\n\r]*:)[ \t\n\r]*'
    r'("(?=[^"%\\]*(?:[%\\]|/\.)|[^"]{200})(?:[^"\\]|\\.)*+")'
)
_AT_ONCE = 20_000  # steps for URIs that are judged ahead before other clients are served
_MOST_ASKED = 10_000_000  # steps for all URIs that one message of a client may name
_STEPS_OF_URI, _STEPS_OF_CHARACTER = 500, 40  # at least
_SHORT_URI = 200  # characters; without escapes and dots it is judged at once
_LONGEST_METHOD = 64  # characters of one whose kind we remember
_LONGEST_KEPT = 1024  # characters of a URI whose verdict we remember
_MOST_ROOTS = 1000  # folders of denied skills that we remember
_MOST_LEVELS = 100  # folders of a URI
_FOLDER_OF_SKILLS = re.compile(r"(?:^|/)skills?/", re.IGNORECASE)
_INDEX = re.compile(r"^skill:(?:.*/)?index\.json$", re.IGNORECASE)
_SKILL_FILE = re.compile(r"(?:^|/)SKILL\.md$", re.IGNORECASE)


class Denied(NamedTuple):
    """A thing that is hidden and refused."""

    kind: str
    name: str
    why: str
    """For observers."""
    pattern: str = ""


class Things:
    """The patterns in force for prompts, resources and skills."""

    def __init__(
        self, prompts: Sequence[Pattern], resources: Sequence[Pattern], skills: Sequence[Pattern]
    ) -> None:
        self._prompts, self._resources, self._skills = prompts, resources, skills
        self.patterns = prompts, resources, skills
        self._roots: dict[str, str] = {}
        """The folders of denied skills that lists have shown, by URI, and the patterns that deny
        them: of another scheme than skill://, a URI does not tell that it belongs to a skill."""
        self._ahead: dict[str, Denied | None] = {}
        """Verdicts on the URIs of the message that is decided next."""
        of_uris = (RESOURCE, SKILL) if resources or skills else ()
        self._kinds: frozenset[str] = frozenset((*of_uris, *((PROMPT,) if prompts else ())))
        self._denying_uri = lru_cache(maxsize=4096)(self._judge_uri)
        self._kind_of_method = lru_cache(maxsize=256)(self._judge_method)

    # Names

    def denying_prompt(self, name: str) -> Denied | None:
        """Return what denies the prompt of this name."""
        if len(name) > _LONGEST_NAME or has_many_marks(name):
            return Denied(PROMPT, name, "a name that cannot be judged")
        plain = without_invisible(name)
        return _first(PROMPT, self._prompts, name, (name,) if plain == name else (name, plain))

    def denying_uri(self, uri: str) -> Denied | None:
        """Return what denies the resource, the template or the skill's file at this URI."""
        if len(uri) > LONGEST_URI:
            return Denied(RESOURCE, uri, "a URI that is too long to judge")
        if uri in self._ahead:
            return self._ahead[uri]
        return self._denying_uri(uri) if len(uri) <= _LONGEST_KEPT else self._judge_uri(uri)

    def judge_ahead(self, answer: Message, method: str = "") -> Deciding[None]:
        """Judge the URIs of a long answer in steps, so that other clients are served meanwhile:
        one with escapes has many spellings. Decide on the answer right after this."""
        if method not in _OTHERS_CONTENT and RESOURCE in self._kinds:
            text = next(singles(answer)).place.text
            yield from self._judge_all_ahead(
                uri for found in _COSTLY_STRING.finditer(text)
                if not has_lone_surrogate(uri := json.loads(found[1]))
            )  # fmt: skip

    def judge_asked_ahead(self, message: Message) -> Deciding[None]:
        """Do the same for the URIs that a client's message names. Raises ProtocolError if they are
        too many, or cannot be read."""
        named = [
            text if kind == RESOURCE else _uri_of_skill(text)
            for one in singles(message)
            if not isinstance(one, Response) and (asked := self._kind_asked(one.method))
            for kind, text in _named_in(one, asked)
            if kind != PROMPT
        ]
        slow = [uri for uri in named if len(uri) > _SHORT_URI or is_costly(uri)]
        least = sum(_STEPS_OF_CHARACTER * len(uri) for uri in slow if len(uri) <= LONGEST_URI)
        if least + _STEPS_OF_URI * len(named) > _MOST_ASKED:
            raise ProtocolError("too many URIs to judge")
        yield from self._judge_all_ahead(slow, _MOST_ASKED)

    def _judge_all_ahead(self, uris: Iterable[str], most: float = inf) -> Deciding[None]:
        ahead: dict[str, Denied | None] = {}
        at_once = spent = 0
        for uri in uris:
            if len(uri) > LONGEST_URI or uri in ahead:
                continue
            if spent >= at_once:
                yield LET_OTHERS_GO_ON
                at_once = spent + _AT_ONCE
            if spent > most:
                raise ProtocolError("too many URIs to judge")
            work = Work()
            ahead[uri] = self._judge_spellings(uri, work)
            spent += _STEPS_OF_URI + FOR_A_URI - work.steps
        self._ahead = ahead

    def _judge_uri(self, uri: str) -> Denied | None:
        return self._judge_spellings(uri, Work())

    def _judge_spellings(self, uri: str, work: Work) -> Denied | None:
        """Judge a URI by all that a server could take it for; refuse it if that is too much."""
        try:
            spellings = spellings_of(uri, work)
            if denied := _first(RESOURCE, self._resources, uri, spellings, work):
                return denied
            for spelling in spellings if self._skills else ():
                if spelling.count("/") > _MOST_LEVELS:
                    return Denied(SKILL, uri, "a URI with too many folders")
                if denied := self._judge_skill_file(uri, spelling, work):
                    return denied
        except UnclearUri as error:
            return Denied(RESOURCE if self._resources else SKILL, uri, f"an unclear URI: {error}")
        return None

    def _judge_skill_file(self, uri: str, spelling: str, work: Work) -> Denied | None:
        """Judge a file by all folders that it is in: each may be a skill."""
        work.read(spelling, spelling.count("/") + 1)
        folders = list(_folders_of(spelling))
        if by := next(filter(None, map(self._roots.get, folders)), ""):
            return Denied(SKILL, uri, f"denied by {by}", by)
        for folder in _skills_among(folders, spelling):
            if denied := _first(SKILL, self._skills, uri, _ways_to_name(folder), work):
                return denied
        return None

    # What the upstream lists

    @property
    def lists(self) -> tuple[str, ...]:
        """The methods that list what the patterns judge."""
        by_kind = zip(_LISTED_BY.values(), self.patterns, strict=True)
        asked = (method for methods, patterns in by_kind if patterns for method in methods)
        return tuple(dict.fromkeys(asked))

    def survey(
        self, answers: Mapping[str, Sequence[bytes]]
    ) -> tuple[tuple[Thing, ...], list[Pattern]]:
        """Return what an upstream lists, given its answers to ``lists``, and the patterns that
        match nothing of that. Raises ProtocolError.

        Those that may match what is not listed do not count: expansions of a template, and files
        of a skill, which need no listing.
        """
        listed = list(_elements_of(answers))
        has_templates = any(method == "resources/templates/list" for method, *_ in listed)
        has_skills = any(method == "skills/list" for method, *_ in listed)
        things = []
        for _, text, element, how in listed:
            names = [value.text for name in how.named_by if (value := element.get(name))]
            name = next((one for one in names if one), "?")
            denied = self._judge_element(text, element, how)
            things.append(Thing(how.kind, shown(name), denied.pattern or "?" if denied else ""))
        is_telling = {PROMPT: True, RESOURCE: not has_templates, SKILL: has_skills}
        unmatched = [
            pattern
            for kind, patterns in zip(_LISTED_BY, self.patterns, strict=True)
            if is_telling[kind] and all(method in answers for method in _LISTED_BY[kind])
            for pattern in patterns
            if not _hits(pattern, kind, listed)
        ]
        return tuple(things), unmatched

    # What clients ask for

    def decide_from_client(self, message: Request | Notification, situation: Situation) -> Verdict:
        """Answer a request for a denied thing as if there were no such thing."""
        kind = self._kind_asked(message.method)
        if kind is None or message.params is None:
            return Forward()
        if message.params.members is None:
            raise ProtocolError(f"a {kind} whose params are not an object")
        _refuse_alike(message.params)
        if message.method == _LISTEN:
            return self._decide_listen(message, situation)
        denied = self._first_denied(message, kind)
        return Forward() if denied is None else _refused(message, denied, situation)

    def _kind_asked(self, method: str) -> str | None:
        """Return what a method asks for; None if nothing that is judged. Raises ProtocolError."""
        is_short = len(method) <= _LONGEST_METHOD
        kind = (self._kind_of_method if is_short else self._judge_method)(method)
        return kind if kind in self._kinds else None

    def _judge_method(self, method: str) -> str | None:
        """Return what a method asks for; None if nothing that is judged.

        Raises ProtocolError for one that a careless reader takes for another one.
        """
        if method in _LISTING and method.endswith("/list"):
            return None
        if method == _LISTEN:
            return RESOURCE
        if method == _COMPLETE:
            return next(iter(self._kinds))
        if asked := _asked_by(method):
            return asked.kind
        path = re.split(r"[?#;]", unquote(unquote(method)), maxsplit=1)[0]
        bare = _NOT_A_LETTER.sub("", fold(path))
        for known in _NAMED_EXACTLY:
            is_like_it = bare.endswith(_NOT_A_LETTER.sub("", known).lower())
            if is_like_it and self._judge_method(known) in self._kinds:
                raise ProtocolError("a method that could be taken for another")
        return None

    def _first_denied(self, message: Request | Notification, kind: str) -> Denied | None:
        """Return what denies the first denied thing that a request names."""
        return next(filter(None, starmap(self._judge, _named_in(message, kind))), None)

    def _judge(self, kind: str, text: str) -> Denied | None:
        if kind == PROMPT:
            return self.denying_prompt(text) if self._prompts else None
        if RESOURCE not in self._kinds:
            return None
        if kind == RESOURCE:
            return self.denying_uri(text)
        denied = self.denying_uri(_uri_of_skill(text))
        return denied and denied._replace(name=text)

    def _decide_listen(self, message: Request | Notification, situation: Situation) -> Verdict:
        """Remove the denied resources from a subscription; refuse one of nothing else."""
        text = message.place.text
        asked, uris = _subscribed_in(message)
        if uris is None:
            return Forward()
        found = [self._judge(*one) for one in _named_in(message, RESOURCE)]
        denied = [one for one in found if one is not None]
        if not denied:
            return Forward()
        others = [
            member
            for member in asked.members or ()
            if member.key != "resourceSubscriptions" and text[member.value.start] not in "fn"
        ]
        if len(denied) == len(found) and not others:
            return _refused(message, denied[0], situation)
        kept = [one is None for one in found]
        edit = Edit(uris.start, uris.end, without(text, uris, kept))
        return Rewrite(edited(message.place, [edit]), _reason(Why.DENIED, denied))

    # What the upstream says

    def decide_from_upstream(self, message: Single, situation: Situation) -> Verdict:
        """Remove denied things from a list; drop a notification about one."""
        method = situation.exchange.method if situation.exchange else ""
        try:
            if isinstance(message, Notification):
                return self._decide_notification(message)
            if isinstance(message, Response) and message.result and method not in _OTHERS_CONTENT:
                return self._decide_answer(message, message.result, method, situation)
            return Forward()
        finally:
            self._ahead = {}

    def _edits_in(
        self, text: str, key: str, value: Value, found: list[Denied], within: _List | None
    ) -> Iterator[Edit]:
        """Yield what removes denied things from the lists in a value that is called ``key``: those
        that we know by their names, and those that are like the lists ``within`` which they are."""
        if key in _NO_LISTS:
            return
        opened, how = open_value(text, value, {EACH: {}}), _LISTS.get(_FOLDED.get(key, ""))
        if how is None or how.kind not in self._kinds:
            is_like_it = opened.elements and within and _is_list(opened.elements, within, key)
            how = within if is_like_it else None
        if how is not None and opened.elements is not None:
            if (new := self._filtered(text, value, how, found)) is not None:
                yield Edit(value.start, value.end, new)
        elif opened.get("inputSchema") is None:  # else it is a tool's definition, which stays
            for element in opened.elements or ():
                yield from self._edits_in(text, "", element, found, within)
            for member in opened.members or ():
                yield from self._edits_in(text, fold_key(member.key), member.value, found, within)

    def _edits_beside(
        self, text: str, key: str, value: Value, found: list[Denied], within: _List | None
    ) -> Iterator[Edit]:
        """Do the same as ``_edits_in`` where there is seldom a list."""
        if text[value.start] in "{[" and key not in _NO_LISTS:
            written = text[value.start : value.end]
            if key in _MAY_LIST or _may_list(written, within):
                if is_too_long_to_open(written):
                    raise ProtocolError("too many members to look for denied things")
                yield from self._edits_in(text, key, value, found, within)

    def _decide_notification(self, message: Notification) -> Verdict:
        asked = _asked_by(message.method)
        if asked is None or message.params is None or message.params.members is None:
            return Forward()
        _refuse_alike(message.params)
        denied = self._first_denied(message, asked.kind)
        return Forward() if denied is None else Drop(_reason(Why.DENIED, [denied]))

    def _decide_answer(
        self, message: Response, result: Value, method: str, situation: Situation
    ) -> Verdict:
        """Remove denied things from all lists of an answer."""
        text, within, expected = message.place.text, _within(method), _LISTING.get(method)
        known = {**_LISTS, **_ONE, **(_CONTENTS if method == "resources/read" else {})}
        is_listing = not _FOLDED.keys().isdisjoint(map(fold_key, result.named))
        members = [(one.key, one.value) for one in result.members or ()]
        edits: list[Edit] = []
        found: list[Denied] = []
        seen: set[str] = set()
        is_empty = False
        for key, value in members if is_listing else [("", result)]:
            name = _FOLDED.get(fold_key(key), "")
            if name not in known:
                edits += self._edits_beside(text, fold_key(key), value, found, within)
                continue
            how = known[name]
            if how.kind not in self._kinds:
                continue
            if key != name or name in seen:
                raise ProtocolError(f"a list of {name} that could be read in two ways")
            seen.add(name)
            one = open_value(text, value, {}) if name in _ONE else None
            if one and one.members is not None and (denied := self._judge_element(text, one, how)):
                return _not_there(message, denied, method, situation)
            if (new := self._filtered(text, value, how, found)) is not None:
                edits.append(Edit(value.start, value.end, new))
                is_empty |= name == "contents" and new == "[]"
            elif name == expected and name not in _ONE and text[value.start] != "[":
                raise ProtocolError(f"{name} that are not a list")
        if not edits:
            return Forward()
        if is_empty:
            return _not_there(message, found[0], method, situation)
        edits += cache_edits(text, result) if is_listing or within else ()
        return Rewrite(edited(message.place, edits), _reason(Why.HIDDEN, found))

    def _filtered(self, text: str, value: Value, how: _List, found: list[Denied]) -> str | None:
        """Return the list without denied things, or None if it has none.

        Also looks into the elements, for lists of other things, such as a skill's files.
        """
        opened = open_value(text, value, {EACH: {}})
        if opened.elements is None:
            return self._inside(text, opened, how, found)
        kept: list[bool] = []
        changed: dict[int, str] = {}
        written = text[value.start : value.end]
        may_nest = how is _CONTENT or _may_nest(written, opened.elements)
        for number, element in enumerate(opened.elements):
            denied = self._judge_element(text, element, how)
            kept.append(denied is None)
            if denied is not None:
                found.append(denied)
            elif may_nest and (new := self._inside(text, element, how, found)) is not None:
                changed[number] = new
        if all(kept) and not changed:
            return None
        return without(text, opened, kept, changed)

    def edits_in(self, text: str, document: Value) -> Iterator[Edit]:
        """Yield what removes denied things from all lists of a document."""
        return self._edits_in(text, "", document, [], None)

    def _inside(self, text: str, element: Value, how: _List, found: list[Denied]) -> str | None:
        """Return an element without the denied things that it lists; None if it lists none."""
        if how is _CONTENT:
            return self._index(text, element, found)
        within, edits = how._replace(is_known=False), list[Edit]()
        if element.members is None:
            edits += self._edits_in(text, "", element, found, within)
        for member in element.members or ():
            edits += self._edits_beside(text, fold_key(member.key), member.value, found, within)
        return with_edits(text, element.start, element.end, edits) if edits else None

    def _index(self, text: str, content: Value, found: list[Denied]) -> str | None:
        """Return the text of an index of skills (in earlier drafts a file, skill://index.json)
        without the denied ones; None if it is no index, or has none."""
        uri, index = content.get("uri"), content.get("text")
        if not uri or not index or not index.text or not _INDEX.search(uri.text or ""):
            return None
        listed, root = scan(index.text.encode(), {"skills": {EACH: {}}})
        skills = root.get("skills")
        new = self._filtered(listed, skills, _LISTS["skills"], found) if skills else None
        if new is None or skills is None:
            return None
        said = json.dumps(listed[: skills.start] + new + listed[skills.end :], ensure_ascii=False)
        return text[content.start : index.start] + said + text[index.end : content.end]

    def _judge_element(self, text: str, element: Value, how: _List) -> Denied | None:
        """Return why an element of a list must not be shown."""
        kind, named_by = how.kind, how.named_by
        if element.text is not None and not has_lone_surrogate(element.text):
            return self._judge(kind, element.text)
        keys = [fold_key(member.key) for member in element.members or ()]
        if not keys and not how.is_known:
            return None
        if not keys or len(set(keys)) != len(keys) or any(map(is_misleading, keys)):
            return Denied(kind, "?", "an element that could be read in two ways")
        named = {name: element.get(name) for name in named_by}
        if kind == SKILL and (front := element.get("frontmatter")):
            named["frontmatter"] = open_value(text, front, {}).get("name")
        texts = {name: value.text for name, value in named.items() if value is not None}
        if not texts:
            is_harmless = how is _CONTENT or not how.is_known
            return None if is_harmless else Denied(kind, "?", "an element without a name")
        for name, said in texts.items():
            if said is None or has_lone_surrogate(said):
                return Denied(kind, "?", "an element without a name")
            denied = self._judge(RESOURCE if name in ("uri", "url") else kind, said)
            if denied is not None:
                if kind == SKILL and denied.kind == SKILL:
                    self._remember_root(texts.get("uri") or texts.get("url"), denied.pattern)
                return denied
        return None

    def _remember_root(self, uri: str | None, pattern: str) -> None:
        """Remember the folder of a denied skill: its files are denied, too."""
        if uri is None or not pattern or len(self._roots) >= _MOST_ROOTS:
            return
        try:
            spellings = spellings_of(uri)
        except UnclearUri:
            return
        for spelling in spellings:
            folder = _SKILL_FILE.sub("", _without_query(spelling)).rstrip("/")
            if folder.rpartition("://")[2].strip("/") and folder not in self._roots:
                self._roots[folder] = pattern
                self._ahead = {}
                self._denying_uri.cache_clear()


def _first(
    kind: str,
    patterns: Sequence[Pattern],
    name: str,
    texts: Sequence[str],
    work: Work | None = None,
) -> Denied | None:
    for pattern in patterns:
        if any(pattern.matches(text, work) for text in texts):
            return Denied(kind, name, f"denied by {pattern.text}", pattern.text)
    return None


def _asked_by(method: str) -> _List | None:
    """Return what a method asks for by its name."""
    start, slash, _ = method.removeprefix("notifications/").partition("/")
    return _ASKING.get(start + slash)


def _named_in(message: Request | Notification, kind: str) -> Iterator[tuple[str, str]]:
    """Yield each thing that a request names: its kind, and the name. Raises ProtocolError."""
    place, params = message.place, message.params
    if params is None:
        return
    if message.method == _LISTEN:
        uris = _subscribed_in(message)[1]
        yield from _names(RESOURCE, *(uris.elements or () if uris else ()))
        return
    if message.method == _COMPLETE:
        ref = params.get("ref")
        opened = open_value(place.text, ref, {}) if ref else None
        if opened is None:
            return
        if opened.members is None:
            raise ProtocolError("a ref that is not an object")
        _refuse_alike(opened)
        said = opened.get("type")
        is_of_skill = said is not None and said.text == "ref/skill"
        yield from _names(SKILL if is_of_skill else PROMPT, opened.get("name"))
        yield from _names(RESOURCE, opened.get("uri"), opened.get("uriTemplate"))
        return
    asked = _asked_by(message.method)
    members = asked.named_by if asked else ()
    for name in members:
        how = RESOURCE if kind == SKILL and name in ("uri", "url") else kind
        value = params.get(name)
        if value is not None and place.text[value.start] == "{":  # it describes the thing
            value = open_value(place.text, value, {})
            _refuse_alike(value)
            yield from _names(kind, *map(value.get, members))
        else:
            yield from _names(how, value)
        if several := params.get(f"{name}s"):
            each = open_value(place.text, several, {EACH: None}).elements
            yield from _names(how, *((several,) if several.text is not None else each or ()))


def _subscribed_in(message: Request | Notification) -> tuple[Value, Value | None]:
    """Return what a subscription asks for, and the resources in it. Raises ProtocolError."""
    text, params = message.place.text, message.params
    asked = params.get("notifications") if params else None
    asked = open_value(text, asked, {"resourceSubscriptions": {EACH: None}}) if asked else None
    if asked is None or asked.members is None:
        return Value(0, 0), None
    _refuse_alike(asked)
    uris = asked.get("resourceSubscriptions")
    if uris is None or text[uris.start] == "n":
        return asked, None
    if uris.elements is None:
        raise ProtocolError("resourceSubscriptions that are not a list")
    return asked, uris


def _names(kind: str, *values: Value | None) -> Iterator[tuple[str, str]]:
    for value in filter(None, values):
        if value.text is None:
            raise ProtocolError(f"the name of a {kind} that is not a string")
        if has_lone_surrogate(value.text):
            raise ProtocolError(f"half a surrogate pair in the name of a {kind}")
        yield kind, value.text


def _uri_of_skill(text: str) -> str:
    """Return the URI of a skill that is named by its URI, its path or its name."""
    return text if "://" in text else f"skill://{text.strip('/')}"


type _Listed = tuple[str, str, Value, _List]
"""The method, the text and the place of one thing, and how it is listed."""


def _elements_of(answers: Mapping[str, Sequence[bytes]]) -> Iterator[_Listed]:
    for method, pages in answers.items():
        member = _LISTING[method]
        for page in pages:
            with suppress(ProtocolError):  # clients will not get such a list
                message = parse_message(page, Limits(message=len(page)))
                if isinstance(message, Response) and message.result:
                    text, found = message.place.text, message.result.get(member)
                    opened = open_value(text, found, {EACH: {}}) if found else None
                    for element in (opened.elements if opened else None) or ():
                        yield method, text, element, _LISTS[member]


def _hits(pattern: Pattern, kind: str, listed: Sequence[_Listed]) -> bool:
    alone = Things(*([pattern] if kind == one else [] for one in _LISTED_BY))
    return any(alone._judge_element(text, element, how) for _, text, element, how in listed)


def _refuse_alike(holder: Value) -> None:
    """Raise ProtocolError for keys that a careless reader could confuse."""
    members = holder.members or ()
    refuse_misreadable(members, _KNOWN)
    for key in holder.named:
        if key not in _KNOWN and fold(key) in _KNOWN_FOLDED:
            raise ProtocolError("a key that could be taken for another")


def _within(method: str) -> _List | None:
    """Return how lists that we do not know in the answer to a method list things."""
    if method == "resources/read":
        return None
    return _WITHIN.get(f"{method.partition('/')[0]}/")


def _may_list(json_text: str, within: _List | None) -> bool:
    """Tell whether there may be a list of things somewhere in it."""
    bare = bare_json(json_text)
    names = (*_MAY_LIST, *map(fold, within.named_by)) if within else _LISTS_FOLDED
    return bare is None or any(f'"{name}"' in bare for name in names)


def _may_nest(json_text: str, elements: Sequence[Value]) -> bool:
    """Tell whether there may be lists in the elements of a list. (Most lists have none.)"""
    if json_text.find("[", 1) < 0:
        return False
    bare = bare_json(json_text)
    return (
        bare is None
        or bare.count('"uri') > sum(not _URIS.isdisjoint(one.named) for one in elements)
        or any(f'"{name}"' in bare for name in _MAY_LIST)
    )


def _is_list(elements: Sequence[Value], within: _List, key: str) -> bool:
    """Tell whether an array lists things, as far as its name and its elements tell."""
    is_called_one = key in _OTHER_LISTS
    named_by = {fold(name) for name in within.named_by if is_called_one or name in _URIS}
    return any(
        (one.text is not None and is_called_one)
        or any(fold_key(member.key) in named_by for member in one.members or ())
        for one in elements
    )


def _without_query(uri: str) -> str:
    return re.split(r"[?#]", uri, maxsplit=1)[0]


def _skills_among(folders: Sequence[str], spelling: str) -> Sequence[str]:
    """Return the folders that may be skills: all below skill://, or below a folder called skills;
    elsewhere the one with a SKILL.md."""
    if spelling.startswith("skill:"):
        return folders
    path = _without_query(spelling)
    if below := _FOLDER_OF_SKILLS.search(path):
        return [folder for folder in folders if len(folder) > below.end()]
    return folders[-1:] if _SKILL_FILE.search(path) else ()


def _folders_of(spelling: str) -> Iterator[str]:
    """Yield the URIs of all folders that a file is in, and its own if it may be a folder."""
    scheme, colon, path = _without_query(spelling).rstrip("/").partition("://")
    if not colon:
        scheme, colon, path = spelling.partition(":")
    parts = path.split("/")
    if len(parts) > 1 and "." in parts[-1]:
        parts.pop()
    for count in range(1, len(parts) + 1):
        if parts[count - 1]:
            yield f"{scheme}{colon}{'/'.join(parts[:count])}"


def _ways_to_name(folder: str) -> tuple[str, ...]:
    """Return how a pattern may name the skill in a folder: by name, path, or URI."""
    path = folder.rpartition("://")[2].strip("/")
    below = _FOLDER_OF_SKILLS.split(path)[-1]
    return path.rpartition("/")[2], path, below, folder, f"{folder}/SKILL.md"


def _reason(why: Why, denied: Sequence[Denied]) -> Reason:
    first = denied[0]
    names = tuple(shown(one.name) for one in denied if one.name)
    return Reason(why, names, detail=first.why, thing=first.kind, pattern=first.pattern)


def _refused(message: Request | Notification, denied: Denied, situation: Situation) -> Verdict:
    reason = _reason(Why.DENIED, [denied])
    if isinstance(message, Notification):
        return Drop(reason)
    meta = message.params.get("_meta") if message.params else None
    said = meta.get(_REVISION) if meta else None
    revision = said.text if said else None
    return Reply(_unknown(message.id, message.method, denied, situation, revision), reason)


def _not_there(message: Response, denied: Denied, method: str, situation: Situation) -> Rewrite:
    """Replace an answer that shows nothing but what is denied."""
    answer = _unknown(message.id or "null", method, denied._replace(name=""), situation)
    return Rewrite(answer, _reason(Why.DENIED, [denied]))


def _unknown(
    id: str, method: str, denied: Denied, situation: Situation, revision: str | None = None
) -> bytes:
    """Write the error that the revision's specification has for something that does not exist."""
    if revision is None and situation.client is not None:
        revision = situation.client.revision
    is_newer = (revision or "") >= R2026_07_28 or method == _LISTEN
    is_of_resources = method.startswith(("resources/", _LISTEN))
    code = _INVALID_PARAMS
    if is_of_resources and not is_newer and method != "resources/directory/read":
        code = _RESOURCE_NOT_FOUND
    if is_of_resources:
        uri = quote_harmlessly(denied.name)
        said, data = "Resource not found", f',"data":{{"uri":{uri}}}' if denied.name else ""
    else:
        said, data = f"Unknown {denied.kind}: {shown(denied.name)}".rstrip(": "), ""
    error = f'{{"code":{code},"message":{quote_harmlessly(said)}{data}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()
