"""A pool is frozen from before devices change their form until the informer shows everything written."""

from __future__ import annotations

from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.resource import ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_driver.publishing.freeze import Freeze, FreezeEffect, FreezeState


def written(name: str, version: str) -> ResourceSlice:
    pool = ResourcePool(name=PoolName("n1"), generation=1, resource_slice_count=1)
    return ResourceSlice(
        metadata=ObjectMeta(name=name, resource_version=version),
        spec=ResourceSliceSpec(driver=DriverName("gpu.example.com"), pool=pool, node_name="n1"),
    )


def writing() -> Freeze:
    freeze, effects = Freeze().begin()
    assert (freeze.state, effects) == (FreezeState.WRITING, (FreezeEffect.BLOCK,))
    return freeze


def test_a_pool_opens_when_the_informer_shows_the_last_of_its_slices() -> None:
    freeze = (
        writing().wrote(written("a", "9"), "8").wrote(written("b", "11"), "").wrote(written("c", "10"), "8")
    )
    freeze, effects = freeze.end()
    assert (freeze.blocked, effects) == (True, ())
    for version in ("8", "9", "10"):
        freeze, effects = freeze.saw(version)
        assert (freeze.blocked, effects) == (True, ()), version
    assert freeze.awaited == {"b": "11"}
    assert freeze.saw("11") == freeze.saw("100") == (Freeze(), (FreezeEffect.UNBLOCK,))


def test_a_slice_that_the_informer_shows_already_is_not_waited_for() -> None:
    """No event about it would come any more, and the pool would stay frozen."""
    for shown in ("9", "10"):
        assert writing().wrote(written("a", "9"), shown).end() == (Freeze(), (FreezeEffect.UNBLOCK,))


def test_a_slice_that_is_written_again_is_waited_for_as_it_was_written_last() -> None:
    freeze, _ = writing().wrote(written("a", "9"), "").wrote(written("a", "12"), "").end()
    assert freeze.saw("9")[0].blocked
    assert not freeze.saw("12")[0].blocked


def test_a_pool_stays_frozen_while_it_is_written_whatever_is_shown() -> None:
    freeze, effects = writing().wrote(written("a", "9"), "").saw("9")
    assert (freeze.blocked, freeze.awaited, effects) == (True, {}, ())
    assert writing().saw("100") == (writing(), ())


def test_what_is_written_to_an_open_pool_is_not_waited_for() -> None:
    assert Freeze().wrote(written("a", "9"), "") == Freeze()
