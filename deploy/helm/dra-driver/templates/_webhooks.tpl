{{/* Parts of the webhooks. */}}

{{/* The Secret with the serving certificate. cert-manager has one of its own, of another type. */}}
{{- define "dra-driver.webhookSecret" -}}
dra-driver-admission{{ eq .Values.webhooks.certificates "cert-manager" | ternary "-certificate" "" }}
{{- end }}

{{/* The authority as JSON: bundle, key, until. The one that is there stays; in the last of its ten years another
comes beside it, and beside those of versions whose controller made them. All of one rendering is the same one. */}}
{{- define "dra-driver.webhookAuthority" -}}
{{- if not (hasKey .Values.webhooks "made") }}
{{- $now := now | unixEpoch | int64 }}
{{- $old := lookup "v1" "Secret" .Release.Namespace "dra-driver-admission" | default dict }}
{{- $data := $old.data | default dict }}
{{- $bundle := index $data "ca.crt" | default "" | b64dec }}
{{- $key := index $data "ca.key" | default "" | b64dec }}
{{- $until := dig "metadata" "annotations" "dra-driver.dev/authority-until" "0" $old | int64 }}
{{- if or (not $bundle) (not $key) (lt $until (add $now 31536000)) }}
{{- $made := genCAWithKey (printf "dra-driver-admission-ca-%s" (randAlphaNum 12 | lower)) 3650 (genPrivateKey "ecdsa") }}
{{- $bundle = print $made.Cert $bundle }}
{{- $key = $made.Key }}
{{- $until = add $now 315360000 }}
{{- end }}
{{- $_ := set .Values.webhooks "made" (dict "bundle" $bundle "key" $key "until" (toString $until)) }}
{{- end }}
{{- toJson .Values.webhooks.made }}
{{- end }}

{{/* Has cert-manager write the authority into a configuration. */}}
{{- define "dra-driver.injectAuthority" -}}
{{- if eq .Values.webhooks.certificates "cert-manager" }}
annotations: {cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/dra-driver-admission}
{{- end }}
{{- end }}

{{/* What all webhooks have; the arguments: root, path, failurePolicy. */}}
{{- define "dra-driver.webhook" -}}
{{- $root := index . 0 }}
{{- $path := index . 1 -}}
clientConfig:
  {{- if eq $root.Values.webhooks.certificates "helm" }}
  {{- $authority := include "dra-driver.webhookAuthority" $root | fromJson }}
  caBundle: {{ $authority.bundle | b64enc }}
  {{- end }}
  {{- if $root.Values.webhooks.url }}
  url: {{ trimSuffix "/" $root.Values.webhooks.url }}{{ $path }}
  {{- else }}
  service: {name: dra-driver-admission, namespace: {{ $root.Release.Namespace }}, path: {{ $path }}, port: 443}
  {{- end }}
admissionReviewVersions: [v1]
failurePolicy: {{ index . 2 }}
matchPolicy: Equivalent
sideEffects: None
timeoutSeconds: 3
{{- end }}

{{- define "dra-driver.newPods" -}}
rules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}
{{- end }}

{{/* Whether a field is there, step by step: include "dra-driver.has" "object.spec.devices" */}}
{{- define "dra-driver.has" -}}
{{- $steps := splitList "." . -}}
{{- $there := list -}}
{{- range $i, $_ := $steps }}{{ if $i }}{{ $there = append $there (printf "has(%s)" (slice $steps 0 (add $i 1 | int) | join ".")) }}{{ end }}{{ end -}}
{{ join " && " $there }}
{{- end }}

{{/* Whether an opaque configuration is for one of this chart's drivers; the arguments: root, path of the devices. */}}
{{- define "dra-driver.namesUs" -}}
{{- $config := printf "object.%s.config" (index . 1) -}}
{{ include "dra-driver.has" $config }}
&& {{ $config }}.exists(c, has(c.opaque) && c.opaque.driver in {{ include "dra-driver.drivers" (index . 0) }})
{{- end }}

{{/* Whether a request asks for capacity; the argument is the path of the devices. Where there are no requests, the API
server writes null. */}}
{{- define "dra-driver.asksForCapacity" -}}
{{- $requests := printf "object.%s.requests" . -}}
{{ include "dra-driver.has" $requests }} && {{ $requests }} != null
&& {{ $requests }}.exists(r, has(r.exactly) && has(r.exactly.capacity)
|| has(r.firstAvailable) && r.firstAvailable.exists(a, has(a.capacity)))
{{- end }}

{{/* Whether requests for capacity are refused where the API server drops them: "true" or nothing. */}}
{{- define "dra-driver.refusesDroppedCapacity" -}}
{{- $set := toString .Values.webhooks.refuseDroppedCapacity -}}
{{- if or (eq $set "true") (and (eq $set "auto") (semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version)) }}true{{ end -}}
{{- end }}

{{/* Whether labels or annotations say something about a group; the argument is the path of the metadata. */}}
{{- define "dra-driver.makesAGroup" -}}
has({{ . }}) && (has({{ . }}.labels)
&& ('dra-driver.dev/group-size' in {{ . }}.labels || 'dra-driver.dev/group-min' in {{ . }}.labels)
|| has({{ . }}.annotations) && ('dra-driver.dev/group-by' in {{ . }}.annotations
|| 'dra-driver.dev/group-domain' in {{ . }}.annotations || 'dra-driver.dev/group-when-some-run' in {{ . }}.annotations))
{{- end }}

{{/* Whether a pod uses claims, or extended resources, which kube-scheduler may serve from open pools. */}}
{{- define "dra-driver.usesClaimsOrResources" -}}
has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0
|| (object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c,
  has(c.resources) && has(c.resources.requests) && c.resources.requests.exists(name,
    name.startsWith('deviceclass.resource.kubernetes.io/')
    || name.contains('/') && !name.contains('kubernetes.io/') && !name.startsWith('requests.')))
{{- end }}
