"""A read-only page that draws the fleet and follows it live; off unless ``--web-port`` is given.

=================  =========================================================================================
/                  the page; its script and style lie beside it, nothing is loaded from elsewhere
/fleet/events      server-sent events: first the whole fleet, then pools as they change
/fleet             the same as one JSON document
/fleet/plan        ``?pod=NAMESPACE/NAME``: what would make a waiting pod fit, as JSON
=================  =========================================================================================
"""

from __future__ import annotations

from controller.web.feed import CurrentFeed, Feed
from controller.web.plans import Planned, Plans
from controller.web.server import serve

__all__ = ["CurrentFeed", "Feed", "Planned", "Plans", "serve"]
