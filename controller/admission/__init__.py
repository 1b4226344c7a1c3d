"""Admission webhooks: opaque parameters are checked when they are written, and pods get our gate.

The parameters are checked once more by the node's plugin when a claim is prepared, and a pod without the gate
is only looked at by kube-scheduler in vain. So both fail open: a webhook that is down disturbs nobody, least
of all users of other drivers, whose objects never come here. Requests for capacity that the API server would
drop in silence are refused, whatever driver they are for, also by a webhook that is down.

* ``review``: one AdmissionReview in, one out. Pure.
* ``reviewer``: HTTPS and reviews, in a process of their own. ``process`` starts it and looks after it, and
  ``wire`` has the messages.
* ``pki``: the certificate authority and the serving certificate. Pure.
* ``capacity``: whether the API server keeps requests for capacity.
* ``keeper``: both live in a Secret that all replicas share.
* ``server``: the port, the certificates and the process.

Which objects the API server sends here, and which authority it trusts, is in its webhook configurations. They
come with the installation (``webhook-configurations.yaml`` of the chart), and no account of this driver may
change them.
"""

from controller.admission.config import AdmissionConfig
from controller.admission.keeper import CertificateKeeper
from controller.admission.server import AdmissionServer

__all__ = ["AdmissionConfig", "AdmissionServer", "CertificateKeeper"]
