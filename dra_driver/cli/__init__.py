"""The ``dra-driver`` command. Each subcommand is a module with ``add_parser`` and ``run``; ``main`` finds it."""

from __future__ import annotations
