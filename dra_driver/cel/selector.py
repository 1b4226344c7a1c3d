"""Selectors: compiled once per expression, evaluated per device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeVar

from dra_driver.api.resource import Device, DeviceAttribute
from dra_driver.api.version import Version
from dra_driver.caches import BoundedCache
from dra_driver.cel.checking import checker as _checker
from dra_driver.cel.checking import declarations as _declarations
from dra_driver.cel.checking.drivers import find_drivers
from dra_driver.cel.checking.references import References, find_references
from dra_driver.cel.cost.estimation import Estimator
from dra_driver.cel.cost.plain import plain_cost
from dra_driver.cel.cost.tracking import TrackingCompiler
from dra_driver.cel.errors import CelCompileError, CelRuntimeError
from dra_driver.cel.evaluation.closures import Closure, Frame
from dra_driver.cel.evaluation.compiler import Compiler
from dra_driver.cel.library import validators as _validators
from dra_driver.cel.syntax import parser as _parser
from dra_driver.cel.values import aliasing as _aliasing
from dra_driver.cel.values import types as _types
from dra_driver.cel.values.meter import COST_LIMIT, WORK_LIMIT, Meter, Pay
from dra_driver.cel.values.values import DomainMap, Value, type_name
from dra_driver.errors import InvalidVersion

__all__ = [
    "COST_LIMIT",
    "MAX_EXPRESSION_LENGTH",
    "MAX_STORED_LENGTH",
    "NEW",
    "NEW_WITH_LISTS",
    "STORED",
    "Derived",
    "DeviceView",
    "Environment",
    "Finding",
    "Outcome",
    "Selector",
    "compile_selector",
    "validate_selector",
]

MAX_EXPRESSION_LENGTH: Final = 10 * 1024
"""Bytes of a selector in a new object: the limit of the API."""
MAX_STORED_LENGTH: Final = 16 * 1024
"""Bytes of a selector that is compiled at all. Kubernetes has no such limit for objects that are stored."""
# Memory of cached selectors, in bytes: an ordinary one takes 10 kB, the largest 20 MB.
_CACHE: Final = 32 << 20
# Bytes; measured are at most 0.8 kB of closures and types per node. A character takes up to 4 in the
# expression, and as many in a literal.
_PER_NODE, _PER_SELECTOR, _PER_CHARACTER = 1024, 2048, 8
# What attributes can be, by the type of the value; unsigned integers are no such.
_SCALARS: Final[Mapping[type, str]] = {str: "string", int: "int", bool: "bool", Version: "version"}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables and functions that exist.

    Attributes:
        new: whether it is the environment for validating new objects, which obeys feature gates; the
            scheduler's, for stored objects, always has ``device.allowMultipleAllocations`` and ``includes``.
        list_type_attributes: the gate DRAListTypeAttributes. On for stored objects: where it is off, there
            are no lists.
        consumable_capacity: the gate DRAConsumableCapacity.
        derived: whether expressions give attributes (KEP-6080) in place of bools. What they give is looked at
            where they are evaluated.
    """

    new: bool = False
    list_type_attributes: bool = True
    consumable_capacity: bool = True
    derived: bool = False


STORED = Environment()
NEW = Environment(new=True, list_type_attributes=False)
"""Of new objects, with the gates as they are in Kubernetes 1.36 by default."""
NEW_WITH_LISTS = Environment(new=True)


