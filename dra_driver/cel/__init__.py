"""CEL device selectors, in the environment of Kubernetes 1.36.

``compile_selector`` compiles an expression once; ``Selector.matches`` evaluates it on a ``DeviceView``;
``Selector.evaluate`` also returns the cost of the evaluation, which is limited (``values.meter``);
``Selector.projection_key`` returns a key that is equal for devices with equal results.

Pure: no I/O, no clock. Parser, checker and evaluator are our own, so that results are those of ``cel-go``,
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
    NEW_WITH_LISTS,
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
    "NEW_WITH_LISTS",
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
