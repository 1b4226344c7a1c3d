"""Claims and selectors that hypothesis makes, from a seed: shapes that nobody has thought of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import attack_objects as objects
from attack_api import Manifest
from attack_judgement import BARS
from attack_objects import DRIVER, NUMA, RACK, UUID, exactly, one, selected
from attack_world import TENANT, AttackedCluster, attack
from hypothesis import HealthCheck, Phase, given, seed, settings, target
from hypothesis import strategies as st

from dra_driver import cel

T = TypeVar("T")

_SELECTORS, _CLAIMS, _EXAMPLES = 40, 30, 400
_NEWCOMERS, _NEW_KINDS = "newcomers", 5

_letters = st.text("abG-09.", min_size=0, max_size=6)
_numbers = st.integers(0, 60).map(str)
_patterns = st.recursive(
    st.sampled_from(["a", "[a-z0-9]", ".", "\\\\pL", "[^-]", "(GPU|-)", "x?"]),
    lambda inner: st.one_of(
        st.builds("({}{})".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("({}){{{},{}}}".format, inner, st.integers(0, 5), st.integers(5, 60)),
        st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?"])),
    ),
    max_leaves=12,
)


def _texts(lists: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    leaf = st.one_of(
        st.just(UUID),
        st.just(f'device.attributes["{DRIVER}"].model'),
        st.just("device.driver"),
        _letters.map("'{}'".format),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds("({} + {})".format, inner, inner),
            st.builds("{}.replace('{}', {})".format, inner, _letters, inner),
            st.builds("{}.lowerAscii()".format, inner),
            st.builds("strings.quote({})".format, inner),
            st.builds("'%s-%s'.format([{}, {}])".format, inner, inner),
            st.builds("{}.split('{}').join({})".format, inner, _letters, inner),
            st.builds("{}.map(e, string(e)).join({})".format, lists, inner),
        ),
        max_leaves=8,
    )


_lists = st.recursive(
    st.one_of(
        st.just("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"),
        _numbers.map("lists.range({})".format),
        st.integers(0, 20_000).map("lists.range({})".format),
        st.just(f"{UUID}.split('').map(e, e.size())"),
    ),
    lambda inner: st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("{}.map(e, e * 2)".format, inner),
        st.builds("{}.filter(e, e > {})".format, inner, _numbers),
        st.builds("cel.bind(l, {}, l + l + l)".format, inner),
        st.builds("{}.slice(0, {})".format, inner, _numbers),
        st.builds("{}.sort()".format, inner),
        st.builds("{}.distinct()".format, inner),
    ),
    max_leaves=6,
)
_strings = _texts(_lists)
_tests = st.one_of(
    st.builds("{}.matches('{}')".format, _strings, _patterns),
    st.builds("{}.contains({})".format, _strings, _strings),
    st.builds("{} == {}".format, _strings, _strings),
    st.builds("{}.indexOf({}) > {}".format, _strings, _strings, _numbers),
    st.builds("{}.sum() > {}".format, _lists, _numbers),
    st.builds("{} == {}".format, _lists, _lists),
)
EXPRESSIONS = st.recursive(
    _tests,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("{}.all({}, {})".format, _lists, st.sampled_from("vwxyz"), inner),
        st.builds("{}.exists_one({}, {})".format, _lists, st.sampled_from("vwxyz"), inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=6,
)
"""Selectors, most of which are well typed, and many of which are too expensive for the API."""

_wanted = st.builds(
    lambda count, letter, mode: exactly(
        *([f'{UUID}.charAt({letter}) != "g"'] if letter else []),
        **({"allocationMode": "All"} if mode else {"count": count}),
    ),
    st.integers(1, 9),
    st.integers(0, 20),
    st.integers(0, 9).map(lambda n: n == 0),
)
_attributes = st.sampled_from(
    [NUMA, "resource.kubernetes.io/pcieRoot", f"{DRIVER}/uuid", f"{DRIVER}/model", f"{DRIVER}/absent"]
)


@st.composite
def _claims(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Manifest:
    """Return ``spec.devices`` of a claim within the limits of the API."""
    names = [f"r{i}" for i in range(draw(st.integers(1, 14)))]
    wanted: list[Manifest] = []
    for name in names:
        subs = draw(st.lists(_wanted, max_size=8))
        if subs:
            wanted.append(
                {"name": name, "firstAvailable": [{"name": f"s{i}", **s} for i, s in enumerate(subs)]}
            )
        else:
            wanted.append({"name": name, "exactly": draw(_wanted)})
    constraints = [
        {draw(st.sampled_from(["matchAttribute", "distinctAttribute"])): draw(_attributes), "requests": among}
        for among in draw(st.lists(st.lists(st.sampled_from(names), min_size=1, unique=True), max_size=6))
    ]
    return {"requests": wanted, **({"constraints": constraints} if constraints else {})}


def _seeded(number: int, strategy: st.SearchStrategy[T], most: int, cost: Callable[[T], float]) -> list[T]:
    """Return those of a seed's examples that cost most; hypothesis looks for more of their kind.

    A negative cost leaves an example out.
    """
    found: list[tuple[float, int, T]] = []

    @seed(number)
    @settings(
        max_examples=_EXAMPLES,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.target),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: T) -> None:
        worth = cost(value)
        if worth >= 0:
            target(worth)
            found.append((worth, len(found), value))

    collect()
    return [value for _, _, value in sorted(found, key=lambda f: (-f[0], f[1]))[:most]]


def _estimate(expression: str) -> float:
    """Return the cost that Kubernetes estimates; negative where the API refuses the selector."""
    if cel.validate_selector(expression):
        return -1.0
    return float(cel.compile_selector(expression, environment=cel.NEW).max_cost)


def selectors(number: int) -> list[str]:
    """Return selectors of a seed that the API takes, the most expensive of its examples."""
    return list(dict.fromkeys(_seeded(number, EXPRESSIONS, _SELECTORS, _estimate)))


def claims(number: int) -> list[Manifest]:
    """Return claims of a seed, those with the most combinations of its examples."""

    def combinations(spec: Manifest) -> float:
        return float(sum(len(r.get("firstAvailable", "x")) for r in spec["requests"]))

    return _seeded(number, _claims(), _CLAIMS, combinations)


async def _selectors(world: AttackedCluster, number: int) -> None:
    made = await asyncio.to_thread(selectors, number)
    world.notes.append(f"seed {number}: {len(made)} selectors")
    await world.submit(*(m for i, e in enumerate(made) for m in one(f"drawn-{i}", TENANT, selected(e))))


@attack
async def generated_selectors(world: AttackedCluster) -> None:
    """Draw selectors within the estimate, and look for the most expensive ones."""
    await _selectors(world, world.seed)


@attack
async def more_generated_selectors(world: AttackedCluster) -> None:
    """Draw selectors from another seed."""
    await _selectors(world, world.seed + 1_000_003)


@attack
async def generated_selectors_before_a_new_kind(world: AttackedCluster) -> None:
    """Draw selectors, while pods of another namespace ask for what no pod has asked for before."""
    await world.namespace(_NEWCOMERS)
    await _selectors(world, world.seed + 2_000_003)
    since: dict[str, float] = {}
    try:
        async for number in world.ticks(2.0):
            if number < _NEW_KINDS:
                name, kind = f"new-{number}", selected(f"{UUID}.startsWith('GPU-{500 + number:08x}-')")
                await world.create(one(name, _NEWCOMERS, kind))
                since[name] = time.monotonic()
            for name in list(since):
                path = f"/apis/resource.k8s.io/v1/namespaces/{_NEWCOMERS}/resourceclaims/{name}"
                _, claim = await world.api.call("GET", path)
                if claim.get("status", {}).get("allocation"):
                    del since[name]
    finally:
        for name, started in since.items():
            if (waited := time.monotonic() - started) > BARS.worst:
                world.problems.append(f"{name} has waited for {waited:.1f} s")


@attack
async def generated_claims(world: AttackedCluster) -> None:
    """Draw claims: requests, alternatives, counts and constraints."""
    made = await asyncio.to_thread(claims, world.seed)
    world.notes.append(f"seed {world.seed}: {len(made)} claims")
    await world.submit(*(m for i, s in enumerate(made) for m in one(f"drawn-{i}", TENANT, s)))


@attack
async def generated_gangs(world: AttackedCluster) -> None:
    """Draw claims for the members of groups that are to share a rack or a host."""
    made = await asyncio.to_thread(claims, world.seed + 1)
    world.notes.append(f"seed {world.seed + 1}: {len(made)} members")
    await world.submit(
        *(
            m
            for i, spec in enumerate(made)
            for m in objects.member(
                f"drawn-{i}",
                TENANT,
                f"drawn-{i // 6}",
                min(6, len(made) - i // 6 * 6),
                (RACK, "kubernetes.io/hostname")[i // 6 % 2],
                spec,
            )
        )
    )
