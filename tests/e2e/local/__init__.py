"""A single-node Kubernetes cluster from release binaries, for ``make e2e CLUSTER=local BIN=DIR``.

No Docker, no registry, no downloads. The whole cluster, containers included, lives in mount, network, PID,
IPC and UTS namespaces of its own, below one temporary folder and one cgroup. So all paths and ports in it are
the standard ones, the manifests of ``deploy/`` apply as they are, nothing of it meets another cluster of this
machine, and the kernel takes all of it away when the harness ends, however it ends.

* ``__main__`` is the command: it checks what is needed, makes the namespaces, and clears up after them.
* ``inside`` is what runs in them: the node's mounts and addresses, the cluster, the driver, the tests.
* ``configuration``, ``manifests`` and ``binaries`` are pure but for reading files; the rest is processes.
"""
