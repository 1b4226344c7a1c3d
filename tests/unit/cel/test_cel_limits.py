"""Hostile selectors: what they may cost and keep, at compile time and in one evaluation."""

from __future__ import annotations

import gc
import re
import tracemalloc

import pytest
import work_counter
from examples import one_of
from hostile_selectors import DRIVER, HOSTILE, MEMORY, MODEL, binds, each, letters, long

from dra_driver import cel
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device, DeviceAttribute, DeviceCapacity

MIB = 1 << 20
# 16 MB of values and the same again in frames, caches and copies on the way.
MOST_MEMORY = 48 * MIB
MOST_COST = 2_000_000


def a_view() -> cel.DeviceView:
    attributes = {"model": DeviceAttribute(string_value="A100"), "index": DeviceAttribute(int_value=3)}
    capacity = {"memory": DeviceCapacity(value=Quantity.parse("160Ti"))}
    return cel.DeviceView(DRIVER, Device(name="gpu-0", attributes=attributes, capacity=capacity))


def peak_of(selector: cel.Selector, view: cel.DeviceView) -> tuple[cel.Outcome, int]:
    tracemalloc.start()
    try:
        outcome = selector.evaluate(view)
        return outcome, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Up to the whole limit each; below, all of them begin.
@pytest.mark.parametrize("name", one_of(8, HOSTILE))
def test_a_hostile_evaluation_is_cancelled(name: str) -> None:
    outcome = cel.compile_selector(HOSTILE[name]).evaluate(a_view())
    assert isinstance(outcome.value, str), "it has a result"
    assert outcome.value.startswith("operation cancelled: ")
    assert len(outcome.value) < 300
    assert outcome.cost <= MOST_COST


KEEPING = [
    "replace, with a long text",
    "replace of wide characters",
    "text doubled by bind",
    "join of one text many times",
    "format of texts",
    "split into characters",
    "ranges that are kept",
    "large quantities",
    "patterns that are made",
    "versions that are kept",
]


@pytest.mark.parametrize("name", one_of(3, KEEPING))
def test_a_hostile_evaluation_is_cancelled_within_its_memory(name: str) -> None:
    outcome, peak = peak_of(cel.compile_selector(HOSTILE[name]), a_view())
    assert isinstance(outcome.value, str)
    assert peak < MOST_MEMORY


# What Kubernetes would evaluate within its cost limit has a result here as well.
LARGE = [
    long(1000, 4000) + ".size() == 4000000",
    binds('"a"', "@ + @", 22, "@.size() == 4194304"),
    binds("[1]", "@ + @", 17, "@.size() == 131072"),
    f'lists.range(1000).map(x, {letters(1000)}).join(",").size() == 1000999',
    'lists.range(10000).map(x, string(x)).join(",").split(",").size() == 10000',
    '"%s".format([lists.range(2000)]).size() > 2000',
    "lists.range(900000).size() == 900000",
    each(100000, "x >= 0"),
    each(300, "lists.range(300).all(y, x + y >= 0)"),
    "sets.equivalent(lists.range(600), lists.range(600).reverse())",
    "lists.range(500).map(x, [x]).distinct().size() == 500",
    "lists.range(600).map(x, -x).sort()[0] == -599",
    "lists.range(60000).transformMap(i, v, v).size() == 60000",
    each(50000, f'{MODEL}.matches("^A[0-9]+$")'),
    each(1000, f'{MODEL}.findAll("[0-9]").size() == 3'),
    each(1000, '"a1".matches("[a-z]" + string(1))'),
    each(500, f"{MEMORY}.add(1).isGreaterThan({MEMORY}) || true"),
    each(2000, 'isSemver("1.2." + string(x))'),
    each(2000, 'isIP("10.0.0." + string(x % 256))'),
    each(2000, 'timestamp(0).getHours("America/New_York") == 19'),
    '"a".matches("a{1,1000}") && "é€".matches("^[^a]{2}$") && "x".matches("(?i)^X$")',
    '"b".matches(r"^(?P<n>[[:alpha:]]|[^\\]a-]|\\Q((((\\E|\\x{1F600}|\\p{Greek}|{,3}){1,9}$")',
]


