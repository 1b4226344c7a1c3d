#!/usr/bin/env bash
# A kind cluster with DRA and simulated GPUs, the driver in it, and the end-to-end suite against it.
set -euo pipefail

usage() {
  cat <<EOF
usage: deploy/kind/kind.sh COMMAND

  create    a kind cluster (deploy/kind/cluster.yaml), its kubeconfig is build/kind/kubeconfig
  load      builds the driver's image, brings it and the pods' image to the node, and makes
            simulated hardware
  install   installs the driver, and waits until they are published
  test      runs the end-to-end suite (tests/e2e) against it
  delete    deletes the cluster
  all       all of these, in this order; the cluster is deleted even if the tests fail

variables (defaults)
  CLUSTER_NAME  name of the kind cluster ($CLUSTER_NAME)
  NODE_IMAGE    Kubernetes 1.34 or later, such as kindest/node:v1.36.1; empty: the one of kind's release
  IMAGE         name of the driver's image ($IMAGE)
  E2E_IMAGE     image of the suite's pods ($E2E_IMAGE)
  GPUS          profile of the simulated GPUs, built-in or a file ($GPUS)
  STATE         folder of the kubeconfig and of what was rendered (build/kind)
  KEEP          1: "all" leaves the cluster up
EOF
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
state=${STATE:-$root/build/kind}
: "${CLUSTER_NAME:=dra-driver}" "${NODE_IMAGE:=}" "${IMAGE:=dra-driver:kind}" "${E2E_IMAGE:=busybox:1.37}"
: "${GPUS:=examples}" "${KEEP:=}"
export KUBECONFIG=$state/kubeconfig
python=$root/.venv/bin/python
dra_driver=${DRA_DRIVER:-$root/.venv/bin/dra-driver}

fail() { echo "kind: $*" >&2; exit 2; }
say() { echo "== $*" >&2; }

# need PROGRAM WHERE: stops with a clear message where the program is missing.
need() { command -v "$1" >/dev/null 2>&1 || fail "$1 is not installed; see $2"; }

need_docker() {
  need docker https://docs.docker.com/engine/install/
  docker info >/dev/null 2>&1 || fail "the docker engine does not answer (docker info says why); is it running, and may you use it?"
}
need_kind() { need kind https://kind.sigs.k8s.io/docs/user/quick-start/; }
need_kubectl() { need kubectl https://kubernetes.io/docs/tasks/tools/; }
need_cluster() {
  kind get clusters 2>/dev/null | grep -qx "$CLUSTER_NAME" || fail "there is no cluster $CLUSTER_NAME; first: deploy/kind/kind.sh create"
  # Whoever made the cluster, the kubeconfig is where the other commands look for it.
  mkdir -p "$state"
  kind get kubeconfig --name "$CLUSTER_NAME" >"$KUBECONFIG.new" && mv "$KUBECONFIG.new" "$KUBECONFIG"
}
need_venv() { [ -x "$python" ] || fail "no virtual environment; first: make venv"; }

create() {
  need_docker; need_kind; need_kubectl
  if kind get clusters 2>/dev/null | grep -qx "$CLUSTER_NAME"; then
    fail "a cluster $CLUSTER_NAME exists already; deploy/kind/kind.sh delete removes it, CLUSTER_NAME names another"
  fi
  mkdir -p "$state/node"
  local config=$state/cluster.yaml
  sed "s|STATE|$state|g" "$root/deploy/kind/cluster.yaml" >"$config"
  local minor
  minor=$(sed -nE 's/.*:v1\.([0-9]+)\..*/\1/p' <<<"$NODE_IMAGE")
  if [ -n "$minor" ] && [ "$minor" -lt 34 ]; then
    fail "NODE_IMAGE=$NODE_IMAGE: Kubernetes 1.34 or later is needed (resource.k8s.io/v1)"
  fi
  say "creating cluster $CLUSTER_NAME"
  kind create cluster --name "$CLUSTER_NAME" --config "$config" --kubeconfig "$KUBECONFIG" --wait 180s \
    ${NODE_IMAGE:+--image "$NODE_IMAGE"}
  kubectl get --raw /apis/resource.k8s.io/v1 >/dev/null ||
    fail "this cluster does not serve resource.k8s.io/v1; NODE_IMAGE must be of Kubernetes 1.34 or later"
}

load() {
  need_docker; need_kind; need_cluster
  say "building $IMAGE"
  docker build --tag "$IMAGE" --file "$root/deploy/Dockerfile" "$root"
  docker image inspect "$E2E_IMAGE" >/dev/null 2>&1 || docker pull "$E2E_IMAGE"
  say "loading $IMAGE and $E2E_IMAGE"
  kind load docker-image --name "$CLUSTER_NAME" "$IMAGE" "$E2E_IMAGE"
  say "making the node's hardware ($GPUS)"
  # In a container, because device nodes need root. Made once: NICs do not change while agents look at them.
  docker run --rm --user 0 --volume "$state/node:$state/node" --volume "$root/tests/e2e:/suite:ro" \
    --env PYTHONPATH=/suite "$IMAGE" python -c '
import sys
from pathlib import Path
from local.node_files import NodeFiles
node = NodeFiles(Path(sys.argv[1]))
if not node.gpus.exists():
    node.make(sys.argv[2])
' "$state/node" "$GPUS"
}

# keeps_capacity: whether the API server stores requests for capacity; a webhook of ours that refuses them says no.
keeps_capacity() {
  kubectl create --dry-run=server --output json --filename - <<EOF 2>/dev/null | grep -q '"capacity"'
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: dra-driver-probe, namespace: default}
spec:
  devices:
    requests: [{name: r, exactly: {deviceClassName: gpu, capacity: {requests: {memory: 1Gi}}}}]
EOF
}

install() {
  need_kind; need_kubectl; need_cluster; need_venv
  say "installing the driver"
  "$python" "$root/deploy/kind/render.py" --image "$IMAGE" --node-files "$state/node" >"$state/manifests.yaml"
  kubectl apply --server-side --force-conflicts --filename "$state/manifests.yaml"
  # Stored without its capacity, a claim would ask for any device.
  keeps_capacity || kubectl apply --filename "$root/deploy/optional/refuse-dropped-capacity.yaml"
  "$dra_driver" certificates
  kubectl --namespace dra-driver rollout status deployment/dra-driver-controller --timeout 180s
  kubectl --namespace dra-driver rollout status daemonset/dra-driver-kubelet-plugin --timeout 180s
  kubectl --namespace dra-driver rollout status daemonset/dra-driver-rdma-plugin --timeout 180s
  say "waiting for ResourceSlices"
  local tries
  for tries in $(seq 60); do
    [ -n "$(kubectl get resourceslices --output name)" ] && break
    [ "$tries" = 60 ] && fail "no ResourceSlices after 60 s; kubectl get deviceinventories --output yaml says why"
    sleep 1
  done
  kubectl get resourceslices
}

run_tests() {
  need_kind; need_cluster; need_venv
  CLUSTER=existing E2E_IMAGE=$E2E_IMAGE "$python" -m pytest -m e2e "$root/tests/e2e" "$@"
}

delete() {
  need_kind
  kind delete cluster --name "$CLUSTER_NAME" --kubeconfig "$KUBECONFIG"
}

all() {
  create
  [ "$KEEP" = 1 ] || trap delete EXIT
  load
  install
  run_tests "$@"
}

command=${1:-}
[ $# -gt 0 ] && shift
case $command in
  create | load | install | delete | all) "$command" "$@" ;;
  test) run_tests "$@" ;;
  -h | --help | help) usage ;;
  *) usage >&2; [ -z "$command" ] || echo "kind: unknown command: $command" >&2; exit 2 ;;
esac
