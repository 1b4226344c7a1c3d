"""CEL expressions, as far as a plan takes them apart."""

from __future__ import annotations

__all__ = ["conjuncts"]

_OPENING, _CLOSING = "([{", ")]}"


def conjuncts(expression: str) -> list[str]:
    """Return the parts that ``&&`` joins at the top of an expression; the whole one where it cannot be split.

    Text in quotes and in brackets is left alone, and so is what has ``||`` or a conditional at the top.
    """
    parts: list[str] = []
    depth, start, i = 0, 0, 0
    quote = ""
    while i < len(expression):
        character = expression[i]
        if quote:
            if character == "\\":
                i += 1
            elif expression.startswith(quote, i):
                i += len(quote) - 1
                quote = ""
        elif character in "\"'":
            # A raw or triple-quoted string has other rules.
            if expression[i : i + 3] == character * 3 or (i and expression[i - 1] in "rRbB"):
                return [expression.strip()]
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif not depth:
            if (character == "?" and expression[i - 1 : i] != ".") or expression.startswith("||", i):
                return [expression.strip()]
            if expression.startswith("//", i):
                return [expression.strip()]
            if expression.startswith("&&", i):
                parts.append(expression[start:i].strip())
                i += 1
                start = i + 1
        i += 1
    parts.append(expression[start:].strip())
    return parts if all(parts) else [expression.strip()]
