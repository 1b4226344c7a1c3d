"""Quantities: exact, ordered by value, stable under printing."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api.quantity import Format, Quantity

_FACTORS = {
    **{s: Fraction(10) ** e for s, e in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)},
    "": Fraction(1),
    **{f"{s}i": Fraction(1024) ** (i + 1) for i, s in enumerate("KMGTPE")},
}


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A quantity as people write it, and its amount by the book."""
    whole = draw(st.from_regex(r"[0-9]{1,22}", fullmatch=True))
    fraction = draw(st.one_of(st.just(""), st.from_regex(r"[0-9]{1,12}", fullmatch=True)))
    sign = draw(st.sampled_from(["", "+", "-"]))
    exponent = draw(st.integers(-12, 30))
    suffix, factor = draw(
        st.one_of(
            st.sampled_from(sorted(_FACTORS.items())), st.just((f"e{exponent}", Fraction(10) ** exponent))
        )
    )
    amount = Fraction(int(whole + fraction), 10 ** len(fraction)) * factor
    amount = Fraction(ceil(amount * 10**9), 10**9)
    if suffix.endswith("i"):
        amount = min(amount, Fraction(2**63 - 1)) if _is_decimal(whole, fraction, suffix) else amount
    return f"{sign}{whole}{'.' + fraction if fraction else ''}{suffix}", -amount if sign == "-" else amount


def _is_decimal(whole: str, fraction: str, suffix: str) -> bool:
    return bool(fraction) or 14 - len(whole.lstrip("0") or "0") - "KMGTPE".index(suffix[0]) * 3 - 3 < 0


@given(texts())
def test_the_amount_is_exact_to_a_billionth_rounded_away_from_zero(case: tuple[str, Fraction]) -> None:
    text, amount = case
    assert Fraction(Quantity.parse(text).nano, 10**9) == amount


@given(texts())
def test_printing_and_parsing_again_gives_the_same_amount(case: tuple[str, Fraction]) -> None:
    quantity = Quantity.parse(case[0])
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)


@given(texts(), texts())
def test_order_is_that_of_the_amounts(a: tuple[str, Fraction], b: tuple[str, Fraction]) -> None:
    left, right = Quantity.parse(a[0]), Quantity.parse(b[0])
    assert (left < right) == (a[1] < b[1])
    assert (left > right) == (a[1] > b[1])
    assert (left <= right) == (a[1] <= b[1])
    assert (left == right) == (a[1] == b[1])
    assert left != right or hash(left) == hash(right)


@given(texts(), texts())
def test_sums_are_exact_and_can_be_undone(a: tuple[str, Fraction], b: tuple[str, Fraction]) -> None:
    left, right = Quantity.parse(a[0]), Quantity.parse(b[0])
    assert Fraction((left + right).nano, 10**9) == a[1] + b[1]
    assert (left + right) - right == left
    assert left - right == -(right - left)


@given(texts())
def test_a_whole_int64_is_the_value(case: tuple[str, Fraction]) -> None:
    quantity = Quantity.parse(case[0])
    whole = quantity.as_int64()
    assert whole is None or (whole == quantity.value() == case[1] and -(2**63) <= whole < 2**63)


@given(st.integers(1 - 2**63, 2**63 - 1), st.sampled_from(list(Format)))
def test_whole_numbers_survive_in_every_format(value: int, form: Format) -> None:
    quantity = Quantity.of(value, form)
    assert quantity.value() == value == quantity.as_int64()
    assert Quantity.parse(str(quantity)).value() == value


@given(texts())
def test_copies_are_equal(case: tuple[str, Fraction]) -> None:
    quantity = Quantity.parse(case[0])
    for twin in (copy.deepcopy(quantity), pickle.loads(pickle.dumps(quantity))):
        assert (twin, str(twin), twin.as_int64()) == (quantity, str(quantity), quantity.as_int64())
