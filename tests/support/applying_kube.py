"""The API server in memory, with server-side apply of claim status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fake_kube import FakeKube

from dra_driver.api.meta import Resource
from dra_driver.errors import Forbidden


class ApplyingKube(FakeKube):
    """With server-side apply of ``status.devices``, merged by driver, pool and device."""

    def __init__(self) -> None:
        super().__init__()
        self.applied: list[tuple[str, list[dict[str, Any]]]] = []
        self.forbid = False

    async def apply(  # type: ignore[override]
        self, resource: Resource[Any], body: Mapping[str, Any], *, field_manager: str, **more: Any
    ) -> Any:
        if self.forbid:
            raise Forbidden("may not patch resourceclaims/status", code=403)
        assert more["subresource"] == "status"
        meta = body["metadata"]
        raw = self.raw(resource, meta["name"], meta["namespace"])
        assert raw is not None
        assert raw["metadata"]["uid"] == meta["uid"]
        entries = {(d["driver"], d["device"]): d for d in raw["status"].get("devices", [])}
        entries |= {(d["driver"], d["device"]): d for d in body["status"]["devices"]}
        raw["status"]["devices"] = list(entries.values())
        self.put(resource, raw)
        self.applied.append((field_manager, body["status"]["devices"]))
        return await self.get(resource, meta["name"], meta["namespace"])
