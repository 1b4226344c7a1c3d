"""The estimated cost of an expression: the worst case over all devices that the API allows.

Source: the cost rules of CEL and of Kubernetes' CEL libraries at 1.36, as recorded expressions show them.
Costs are integers up to 2**64 - 1, which stands for "no known bound". A *size* is a range of what ``size()``
can return, as a pair of minimum and maximum.
"""

from __future__ import annotations

from typing import NamedTuple

from dra_driver.cel.cost.rules import (
    LIST_COST,
    MAP_COST,
    PER_CHARACTER,
    PER_REGEX_CHARACTER,
    RULES,
    STRUCT_COST,
)
from dra_driver.cel.cost.sizes import (
    ONE,
    UNBOUNDED,
    UNKNOWN,
    EntrySize,
    Size,
    add,
    multiply,
    plus,
    scaled,
    size_of_path,
    union,
    union_entries,
)
from dra_driver.cel.syntax.ast import (
    Call,
    Comprehension,
    Expr,
    Ident,
    ListExpr,
    Literal,
    MapExpr,
    Select,
    StructExpr,
)
from dra_driver.cel.values.types import Type

__all__ = ["LIST_COST", "MAP_COST", "PER_CHARACTER", "PER_REGEX_CHARACTER", "Estimator"]


class _Local(NamedTuple):
    path: tuple[str, ...]
    size: Size | None
    entries: EntrySize | None