@pytest.mark.parametrize("expression", one_of(3, LARGE))
def test_what_kubernetes_allows_has_a_result(expression: str) -> None:
    assert cel.compile_selector(expression).evaluate(a_view()).value is True


def test_a_limit_says_what_was_asked_and_what_is_allowed() -> None:
    outcome = cel.compile_selector(HOSTILE["replace, with a long text"]).evaluate(a_view())
    assert re.fullmatch(
        "operation cancelled: a string of 1001000000 bytes is too large: "
        r"an evaluation may make 16000000 bytes in all, \d+ are left",
        str(outcome.value),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "lists.range(dyn('x')).size() > 0",
        "[1].slice(dyn('a'), 1) == []",
        "[1].flatten(dyn('a')) == []",
        "dyn('abc').join() == ''",
        "['a'].join(dyn(1)) == ''",
        "'a'.matches(dyn(1))",
        "dyn(1).matches('a')",
        "'a'.findAll(dyn(1)).size() == 1",
        "'a'.findAll('a', dyn('b')).size() == 1",
        "dyn(1).find('a') == ''",
        "'a'.replace(dyn(1), 'b') == ''",
        "'a'.split(',', dyn('b')) == []",
        "dyn(1).contains('a')",
        "'%s'.format(dyn(1)) == ''",
        "sets.contains(dyn(1), [1])",
        "dyn('b').sort() == []",
        "dyn(1) + dyn('a') == dyn(1)",
        "dyn(1) < dyn('a')",
        "dyn('x').add(1).isGreaterThan(quantity('1'))",
        "quantity(dyn(1)).isInteger()",
        "dyn(1).lastIndexOf('a') == 0",
        "timestamp(0).getHours(dyn(1)) == 1",
        "url(dyn(1)).getQuery() == {}",
    ],
)
def test_a_value_of_a_wrong_type_is_an_error_that_is_absorbed(wrong: str) -> None:
    # The list makes the evaluation count.
    assert cel.compile_selector(f"[device.driver] != [] && ({wrong} || true)").matches(a_view())
    with pytest.raises(cel.CelRuntimeError, match="no such overload"):
        cel.compile_selector(f"[device.driver] != [] && {wrong}").matches(a_view())


def test_nothing_absorbs_a_limit() -> None:
    hostile = HOSTILE["replace, with a long text"]
    for expression in (
        f"({hostile}) || true",
        f"({HOSTILE['equality of lists in lists']}) || true",
        f"[1].exists(x, {hostile}) || true",
        f"[{hostile}].size() == 1",
    ):
        with pytest.raises(cel.CelPanic):
            cel.compile_selector(expression).matches(a_view())


