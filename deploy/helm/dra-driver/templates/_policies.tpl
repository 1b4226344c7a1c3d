{{/* Parts of the admission policies' CEL. */}}

{{/* Whether the controller, or a node agent, sends the request. */}}
{{- define "dra-driver.byController" -}}
request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:dra-driver-controller'
{{- end }}
{{- define "dra-driver.byPlugin" -}}
{{- $accounts := list (printf "'system:serviceaccount:%s:dra-driver-kubelet-plugin'" .Release.Namespace) -}}
{{- range .Values.extraDrivers }}
{{- $accounts = append $accounts (printf "'system:serviceaccount:%s:dra-driver-%s-plugin'" $.Release.Namespace .name) }}
{{- end -}}
{{- if .Values.extraDrivers -}}
request.userInfo.username in [{{ join ", " $accounts }}]
{{- else -}}
request.userInfo.username == {{ first $accounts }}
{{- end -}}
{{- end }}

{{/* The drivers that a node agent may speak for: a third party's has an account of its own, and speaks for itself alone. */}}
{{- define "dra-driver.driversOfPlugin" -}}
{{- range .Values.extraDrivers -}}
request.userInfo.username == 'system:serviceaccount:{{ $.Release.Namespace }}:dra-driver-{{ .name }}-plugin' ? ['{{ .driverName }}'] : {{ end -}}
['{{ .Values.driverName }}', '{{ .Values.rdma.driverName }}']
{{- end }}

{{/* Whether pools may be open: allocations of others are refused by a policy, so no taint keeps them away. */}}
{{- define "dra-driver.opensPools" -}}
{{- if and .Values.controller.enabled (eq .Values.admissionPolicies.gateNamespaces "all") }}yes{{ end -}}
{{- end }}

{{/* What the token of a pod says of the pod, or '': include "dra-driver.ofToken" "node-name" */}}
{{- define "dra-driver.ofToken" -}}
has(request.userInfo.extra) && 'authentication.kubernetes.io/{{ . }}' in request.userInfo.extra
  ? request.userInfo.extra['authentication.kubernetes.io/{{ . }}'][0] : ''
{{- end }}

{{/* Names of this chart's drivers. The NICs' driver counts where it is not installed, too: manifests add it later. */}}
{{- define "dra-driver.drivers" -}}
['{{ include "dra-driver.names" . | fromJsonArray | join "', '" }}']
{{- end }}

{{/* Whether two maps are equal but for some keys: include "dra-driver.sameBut" (list "a" "b" "'x', 'y'") */}}
{{- define "dra-driver.sameBut" -}}
{{- $a := index . 0 -}}{{- $b := index . 1 -}}{{- $but := index . 2 -}}
{{ $a }}.all(k, k in [{{ $but }}] || k in {{ $b }} && {{ $a }}[k] == {{ $b }}[k])
  && {{ $b }}.all(k, k in [{{ $but }}] || k in {{ $a }})
{{- end }}

{{/* Metadata that the API server itself changes with every write. */}}
{{- define "dra-driver.bookkeeping" -}}
'managedFields', 'resourceVersion', 'generation'
{{- end }}

{{/* A field of the object or an empty value: include "dra-driver.field" (list "oldObject" "status" "devices" "[]") */}}
{{- define "dra-driver.field" -}}
{{- $path := printf "%s.%s" (index . 0) (index . 1) -}}
has({{ $path }}) && has({{ $path }}.{{ index . 2 }}) && {{ $path }}.{{ index . 2 }} != null ? {{ $path }}.{{ index . 2 }} : {{ index . 3 }}
{{- end }}

{{/* The binding of a policy, which refuses what it forbids. */}}
{{- define "dra-driver.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ . }}
  labels: {app.kubernetes.io/name: dra-driver}
spec:
  policyName: {{ . }}
  validationActions: [Deny]
{{- end }}

{{/* Writes that only the pod may make which holds the Lease: include "dra-driver.leaderOnly" (list . "-suffix" "rules") */}}
{{- define "dra-driver.leaderOnly" -}}
{{- $root := index . 0 -}}{{- $name := printf "dra-driver-leader-only%s" (index . 1) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels: {app.kubernetes.io/name: dra-driver}
spec:
  failurePolicy: Fail
  paramKind:
    apiVersion: coordination.k8s.io/v1
    kind: Lease
  matchConstraints:
    resourceRules:
      {{- index . 2 | nindent 6 | trimPrefix "\n      " }}
  matchConditions:
    - name: by-the-controller
      expression: {{ include "dra-driver.byController" $root }}
    {{- if not (index . 1) }}
    # Nothing of it is stored. Standbys review, too, so they have to know what the API server keeps.
    - name: no-probe
      expression: >-
        !(request.resource.resource == 'resourceslices' && request.operation == 'CREATE'
        && has(request.dryRun) && request.dryRun
        && has(object.metadata.generateName) && object.metadata.generateName == 'dra-driver-probe-')
    {{- end }}
  variables:
    - name: pod
      expression: >-
        {{ include "dra-driver.ofToken" "pod-name" | nindent 8 | trim }}
    - name: holder
      expression: "has(params.spec) && has(params.spec.holderIdentity) ? params.spec.holderIdentity : ''"
  validations:
    {{- if eq $root.Values.admissionPolicies.fenceWithoutPod "refuse" }}
    - expression: variables.pod != ''
      reason: Forbidden
      message: >-
        the controller's credential names no pod, so it cannot be compared with the holder of the Lease; run the
        controller in a pod, or set the chart value admissionPolicies.fenceWithoutPod to allow
    {{- end }}
    - expression: variables.pod == '' || variables.holder.startsWith(variables.pod + '_')
      reason: Forbidden
      message: the Lease dra-driver-controller is held by another
      messageExpression: >-
        'pod ' + variables.pod + ' does not hold the Lease dra-driver-controller, its holder is "'
        + variables.holder + '"'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels: {app.kubernetes.io/name: dra-driver}
spec:
  policyName: {{ $name }}
  paramRef:
    name: dra-driver-controller
    namespace: {{ $root.Release.Namespace }}
    parameterNotFoundAction: Allow
  validationActions: [Deny]
{{- end }}
