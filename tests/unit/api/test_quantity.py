"""Quantities: the canonical form, the texts that are allowed, the representation that CEL can see."""

from __future__ import annotations

import pytest

from dra_driver.api import codec
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceCapacity
from dra_driver.errors import DecodeError, InvalidQuantity


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0.0Gi", "0"),
        ("Gi", "0"),
        ("-", "0"),
        ("+", "0"),
        (".", "0"),
        ("E", "0"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("0.0001Ki", "102400u"),
        ("1000Ki", "1000Ki"),
        ("1025", "1025"),
        ("1023Ki", "1023Ki"),
        ("1.0001Ki", "1024102400u"),
        ("500m", "500m"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1.5G", "1500M"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("12e5", "1200e3"),
        ("1e-1", "100e-3"),
        ("1000E", "1e21"),
        ("00080Gi", "80Gi"),
        ("+80Gi", "80Gi"),
        ("-80Gi", "-80Gi"),
        ("16Ei", str(2**63 - 1)),
        ("-16Ei", str(1 - 2**63)),
        ("1.Gi", "1Gi"),
        (".5", "500m"),
    ],
)
def test_the_canonical_form(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", " 1", "1 ", "1gi", "1kib", "Ki1", "1.2.3", "--1", "1e", "1e1.5", "1i", "1GiB", "0x10"),
        *("1_000", "1e1000", "1e99999999999", "٣", "1K", "inf", "nan"),
    ],
)
def test_other_texts_are_refused_with_a_reason(text: str) -> None:
    with pytest.raises(InvalidQuantity, match="is not a quantity"):
        Quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("16Ti", 2**44),
        ("160Ti", None),
        ("7Ei", None),
        ("0.5Ki", None),
        ("1000m", None),
        ("3.3k", 3300),
        ("1.5", None),
        ("0.0", None),
        ("0", 0),
        ("1e18", 10**18),
        ("10E", None),
        ("1000000000000000000", None),
        ("999999999999999999", 10**18 - 1),
    ],
)
def test_which_amounts_are_an_int64_depends_on_how_they_are_written(text: str, whole: int | None) -> None:
    assert Quantity.parse(text).as_int64() == whole


def test_an_endless_text_is_refused() -> None:
    with pytest.raises(InvalidQuantity, match="is not a quantity"):
        Quantity.parse("9" * 5000)


def test_a_decimal_stays_a_decimal_in_sums() -> None:
    big, one = Quantity.parse("160Ti"), Quantity.parse("1")
    assert (big + one).as_int64() is None
    assert (big - big).as_int64() is None
    assert (Quantity.parse("0.0") + one).as_int64() == 1
    assert (one + one).as_int64() == 2


def test_a_sum_with_zero_takes_the_format_of_the_other() -> None:
    assert str(Quantity.parse("0") + Quantity.parse("1Gi")) == "1Gi"
    assert str(Quantity.parse("1Gi") + Quantity.parse("1G")) == "2073741824"


@pytest.mark.parametrize(("text", "value"), [("1500m", 2), ("-1500m", -2), ("1n", 1), ("0", 0), ("2", 2)])
def test_value_rounds_away_from_zero(text: str, value: int) -> None:
    assert Quantity.parse(text).value() == value


def test_the_float_is_the_nearest_that_the_original_gives() -> None:
    assert Quantity.parse("1.5Gi").approximate_float() == pytest.approx(1.5 * 2**30)
    assert Quantity.parse("500m").approximate_float() == 0.5
    assert Quantity.parse("1e400").approximate_float() == float("inf")
    assert Quantity.parse("-1e400").approximate_float() == float("-inf")


def test_a_quantity_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Quantity.parse("1").format = None  # type: ignore[assignment]


def test_numbers_in_json_are_quantities_as_the_api_reads_them() -> None:
    decoded = codec.decode(DeviceCapacity, b'{"value": 0.5}')
    assert str(decoded.value) == "500m"
    assert str(codec.decode(DeviceCapacity, b'{"value": 3}').value) == "3"
    with pytest.raises(DecodeError, match="expected a quantity"):
        codec.decode(DeviceCapacity, b'{"value": true}')
