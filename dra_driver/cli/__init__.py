"""The ``dra-driver`` command: each subcommand is a module, which ``main`` imports and runs."""

from __future__ import annotations
