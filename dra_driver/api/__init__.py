"""API types: ``resource.k8s.io/v1``, what we need of ``core/v1``, our own kinds, Quantity and Version.

Wire structs are immutable and know nothing of behaviour. No I/O, no clock.
"""

from __future__ import annotations