class DeviceView:
    """A device as expressions see it. Immutable; make one per device and keep it.

    Attributes:
        driver: the driver's name, which is the domain of unqualified names.
        attributes: values by domain and name.
        capacity: quantities by domain and name.
        allow_multiple_allocations: false if the device does not say.
        error: why no expression can be evaluated on the device, or None.
    """

    __slots__ = ("allow_multiple_allocations", "attributes", "capacity", "driver", "error")

    def __init__(self, driver: str, device: Device, *, list_attributes: bool = True) -> None:
        self.driver = driver
        self.allow_multiple_allocations = bool(device.allow_multiple_allocations)
        self.error: str | None = None
        attributes, capacity = DomainMap(), DomainMap()
        for key, attribute in device.attributes.items():
            domain, slash, name = key.partition("/")
            if not slash:
                domain, name = driver, key
            # Most are strings. The API takes one value for an attribute.
            value = attribute.string_value
            if value is None:
                try:
                    value = _value_of(attribute, list_attributes)
                except InvalidVersion as e:
                    self.error = f"attribute {key}: {e}"
                    continue
                if value is None:
                    self.error = f"attribute {key}: unsupported attribute value"
                    continue
            if domain in attributes:
                attributes[domain][name] = value
            else:
                attributes[domain] = {name: value}
        for key, amount in device.capacity.items():
            domain, slash, name = key.partition("/")
            if not slash:
                domain, name = driver, key
            if domain in capacity:
                capacity[domain][name] = amount.value
            else:
                capacity[domain] = {name: amount.value}
        self.attributes = attributes
        self.capacity = capacity


def _value_of(attribute: DeviceAttribute, list_attributes: bool) -> Value:
    if list_attributes:
        for values in (attribute.ints, attribute.bools, attribute.strings):
            if values is not None:
                return values
        if attribute.versions is not None:
            return tuple(map(Version.parse, attribute.versions))
    if attribute.int_value is not None:
        return attribute.int_value
    if attribute.bool_value is not None:
        return attribute.bool_value
    if attribute.string_value is not None:
        return attribute.string_value
    return None if attribute.version_value is None else Version.parse(attribute.version_value)


class Outcome(NamedTuple):
    """The result of an evaluation.

    Attributes:
        value: whether the device matches, or the error (an absent attribute …).
        cost: a reproducible measure of time: at least 1, at most 2,000,000, a unit takes 0.2 microseconds at
            worst. It is the cost that Kubernetes counts plus the work that it omits (``values.meter``); for
            expressions that stay below 1,000 and are not counted, that of the worst case.
    """

    value: bool | str
    cost: int


class Derived(NamedTuple):
    """The attribute that an expression gives of a device.

    Attributes:
        value: its values with their types, of a list all of them; or the error.
        cost: as of ``Outcome``.
    """

    value: frozenset[tuple[str, object]] | str
    cost: int