# --- compiling ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("true" + " " * 16_384, "16384 bytes are allowed"),
        ('"' + "é" * 9_000 + '" == ""', "16384 bytes are allowed"),
        ("optional.of(1)" + ".optMap(x, x)" * 200 + ".hasValue()", "more than 20000 parts"),
        (binds("{1: 1}", "{@: @}", 60, "true"), "types in the expression are too large"),
        (
            "".join(f"cel.bind(a{i}, [], " for i in range(41))
            + " && ".join(f"a{i} == [{{a{i + 1}[0]: a{i + 1}[0]}}]" for i in range(40))
            + ")" * 41,
            "types in the expression are too large",
        ),
        ('"a".matches("(a{100}){11}")', "invalid repetition size"),
        ('"a".matches("a{1001}")', "invalid repetition size"),
        ('"a".matches("(((a{10}){10}){10}){2}")', "invalid repetition size"),
        ('"a".matches("' + "(" * 1001 + "a" + ")" * 1001 + '")', "nests too deeply: 1000"),
        ('"a".matches("(' + "ab" * 2000 + '){1000}")', "more than 16384 parts"),
        ('"a".matches("' + "|".join(f".{{{i}}}a" for i in range(1000)) + '")', "more than 16384 parts"),
        ('"a".matches("\\\\pL{300}")', "more than 16384 instructions"),
        ('"a".matches("' + r"\\pL" * 3000 + '")', "more than 16384 parts"),
        ('"a".matches("' + r"[^\\pL\\d\\pN]" * 600 + '")', "more than 16384 parts"),
        ('"a".matches("\\\\C")', "invalid escape sequence"),
        (binds("{1: 1}", "{1: {1: @}}", 40, "[@, 1] == []"), "expected type"),
        ("a" * 16_000, "undeclared reference"),
        (" || ".join(f'"a".matches("a{i}")' for i in range(65)), "64 regular expressions"),
        (" || ".join(f'"a".matches("{i}.{{999}}")' for i in range(3)), "16384"),
    ],
)
def test_what_grows_while_it_is_compiled_is_refused(expression: str, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(cel.CelCompileError, match=message) as caught:
            cel.compile_selector(expression)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 500


def test_the_longest_expressions_of_the_api_compile() -> None:
    # Links of optMap, types, patterns, terms: each in numbers that a person might write by machine.
    for expression in (
        "true" + " " * 16_380,
        " && ".join(["1 + 1 + 1 == 3"] * 550),
        " && ".join(["[1].all(x, [x] == [1])"] * 400),
        " || ".join(f'"a{i}".matches("^a{i}$")' for i in range(64)),
        "optional.of(1)" + ".optMap(x, x)" * 8 + ".hasValue()",
        binds("[1]", "[@]", 80, "@ == @"),
    ):
        assert len(expression) <= cel.MAX_STORED_LENGTH
        assert cel.compile_selector(expression).evaluate(a_view()).value is True


def test_patterns_of_find_share_a_bound() -> None:
    one = cel.compile_selector('"a".find(".{999}") == ""').weight
    many = cel.compile_selector(" || ".join(f'"a".find(".{{999}}{i}") == "x"' for i in range(128))).weight
    assert many < 8 * one


def test_a_list_of_lists_compiles_in_linear_work() -> None:
    def calls(depth: int) -> int:
        expression = "[" * depth + "1, " * 3000 + "1" + "]" * depth + " != []"
        return work_counter.calls(lambda: cel.compile_selector(expression))

    assert calls(120) < 2 * calls(1)


# --- constants ----------------------------------------------------------------------------------------------

NEAR = [2**63 - 1, 2**63 - 2, 2**63 - 513, 2**53, 2**53 + 1, -(2**63), 0, 1, -1]


def test_whole_numbers_in_a_list_of_constants_are_compared_as_anywhere_else() -> None:
    constants = [*map(str, NEAR)]
    values = [
        *constants,
        *(f"{n}u" for n in (0, 1, 2**63 - 1, 2**63, 2**64 - 1)),
        *("0.0", "1.0", "9007199254740992.0", "9007199254740994.0", "9223372036854775807.0", "0.5"),
        *("-9223372036854775808.0", "18446744073709551615.0", 'double("NaN")', 'double("Infinity")'),
    ]
    for suffix in ("", ".0"):
        numbers = [c + suffix for c in constants] + (['double("NaN")'] if suffix else [])
        for value in values:
            wanted = "[" + ", ".join(numbers) + f"].exists(i, i == dyn({value}))"
            found = f"dyn({value}) in [" + ", ".join(numbers) + "]"
            for counted in ("", " && [device.driver] != []"):
                assert cel.compile_selector(found + counted).matches(a_view()) is cel.compile_selector(
                    wanted
                ).matches(a_view()), found


def test_a_list_of_constants_is_not_walked_for_nothing() -> None:
    # All of them are one number as doubles, and the cost of the list is nothing.
    constants = ", ".join(str(2**63 - 1 - i) for i in range(400))
    selector = cel.compile_selector(
        f"lists.range(100).all(x, (9223372036854775300 + x) in [{constants}] || true)"
    )
    view = a_view()
    assert work_counter.calls(lambda: selector.matches(view)) < 100 * 40


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        f'{{"a": 1}}[{long(1000, 1000)}] == 1',
        f"{{1: 2}}[?{long(1000, 1000)}.size()].value() == 1",
        binds("[1, 2]", "[@, @]", 60, "{1: 2}[dyn(@)] == 1"),
        binds("[1, 2]", "[@, @]", 60, "[1][dyn(@)] == 1"),
        binds("[1, 2]", "[@, @]", 60, "[?dyn(@)] == []"),
        binds("[1, 2]", "[@, @]", 60, "{?1: dyn(@)} == {}"),
        binds("[1, 2]", "[@, @]", 60, "optional.unwrap([dyn(@)]) == []"),
        f"timestamp(0).getHours({long(1000, 1000)}) == 1",
        f"semver({long(1000, 1000)}).major() == 1",
        f"quantity({long(1000, 1000)}).isInteger()",
        f'url("https://a/" + {long(1000, 1000)}).getHost() == ""',
        f"ip({long(1000, 1000)}).family() == 4",
        f'"a".matches("(" + {long(1000, 9)})',
        f'"a".matches({long(1000, 11)})',
    ],
)
def test_a_message_is_short_whatever_it_is_about(expression: str) -> None:
    outcome, peak = peak_of(cel.compile_selector(expression), a_view())
    assert isinstance(outcome.value, str)
    assert len(outcome.value) < 300
    assert peak < MOST_MEMORY


