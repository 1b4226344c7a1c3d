{{/* Labels of a component: include "dra-driver.labels" "controller" */}}
{{- define "dra-driver.labels" -}}
{app.kubernetes.io/name: dra-driver, app.kubernetes.io/component: {{ . }}}
{{- end }}

{{- define "dra-driver.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* CEL: whether a request tolerates the controller's taint as kube-scheduler sees it: include "dra-driver.tolerates" "r.exactly" */}}
{{- define "dra-driver.tolerates" -}}
has({{ . }}.tolerations) && {{ . }}.tolerations.exists(t,
  (!has(t.effect) || t.effect in ['', 'NoSchedule'])
  && (has(t.operator) && t.operator == 'Exists'
    || (!has(t.operator) || t.operator in ['', 'Equal']) && has(t.value) && t.value == 'allocates')
  && (has(t.key) && t.key == 'dra-driver.dev/controller'
    || (!has(t.key) || t.key == '') && !({{ . }}.deviceClassName in variables.tolerantClasses)))
{{- end }}

{{/* Whether a backend of this name is asked for, "true" or nothing: include "dra-driver.uses" (list . "nvml") */}}
{{- define "dra-driver.uses" -}}
{{- $name := index . 1 -}}
{{- $backends := (index . 0).Values.kubeletPlugin.backends -}}
{{- if not $backends -}}
{{- if has $name (list "nvml" "amdgpu" "intel") }}true{{ end -}}
{{- else -}}
{{- range $backends }}{{ if eq (first (splitList "=" .)) $name }}true{{ end }}{{ end -}}
{{- end -}}
{{- end }}

{{/* "true" where the node agent must be privileged. */}}
{{- define "dra-driver.privileged" -}}
{{- $nvidia := .Values.kubeletPlugin.nvidia -}}
{{- if and (include "dra-driver.uses" (list . "nvml")) (or $nvidia.mig $nvidia.mps $nvidia.privileged) }}true{{ end -}}
{{- end }}

{{/* "true" where device nodes of the host are looked at. */}}
{{- define "dra-driver.hostDev" -}}
{{- range (.Values.kubeletPlugin.backends | default (list "nvml")) -}}
{{- if ne (first (splitList "=" .)) "simulated" }}true{{ end -}}
{{- end -}}
{{- end }}

{{/* Names of this chart's drivers, as JSON. The NICs' driver counts where it is not installed, too: manifests add it later. */}}
{{- define "dra-driver.names" -}}
{{- $names := list .Values.driverName .Values.rdma.driverName -}}
{{- range .Values.extraDrivers }}{{ $names = append $names .driverName }}{{ end -}}
{{- toJson $names -}}
{{- end }}

{{/* What is wrong with a backend, or nothing: include "dra-driver.backendProblem" (list . "simulated=mixed" true); the last argument: whether it must be one that comes with the driver. */}}
{{- define "dra-driver.backendProblem" -}}
{{- $known := (index . 0).Files.Get "files/checks.yaml" | fromYaml -}}
{{- $name := first (splitList "=" (index . 1)) -}}
{{- $argument := trimPrefix "=" (trimPrefix $name (index . 1)) -}}
{{- if eq $name "simulated" -}}
{{- if not (or (has $argument $known.profiles) (contains "/" $argument) (hasSuffix ".yaml" $argument) (hasSuffix ".yml" $argument)) -}}
there is no such machine; allowed are simulated=PROFILE with {{ join ", " $known.profiles }}, or simulated=PATH of a YAML file in the container
{{- end -}}
{{- else if eq $name "generic" -}}
{{- if not $argument }}a file is missing; allowed is generic=PATH of a YAML file in the container{{ end -}}
{{- else if hasKey $known.backends $name -}}
{{- $arguments := get $known.backends $name -}}
{{- if and (contains "=" (index . 1)) (not (has $argument $arguments)) -}}
allowed {{ if $arguments }}are{{ else }}is{{ end }} {{ $name }}{{ range $arguments }}, {{ $name }}={{ . }}{{ end }}
{{- end -}}
{{- else if index . 2 -}}
there is no such backend; allowed are {{ range $it, $arguments := $known.backends }}{{ $it }}, {{ range $arguments }}{{ $it }}={{ . }}, {{ end }}{{ end }}generic=PATH, simulated=PROFILE
{{- with get (dict "nvidia" "nvml" "amd" "amdgpu" "mellanox" "rdma") $name }} (the one for {{ $name }} is {{ . }}){{ end }}. A backend of another package is an entry of extraDrivers
{{- end -}}
{{- end }}

{{/* Shapes that the controller would not count: include "dra-driver.checkShapes" . */}}
{{- define "dra-driver.checkShapes" -}}
{{- $form := (.Files.Get "files/checks.yaml" | fromYaml).shapes -}}
{{- range $name, $shape := .Values.controller.shapes -}}
{{- $place := printf "controller.shapes.%s" $name -}}
{{- $spec := $shape -}}
{{- if kindIs "string" $shape -}}
{{- if hasPrefix "{" (trim $shape) -}}
{{- $spec = fromJson $shape -}}
{{- if hasKey $spec "Error" -}}{{- fail (printf "%s: %s is no JSON: %s" $place $shape $spec.Error) -}}{{- end -}}
{{- else if not (regexMatch $form.words $shape) -}}
{{- fail (printf "%s: %s is not understood; expected %s, such as 8 gpu same nvlinkGroup, or a ResourceClaimSpec" $place $shape $form.form) -}}
{{- else -}}
{{- $words := splitList " " (regexReplaceAll "\\s+" (trim $shape) " ") -}}
{{- if regexMatch "^[0-9]+$" (first $words) -}}
{{- if or (gt (len (first $words)) 6) (gt (atoi (first $words)) 32) -}}{{- fail (printf "%s: %s asks for %s devices; a claim can have 32" $place $shape (first $words)) -}}{{- end -}}
{{- $words = rest $words -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $i, $word := rest $words -}}
{{- if and (eq (mod $i 2) 0) (ne $word "same") -}}
{{- if hasKey $seen $word -}}{{- fail (printf "%s: %s: %s is given twice" $place $shape $word) -}}{{- end -}}
{{- $_ := set $seen $word true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if kindIs "map" $spec -}}
{{- $devices := get $spec "devices" -}}
{{- $requests := ternary (get (default dict $devices) "requests") nil (or (not $devices) (kindIs "map" $devices)) -}}
{{- if not (and (kindIs "slice" $requests) $requests) -}}
{{- fail (printf "%s: asks for nothing: devices.requests is empty; expected a ResourceClaimSpec, or the words %s" $place $form.form) -}}
{{- end -}}
{{- range $request := $requests -}}
{{- range $part := append (default list $request.firstAvailable) (default dict $request.exactly) -}}
{{- if not (has (default "ExactCount" $part.allocationMode) (list "ExactCount")) -}}
{{- fail (printf "%s: request %s: allocationMode %s; only numbers of devices can be counted (ExactCount)" $place (default "" $request.name) $part.allocationMode) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Values that contradict each other; included once, by the controller's template. */}}
{{- define "dra-driver.check" -}}
{{- $named := dict -}}
{{- $label := "[a-z0-9]([-a-z0-9]*[a-z0-9])?" -}}
{{- $places := dict "driverName" .Values.driverName "rdma.driverName" .Values.rdma.driverName -}}
{{- range $i, $it := .Values.extraDrivers -}}
{{- $_ := set $places (printf "extraDrivers[%d].driverName" $i) $it.driverName -}}
{{- end -}}
{{- range $place, $name := $places -}}
{{- if not (regexMatch (printf "^%s([.]%s)+$" $label $label) $name) -}}
{{- fail (printf "%s: %s is no DNS name in lower case with a dot, such as gpu.dra-driver.dev" $place $name) -}}
{{- end -}}
{{- end -}}
{{- range $class, $it := .Values.deviceClasses -}}
{{- with $it.extendedResourceName -}}
{{- $place := printf "deviceClasses.%s.extendedResourceName: %s" $class . -}}
{{- if or (not (regexMatch (printf "^%s([.]%s)+/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $label $label) .)) (contains "kubernetes.io/" .) (hasPrefix "requests." .) -}}
{{- fail (printf "%s is no name of an extended resource: expected DOMAIN/NAME such as nvidia.com/gpu, outside kubernetes.io" $place) -}}
{{- end -}}
{{- if not (or (eq $.Values.allocator "scheduler") (include "dra-driver.opensPools" $)) -}}
{{- fail (printf "%s: kube-scheduler makes the claims of extended resources, and may allocate nothing in tainted pools; allocator is %s and admissionPolicies.gateNamespaces is %s. Set gateNamespaces: all, so that pools are open and devices are granted for these pods, or allocator: scheduler" $place $.Values.allocator $.Values.admissionPolicies.gateNamespaces) -}}
{{- end -}}
{{- if not $it.create -}}
{{- fail (printf "%s: needs deviceClasses.%s.create: true" $place $class) -}}
{{- end -}}
{{- if hasKey $named . -}}
{{- fail (printf "%s: deviceClasses.%s has the same name; a name stands for one class" $place (get $named .)) -}}
{{- end -}}
{{- $_ := set $named . $class -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.publish "node") (ne .Values.allocator "scheduler") -}}
{{- fail (printf "publish: node leaves allocation to kube-scheduler; allocator is %s, set allocator: scheduler" .Values.allocator) -}}
{{- end -}}
{{- range $name, $instead := dict "lending" "in open pools (admissionPolicies.gateNamespaces: all, the default) they are granted without it" "lendingScanBudget" "set controller.grantScanBudget" -}}
{{- if hasKey $.Values.controller $name -}}
{{- fail (printf "controller.%s: %s: devices are not lent any more; leave the value out: %s" $name (get $.Values.controller $name | toString) $instead) -}}
{{- end -}}
{{- end -}}
{{- if include "dra-driver.opensPools" . -}}
{{- $instead := "admissionPolicies.gateNamespaces is all: set labelled, and label the namespaces whose pods the controller shall place (dra-driver.dev/allocator=controller)" -}}
{{- if not .Values.admissionPolicies.gate -}}
{{- fail (printf "admissionPolicies.gate: false lets kube-scheduler try pods with devices that it cannot have, in every namespace; leave it on, or, as %s" $instead) -}}
{{- end -}}
{{- if not (or .Values.webhooks.enabled (include "dra-driver.hasMutatingPolicies" .)) -}}
{{- fail (printf "webhooks.enabled: false leaves nothing that sets the scheduling gate on Kubernetes %s; leave them on, or, as %s" .Capabilities.KubeVersion.Version $instead) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.publish "controller") (not .Values.controller.enabled) -}}
{{- fail "controller.enabled: false leaves nobody to publish ResourceSlices; set publish: node" -}}
{{- end -}}
{{- if and (not .Values.controller.leaderElect) (gt (int .Values.controller.replicas) 1) -}}
{{- fail (printf "controller.leaderElect: false lets every replica work at once; controller.replicas is %d, set replicas: 1" (int .Values.controller.replicas)) -}}
{{- end -}}
{{- $plugin := .Values.kubeletPlugin -}}
{{- if not (include "dra-driver.uses" (list . "nvml")) -}}
{{- range $feature := list "timeSlicing" "mig" "mps" "privileged" -}}
{{- if get $plugin.nvidia $feature -}}
{{- fail (printf "kubeletPlugin.nvidia.%s: true has no effect without the backend nvml; kubeletPlugin.backends is %s" $feature ($plugin.backends | toJson)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $plugin.passthrough.enabled (not (include "dra-driver.hostDev" .)) -}}
{{- fail (printf "kubeletPlugin.passthrough.enabled: true has no effect on simulated devices; kubeletPlugin.backends is %s" ($plugin.backends | toJson)) -}}
{{- end -}}
{{- if and .Values.deviceClasses.vfio.extendedResourceName (not $plugin.passthrough.enabled) -}}
{{- fail "deviceClasses.vfio.extendedResourceName: there is no such class without kubeletPlugin.passthrough.enabled" -}}
{{- end -}}
{{- if and (has "*" $plugin.passthrough.classNamespaces) (gt (len $plugin.passthrough.classNamespaces) 1) -}}
{{- fail "kubeletPlugin.passthrough.classNamespaces: * stands for every namespace; name it alone" -}}
{{- end -}}
{{- range $backend := $plugin.backends -}}
{{- if not (regexMatch "^[A-Za-z0-9][A-Za-z0-9._-]*(=.+)?$" $backend) -}}
{{- fail (printf "kubeletPlugin.backends: %s is no backend: expected NAME or NAME=ARGUMENT, such as nvml or simulated=mixed" $backend) -}}
{{- end -}}
{{- with include "dra-driver.backendProblem" (list $ $backend true) -}}
{{- fail (printf "kubeletPlugin.backends: %s: %s" $backend .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.rdma.enabled (include "dra-driver.uses" (list . "rdma")) -}}
{{- fail (printf "kubeletPlugin.backends: rdma would publish the NICs a second time, as devices of %s; rdma.enabled publishes them already, leave rdma out of %s" .Values.driverName ($plugin.backends | toJson)) -}}
{{- end -}}
{{- include "dra-driver.checkShapes" . -}}
{{- if and .Values.controller.shapes (not .Values.controller.enabled) -}}
{{- fail "controller.shapes: controller.enabled is false, so that nothing counts them; leave shapes out" -}}
{{- end -}}
{{- if and .Values.controller.web (eq (toString .Values.controller.port) (include "dra-driver.webPort" .)) -}}
{{- fail (printf "controller.port: %s is the port of the page (controller.web); choose another one, such as 8080" (toString .Values.controller.port)) -}}
{{- end -}}
{{- if and .Values.webhooks.clientNames (not .Values.webhooks.clientCA) -}}
{{- fail "webhooks.clientNames: needs webhooks.clientCA, by which names are proved" -}}
{{- end -}}
{{- $surges := not (has (toString $plugin.maxSurge) (list "0" "0%")) -}}
{{- $misses := not (has (toString $plugin.maxUnavailable) (list "0" "0%")) -}}
{{- if not (or $surges $misses) -}}
{{- fail "kubeletPlugin.maxSurge and kubeletPlugin.maxUnavailable are both 0: no pod could be replaced" -}}
{{- end -}}
{{- if and $surges $misses -}}
{{- fail "kubeletPlugin.maxSurge and kubeletPlugin.maxUnavailable: one of them must be 0, so says Kubernetes of DaemonSets" -}}
{{- end -}}
{{- if and .Values.rdma.enabled (eq .Values.rdma.driverName .Values.driverName) -}}
{{- fail (printf "rdma.driverName: %s is the driverName of the GPUs as well; two plugins cannot register one name" .Values.driverName) -}}
{{- end -}}
{{- $taken := dict .Values.driverName "driverName" -}}
{{- if .Values.rdma.enabled -}}{{- $_ := set $taken .Values.rdma.driverName "rdma.driverName" -}}{{- end -}}
{{- $components := dict "rdma" true "kubelet" true -}}
{{- range $i, $it := .Values.extraDrivers -}}
{{- if hasKey $taken $it.driverName -}}
{{- fail (printf "extraDrivers[%d].driverName: %s is %s as well; two plugins cannot register one name" $i $it.driverName (get $taken $it.driverName)) -}}
{{- end -}}
{{- $_ := set $taken $it.driverName (printf "extraDrivers[%d].driverName" $i) -}}
{{- if hasKey $components $it.name -}}
{{- fail (printf "extraDrivers[%d].name: %s is taken; the DaemonSet dra-driver-%s-plugin is another driver's" $i $it.name $it.name) -}}
{{- end -}}
{{- $_ := set $components $it.name true -}}
{{- range $backend := $it.backends -}}
{{- with include "dra-driver.backendProblem" (list $ $backend false) -}}
{{- fail (printf "extraDrivers[%d].backends: %s: %s" $i $backend .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $class := .Values.admissionPolicies.tolerantClasses -}}
{{- range $driver := include "dra-driver.names" $ | fromJsonArray -}}
{{- if or (eq $class $driver) (hasSuffix (printf ".%s" $driver) $class) -}}
{{- fail (printf "admissionPolicies.tolerantClasses: %s is a class of %s, this chart's driver; kube-scheduler would allocate devices that the controller allocates too" $class $driver) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.networkPolicy.pageFrom -}}
{{- if not .Values.networkPolicy.enabled -}}
{{- fail "networkPolicy.pageFrom: networkPolicy.enabled is off, so that everybody would reach the page" -}}
{{- end -}}
{{- if not .Values.controller.web -}}
{{- fail "networkPolicy.pageFrom: there is no page; set controller.web" -}}
{{- end -}}
{{- if ne .Values.httpAuthorization "rbac" -}}
{{- fail "networkPolicy.pageFrom: the page names claims and pods of all namespaces; set httpAuthorization: rbac" -}}
{{- end -}}
{{- end -}}
{{- $simulated := false -}}
{{- range $plugin.backends }}{{ if hasPrefix "simulated" . }}{{ $simulated = true }}{{ end }}{{ end -}}
{{- if and $simulated (eq $plugin.nodes "nfd") -}}
{{- fail "kubeletPlugin.nodes: nfd chooses nodes by their hardware, but kubeletPlugin.backends has a simulated one; use nodes: any" -}}
{{- end -}}
{{- end }}

{{/* Environment and probes that the node agents have in common; the argument is the metrics port's name. */}}
{{- define "dra-driver.agentProbes" -}}
# Asks the plugin's sockets as the kubelet does.
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  initialDelaySeconds: 15
  periodSeconds: 20
  timeoutSeconds: 8
  failureThreshold: 3
# Ready when the kubelet has registered it.
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end }}

{{- define "dra-driver.agentEnv" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
{{- end }}

{{- define "dra-driver.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "dra-driver.nfd" -}}
# Labels of Node Feature Discovery: PCI class and vendor.
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- range . }}
        - matchExpressions:
            - {key: feature.node.kubernetes.io/pci-{{ . }}.present, operator: In, values: ["true"]}
        {{- end }}
{{- end }}

{{/* Who reaches the pods of a component and what they reach. The arguments: root, component, port of its metrics. */}}
{{- define "dra-driver.networkPolicy" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $policy := $root.Values.networkPolicy }}
---
# Probes come from the node itself, which no policy keeps out.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: dra-driver-{{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{ include "dra-driver.labels" $name }}
spec:
  podSelector:
    matchLabels: {{ include "dra-driver.labels" $name }}
  policyTypes: [Ingress, Egress]
  {{- $webhooks := and (eq $name "controller") $root.Values.webhooks.enabled }}
  {{- $page := and (eq $name "controller") $policy.pageFrom }}
  {{- if or $policy.metricsFrom $webhooks $page }}
  ingress:
    {{- with $policy.metricsFrom }}
    # Metrics, and the agent's /debug/state: names of claims and pods are in them.
    - ports:
        - {port: {{ index $ 2 }}, protocol: TCP}
      from: {{ toJson . }}
    {{- end }}
    {{- if $webhooks }}
    # The API server. It is no pod, so no selector names it: without webhooksFrom everybody reaches this port, and
    # finds nothing there but verdicts on what they send.
    - ports:
        - {port: {{ $root.Values.webhooks.port }}, protocol: TCP}
      {{- with $policy.webhooksFrom }}
      from: {{ toJson . }}
      {{- end }}
    {{- end }}
    {{- if $page }}
    - ports:
        - {port: {{ include "dra-driver.webPort" $root }}, protocol: TCP}
      from: {{ toJson $policy.pageFrom }}
    {{- end }}
  {{- else }}
  ingress: []
  {{- end }}
  egress:
    - ports:
        {{- range $policy.apiServerPorts }}
        - {port: {{ . }}, protocol: TCP}
        {{- end }}
    - ports:
        - {port: 53, protocol: UDP}
        - {port: 53, protocol: TCP}
    {{- if eq $name "controller" }}
    {{- with $root.Values.controller.otlpEndpoint }}
    - ports:
        - {port: {{ regexFind "[0-9]+$" (urlParse .).host | default (ternary "443" "80" (hasPrefix "https:" .)) }}, protocol: TCP}
    {{- end }}
    {{- end }}
{{ end }}

{{- define "dra-driver.webPort" -}}8090{{- end }}

{{/* Who may ask the API server whose a token is; the arguments: root, component. */}}
{{- define "dra-driver.reviewer" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- if eq $root.Values.httpAuthorization "rbac" }}
---
# --http-authorization=rbac: whose a token is, and what its account may read. The API server's own role.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: dra-driver-{{ $name }}-reviews
  labels: {{ include "dra-driver.labels" $name }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects:
  - {kind: ServiceAccount, name: dra-driver-{{ $name }}, namespace: {{ $root.Release.Namespace }}}
{{- end }}
{{- end }}

{{/* What a node agent may do; the argument is the name of its driver. */}}
{{- define "dra-driver.agentRules" -}}
rules:
  # NodePrepareResources names a claim; its allocation is read.
  - apiGroups: [resource.k8s.io]
    resources: [resourceclaims]
    verbs: [get]
  # The condition Healthy of our devices, in the status of claims. From 1.36 on the API server wants the second
  # rule too: it lets a plugin write entries of this driver only, and only of claims allocated to its own node.
  - apiGroups: [resource.k8s.io]
    resources: [resourceclaims/status]
    verbs: [patch]
  - apiGroups: [resource.k8s.io]
    resources: [resourceclaims/driver]
    resourceNames: [{{ . }}]
    verbs: ["associated-node:patch"]
  # Events about devices, on the Node and on the pods that use them.
  - apiGroups: [""]
    resources: [events]
    verbs: [create, patch]
  # Whether the kubelet has wiped the node's slices; with --publish=node, what other drivers publish for the node.
  - apiGroups: [resource.k8s.io]
    resources: [resourceslices]
    verbs: [list, watch]
  # UID of the own node, for the owner reference.
  - apiGroups: [""]
    resources: [nodes]
    verbs: [get]
  - apiGroups: [dra-driver.dev]
    resources: [deviceinventories]
    verbs: [get, list, watch, create, update, patch]
  - apiGroups: [dra-driver.dev]
    resources: [deviceinventories/status]
    verbs: [update, patch]
{{- end }}

{{/* Whether the API server evaluates policies that set the gate: "true" or nothing. What it serves says it; where Helm
     renders for none (helm template), which then knows groups and no kinds, the version does. */}}
{{- define "dra-driver.hasMutatingPolicies" -}}
{{- $served := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
{{- $guessed := and (not (.Capabilities.APIVersions.Has "v1/Pod")) (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) -}}
{{- if or $served $guessed }}true{{ end -}}
{{- end }}

{{/* Whether the gate is set by a policy, and not by the webhook: "true" or nothing. In every namespace the webhook sets it,
     which fails open: the policy would gate pods of other drivers, too, while no controller takes the gate off. */}}
{{- define "dra-driver.gatesByPolicy" -}}
{{- $chosen := or (eq .Values.admissionPolicies.gateNamespaces "labelled") (not .Values.webhooks.enabled) -}}
{{- if and $chosen (include "dra-driver.hasMutatingPolicies" .) }}true{{ end -}}
{{- end }}

{{/* Namespaces whose pods get the gate. The control plane's and the driver's own never do: the gate has to be taken off
     by a controller that they may be needed for. */}}
{{- define "dra-driver.gatedNamespaces" -}}
{{- if eq .Values.admissionPolicies.gateNamespaces "labelled" -}}
matchLabels: {dra-driver.dev/allocator: controller}
{{- else -}}
matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, {{ .Release.Namespace }}]}
{{- end -}}
{{- end }}
