"""HTTP on TCP, as the controller and the node agent serve it: bounded connections, and who may read what.

Whoever reaches a port is hostile. So every port is opened by ``serve``, which bounds the number of
connections, the time that each step of one may take and the bytes of a request, and closes the connection
that has waited longest rather than refusing the newest. Pages that name claims and pods are put behind
``protected``, which asks the API server whose token a request carries and what that account may read.
"""

from dra_driver.serving.authorization import Authorizer, protected
from dra_driver.serving.limits import Limits
from dra_driver.serving.recent import Recent
from dra_driver.serving.server import Port, listening_sockets, serve

__all__ = ["Authorizer", "Limits", "Port", "Recent", "listening_sockets", "protected", "serve"]
