"""The core of the driver: everything that is true without a cluster or a node, and the adapters around it.

Imports point one way (``pyproject.toml``, import-linter): commands, embedded cluster, binaries, adapters,
ports, domain, API types, errors. The domain packages (``api``, ``cel``, ``cdi``, ``structured``,
``preparation``, ``resourceclaim``, ``resourceslice``) do no I/O, read no clock and configure no logging.
"""

__version__ = "0.1.0"
