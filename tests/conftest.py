"""Makes what tests share importable, settles how hypothesis searches, keeps paths of sockets short.

A run finds the same on every machine: ``HYPOTHESIS_PROFILE=explore`` looks for new counterexamples instead.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import hypothesis
import pytest

# Of tests/support, and of the embedded cluster's tests what its rooms share.
for folder in ("support", "support/hardware", "sim"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

hypothesis.settings.register_profile("default", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own, with a short name.

    Sockets lie below it, whose paths are at most 107 bytes long (sun_path); parallel workers already have
    a folder each in the path.
    """
    return tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:12])
