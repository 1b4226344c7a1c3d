"""An API server in this process: Kubernetes' API machinery over HTTP, for the kinds that DRA involves.

It keeps objects in memory (``Store``), serves them as the real one does (``ApiServer``) and runs no
controllers: garbage collection, claims from templates, scheduling and pods' lives belong to the rest of
``dra_driver.sim``.
"""

from dra_driver.sim.apiserver.http.server import ApiServer
from dra_driver.sim.apiserver.objects.releases import DEFAULT, RELEASES
from dra_driver.sim.apiserver.storage.store import Store

__all__ = ["DEFAULT", "RELEASES", "ApiServer", "Store"]
