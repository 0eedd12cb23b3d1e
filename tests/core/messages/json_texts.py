"""JSON as it may arrive: odd but legal, and what some reader accepts although it is none."""

from __future__ import annotations

ODD_BUT_LEGAL = [
    b'{"b":1,"a":2}', b' \t\r\n{ "a" :\n1 }\r\n', rb'"\u0041\ud83d\ude00\/\b\f"', rb'"\ud800"',
    rb'{"\udc00":"\ud800\ud800"}', b"1.00", b"-0", b"-0.0e-0", b"1E+2", b"18446744073709551617",
    b"1" * 400, b"1" * 5000, b"1." + b"1" * 5000, b"1e99999", b'{"a":1,"a":2,"A":3}',
    '"\u2028\u2029\u0085\ufeff"'.encode(),
    b'"' + b"\x7f" + b'"', b"[" * 128 + b"]" * 128, b'{"a":' * 128 + b"1" + b"}" * 128,
    b'[[],{},"[[[","{{{\\"{"]', b"null", b'""', b"[]", b"{}",
]  # fmt: skip

NOT_JSON = [
    b"", b"\xef\xbb\xbf{}", b"{}\xef\xbb\xbf", b"\xff\xfe{\x00}\x00",
    '{"a":1}'.encode("utf-16"),
    '{"a":1}'.encode("utf-16-le"),
    '{"a":1}'.encode("utf-32-be"),
    b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b"NaN", b"[NaN]", b"Infinity", b'{"a":-Infinity}',
    b"{} {}", b"[1,]", b"[1 2]", b'{"a":1,}', b'{"a" 1}', b"{a:1}", b"{'a':1}", b'{"a":1//x\n}',
    b"01", b"+1", b"1.", b"1e", b"0x10", b"-",
    "\u0661".encode(),
    b'"\n"', b'"\0"', rb'"\x41"', rb'"\u00"', rb'"\u{41}"', rb'"\ud8"', b'"\\', b'"', b'"a', b"[",
    b'{"a"', b'{"a":1', b"}", b"[}", b"\x0b{}", b"\xa0{}",
    "\u00a0{}".encode(),
    "\u3000{}".encode(),
    b"{}\0", b")]}',\n{}",
]  # fmt: skip


def short(raw: bytes) -> str:
    return f"{raw[:20]!a} of {len(raw)}"
