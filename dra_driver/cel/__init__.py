"""CEL device selectors, in the environment of Kubernetes 1.36.

``compile_selector`` compiles an expression once; ``Selector.matches`` evaluates it on a ``DeviceView``;
``Selector.evaluate`` also says what the evaluation cost, within the limits of one (``_meter``);
``Selector.projection_key`` tells which devices are the same to it.

Pure: no I/O, no clock. Parser, checker and evaluator are our own, so that the outcome is that of ``cel-go``,
quirks included (recorded cases: tests/conformance).
"""

from __future__ import annotations

from dra_driver.cel.checking.references import References
from dra_driver.cel.errors import CelCompileError, CelPanic, CelRuntimeError
from dra_driver.cel.selector import (
    COST_LIMIT,
    MAX_EXPRESSION_LENGTH,
    MAX_STORED_LENGTH,
    NEW,
    STORED,
    DeviceView,
    Environment,
    Finding,
    Outcome,
    Selector,
    compile_selector,
    validate_selector,
)

__all__ = [
    "COST_LIMIT",
    "MAX_EXPRESSION_LENGTH",
    "MAX_STORED_LENGTH",
    "NEW",
    "STORED",
    "CelCompileError",
    "CelPanic",
    "CelRuntimeError",
    "DeviceView",
    "Environment",
    "Finding",
    "Outcome",
    "References",
    "Selector",
    "compile_selector",
    "validate_selector",
]
