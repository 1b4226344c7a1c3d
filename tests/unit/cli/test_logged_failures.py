"""What logs say of a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from dra_driver.cli.common import configure_logging


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def fail(token: str) -> None:
    raise ValueError("refused")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_values_of_variables(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", form)
    try:
        fail("a-secret-" + "token")
    except ValueError:
        structlog.get_logger().exception("it failed")
    told = capsys.readouterr().err
    assert "it failed" in told
    assert "ValueError: refused" in told
    assert "a-secret-token" not in told
