"""The lexer: from text to tokens, and the values of literals."""

from __future__ import annotations

import re
from typing import NamedTuple

from dra_driver.cel.errors import CelCompileError
from dra_driver.cel.values.values import UInt

__all__ = ["Token", "literal_value", "tokens"]


class Token(NamedTuple):
    """A token; ``kind`` is int, uint, float, string, ident or end, or the text of an operator or keyword."""

    kind: str
    text: str
    position: int


_PATTERN = re.compile(
    r"""
    (?P<space>(?:[ \t\r\n\f]+|//[^\n]*)+)
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
  | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
  | (?P<string>[bB]?(?:
        [rR](?:\"\"\"(?s:.*?)\"\"\"|'''(?s:.*?)'''|"[^"\n\r]*"|'[^'\n\r]*')
      | (?:\"\"\"(?s:[^\\]|\\.)*?\"\"\"|'''(?s:[^\\]|\\.)*?'''|"(?:[^"\\\n\r]|\\.)*"|'(?:[^'\\\n\r]|\\.)*')))
  | (?P<ident>[_a-zA-Z][_a-zA-Z0-9]*)
  | (?P<op>==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE,
)
_KEYWORDS = frozenset({"in", "true", "false", "null"})
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"`?])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.?))",
    re.DOTALL,
)
_SIMPLE = dict(zip("abfnrtv\\'\"`?", "\a\b\f\n\r\t\v\\'\"`?", strict=True))


def tokens(expression: str) -> list[Token]:
    """Return all tokens, with an ``end`` token after the last.

    Raises:
        CelCompileError: a character that starts no token, or an unfinished string.
    """
    found: list[Token] = []
    at, end = 0, len(expression)
    match_at = _PATTERN.match
    while at < end:
        match = match_at(expression, at)
        if match is None:
            raise CelCompileError(
                f"syntax error: unexpected text {expression[at : at + 20]!r}", at, expression
            )
        kind, text = match.lastgroup or "", match.group()
        if kind != "space":
            if kind == "op" or (kind == "ident" and text in _KEYWORDS):
                kind = text
            found.append(Token(kind, text, at))
        at = match.end()
    found.append(Token("end", "", end))
    return found


def literal_value(token: Token, expression: str, negative: bool = False) -> object:
    """Return the value of an int, uint, float or string token.

    Raises:
        CelCompileError: a number out of range or a bad escape.
    """
    text = token.text
    try:
        if token.kind == "int":
            return _integer(("-" if negative else "") + text, -(2**63), 2**63 - 1)
        if token.kind == "uint":
            return UInt(_integer(text[:-1], 0, 2**64 - 1))
        if token.kind == "float":
            value = float(text)
            if value in (float("inf"), float("-inf")):
                raise ValueError("double literal out of range")
            return -value if negative else value
        return _string(text)
    except ValueError as e:
        raise CelCompileError(f"invalid literal: {e}", token.position, expression) from e


def _integer(text: str, least: int, most: int) -> int:
    if len(text) > 64:
        raise ValueError("integer literal out of range")
    value = int(text, 16) if "x" in text else int(text)
    if not least <= value <= most:
        raise ValueError("integer literal out of range")
    return value


def _string(text: str) -> str | bytes:
    is_bytes = text[0] in "bB"
    if is_bytes:
        text = text[1:]
    raw = text[0] in "rR"
    if raw:
        text = text[1:]
    quote = 3 if len(text) >= 6 and text[:3] in ('"""', "'''") else 1
    text = text[quote:-quote]
    if is_bytes:
        return text.encode() if raw else _unescaped_bytes(text)
    return text if raw else _ESCAPE.sub(_unescape, text)


def _unescape(match: re.Match[str]) -> str:
    simple, hex2, hex4, hex8, octal, other = match.groups()
    if simple:
        return _SIMPLE[simple]
    if other is not None:
        raise ValueError(f"unknown escape \\{other}")
    code = int(octal, 8) if octal else int(hex2 or hex4 or hex8, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError(f"escape of U+{code:04X}, which is no character")
    return chr(code)


def _unescaped_bytes(text: str) -> bytes:
    parts: list[bytes] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[at : match.start()].encode())
        simple, hex2, hex4, hex8, octal, other = match.groups()
        if other is not None or hex4 or hex8:
            raise ValueError("unknown escape in bytes")
        parts.append(
            _SIMPLE[simple].encode() if simple else bytes([int(octal, 8) if octal else int(hex2, 16)])
        )
        at = match.end()
    parts.append(text[at:].encode())
    return b"".join(parts)
