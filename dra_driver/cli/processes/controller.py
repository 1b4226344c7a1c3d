"""``dra-driver controller``: the cluster controller as a process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from controller.admission.config import OBJECT_NAME, AdmissionConfig
from controller.app import Controller
from controller.assembly import AnswersOf, worker_process
from controller.config import (
    ControllerConfig,
    PreemptionMode,
    PreemptionSettings,
    Timings,
    identity_of,
)
from dra_driver.api.meta import DriverName
from dra_driver.api.names import (
    CONTROLLER_FIELD_MANAGER,
    DEFAULT_DRIVER_NAME,
    DEFAULT_SCHEDULER,
    SYSTEM_NAMESPACE,
)
from dra_driver.cli import common
from dra_driver.cli.shapes_argument import add_shape_argument
from dra_driver.fleet import parse_shapes
from dra_driver.kube import KubeApi
from dra_driver.ownership import PoolAllocator
from dra_driver.structured import GroupLabels, NodePolicy, Strategy

log = structlog.get_logger(__name__)
# While caches are filled, for so long at most, all that there is leaves the collector's sight so often.
_FILLING_SECONDS: Final = 60.0
_FREEZE_SECONDS: Final = 0.1
# From one look at everything to the next: cycles among what had been looked at become garbage, too.
_WHOLE_SECONDS: Final = 3600.0
# The oldest generation of the collector.
_FULL: Final = 2
# Those of Python, but with a fifth of the middle generations per full collection: one looks at 20,000 new
# objects and takes 10 ms. What it leaves is not looked at again, so that more of them take no more time.
_THRESHOLDS: Final = (700, 10, 2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    _add_cluster(parser.add_argument_group("cluster"))
    _add_replicas(parser.add_argument_group("replicas"))
    _add_allocation(parser.add_argument_group("allocation"))
    _add_groups(parser.add_argument_group("groups of pods"))
    _add_limits(parser)
    _add_preemption(parser)
    _add_autoscaling(parser.add_argument_group("autoscaling"))
    _add_admission(parser)
    _add_http(parser.add_argument_group("HTTP"))
    _add_reports(parser.add_argument_group("reports"))


def _add_cluster(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig; default: the KUBECONFIG variable, then the pod's service account",
    )
    parser.add_argument(
        "--driver-name",
        action="append",
        metavar="NAME",
        help=f"driver whose devices are handled (repeatable); default: {DEFAULT_DRIVER_NAME}",
    )
    parser.add_argument(
        "--scheduler-name",
        action="append",
        metavar="NAME",
        help=f"schedulerName of the pods that are served (repeatable); default: {DEFAULT_SCHEDULER}",
    )


def _add_replicas(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait for a Lease before working, so that several replicas can run",
    )
    parser.add_argument("--namespace", default=SYSTEM_NAMESPACE, metavar="NS", help="namespace of the Lease")
    parser.add_argument(
        "--pod-name",
        default="",
        metavar="NAME",
        help="name of this pod, the beginning of its identity in the Lease; default: the host name",
    )


def _add_allocation(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--allocator",
        choices=[a.value for a in PoolAllocator],
        default=PoolAllocator.CONTROLLER.value,
        help="who allocates claims: this controller (a taint keeps kube-scheduler off its devices) or "
        "kube-scheduler",
    )
    parser.add_argument(
        "--strategy",
        choices=[s.value for s in Strategy],
        default=Strategy.BEST_FIT.value,
        help="how this controller chooses devices, unless a DevicePolicy says otherwise",
    )
    parser.add_argument(
        "--node-policy",
        choices=[p.value for p in NodePolicy],
        default=NodePolicy.PACK.value,
        help="which of several equally good nodes best-fit chooses, unless a DevicePolicy says otherwise: "
        "the fullest (pack) or the emptiest (spread)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=16,
        metavar="NUMBER",
        help="number of pods whose allocations are written at the same time",
    )
    parser.add_argument(
        "--binding-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time without a report of kube-scheduler on a pod with allocated claims, after which they are "
        "deallocated",
    )
    parser.add_argument(
        "--starvation-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="waiting time after which devices are set aside for a pod, so that later pods do not get them, "
        "for one pod at a time; 0: never",
    )
    parser.add_argument(
        "--open-pools",
        action="store_true",
        help="publish pools without the driver's taint where the admission policy dra-driver-grants refuses "
        "allocations by others and the pods of every namespace get the scheduling gate",
    )
    parser.add_argument(
        "--grant-scan-budget",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="estimated time that kube-scheduler may spend on searches caused by grants: for a pod that "
        "does not use its grants on all nodes that suit it, and for pods that it could not place; above it, "
        "no further pods get grants",
    )


def _add_groups(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--group-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time for which pods of a group may hold devices while other pods of the group are missing",
    )
    parser.add_argument(
        "--group-labels",
        default=",".join(GroupLabels),
        metavar="LIST",
        help="labels of other projects that make pods a group, which is allocated as a whole or not at all, "
        "beside "
        "dra-driver.dev/group: kueue (pod groups), coscheduling (pod-group.scheduling.sigs.k8s.io), both "
        "separated by a comma, or none; default: %(default)s",
    )


def _add_autoscaling(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--scale-up-delay",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="time that a pod which only another node could serve waits before autoscalers see it, if a "
        "DevicePolicy allows nodes to be added",
    )
    parser.add_argument(
        "--scale-up-pods",
        type=int,
        default=64,
        metavar="NUMBER",
        help="maximum number of such pods that autoscalers see at a time; 0: none",
    )


def _add_http(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--health-port",
        type=int,
        metavar="PORT",
        help="serve /healthz, /readyz and /metrics; default: not served",
    )
    parser.add_argument(
        "--health-host", default="127.0.0.1", metavar="ADDRESS", help="address for --health-port"
    )
    parser.add_argument(
        "--web-port",
        type=int,
        metavar="PORT",
        help="serve a read-only page that shows the fleet live; default: not served",
    )
    parser.add_argument(
        "--web-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address for --web-port; everyone who reaches it sees the names of claims and pods, so prefer "
        "kubectl port-forward to another address",
    )
    common.add_http_authorization_argument(parser, "/metrics, and the page on other addresses than loopback")


def _add_reports(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--otlp-endpoint",
        default="",
        metavar="URL",
        help="send traces to this collector (OTLP over HTTP), such as http://collector:4318; default: none",
    )
    add_shape_argument(parser)
    parser.add_argument(
        "--node-labels",
        choices=("none", "own", "nvidia"),
        default="none",
        help="label nodes with their devices: under dra-driver.dev, or with NVIDIA's names as well",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group(
        "limits of decisions", "A pod whose decision reaches a limit waits, with the Event DecisionLimit."
    )
    limits.add_argument(
        "--decision-seconds",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="CPU time that a decision about a pod may take",
    )
    limits.add_argument(
        "--group-decision-seconds",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="CPU time that a decision about all pods of a group may take",
    )
    limits.add_argument(
        "--decision-memory",
        type=int,
        default=256,
        metavar="MIB",
        help="memory that a decision may take",
    )


def _add_preemption(parser: argparse.ArgumentParser) -> None:
    preemption = parser.add_argument_group(
        "preemption", "Pods of lower priority make room for a pod, or a group, that lacks devices."
    )
    preemption.add_argument(
        "--preemption",
        choices=[mode.value for mode in PreemptionMode],
        default=PreemptionMode.DRY_RUN.value,
        help="off: never; dry-run: only report which pods would be removed; on: remove them, which needs "
        "additional permissions",
    )
    preemption.add_argument(
        "--preemption-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long the same pod or group waits before more pods are removed for it, and how long the "
        "devices of the removed ones are set aside for it",
    )
    preemption.add_argument(
        "--preemption-rate",
        type=float,
        default=10.0,
        metavar="PODS",
        help="maximum number of pods removed per minute, on average",
    )
    preemption.add_argument(
        "--preemption-violates-budgets",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="if every choice violates a PodDisruptionBudget, delete pods nevertheless",
    )


def _add_admission(parser: argparse.ArgumentParser) -> None:
    admission = parser.add_argument_group(
        "admission webhooks", "They check opaque parameters of the drivers when objects are written."
    )
    admission.add_argument(
        "--admission-port",
        type=int,
        metavar="PORT",
        help="serve the webhooks over HTTPS; default: not served",
    )
    admission.add_argument(
        "--admission-host",
        default="",
        metavar="ADDRESS",
        help="address for --admission-port; default: all addresses",
    )
    admission.add_argument(
        "--admission-service",
        default=OBJECT_NAME,
        metavar="NAME",
        help=f"Service in --namespace by which the API server reaches the webhooks; default: {OBJECT_NAME}",
    )
    admission.add_argument(
        "--admission-secret",
        default=OBJECT_NAME,
        metavar="NAME",
        help="Secret in --namespace with the certificates: an authority and its key (ca.crt, ca.key), with "
        "which the controller makes serving certificates, or a finished one (tls.crt, tls.key); "
        f"default: {OBJECT_NAME}",
    )
    admission.add_argument(
        "--admission-client-ca",
        type=Path,
        metavar="FILE",
        help="answer only callers with a certificate of one of these authorities (PEM); default: answer "
        "everybody",
    )
    admission.add_argument(
        "--admission-client-name",
        action="append",
        default=[],
        metavar="NAME",
        help="common or DNS name that such a certificate must have (repeatable); default: any",
    )
    admission.add_argument(
        "--admission-url",
        default="",
        metavar="URL",
        help="URL of the webhooks, instead of a Service: https://HOST[:PORT][/PATH]",
    )


def run(
    args: argparse.Namespace, timings: Timings | None = None, answers_of: AnswersOf = worker_process
) -> int:
    """Run until SIGTERM or SIGINT (exit 0), or until the lease is lost (exit 1).

    Args:
        args: of the command line.
        timings: in place of the usual ones; for tests.
        answers_of: see ``Controller``.
    """
    admission: AdmissionConfig | None = None
    if args.admission_port is not None:
        admission = AdmissionConfig(
            port=args.admission_port,
            host=args.admission_host,
            service=args.admission_service,
            secret=args.admission_secret,
            client_authorities=args.admission_client_ca,
            client_names=tuple(args.admission_client_name),
            url=args.admission_url,
        )
    drivers = tuple(DriverName(name) for name in args.driver_name or [DEFAULT_DRIVER_NAME])
    shapes = parse_shapes(args.shape, drivers[0])
    config = ControllerConfig(
        admission=admission,
        drivers=drivers,
        kubeconfig=args.kubeconfig,
        allocator=PoolAllocator(args.allocator),
        strategy=Strategy(args.strategy),
        node_policy=NodePolicy(args.node_policy),
        leader_elect=args.leader_elect,
        heartbeat=not args.leader_elect,
        namespace=args.namespace,
        identity=identity_of(args.pod_name),
        health_port=args.health_port,
        health_host=args.health_host,
        http_authorization=args.http_authorization,
        otlp_endpoint=args.otlp_endpoint,
        web_port=args.web_port,
        web_host=args.web_host,
        starvation_seconds=args.starvation_timeout,
        scale_up_seconds=args.scale_up_delay,
        scale_up_pods=args.scale_up_pods,
        preemption=PreemptionSettings(
            mode=PreemptionMode(args.preemption),
            seconds=args.preemption_timeout,
            per_minute=args.preemption_rate,
            violates_budgets=args.preemption_violates_budgets,
        ),
        open_pools=args.open_pools,
        grant_scan_seconds=args.grant_scan_budget,
        schedulers=tuple(args.scheduler_name or [DEFAULT_SCHEDULER]),
        binding_seconds=args.binding_timeout,
        workers=args.workers,
        group_seconds=args.group_timeout,
        group_labels=_group_labels(args.group_labels),
        decision_seconds=args.decision_seconds,
        group_decision_seconds=args.group_decision_seconds,
        decision_memory=args.decision_memory << 20,
        node_labels=args.node_labels,
        shapes=shapes,
        timings=timings or Timings(),
    )
    asyncio.run(_main(config, answers_of))
    return 0


def _group_labels(text: str) -> tuple[str, ...]:
    """Return the labels of groups that the flag names; wrong ones are found by the configuration."""
    return () if text == "none" else tuple(dict.fromkeys(item.strip() for item in text.split(",")))


async def _main(config: ControllerConfig, answers_of: AnswersOf) -> None:
    async with await KubeApi.connect(
        config.kubeconfig, field_manager=CONTROLLER_FIELD_MANAGER, user_agent="dra-driver-controller"
    ) as client:
        log.info(
            "controller starts",
            server=client.host,
            drivers=",".join(config.drivers),
            allocator=config.allocator.value,
            leader_elect=config.leader_elect,
        )
        controller = Controller(client, config, answers_of=answers_of)
        task = asyncio.create_task(controller.run())
        settling = asyncio.create_task(settle(controller.leads, controller.ready))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        settling.cancel()
        log.info("controller ends")


async def settle(leads: asyncio.Event, ready: asyncio.Event) -> None:
    """Keep the collector of garbage from what the caches hold, until cancelled.

    A full collection looks at all of it, and holds the event loop for as long: 0.2 s at 1,000 nodes, and more
    as pods come. So it looks once at what is new, and at all of it every hour. It is for a process that does
    nothing else.

    Args:
        leads: when the caches begin to be filled.
        ready: when they are.
    """
    gc.callbacks.append(_freeze_survivors)
    thresholds = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        # A standby fills those of the page.
        await _freeze_until(leads)
        await leads.wait()
        await _freeze_until(ready)
        await ready.wait()
        gc.collect()
        while True:
            await asyncio.sleep(_WHOLE_SECONDS)
            gc.unfreeze()
            gc.collect()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(_freeze_survivors)


def _freeze_survivors(phase: str, info: Mapping[str, int]) -> None:
    """Keep what a full collection has left from the next one."""
    if phase == "stop" and info["generation"] == _FULL:
        gc.freeze()


async def _freeze_until(event: asyncio.Event) -> None:
    """Freeze what is there again and again, until something has come.

    Garbage of that time stays for a while, so it is bounded: an API server may not answer for hours.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FILLING_SECONDS):
            while not event.is_set():
                gc.freeze()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), _FREEZE_SECONDS)