class Selector:
    """A compiled expression. Immutable; may be used by several threads.

    Attributes:
        expression: the text.
        references: what of a device the result depends on.
        drivers: the drivers for whose devices it can be true; None if it names none.
        max_cost: the estimated worst-case cost; above 1,000,000 the API refuses the selector.
        weight: maximum size in memory, in bytes.
    """

    __slots__ = (
        "_closure",
        "_frame",
        "_plain_cost",
        "drivers",
        "expression",
        "max_cost",
        "references",
        "weight",
    )

    def __init__(
        self,
        expression: str,
        closure: Closure,
        frame: Callable[[DeviceView], Frame] | None,
        references: References,
        drivers: frozenset[str] | None,
        *,
        max_cost: int,
        plain_cost: int | None,
        weight: int,
    ) -> None:
        """Keep what was compiled.

        Args:
            expression: the text.
            closure: evaluates it.
            frame: makes the closure's argument of a device; if None, it is the device.
            references: as the attribute.
            drivers: as the attribute.
            max_cost: as the attribute.
            plain_cost: worst-case cost if evaluations are not counted, otherwise None.
            weight: as the attribute.
        """
        self.expression = expression
        self.references = references
        self.drivers = drivers
        self.max_cost = max_cost
        self.weight = weight
        self._closure = closure
        self._frame = frame
        self._plain_cost = plain_cost

    def matches(self, device: DeviceView) -> bool:
        """Return whether the expression is true for the device.

        Raises:
            CelRuntimeError: the evaluation failed (an absent attribute …), or its result is not a bool.
        """
        if device.error is not None:
            raise CelRuntimeError(device.error)
        return _as_bool(self._value(device if self._frame is None else self._frame(device)))

    def evaluate(self, device: DeviceView, pay: Pay | None = None) -> Outcome:
        """Evaluate the expression for the device; return the result with its cost.

        Args:
            device: what the expression sees.
            pay: is called for every 25,000 units (5 ms at worst) of an evaluation that has so many; what it
                raises ends the evaluation without a result.
        """
        return Outcome(*self._evaluated(device, pay, _as_bool))

    def derive(self, device: DeviceView, pay: Pay | None = None) -> Derived:
        """Evaluate the expression for the device as an attribute of it; see ``evaluate``."""
        return Derived(*self._evaluated(device, pay, _as_attribute))

    def _evaluated(
        self, device: DeviceView, pay: Pay | None, read: Callable[[Value], _T]
    ) -> tuple[_T | str, int]:
        """Return what is read from the result, or the error, with the cost."""
        if device.error is not None:
            return device.error, 1
        frame = device if self._frame is None else self._frame(device)
        if pay is not None and isinstance(frame, Meter):
            frame.pay_with(pay)
        value: _T | str
        try:
            value = read(self._value(frame))
        except CelRuntimeError as e:
            value = str(e)
        if self._plain_cost is not None:
            return value, max(self._plain_cost, 1)
        assert isinstance(frame, Meter)
        # The step that exceeded a limit was charged, but not done.
        return value, max(min(frame.cost, COST_LIMIT) + min(frame.work, WORK_LIMIT), 1)

    def _value(self, frame: Value) -> Value:
        try:
            return self._closure(frame)
        except RecursionError as e:
            raise CelRuntimeError("the expression is nested too deeply") from e
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
            # Expressions come from users: a defect that one of them meets must not stop the caller.
            raise CelRuntimeError(f"internal error: {type(e).__name__}: {str(e)[:200]}") from e

    def projection_key(self, device: DeviceView) -> Hashable:
        """Return a key such that devices with equal keys have equal results (or equal failures)."""
        return self.references.key(device)

    def __repr__(self) -> str:
        return f"Selector({self.expression!r})"


def _as_bool(result: Value) -> bool:
    if result is True or result is False:
        return bool(result)
    raise CelRuntimeError(f"CEL result of type {type_name(result)} could not be converted to bool")


def _as_attribute(result: Value) -> frozenset[tuple[str, object]]:
    """Return a scalar, or the scalars of a list, with their types."""
    elements = result if isinstance(result, (list, tuple)) else (result,)
    typed = frozenset(
        (_SCALARS[type(v)], str(v) if isinstance(v, Version) else v) for v in elements if type(v) in _SCALARS
    )
    odd = [v for v in elements if type(v) not in _SCALARS]
    if odd or len({kind for kind, _ in typed}) > 1:
        what = type_name(odd[0]) if odd else f"{type_name(result)} of several types"
        raise CelRuntimeError(
            f"CEL result of type {what} is no attribute: expected a string, int, bool or version, or a list "
            "of one of these"
        )
    return typed


def compile_selector(expression: str, *, environment: Environment = STORED) -> Selector:
    """Compile a selector as the scheduler does; the most recently used ones are cached.

    The API's limits on length and estimated cost are checked by ``validate_selector``. The limits here are
    those of this process: 16 KiB of text, and the sizes of the types, patterns and macros that it expands to.

    Raises:
        CelCompileError: the expression is not a selector; says why and where.
    """
    compiled = _known.get((expression, environment))
    if compiled is None:
        try:
            compiled = _compile(expression, environment)
        except CelCompileError as e:
            compiled = str(e)
        weight = (
            compiled.weight
            if isinstance(compiled, Selector)
            else _PER_SELECTOR + _PER_CHARACTER * (len(expression) + len(compiled))
        )
        _known.put((expression, environment), compiled, weight)
    if isinstance(compiled, Selector):
        return compiled
    raise CelCompileError(compiled)


