"""Makes what tests share importable, settles how hypothesis searches, keeps paths of sockets short.

A run finds the same on every machine: ``HYPOTHESIS_PROFILE=explore`` looks for new counterexamples instead.
With ``HYPOTHESIS_PROFILE=thorough`` every test of a property tries all its examples and counts as long.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import hypothesis
import pytest

# Of tests/support, and of the embedded cluster's tests what its rooms share.
sys.path.extend(str(Path(__file__).parent / folder) for folder in ("support", "support/hardware", "sim"))

from examples import PROFILE, examples

hypothesis.settings.register_profile("default", derandomize=True, deadline=None, max_examples=examples(100))
hypothesis.settings.register_profile("thorough", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile(PROFILE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count tests of properties among the long ones where they try all their examples."""
    if PROFILE == "thorough":
        for item in items:
            if isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj):
                item.add_marker(pytest.mark.long)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own, with a short name.

    Sockets lie below it, whose paths are at most 107 bytes long (sun_path); parallel workers already have
    a folder each in the path.
    """
    return tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:12])