class Estimator:
    """The maximum cost of evaluating a checked expression on any device, with the sizes of its parts."""

    def __init__(self) -> None:
        self.paths: dict[int, tuple[str, ...]] = {}
        self.sizes: dict[int, Size] = {}
        self.entries: dict[int, EntrySize] = {}
        self.locals: dict[str, list[_Local]] = {}

    # --- sizes ---

    def path(self, e: Expr) -> tuple[str, ...]:
        if isinstance(e, Ident) and self.locals.get(e.name):
            return self.locals[e.name][-1].path
        return self.paths.get(id(e), ())

    def size(self, e: Expr) -> Size | None:
        known = self.sizes.get(id(e))
        if known is not None:
            return known
        match e:
            case Literal(value=str() | bytes() as text):
                return Size(len(text), len(text))
            case Literal():
                return ONE
            case ListExpr():
                return Size(len(e.elements), len(e.elements))
            case MapExpr():
                return Size(len(e.entries), len(e.entries))
            case _:
                pass
        found = size_of_path(self.path(e))
        if found is not None:
            self.sizes[id(e)] = found
            return found
        if _is_scalar(e.type):
            return ONE
        if isinstance(e, Ident) and self.locals.get(e.name):
            return self.locals[e.name][-1].size
        return None

    def size_or_unknown(self, e: Expr) -> Size:
        return self.size(e) or UNKNOWN

    def entry_size(self, e: Expr) -> EntrySize | None:
        known = self.entries.get(id(e))
        if known is None and isinstance(e, Ident) and self.locals.get(e.name):
            return self.locals[e.name][-1].entries
        return known

    def set_size(self, e: Expr, size: Size | None) -> None:
        if size is not None:
            self.sizes[id(e)] = size

    def set_entries(self, e: Expr, entries: EntrySize | None) -> None:
        if entries is not None:
            self.entries[id(e)] = entries

    # --- nodes ---

    def cost(self, e: Expr) -> int:
        match e:
            case Ident():
                stack = self.locals.get(e.name)
                self.paths[id(e)] = stack[-1].path if stack else (e.name,)
                return 1
            case Select():
                return self.select(e)
            case Call():
                return self.call(e)
            case ListExpr():
                return self.list_literal(e)
            case MapExpr():
                return self.map_literal(e)
            case StructExpr():
                return add(STRUCT_COST, sum(self.cost(v) for _, v in e.fields))
            case Comprehension():
                return self.bind(e) if e.is_bind else self.comprehension(e)
            case _:
                return 0

    def select(self, e: Select) -> int:
        if e.as_ident:
            return 1
        cost = self.cost(e.operand)
        if e.test_only:
            # Presence tests are free in Kubernetes.
            return cost
        self.paths[id(e)] = (*self.path(e.operand), e.field)
        return add(cost, 1) if e.operand.type.kind in ("map", "struct", "param") else cost

    def list_literal(self, e: ListExpr) -> int:
        cost, item = LIST_COST, Size(UNBOUNDED if e.elements else 0, 0)
        for element in e.elements:
            cost = add(cost, self.cost(element))
            item = union(item, self.size_or_unknown(element))
        self.set_entries(e, EntrySize(True, ONE, item))
        return cost

    def map_literal(self, e: MapExpr) -> int:
        start = Size(UNBOUNDED if e.entries else 0, 0)
        cost, keys, values = MAP_COST, start, start
        for key, value in e.entries:
            cost = add(cost, add(self.cost(key), self.cost(value)))
            keys = union(keys, self.size_or_unknown(key))
            values = union(values, self.size_or_unknown(value))
        self.set_entries(e, EntrySize(False, keys, values))
        return cost

    # --- folds ---

    def bind(self, e: Comprehension) -> int:
        cost = add(self.cost(e.iter_range), self.cost(e.accu_init))
        self.push(
            e.accu_var, _Local(self.path(e.accu_init), self.size(e.accu_init), self.entry_size(e.accu_init))
        )
        cost = add(cost, self.cost(e.result))
        # Estimated before the variable goes out of scope.
        size, entries = self.size(e.result), self.entry_size(e.result)
        self.locals[e.accu_var].pop()
        self.set_size(e, size)
        self.set_entries(e, entries)
        return cost

    def push(self, name: str, local: _Local) -> None:
        self.locals.setdefault(name, []).append(local)

    def comprehension(self, e: Comprehension) -> int:
        cost = add(self.cost(e.iter_range), self.cost(e.accu_init))
        self.push(
            e.accu_var, _Local(self.path(e.accu_init), self.size(e.accu_init), self.entry_size(e.accu_init))
        )
        self.push_items(e)
        loop = add(self.cost(e.condition), self.cost(e.step))
        step_entries = self.entry_size(e.step)
        self.locals[e.iter_var].pop()
        if e.iter_var2:
            self.locals[e.iter_var2].pop()
        cost = add(cost, self.cost(e.result))
        self.locals[e.accu_var].pop()
        count = self.size_or_unknown(e.iter_range)
        if isinstance(e.accu_init, Literal):
            self.set_size(e, self.size(e.accu_init))
        elif isinstance(e.accu_init, ListExpr | MapExpr):
            self.set_size(e, count)
            self.set_entries(e, step_entries)
        return add(cost, multiply(count.most, loop))

    def push_items(self, e: Comprehension) -> None:
        entries, path = self.entry_size(e.iter_range), self.path(e.iter_range)
        is_list = entries.is_list if entries is not None else e.iter_range.type.kind == "list"
        key = None if entries is None else entries.key
        value = None if entries is None else entries.value
        if e.iter_var2:
            self.push(e.iter_var, _Local((*path, "@indices" if is_list else "@keys"), key, None))
            self.push(e.iter_var2, _Local((*path, "@items" if is_list else "@values"), value, None))
        elif is_list:
            self.push(e.iter_var, _Local((*path, "@items"), value, None))
        else:
            self.push(e.iter_var, _Local((*path, "@keys"), key, None))

    # --- calls ---

    def call(self, e: Call) -> int:
        if e.function == "dyn":
            cost = add(1, self.cost(e.args[0]))
            self.set_size(e, self.size(e.args[0]))
            self.set_entries(e, self.entry_size(e.args[0]))
            return cost
        costs = [self.cost(a) for a in e.args]
        target = 0 if e.target is None else self.cost(e.target)
        if e.function in ("_&&_", "_||_"):
            return min(sum(costs), UNBOUNDED)
        if e.function == "_?_:_":
            return self.conditional(e, costs)
        rule = RULES.get(e.function)
        best, size = 0, None
        for overload in e.overloads:
            found = rule(self, e, overload) if rule is not None else None
            cost, result = found if found is not None else self.standard(e, overload)
            best = max(best, cost)
            if result is not None:
                size = result if size is None else union(size, result)
            if overload in ("index_list", "index_map"):
                entries = self.entry_size(e.args[0])
                size = None if entries is None else entries.value
                tail = "@items" if overload == "index_list" else "@values"
                self.paths[id(e)] = (*self.path(e.args[0]), tail)
            if size is None:
                size = self.size(e)
        self.set_size(e, size)
        return min(sum(costs) + target + best, UNBOUNDED)

    def conditional(self, e: Call, costs: list[int]) -> int:
        self.set_size(e, union(self.size_or_unknown(e.args[1]), self.size_or_unknown(e.args[2])))
        self.set_entries(e, union_entries(self.entry_size(e.args[1]), self.entry_size(e.args[2])))
        return add(costs[0], max(costs[1], costs[2]))

    def standard(self, e: Call, overload: str) -> tuple[int, Size | None]:
        """Return the cost of a call by the rules of CEL itself."""
        if overload in ("starts_with_string", "ends_with_string"):
            return scaled(self.size_or_unknown(e.args[0]).most, PER_CHARACTER), None
        if overload == "in_list":
            return self.size_or_unknown(e.args[1]).most, None
        if overload == "matches_string" and e.target is not None:
            return self.regex(e.target, e.args[0]), None
        if overload == "contains_string" and e.target is not None:
            text = scaled(self.size_or_unknown(e.target).most, PER_CHARACTER)
            return multiply(text, scaled(self.size_or_unknown(e.args[0]).most, PER_CHARACTER)), None
        if overload in ("add_string", "add_bytes", "add_list"):
            left, right = e.args
            size = plus(self.size_or_unknown(left), self.size_or_unknown(right))
            self.set_entries(e, union_entries(self.entry_size(left), self.entry_size(right)))
            return (1 if overload == "add_list" else scaled(size.most, PER_CHARACTER)), size
        if overload in _COMPARISONS:
            least = min(self.size_or_unknown(e.args[0]).most, self.size_or_unknown(e.args[1]).most)
            return scaled(least, PER_CHARACTER), None
        if overload == "string_to_bytes":
            size = self.size_or_unknown(e.args[0])
            return scaled(size.most, PER_CHARACTER), Size(size.least, multiply(size.most, 4))
        if overload == "bytes_to_string":
            size = self.size_or_unknown(e.args[0])
            return scaled(size.most, PER_CHARACTER), Size(size.least // 4, size.most)
        if overload == "strings_quote":
            size = self.size_or_unknown(e.args[0])
            most = add(multiply(size.most, 2), 2)
            return scaled(size.most, PER_CHARACTER), Size(add(size.least, 2), most)
        if overload == "string_format" and e.target is not None:
            return scaled(self.size_or_unknown(e.target).most, PER_CHARACTER), None
        return 1, None

    def regex(self, text: Expr, pattern: Expr) -> int:
        # One more character, so that a costly pattern on the empty text is not free.
        length = scaled(add(self.size_or_unknown(text).most, 1), PER_CHARACTER)
        return multiply(length, scaled(self.size_or_unknown(pattern).most, PER_REGEX_CHARACTER))


_COMPARISONS = frozenset(
    f"{name}_{kind}"
    for name in ("less", "greater", "less_equals", "greater_equals")
    for kind in ("string", "bytes")
) | {"equals", "not_equals"}


def _is_scalar(t: Type) -> bool:
    if t.name == "optional_type":
        return _is_scalar(t.params[0])
    return t.kind in ("bool", "double", "duration", "int", "timestamp", "uint")
