"""Makes what tests share importable, settles how hypothesis searches and where tests write, in short paths.

A run finds the same on every machine: ``HYPOTHESIS_PROFILE=explore`` looks for new counterexamples instead.
With ``HYPOTHESIS_PROFILE=thorough`` every test of a property tries all its examples and counts as long.
"""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import hypothesis
import pytest
import structlog
from hypothesis.internal.conjecture import providers

# The rooms of tests/support, and of the embedded cluster's tests what its rooms share.
sys.path.extend(
    str(Path(__file__).parent / f"support{folder}")
    for folder in ("", "/admission", "/allocator", "/control_plane", "/controller", "/documents", "/hardware")
)
sys.path.append(str(Path(__file__).parent / "sim"))

import cold_start
import scratch
from examples import PROFILE, examples

scratch.use_memory()

hypothesis.settings.register_profile("default", derandomize=True, deadline=None, max_examples=examples(100))
hypothesis.settings.register_profile("thorough", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile(PROFILE)
if PROFILE == "default" and hasattr(providers, "_local_constants"):  # none of its public names
    # Constants of our own sources are good examples, but to find them hypothesis parses every module that is
    # loaded: in a fresh clone four seconds in each process. And what a test tries would depend on what else
    # its process has loaded.
    providers._get_local_constants = lambda: providers._local_constants

# The rich tracebacks of structlog's default take longer than the tests that log them.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count tests of properties among the long ones where they try all their examples."""
    if PROFILE == "thorough":
        for item in items:
            if isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj):
                item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Compile a share of what is not compiled yet. Nothing of what is collected is garbage."""
    gc.disable()
    cold_start.compile_share(session.config)


def pytest_collection_finish() -> None:
    """Leave all modules and tests out of the garbage collector's later rounds, which come more rarely."""
    gc.freeze()
    gc.set_threshold(20_000, 25, 25)
    gc.enable()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own, with a short name.

    Sockets lie below it, whose paths are at most 107 bytes long (sun_path); parallel workers already have
    a folder each in the path.
    """
    return tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:12])
