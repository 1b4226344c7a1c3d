{{/* Parts of the admission policies' CEL. */}}

{{/* Whether the controller, or a node agent, sends the request. */}}
{{- define "dra-driver.byController" -}}
request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:dra-driver-controller'
{{- end }}
{{- define "dra-driver.byPlugin" -}}
request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:dra-driver-kubelet-plugin'
{{- end }}

{{/* What the token of a pod says of the pod, or '': include "dra-driver.ofToken" "node-name" */}}
{{- define "dra-driver.ofToken" -}}
has(request.userInfo.extra) && 'authentication.kubernetes.io/{{ . }}' in request.userInfo.extra
  ? request.userInfo.extra['authentication.kubernetes.io/{{ . }}'][0] : ''
{{- end }}

{{/* Names of this chart's drivers. The NICs' driver counts where it is not installed, too: manifests add it later. */}}
{{- define "dra-driver.drivers" -}}
['{{ .Values.driverName }}', '{{ .Values.rdma.driverName }}']
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
