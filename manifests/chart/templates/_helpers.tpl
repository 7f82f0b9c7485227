{{/*
The names of objects are fixed, because a cluster has only one Mimeo and the documentation uses these names.
*/}}

{{/*
Labels and annotations of an object. `labels` and `annotations` are those of this object, which override commonLabels and
commonAnnotations. `hook` makes the object a Helm hook, and `first` one that exists before the other objects of this hook.
*/}}
{{- define "mimeo.metadata" -}}
labels:
  app.kubernetes.io/part-of: mimeo
  app.kubernetes.io/instance: {{ .root.Release.Name }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
  {{- with merge (dict) (.labels | default dict) .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
{{- with .hook }}
{{- $_ := set $annotations "helm.sh/hook" . }}
{{- $_ := set $annotations "helm.sh/hook-delete-policy" "before-hook-creation,hook-succeeded" }}
{{- end }}
{{- if .first }}
{{- $_ := set $annotations "helm.sh/hook-weight" "-1" }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The image. Its registry is that of all charts of a release, or of this chart, or the first part of the repository. */}}
{{- define "mimeo.image" -}}
{{- with .Values.global.imageRegistry | default .Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- with .Values.image -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{/* Secrets for the registry. An entry of the global list may be a name, as in other charts. */}}
{{- define "mimeo.pullSecrets" -}}
{{- $secrets := .Values.image.pullSecrets }}
{{- range .Values.global.imagePullSecrets }}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) }}
{{- end }}
{{- with $secrets | uniq }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Volumes of a program, from the chart's own Secrets and from extraVolumes. Each of the own is mounted at the path of its name. */}}
{{- define "mimeo.volumes" -}}
{{- if or .secrets .values.extraVolumes }}
volumes:
{{- range $name, $secret := .secrets }}
- name: {{ $name }}
  secret:
    {{- toYaml $secret | nindent 4 }}
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "mimeo.volumeMounts" -}}
{{- if or .secrets .values.extraVolumeMounts }}
volumeMounts:
{{- range $name, $_ := .secrets }}
- {name: {{ $name }}, mountPath: /{{ $name }}, readOnly: true}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{/* IP families of a Service. */}}
{{- define "mimeo.ipFamilies" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Binds a ClusterRole to Mimeo's programs: in a namespace, or in the whole cluster if no namespace is given. */}}
{{- define "mimeo.binding" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if .namespace }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}
metadata:
  name: {{ .role }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  {{- include "mimeo.metadata" (dict "root" .root) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .role }}
subjects:
{{- range .programs }}
- kind: ServiceAccount
  name: {{ . }}
  namespace: {{ $.root.Release.Namespace }}
{{- end }}
{{- end }}

{{/* The kinds that may be copied, as rules of a role with the given verbs. Each API group has one rule. */}}
{{- define "mimeo.kinds" -}}
{{- $groups := dict }}
{{- range .kinds }}
{{- $_ := set $groups .apiGroup (append (get $groups .apiGroup | default list) .resource) }}
{{- end }}
{{- range $group, $resources := $groups }}
- apiGroups: [{{ $group | quote }}]
  resources: [{{ join ", " $resources }}]
  verbs: [{{ $.verbs }}]
{{- end }}
{{- end }}

{{/* The same kinds as the value of the flag --kinds. */}}
{{- define "mimeo.kindNames" -}}
{{- range $index, $kind := .Values.rbac.kinds }}{{ if $index }},{{ end }}{{ .kind }}{{ with .apiGroup }}.{{ . }}{{ end }}{{ end }}
{{- end }}

{{/* Scheduling of a component's pods: nodes, tolerations, priority. */}}
{{- define "mimeo.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if .values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with .values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
{{- $own := dict "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" $.name)) "matchLabelKeys" (list "pod-template-hash") }}
- {{ toYaml (hasKey . "labelSelector" | ternary . (merge $own .)) | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- end }}

{{/* The pod of a Job. It runs the webhook's program, with the scheduling of the webhook's pods, so that Mimeo can be removed from a full
cluster, too. Of the affinity only node affinity is kept: the rest, and spread constraints, may forbid two of Mimeo's pods on one node. */}}
{{- define "mimeo.job" -}}
{{- $webhook := .root.Values.webhook -}}
serviceAccountName: mimeo-{{ .name }}
restartPolicy: Never
enableServiceLinks: false
{{- with include "mimeo.pullSecrets" .root | trim }}
{{ . }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- $placed := merge (dict "affinity" (pick $webhook.affinity "nodeAffinity")) (omit $webhook "affinity" "topologySpreadConstraints") }}
{{- include "mimeo.placement" (dict "values" $placed "name" .name) }}
containers:
- name: {{ .name }}
  image: {{ include "mimeo.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [/mimeo-webhook, {{ .name }}]
  # If the Job fails, the pod's status shows the end of its log.
  terminationMessagePolicy: FallbackToLogsOnError
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 64Mi}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
{{- end }}

{{/* Environment variables of both programs. */}}
{{- define "mimeo.env" -}}
# By default the C library raises this threshold with each large block that it frees. It then keeps freed bodies of reviews, in pieces.
- {name: MALLOC_MMAP_THRESHOLD_, value: "1048576"}
- {name: MIMEO_LOG, value: {{ .Values.log.level | quote }}}
- {name: MIMEO_LOG_FORMAT, value: {{ .Values.log.format | quote }}}
- {name: MIMEO_POD_GATE_BUDGET, value: {{ .Values.podGate.budget | quote }}}
{{- if .Values.debugEndpoints }}
- {name: MIMEO_DEBUG_ENDPOINTS, value: "true"}
{{- end }}
{{- with .Values.tracing.otlpEndpoint }}
- {name: MIMEO_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- if eq .Values.metrics.auth "Token" }}
- {name: MIMEO_OPS_AUTH, value: token}
{{- end }}
{{- if .Values.metrics.tls.secretName }}
- {name: MIMEO_OPS_CERT_DIR, value: /ops-tls}
{{- end }}
{{- with .Values.rbac.sourceNamespaces }}
- {name: MIMEO_SOURCE_NAMESPACES, value: {{ join "," . | quote }}}
{{- end }}
{{- with .Values.rbac.targetNamespaces }}
- {name: MIMEO_TARGET_NAMESPACES, value: {{ join "," . | quote }}}
{{- with include "mimeo.kindNames" $ }}
- {name: MIMEO_KINDS, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* `yes` if probes and metrics are served with TLS, empty otherwise. */}}
{{- define "mimeo.opsTls" -}}
{{- if or (eq .Values.metrics.auth "Token") .Values.metrics.tls.secretName }}yes{{ end }}
{{- end }}

{{/* Scheme of the kubelet's probes. Probes never need a token. */}}
{{- define "mimeo.probeScheme" -}}
{{- if include "mimeo.opsTls" . }}, scheme: HTTPS{{ end }}
{{- end }}

{{/* Fails if the user's labels include a label that the chart sets itself. */}}
{{- define "mimeo.checkLabels" -}}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/part-of" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "app.kubernetes.io/component" "helm.sh/chart" }}
{{- range $key, $_ := .labels }}
{{- if or (has $key $own) (hasPrefix "mimeo.dev/" $key) (hasPrefix "rbac.authorization.k8s.io/" $key) }}
{{- fail (printf "%s: %s is the chart's to set" $.of $key) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails if the user's annotations include an annotation that changes how Helm treats an object, or that the chart sets itself. */}}
{{- define "mimeo.checkAnnotations" -}}
{{- range $key, $_ := . }}
{{- if or (hasPrefix "helm.sh/" $key) (hasPrefix "meta.helm.sh/" $key) (hasPrefix "mimeo.dev/" $key) (hasPrefix "rbac.authorization.kubernetes.io/" $key) }}
{{- fail (printf "commonAnnotations: %s is not for every object of the release" $key) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails if an extra volume has the name or the path of a volume of the chart. */}}
{{- define "mimeo.checkVolumes" -}}
{{- range $program := list "webhook" "reconciler" }}
{{- $values := get $.Values $program }}
{{- range $values.extraVolumes }}
{{- if has .name (list "tls" "client-ca" "ops-tls") }}
{{- fail (printf "%s.extraVolumes: %s is a volume of the chart" $program .name) }}
{{- end }}
{{- end }}
{{- range $values.extraVolumeMounts }}
{{- if has (trimSuffix "/" .mountPath) (list "/tls" "/client-ca" "/ops-tls") }}
{{- fail (printf "%s.extraVolumeMounts: the chart itself mounts %s" $program .mountPath) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The seconds of a duration such as 1h30m. */}}
{{- define "mimeo.seconds" -}}
{{- $sum := 0 }}
{{- range $unit, $worth := dict "h" 3600 "m" 60 "s" 1 }}
{{- $sum = add $sum (mul $worth (regexFind (printf "[0-9]+%s" $unit) $ | trimSuffix $unit | int)) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* Fails if extraArgs or extraEnv sets an option that the chart sets itself. One of the two settings would have no effect, or the manifests
would not match the program. Each entry has the flag, the environment variable and the chart's value. */}}
{{- define "mimeo.checkExtra" -}}
{{- $told := list
  (list "--listen" "MIMEO_LISTEN" "webhook.port")
  (list "--ops-listen" "MIMEO_OPS_LISTEN" "opsPort")
  (list "--namespace" "MIMEO_NAMESPACE" "nothing else")
  (list "--service" "MIMEO_SERVICE" "nothing else")
  (list "--replica-name" "POD_NAME" "nothing else")
  (list "--pod-uid" "POD_UID" "nothing else")
  (list "" "MALLOC_MMAP_THRESHOLD_" "nothing else")
  (list "--log-level" "MIMEO_LOG" "log.level")
  (list "--log-format" "MIMEO_LOG_FORMAT" "log.format")
  (list "--pod-gate-budget" "MIMEO_POD_GATE_BUDGET" "podGate.budget")
  (list "--pod-gate-resources" "MIMEO_POD_GATE_RESOURCES" "podGate.resources")
  (list "--namespaces-failure-policy" "MIMEO_NAMESPACES_FAILURE_POLICY" "webhook.namespacesFailurePolicy")
  (list "--tls-secret" "MIMEO_TLS_SECRET" "webhook.tls.secretName")
  (list "--cert-dir" "MIMEO_CERT_DIR" "webhook.tls")
  (list "--client-ca-file" "MIMEO_CLIENT_CA_FILE" "webhook.tls.clientCASecretName")
  (list "--ui" "MIMEO_UI" "reconciler.ui")
  (list "--leader-label" "MIMEO_LEADER_LABEL" "reconciler.leaderService")
  (list "--debug-endpoints" "MIMEO_DEBUG_ENDPOINTS" "debugEndpoints")
  (list "--otlp-endpoint" "MIMEO_OTLP_ENDPOINT" "tracing.otlpEndpoint")
  (list "--ops-auth" "MIMEO_OPS_AUTH" "metrics.auth")
  (list "--ops-cert-dir" "MIMEO_OPS_CERT_DIR" "metrics.tls.secretName")
  (list "--source-namespaces" "MIMEO_SOURCE_NAMESPACES" "rbac.sourceNamespaces")
  (list "--target-namespaces" "MIMEO_TARGET_NAMESPACES" "rbac.targetNamespaces")
  (list "--kinds" "MIMEO_KINDS" "rbac.kinds") }}
{{- range $program := list "webhook" "reconciler" }}
{{- $values := get $.Values $program }}
{{- range $one := $told }}
{{- range $arg := $values.extraArgs }}
{{- if eq (index $one 0) (splitList "=" $arg | first) }}
{{- fail (printf "%s.extraArgs: %s is set by %s" $program (index $one 0) (index $one 2)) }}
{{- end }}
{{- end }}
{{- range $variable := $values.extraEnv }}
{{- if eq (index $one 1) $variable.name }}
{{- fail (printf "%s.extraEnv: %s is set by %s" $program $variable.name (index $one 2)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Checks that values.schema.json can't express, because they compare several values. */}}
{{- define "mimeo.check" -}}
{{- include "mimeo.checkLabels" (dict "of" "commonLabels" "labels" .Values.commonLabels) }}
{{- include "mimeo.checkAnnotations" .Values.commonAnnotations }}
{{- include "mimeo.checkVolumes" . }}
{{- range $of := list "serviceMonitor" "podMonitor" }}
{{- with get $.Values.metrics $of }}
{{- if and .interval .scrapeTimeout (not (contains "ms" (print .interval .scrapeTimeout))) (gt (include "mimeo.seconds" .scrapeTimeout | int) (include "mimeo.seconds" .interval | int)) }}
{{- fail (printf "metrics.%s.scrapeTimeout: %s is longer than the interval %s" $of .scrapeTimeout .interval) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $of := list "serviceMonitor" "podMonitor" "prometheusRule" "dashboard" }}
{{- include "mimeo.checkLabels" (dict "of" (printf "metrics.%s.labels" $of) "labels" (get $.Values.metrics $of).labels) }}
{{- end }}
{{- range $name := list "webhook" "reconciler" }}
{{- if hasKey (get $.Values $name).podLabels "app.kubernetes.io/name" }}
{{- fail (printf "%s.podLabels: app.kubernetes.io/name is the chart's to set, for the pods are selected by it" $name) }}
{{- end }}
{{- end }}
{{- range $name := list "webhook" "reconciler" }}
{{- $values := get $.Values $name }}
{{- if and $values.hostNetwork (or (eq (int $values.opsPort) 10250) (eq (int ($values.port | default 0)) 10250)) }}
{{- fail (printf "%s: on the node's network port 10250 is the kubelet's" $name) }}
{{- end }}
{{- $least := $values.podDisruptionBudget.minAvailable }}
{{- /* Kubernetes rounds a percentage up to whole pods. */}}
{{- $pods := int $least }}
{{- if hasSuffix "%" (toString $least) }}
{{- $pods = div (add (mul (trimSuffix "%" $least | int) (int $values.replicas)) 99) 100 | int }}
{{- end }}
{{- if and $values.podDisruptionBudget.enabled (gt (int $values.replicas) 1) (ge $pods (int $values.replicas)) }}
{{- fail (printf "%s.podDisruptionBudget.minAvailable: of %v replicas %v must stay, so no node with one could be drained" $name $values.replicas $least) }}
{{- end }}
{{- end }}
{{- with .Values.webhook.tls.certManager }}
{{- $renewed := include "mimeo.seconds" .renewBefore | int }}
{{- $served := sub (include "mimeo.seconds" .duration | int) $renewed }}
{{- if le $served 0 }}
{{- fail (printf "webhook.tls.certManager: renewBefore %s is no less than duration %s, so it would be renewed without end" .renewBefore .duration) }}
{{- end }}
{{- if eq $.Values.webhook.tls.mode "CertManager" }}
{{- /* 2920h is the last third of the CA's lifetime, see certificate.yaml. */}}
{{- if and (not .issuerRef) (gt $served (mul 2920 3600)) }}
{{- fail (printf "webhook.tls.certManager: with duration %s and renewBefore %s a certificate is served for more than 2920h, and may outlive the chart's own CA: renew it sooner, or name an issuerRef" .duration .renewBefore) }}
{{- end }}
{{- with $.Values.metrics.prometheusRule }}
{{- if and .enabled (lt (float64 $renewed) (mulf .thresholds.certificateDays 86400)) }}
{{- fail (printf "metrics.prometheusRule.thresholds.certificateDays: %v days are more than webhook.tls.certManager.renewBefore, so MimeoCertificateExpires would fire before every renewal" .thresholds.certificateDays) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.rbac.targetNamespaces (not .Values.rbac.kinds) }}
{{- fail "rbac.kinds: with rbac.targetNamespaces there are no others, so nothing could be copied" }}
{{- end }}
{{- include "mimeo.checkExtra" . }}
{{- if and .Values.webhook.hostNetwork .Values.reconciler.hostNetwork (has (int .Values.reconciler.opsPort) (list (int .Values.webhook.port) (int .Values.webhook.opsPort))) }}
{{- fail "on the nodes' network reconciler.opsPort must differ from webhook.port and webhook.opsPort, or a node has no room for both" }}
{{- end }}
{{- if eq (int .Values.webhook.port) (int .Values.webhook.opsPort) }}
{{- fail "webhook.port and webhook.opsPort must differ" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled }}
{{- fail "metrics.serviceMonitor and metrics.podMonitor read the same twice: enable one of them" }}
{{- end }}
{{- if and (eq .Values.metrics.auth "Token") .Values.metrics.podMonitor.enabled (not .Values.metrics.tokenSecret) }}
{{- fail "metrics.podMonitor needs metrics.tokenSecret with metrics.auth Token: a PodMonitor takes no token of Prometheus' own" }}
{{- end }}
{{- end }}