_known: BoundedCache[tuple[str, Environment], Selector | str] = BoundedCache(_CACHE)


def _compile(expression: str, environment: Environment) -> Selector:
    if len(expression) > MAX_STORED_LENGTH or len(expression.encode(errors="replace")) > MAX_STORED_LENGTH:
        raise CelCompileError(
            f"the expression has {len(expression)} characters; at most {MAX_STORED_LENGTH} bytes are allowed"
        )
    root = _parser.parse(expression)
    functions = _declarations.functions(environment.list_type_attributes or not environment.new)
    _checker.check(root, expression, functions, _VARIABLES, {_DEVICE.name: _fields(environment)})
    _validators.validate(root, expression)
    allowed = (
        (_types.BOOL, _types.ANY, _types.DYN)
        if environment.list_type_attributes
        else (_types.BOOL, _types.ANY)
    )
    if root.type not in allowed and not environment.derived:
        raise CelCompileError(f"must evaluate to bool or the unknown type, not {root.type}")
    try:
        estimator = Estimator()
        max_cost = estimator.cost(root)
        # Counting takes time, so expressions that cannot come near a limit do without.
        plain = plain_cost(root, max_cost, estimator)
        compiler = (Compiler if plain is not None else TrackingCompiler)(expression, functions)
        closure = compiler.branch(root)
        references = find_references(root)
        drivers = find_drivers(root)
    except RecursionError as e:
        raise CelCompileError("the expression is nested too deeply") from e
    frame = _frame_maker(compiler.slots, compiler.aliasing) if compiler.needs_frame else None
    weight = _PER_SELECTOR + _PER_NODE * _parser.count(root) + _PER_CHARACTER * len(expression)
    weight += sum(p.weight for p in compiler.patterns.values())
    return Selector(
        expression, closure, frame, references, drivers, max_cost=max_cost, plain_cost=plain, weight=weight
    )


def _frame_maker(slots: int, aliasing: bool) -> Callable[[DeviceView], Frame]:
    def make(device: DeviceView) -> Frame:
        frame = Frame(device, slots)
        if aliasing:
            frame.capacity = _aliasing.copied(device.capacity)
        return frame

    return make


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason for which the API refuses a selector: ``reason`` is TooLong, Invalid or TooExpensive."""

    reason: Literal["TooLong", "Invalid", "TooExpensive"]
    message: str


def validate_selector(expression: str, *, environment: Environment = NEW) -> list[Finding]:
    """Return the errors that the API server reports for a selector in a new object."""
    length = len(expression.encode())
    if length > MAX_EXPRESSION_LENGTH:
        return [Finding("TooLong", f"{length} bytes; at most {MAX_EXPRESSION_LENGTH} are allowed")]
    try:
        selector = compile_selector(expression, environment=environment)
    except CelCompileError as e:
        return [Finding("Invalid", str(e))]
    if selector.max_cost > COST_LIMIT:
        text = f"the estimated cost is {selector.max_cost}; at most {COST_LIMIT} is allowed"
        return [Finding("TooExpensive", f"too complex: {text}")]
    return []


_DEVICE = _types.parse_type("kubernetes.DRADevice")
_VARIABLES = {"device": _DEVICE}


@lru_cache
def _fields(environment: Environment) -> dict[str, _types.Type]:
    value = "dyn" if environment.list_type_attributes else "any"
    fields = {
        "driver": _types.STRING,
        "attributes": _types.parse_type(f"map(string, map(string, {value}))"),
        "capacity": _types.parse_type("map(string, map(string, kubernetes.Quantity))"),
    }
    if environment.consumable_capacity or not environment.new:
        fields["allowMultipleAllocations"] = _types.BOOL
    return fields
