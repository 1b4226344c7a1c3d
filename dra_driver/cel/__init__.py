"""CEL device selectors, in the environment of Kubernetes 1.36.

``compile_selector`` compiles an expression once; ``Selector.matches`` evaluates it on a ``DeviceView``;
``Selector.projection_key`` tells which devices are the same to it.

Pure: no I/O, no clock. Parser, checker and evaluator are our own, so that the outcome is that of ``cel-go`` in
its quirks as well (recorded cases: tests/conformance).
"""

from __future__ import annotations

from dra_driver.cel._references import References
from dra_driver.cel.errors import CelCompileError, CelPanic, CelRuntimeError
from dra_driver.cel.selector import (
    MAX_EXPRESSION_LENGTH,
    STORED,
    DeviceView,
    Environment,
    Selector,
    compile_selector,
)

__all__ = [
    "MAX_EXPRESSION_LENGTH",
    "STORED",
    "CelCompileError",
    "CelPanic",
    "CelRuntimeError",
    "DeviceView",
    "Environment",
    "References",
    "Selector",
    "compile_selector",
]
