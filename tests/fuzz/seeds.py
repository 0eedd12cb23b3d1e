"""What the fuzzer begins with: the attacks and the honest exchanges of the other tests, by door.

python -m tests.fuzz.seeds DIRECTORY      writes them there, and tokens.dict beside them
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import cycle
from pathlib import Path

from tests.attacks import answers, honest, hostile_requests
from tests.fuzz.subject import ALLOWED, BETWEEN, DENIED, MARK, SECRET
from tests.fuzz.tokens import TOKENS, spelled
from tests.make import answering, asking, calling, definition, event, listing

_LONGEST = 2048  # bytes
(
    _REQUEST, _REQUEST_WITH_HEAD, _ANSWER, _CODED_ANSWER, _STREAM, _SPOKEN, _PATTERN, _PARSERS,
    _EXCHANGE, _LINES, _BY_RULES, _SPELLED,
) = range(12)  # fmt: skip
_HEAD = re.compile(rb"[A-Z]+ (\S+) HTTP/1\.[01]\r\n(.*?)\r\n\r\n(.*)", re.DOTALL)
_PATTERNS = (
    r"^wipe", r"_disk$", r".*_database$", r"^a{1,2}$,[,],(?:b,c),d\,e", r"(?i:x)", r"(a+)+$",
    r"(?<name>x)\k<name>", r"[^\]a-z]", r"\u{61}\p{L}", r"(?=wipe).*", r"^(?!read_).+$",
    r"[\d\w-]+", r"\bfile\b", r"(a|b|ab)*c", r"x{2,}?", "^(file|db)_[a-z]+$", r"\cA\0\x41\u0041",
)  # fmt: skip
_ENDPOINTS = (
    "/messages?session=1", "http://127.0.0.1:3000/messages", "http://localhost:3000", "//evil.test",
    r"\\evil.test", "///evil.test", "http:evil", "https://us.test@evil.test/", "?a=1", "mailto:x",
)  # fmt: skip


def seeds() -> list[bytes]:
    """Return what to begin with; what is long only takes time."""
    return [one for one in dict.fromkeys(_seeds()) if len(one) <= _LONGEST]


def _seeds() -> Iterator[bytes]:
    """Circumstances change from one to the next."""
    how = cycle(range(256))
    for body in _bodies():
        for door in (_REQUEST, _SPOKEN, _PARSERS):
            yield _seed(door, next(how) & ~7 if door == _REQUEST else next(how) | 1, body)
    attacks = (one.raw for one in hostile_requests.ATTACKS)
    for raw in (*attacks, *(one.asked for one in honest.EXCHANGES)):
        if found := _HEAD.fullmatch(raw):
            target, fields, body = found.groups()
            yield _seed(_REQUEST_WITH_HEAD, 0, target + b"\r\n" + fields + b"\r\n\r\n" + body)
            yield _seed(_REQUEST, 1 + next(how) % 4, body)
    for name in (b"name", b"+AG4-ame"):
        call = calling(ALLOWED).replace(b'","arg', b'","%s":"%s","arg' % (name, DENIED.encode()))
        head = b"/mcp\r\nContent-Type: application/json; charset=utf-7\r\n\r\n"
        yield _seed(_REQUEST_WITH_HEAD, 0, head + call)
    for body in _answers():
        yield _seed(_ANSWER, next(how), body)
        yield _seed(_SPOKEN, next(how) & ~1, body)
        yield _seed(_STREAM, next(how), event(body))
    for coding in ("utf-16", "utf-16-le", "utf-32", "utf-7", "latin-1"):
        for kind in range(0, 256, 4):
            yield _seed(_ANSWER, kind, listing(ALLOWED, DENIED).decode().encode(coding))
    for stream in _streams():
        yield _seed(_STREAM, next(how) & ~3, stream)
        yield _seed(_STREAM, next(how), stream)
    for said, heard in _exchanges():
        for circumstances in (0, 4):
            yield _seed(_EXCHANGE, circumstances, said + BETWEEN + heard)
            yield _seed(_EXCHANGE, circumstances + 1, said + BETWEEN + event(heard))
            yield _seed(_EXCHANGE, circumstances + 2, said + BETWEEN + event(heard))
    for one in answers.ATTACKS:
        _, _, body = b"".join(one.said).partition(b"\r\n\r\n")
        yield _seed(_CODED_ANSWER, next(how), body)
    for door, raws in ((_REQUEST, _bodies()), (_ANSWER, _answers()), (_STREAM, _streams())):
        for raw in raws:
            if len(raw) < _LONGEST and (numbers := spelled(raw)):
                yield _seed(_SPELLED, door, bytes([next(how) & ~7]) + numbers)
    for body in _bodies():
        for said in (body + b"\n", asking("ping") + b"\r" + body + b"\r\n"):
            yield _seed(_LINES, next(how) | 1, said)
    for body in _answers():
        for circumstances in range(0, 16, 2):
            yield _seed(_LINES, circumstances, body + b"\n\n" + body)
    for said in _guarded_calls():
        for _ in range(6):
            yield _seed(_BY_RULES, next(how), said + BETWEEN + _SAID_BACK)
    for pattern in _PATTERNS:
        yield _seed(_PATTERN, next(how), f"{pattern}\0{DENIED}".encode())


def _guarded_calls() -> Iterator[bytes]:
    """Calls that some guards block and some do not, plain and disguised."""
    for arguments in (
        '{"path":"/etc/passwd"}', '{"path":"\\u002fetc/passwd","n":2}', '{"p\\u0061th":null}',
        '{"path":"/home","path":"/etc/passwd"}', '{"path":"/etc/passwd","Path":"/home"}',
        '{"PATH":["/etc/passwd"]}', '{"path":"/home", "other":"/etc/passwd","n":1.50}', "{ }",
        '{"paths":["/home",["/etc"],"/etc"],"path":"/home"}', '{"path":"/home","safe":false}',
        '{"path":[1],"other":"wipe_disk"}', '{"path\\u0000":"/etc/x","path":"/home"}', "[]", "null",
        '{"path":"/home","other":"write_file"}', f'{{"path":"/home","other":"{SECRET}"}}',
    ):  # fmt: skip
        said = calling(ALLOWED, arguments=arguments)
        yield from (
            said,
            said.replace(b'"id":1,', b""),
            b"[" + said + b"," + asking("ping", id="2") + b"]",
        )
        yield said.replace(b'"arguments"', b'"arguments":{"path":"/home"},"arguments"')


_SAID_BACK = (
    f'{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"{SECRET}"}},'
    f'{{"text":"s\\u006b-burns"}}],"k":["sk-{SECRET}"]}}}}'
).encode()


def tokens() -> str:
    """Return the dictionary, in the form of AFL and libFuzzer."""
    escaped = ("".join(f"\\x{byte:02x}" for byte in token) for token in TOKENS)
    return "".join(f'"{one}"\n' for one in escaped)


def _seed(door: int, how: int, raw: bytes) -> bytes:
    return bytes([door, how]) + raw


def _short(raws: Iterator[bytes]) -> list[bytes]:
    return [raw for raw in raws if len(raw) <= _LONGEST]


@cache
def _bodies() -> list[bytes]:
    return _short(_every_body())


@cache
def _answers() -> list[bytes]:
    return _short(_every_answer())


@cache
def _streams() -> list[bytes]:
    return _short(_every_stream())


def _every_body() -> Iterator[bytes]:
    yield from (body for _, body in hostile_requests.bodies())
    yield from (body for _, body in (*honest.calls(), *honest.methods()))
    yield calling(DENIED)
    yield asking("tools/list")
    yield b"[%s,%s,%s]" % (calling(DENIED, id="2"), calling(ALLOWED), asking("ping", id="3"))


def _every_answer() -> Iterator[bytes]:
    yield from (body for _, body in (*answers.messages(), *honest.results()))
    yield listing(ALLOWED, DENIED)
    denied = definition(DENIED, f',"description":"{MARK.decode()}"')
    yield listing(more=f',"x":{denied.decode()}')


def _exchanges() -> Iterator[tuple[bytes, bytes]]:
    batch = b"[%s,%s]" % (calling(DENIED, id="2"), calling(ALLOWED))
    yield batch, b"[%s]" % answering("{}")
    yield batch, answering("{}")
    yield b"[%s,%s]" % (calling(DENIED), b'{"jsonrpc":"2.0","method":"x"}'), b""
    yield asking("initialize"), answering('{"protocolVersion":"2025-06-18"}')
    yield calling(ALLOWED), answering('{"content":[]}')
    yield calling(DENIED), b""
    for raw in _answers():
        yield asking("tools/list"), raw


def _every_stream() -> Iterator[bytes]:
    yield from (b"event: endpoint\ndata: %s\n\n" % url.encode() for url in _ENDPOINTS)
    yield b"event: endpoint\ndata: htt\r\rp://evil.test/\n\n"
    yield from (raw for _, raw in honest.events())
    for one in answers.ATTACKS:
        head, _, body = b"".join(one.said).partition(b"\r\n\r\n")
        if b"event-stream" in head and len(body) < 8 * _LONGEST:  # the longer take seconds
            yield _unchunked(body) if b"chunked" in head else body


def _unchunked(raw: bytes) -> bytes:
    return b"".join(re.findall(rb"(?s)(?:^|\r\n)[0-9a-f]+\r\n(.*?)(?=\r\n[0-9a-f]+\r\n|$)", raw))


def main(directory: str) -> None:
    home = Path(directory)
    home.mkdir(parents=True, exist_ok=True)
    for one in seeds():
        (home / sha256(one).hexdigest()[:16]).write_bytes(one)
    home.with_name("tokens.dict").write_text(tokens())


if __name__ == "__main__":
    main(sys.argv[1])