# --- costs --------------------------------------------------------------------------------------------------


def test_an_evaluation_has_a_cost_that_repeats() -> None:
    expressions = [
        "true",
        f'{MODEL} == "A100"',
        f'{MODEL}.matches("^A[0-9]+$")',
        f'device.attributes["{DRIVER}"].all(k, k != "x")',
        "lists.range(1000).all(x, x >= 0)",
        f'{MODEL}.matches("^" + {MODEL} + "$")',
        f"{MEMORY}.add(1).isGreaterThan({MEMORY}) || true",
    ]
    first = [cel.compile_selector(e).evaluate(a_view()) for e in expressions]
    assert first == [cel.compile_selector(e).evaluate(a_view()) for e in expressions]
    assert all(outcome.value is True for outcome in first)
    costs = [outcome.cost for outcome in first]
    assert min(costs) == costs[0] == 1
    assert max(costs[:4]) < 1000 < costs[4]


def test_the_cost_grows_with_the_work() -> None:
    def cost(expression: str) -> int:
        return cel.compile_selector(expression).evaluate(a_view()).cost

    assert cost("lists.range(2000).all(x, x >= 0)") == pytest.approx(
        2 * cost("lists.range(1000).all(x, x >= 0)"), rel=0.1
    )
    assert cost(HOSTILE["equality of lists in lists"]) > 1_000_000
    assert cost(f'{long(1000, 1000)} != ""') > 1_000_000 // 16


def test_a_failed_evaluation_costs_as_well() -> None:
    outcome = cel.compile_selector('device.attributes["x"].y == "z"').evaluate(a_view())
    assert outcome == cel.Outcome("no such key: y", outcome.cost)
    assert outcome.cost >= 1
    broken = cel.DeviceView(DRIVER, Device(name="g", attributes={"v": DeviceAttribute(version_value="one")}))
    assert cel.compile_selector("true").evaluate(broken).cost == 1


def test_what_people_write_is_not_counted_one_step_at_a_time() -> None:
    # Its cost is that of the worst case, known when it is compiled.
    for expression in (
        f'{MODEL} in ["A100", "H100"] && {MEMORY}.compareTo(quantity("40Gi")) >= 0',
        f'has(device.attributes["{DRIVER}"].model) && {MODEL}.startsWith("A")',
        f'cel.bind(a, device.attributes["{DRIVER}"], a.model == "A100" && a.index < 4)',
        f'{MODEL}.lowerAscii().matches("^(nvidia )?[ah][0-9]+")',
        f'device.attributes["{DRIVER}"].?absent.orValue("") != "x"',
    ):
        selector = cel.compile_selector(expression)
        assert selector.evaluate(a_view()).cost < 1000
        assert selector.evaluate(a_view()).cost >= selector.max_cost


