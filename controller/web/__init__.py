"""A read-only page that draws the fleet and follows it live; off unless ``--web-port`` is given.

=================  =========================================================================================
/                  the page; its script and style lie beside it, nothing is loaded from elsewhere
/fleet/events      server-sent events: first the whole fleet, then pools as they change
/fleet             the same as one JSON document
/fleet/labels      labels by which nodes can be grouped; ``?key=LABEL``: its value on each node
/fleet/object      ``?pod=NAMESPACE/NAME``, ``claim=``, ``node=`` or ``device=DRIVER/POOL/NAME``: what is
                   known about it, with its history
/fleet/trend       how the fleet was in the last hours, once a minute
/fleet/waiting     ``?q=WORDS``: the claims that wait and match a filter, the most urgent ones of all
/fleet/plan        ``?pod=NAMESPACE/NAME``: what would make a waiting pod fit, as JSON
=================  =========================================================================================

Every replica serves it: the one that leads from what it has in memory anyway, others from caches of their own
(``Standby``), without plans. History is in memory, bounded, and of each replica by itself.
"""

from __future__ import annotations

from controller.web.feed import CurrentFeed, Feed, Past
from controller.web.plans import Planned, Plans
from controller.web.server import serve
from controller.web.standby import Standby

__all__ = ["CurrentFeed", "Feed", "Past", "Planned", "Plans", "Standby", "serve"]
