"""``--publish=node`` while the kubelet's health stream is closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fake_client import FakeClient
from node_agent import eventually, running
from test_kubelet_plugin_health import OFF_THE_BUS, SickBackend

from dra_driver.api.resource import RESOURCE_SLICES
from kubelet_plugin.core.registration import RegistrationState


def taints(kube: FakeClient) -> list[str]:
    return [t.key for s in kube.all(RESOURCE_SLICES) for d in s.spec.devices for t in d.taints]


def test_slices_are_kept_true_after_the_health_stream_was_closed(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        async with running(tmp_path, kube, backend=backend, settings={"publish": "node"}) as node:
            await node.register()
            await eventually(lambda: kube.all(RESOURCE_SLICES))
            with node.plugin._state.stream():
                pass
            backend.ail(0, OFF_THE_BUS, code=79)
            await eventually(lambda: taints(kube))
            # What was deleted meanwhile is not created: this may be a kubelet that has dropped the plugin.
            for slice_ in kube.all(RESOURCE_SLICES):
                kube.remove(RESOURCE_SLICES, slice_.metadata.name)
            backend.ail(0)
            await node.plugin._table.scan()
            await node.plugin._keeper.reconcile()
            assert kube.all(RESOURCE_SLICES) == []
            # The kubelet has opened it again.
            with node.plugin._state.stream():
                await eventually(lambda: kube.all(RESOURCE_SLICES))

    asyncio.run(main())


def test_a_kubelet_that_registers_the_plugin_anew_need_not_open_a_stream() -> None:
    state = RegistrationState(lambda: True)
    state.confirmed()
    with state.stream():
        assert state.live
    assert not state.live
    # It was started anew, without the gate ResourceHealthStatus.
    state.confirmed()
    assert state.live