def test_an_evaluation_is_paid_for_part_by_part() -> None:
    hostile = cel.compile_selector(HOSTILE["ranges that are kept"])
    paid: list[int] = []
    outcome = hostile.evaluate(a_view(), paid.append)
    assert outcome == hostile.evaluate(a_view())
    assert sum(paid) <= outcome.cost
    # Parts of 25,000 units, and a range before it is made.
    assert max(paid) <= 25_000 + 100_000
    assert sum(paid) > outcome.cost - 150_000


class NothingLeftError(Exception):
    pass


@pytest.mark.parametrize("name", one_of(3, HOSTILE))
def test_an_evaluation_ends_where_it_is_not_paid_for(name: str) -> None:
    def refuse(units: int) -> None:
        raise NothingLeftError

    selector = cel.compile_selector(f"({HOSTILE[name]}) || true")
    tracemalloc.start()
    try:
        outcome = selector.evaluate(a_view(), refuse)
        # One step that is beyond the limits by itself.
        assert str(outcome.value).startswith("operation cancelled")
    except NothingLeftError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 * MIB


def test_what_people_write_is_paid_for_at_the_end() -> None:
    paid: list[int] = []
    selector = cel.compile_selector(f'{MODEL}.matches("^A[0-9]+$") && {MODEL}.split("1").size() == 2')
    assert selector.evaluate(a_view(), paid.append).value is True
    assert paid == []


# --- what is kept -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "test",
    [
        "1 / 0 > x || true",
        "1 / 0 > x || 1 / 0 > x || true",
        "[x].exists(y, 1 / 0 > y) || true",
        "cel.bind(a, 1 / 0, true || a > x)",
        'device.attributes["x"].y == x || true',
    ],
)
def test_failures_leave_nothing_to_the_garbage_collector(test: str) -> None:
    # A failure that is kept with its traceback holds the frame that keeps it.
    selector = cel.compile_selector(each(1000, test))
    # What was there before is not looked through.
    gc.freeze()
    gc.disable()
    try:
        assert selector.matches(a_view())
        assert gc.collect() < 100
    finally:
        gc.enable()


def test_long_versions_are_not_kept() -> None:
    text = '"1.2.3-" + string(x) + "' + ".a" * 110 + '"'
    selector = cel.compile_selector(f"lists.range(700).all(x, isSemver({text}))")
    selector.evaluate(a_view())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert cel.compile_selector(f"lists.range(700).all(x, semver({text}).major() == 1)").matches(a_view())
        assert tracemalloc.get_traced_memory()[0] - before < MIB
    finally:
        tracemalloc.stop()


def test_a_selector_weighs_at_least_what_it_takes() -> None:
    for expression in (
        " && ".join(["dyn(1) < dyn(1)"] * 100),
        " && ".join(["1 + 1 + 1 + 1 == 4"] * 100),
        " && ".join(["[1].all(x, [x] == [1])"] * 100),
        " && ".join(["{} == {}"] * 300),
        f'"1{"€" * 5000}" == ""',
        f"[{', '.join(map(str, range(1000, 3000)))}] == []",
    ):
        cel.compile_selector(expression.replace("1", "2"))
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            selector = cel.compile_selector(expression)
            assert tracemalloc.get_traced_memory()[0] - before < selector.weight
        finally:
            tracemalloc.stop()


def test_patterns_weigh_what_they_may_come_to() -> None:
    small = cel.compile_selector(f'{MODEL} == "A100"').weight
    patterns = cel.compile_selector(" || ".join(f'"a".matches("a{i}")' for i in range(64))).weight
    large = cel.compile_selector('"a".matches(".{999}")').weight
    assert small < 20_000
    assert patterns > 64 * 100_000
    assert large > MIB
