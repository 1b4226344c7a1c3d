"""The policy that sets the scheduling gate in every namespace, and pods that it leaves out.

No pool is open while pods may come without the gate. Tests of pods that kube-scheduler meets first need such
pods all the same: the policy has one more condition here, which what the controller tries it on meets.
"""

from __future__ import annotations

from typing import Any, Final

from manifest_files import documents

from dra_driver.api.names import GATE_POLICY
from dra_driver.sim.assets import deploy_directory

__all__ = ["GATE_COLLECTIONS", "WITHOUT_GATE", "gate_documents"]

_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
GATE_COLLECTIONS: Final = {
    "MutatingAdmissionPolicy": f"{_GROUP}/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": f"{_GROUP}/mutatingadmissionpolicybindings",
}
"""Where the documents are created, by kind."""

WITHOUT_GATE: Final = {"subdomain": "without-gate"}
"""What the spec of a pod has that gets no gate."""

_CONDITION: Final = {
    "name": "not-left-out-by-a-test",
    "expression": "!has(object.spec.subdomain) || object.spec.subdomain != 'without-gate'",
}


def gate_documents() -> list[dict[str, Any]]:
    """Return the policy that gates the pods of every namespace, and its binding."""
    files = (deploy_directory("manifests") / "gate-policy" / "gating.yaml",)
    found = {
        d["kind"]: d
        for d in reversed(documents(*files))
        if d["metadata"]["name"] == GATE_POLICY and d["kind"] in GATE_COLLECTIONS
    }
    assert found.keys() == GATE_COLLECTIONS.keys()
    found["MutatingAdmissionPolicy"]["spec"]["matchConditions"].append(_CONDITION)
    return list(found.values())
