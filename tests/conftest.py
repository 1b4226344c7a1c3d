"""Makes the helpers of ``tests/support`` importable by their names, and settles how hypothesis searches.

A run finds the same on every machine: ``HYPOTHESIS_PROFILE=explore`` looks for new counterexamples instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis

sys.path.insert(0, str(Path(__file__).parent / "support"))

hypothesis.settings.register_profile("default", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
