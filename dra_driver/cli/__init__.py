"""The ``dra-driver`` command: each subcommand is a module, ``main`` finds and runs it."""

from __future__ import annotations
