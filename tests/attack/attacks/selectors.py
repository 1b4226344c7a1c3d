"""Selectors within what Kubernetes' estimate of costs admits."""

from __future__ import annotations

from collections.abc import Iterable

from attack_objects import DRIVER, UUID, exactly, one, requests, selected
from attack_world import TENANT, AttackedCluster, attack
from hostile_selectors import HOSTILE

from dra_driver.cel import validate_selector

_MOST = 10_000  # bytes of a selector, a little below the limit


async def _submit(world: AttackedCluster, name: str, expressions: Iterable[str]) -> None:
    await world.submit(
        *(m for i, e in enumerate(expressions) for m in one(f"{name}-{i}", TENANT, selected(e)))
    )


@attack
async def pattern_expansion(world: AttackedCluster) -> None:
    """Write regular expressions whose repeats make large programs, on a text of three parts."""
    part = "(x+x+)+[a-z0-9]{1,40}(.?){30}"
    texts = [f"({UUID} + {UUID} + {UUID}).matches('{part * k}y')" for k in (10, 20, 30, 40, 120)]
    wide = "([a-z]{1,50}|[^-]{50}){20}" * 3
    await _submit(world, "pattern", [*texts, f"{UUID}.matches('{wide}$')"])


@attack
async def chained_replace(world: AttackedCluster) -> None:
    """Let a text grow ninefold with every call."""
    step, leap = """.replace('', 'xxxxxxxx')""", f""".replace('', '{"y" * 60}')"""
    texts = [f"{UUID}{step * k} == ''" for k in (4, 5, 6, 8)]
    long = f"{UUID}{leap * 3} == ''"
    await _submit(world, "replace", [*texts, long])


@attack
async def list_blow_up(world: AttackedCluster) -> None:
    """Double lists and texts by binding a name to twice the value before."""
    doubled = "cel.bind(a0, [1, 2, 3], "
    for i in range(24):
        doubled += f"cel.bind(a{i + 1}, a{i} + a{i}, "
    doubled += "a24.size() > 0" + ")" * 25
    ranges = "lists.range(30000).map(x, [x, x, x]).size() > 0"
    nested = "[" * 30 + "1" + "]" * 30
    await _submit(world, "list", [doubled, ranges, f"{nested} == {nested}"])


@attack
async def format_of_texts(world: AttackedCluster) -> None:
    """Make texts of lists in lists by format."""
    values, places = ", ".join(["device.driver"] * 100), "%s" * 100
    texts = [f'"{places}".format([{values}]) == ""', '"%s".format([lists.range(100000)]) == ""']
    await _submit(world, "format", texts)


@attack
async def nested_comprehensions(world: AttackedCluster) -> None:
    """Nest five loops over lists that the selector brings along: 100,000 rounds for each device."""
    ten = "[1,2,3,4,5,6,7,8,9,10]"
    loops = "".join(f"{ten}.all({v}, " for v in "abcde")
    maps = f"{ten}.map(a, {ten}.map(b, {ten}.map(c, {ten}.map(d, [a, b, c, d])))).size() == 0"
    texts = [f"{loops}{UUID} == '{i}'{')' * 5}" for i in range(5)]
    await _submit(world, "loops", [*texts, maps])


@attack
async def distinct_selectors(world: AttackedCluster) -> None:
    """Write 4,096 selectors that differ: whatever is kept for each of them is kept 4,096 times."""
    made = []
    for i in range(128):
        texts = [f'{UUID} != "{i}-{k}" && {UUID}.size() > {k}' for k in range(32)]
        made += one(f"distinct-{i}", TENANT, requests(*map(exactly, texts)))
    await world.submit(*made)


@attack
async def longest_selectors(world: AttackedCluster) -> None:
    """Write selectors of ten kilobytes."""
    term = f'{UUID} == "x" || '
    terms = term * ((_MOST - 10) // len(term)) + "false"
    text = f'{UUID} != "{"a" * 9_900}"'
    sums = "[" + ",".join(["1"] * 4_900) + "].sum() > 0"
    await _submit(world, "long", [terms, text, sums, *(f'{text} && "{i}" != ""' for i in range(10))])


@attack
async def deep_nesting(world: AttackedCluster) -> None:
    """Nest brackets, lists, negations and conditions as deep as they are taken."""
    texts: list[str] = []
    for depth in (50, 200, 240, 500, 2000):
        texts += [
            "(" * depth + "true" + ")" * depth,
            "!" * (2 * depth) + "true",
            "(true ? " * depth + "true" + " : false)" * depth,
        ]
    await _submit(world, "deep", texts)


@attack
async def characters_of_the_uuid(world: AttackedCluster) -> None:
    """Ask for single characters of the uuid, so that every device has to be looked at for itself."""
    made = []
    for i in range(20):
        texts = [f'{UUID}.charAt({k}) != "{chr(103 + i % 20)}"' for k in range(4, 12)]
        made += one(f"chars-{i}", TENANT, requests(*map(exactly, texts)))
    await world.submit(*made)


@attack
async def selectors_that_fail(world: AttackedCluster) -> None:
    """Let every evaluation end in an error, after some work: attributes that are not there, wrong types."""
    absent = f'device.attributes["{DRIVER}"].absent == "x"'
    wrong = f'device.attributes["none.example.com"].a.b == 1 || {UUID} == "x"'
    late = f'[1,2,3,4,5,6,7,8,9,10].all(x, [1,2,3,4,5,6,7,8,9,10].all(y, {UUID} != "")) && {absent}'
    number = f"{UUID}.size() / ({UUID}.size() - {UUID}.size()) == 1"
    await _submit(world, "fails", [absent, wrong, late, number])


@attack
async def known_hostile_selectors(world: AttackedCluster) -> None:
    """Write every selector of the collection of hostile ones that the API takes."""
    await _submit(world, "known", [e for e in HOSTILE.values() if not validate_selector(e)])


@attack
async def selectors_beside_each_other(world: AttackedCluster) -> None:
    """Write 32 requests with 32 selectors each, every one of them with a regular expression of its own."""
    made = []
    for i in range(2):
        texts = [
            [f"{UUID}.matches('^[a-z]{{{j + 1}}}{k}{i}.*$') || true" for j in range(32)] for k in range(32)
        ]
        made += one(f"beside-{i}", TENANT, requests(*(exactly(*t) for t in texts)))
    await world.submit(*made)
