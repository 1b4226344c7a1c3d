"""The attacks, a module for each topic. Importing them fills ``attack_world.ATTACKS``, in this order."""

from attacks import (  # noqa: I001 - processes come last: what they end has to start again
    claims,
    selectors,
    generated,
    gangs,
    names,
    storms,
    churn,
    sizes,
    nodes,
    connections,
    reviews,
    processes,
    planted,
)

__all__ = [
    "churn",
    "claims",
    "connections",
    "gangs",
    "generated",
    "names",
    "nodes",
    "planted",
    "processes",
    "reviews",
    "selectors",
    "sizes",
    "storms",
]
