{{/* The beginning of every name: short, so that names of pods are names of workers too. */}}
{{- define "inferflux.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 28 | trimSuffix "-" -}}
{{- end }}

{{/* (list $ component) */}}
{{- define "inferflux.name" -}}
{{- printf "%s-%s" (include "inferflux.fullname" (first .)) (last .) -}}
{{- end }}

{{/* (list $ component) */}}
{{- define "inferflux.selector" -}}
app.kubernetes.io/name: {{ default (first .).Chart.Name (first .).Values.nameOverride }}
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/* (list $ component) */}}
{{- define "inferflux.labels" -}}
{{ include "inferflux.selector" . }}
app.kubernetes.io/part-of: inferflux
app.kubernetes.io/version: {{ (first .).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (first .).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (first .).Chart.Name (first .).Chart.Version }}
{{- end }}

{{/* Name and labels of a manifest: (list $ component) */}}
{{- define "inferflux.metadata" -}}
name: {{ include "inferflux.name" . }}
namespace: {{ (first .).Release.Namespace }}
labels: {{- include "inferflux.labels" . | nindent 2 }}
{{- end }}

{{/* (list $ image service) */}}
{{- define "inferflux.image" -}}
{{- $image := (first .).Values.image -}}
{{- $tag := default (first .).Chart.AppVersion $image.tag -}}
image: {{ default (printf "%s/%s:%s" $image.prefix (last .) $tag) (index . 1) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* Of a pod: (dict "root" $ "component" "gateway" "of" .Values.gateway "graceS" 45) */}}
{{- define "inferflux.pod" -}}
{{- $values := .root.Values -}}
serviceAccountName: {{ include "inferflux.name" (list .root .component) }}
automountServiceAccountToken: false
# Variables that Kubernetes would make of Services' names are like those of InferFlux.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .graceS }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- range $field := list "priorityClassName" "runtimeClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with get $.of $field }}
{{ $field }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with $values.topologySpread.keys }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "inferflux.selector" (list $.root $.component) | nindent 8 }}
        {{- with $.pool }}
        inferflux.io/pool: {{ . }}
        {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Labels and annotations of a pod: (dict "root" $ "component" "gateway" "of" .Values.gateway "secrets" (list ...)).
     A pod is replaced when its files of Secrets change. */}}
{{- define "inferflux.podMetadata" -}}
labels:
  {{- include "inferflux.selector" (list .root .component) | nindent 2 }}
  {{- with .pool }}
  inferflux.io/pool: {{ . }}
  {{- end }}
annotations:
  checksum/access: {{ get (include "inferflux.access" .root | fromYaml) .secrets | toYaml | sha256sum }}
  {{- with .config }}
  checksum/config: {{ toYaml . | sha256sum }}
  {{- end }}
  {{- with .of.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "inferflux.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Variables of a service of ours: (dict "root" $ "of" .Values.gateway "own" (dict NAME VALUE)).
     What the operator says comes before what the chart does. */}}
{{- define "inferflux.env" -}}
{{- $env := mergeOverwrite (dict "INFERFLUX_DRAIN_LIMIT_S" (toString .root.Values.drainLimitS)) .own -}}
{{- if .root.Values.tls.enabled -}}
{{- $env = mergeOverwrite $env (dict "INFERFLUX_TLS_CERT" "/tls/tls.crt" "INFERFLUX_TLS_KEY" "/tls/tls.key" "INFERFLUX_TLS_CA" "/tls/ca.crt") -}}
{{- end -}}
{{- range $name, $_ := .of.secrets -}}
{{- $_ := set $env (printf "%s_FILE" $name) (printf "/secrets/%s" $name) -}}
{{- end -}}
{{- range $name, $value := mergeOverwrite $env .root.Values.env .of.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Where a service of ours finds files: (dict "root" $ "of" .Values.gateway) */}}
{{- define "inferflux.mounts" -}}
{{- if .of.secrets }}
- {name: secrets, mountPath: /secrets, readOnly: true}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- end }}

{{/* The volumes of these and of /access: (dict "root" $ "service" "gateway" "secret" "access-gateway" "of" ...) */}}
{{- define "inferflux.volumes" -}}
{{- $nats := .root.Values.nats }}
{{- $valkey := .root.Values.valkey }}
- name: access
  projected:
    defaultMode: 0440
    sources:
      - secret: {name: {{ include "inferflux.name" (list .root .secret) }}}
      {{- if and (not $nats.enabled) (ne .service "policy") }}
      - secret:
          name: {{ required "nats.external.urlSecret: where nats.enabled is false" $nats.external.urlSecret }}
          items: [{key: {{ .service }}, path: nats.url}]
      {{- end }}
      {{- if not $valkey.enabled }}
      - secret:
          name: {{ required "valkey.external.urlSecret: where valkey.enabled is false" $valkey.external.urlSecret }}
          items: [{key: {{ .service }}, path: redis.url}]
      {{- end }}
{{- with .of.secrets }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range $name, $secret := . }}
      - secret:
          name: {{ $secret.name }}
          items: [{key: {{ $secret.key }}, path: {{ $name }}}]
      {{- end }}
{{- end }}
{{- include "inferflux.tlsVolume" (list .root .service) }}
{{- end }}

{{/* (list $ service) */}}
{{- define "inferflux.tlsVolume" -}}
{{- if (first .).Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "inferflux.name" (list (first .) (printf "tls-%s" (last .))) }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* Probes of a service of ours: whether it lives is no question of what it waits for. */}}
{{- define "inferflux.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 1
  # A worker first reads its models' heads.
  failureThreshold: 600
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 6
readinessProbe:
  {{- if . }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  httpGet: {path: /readyz, port: metrics}
  {{- end }}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 2
{{- end }}

{{/* Pools with what holds for all that do not say otherwise, by name, as YAML. */}}
{{- define "inferflux.pools" -}}
{{- range $name, $pool := .Values.pools }}
{{ $name }}: {{- mergeOverwrite (deepCopy $.Values.workers.pool) $pool | toYaml | nindent 2 }}
{{- end }}
{{- end }}

{{/* A claim of a StatefulSet: (dict "name" "data" "disk" .Values.nats.disk) */}}
{{- define "inferflux.claim" -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: {{ .name }}}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .disk.storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .disk.size }}}}
{{- end }}

{{/* Ids of a pool's workers, which have users of their own, as YAML: names of pods. (list $ pool) */}}
{{- define "inferflux.poolIds" -}}
{{- $pool := get (include "inferflux.pools" (first .) | fromYaml) (last .) -}}
{{- range $i := until (max $pool.replicas $pool.maxReplicas | int) }}
- {{ include "inferflux.name" (list (first $) (printf "worker-%s-%d" (last $) $i)) }}
{{- end }}
{{- end }}

{{/* Those of all pools; none where workers share a user. */}}
{{- define "inferflux.workerIds" -}}
{{- if .Values.workers.ownUsers }}
{{- range $pool, $_ := .Values.pools }}
{{ include "inferflux.poolIds" (list $ $pool) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The zone of a pod's node, where Kubernetes has it among the pod's labels; else it is empty: not known. */}}
{{- define "inferflux.zone" -}}
- name: INFERFLUX_ZONE
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
{{- end }}

{{/* Runs a server of Valkey or a sentinel. It rewrites its configuration when another server becomes the primary:
     of what it wrote, the lines that say who that is are kept over a restart, and no others.
     (dict "root" $ "component" "valkey" "of" .Values.valkey "resources" ... "port" 6379 "kept" REGEX "options" "...") */}}
{{- define "inferflux.valkeySet" -}}
{{- $name := include "inferflux.name" (list .root .component) -}}
{{- $tls := ternary " --tls --cacert /tls/ca.crt --cert /tls/tls.crt --key /tls/tls.key" "" .root.Values.tls.enabled -}}
{{- $login := ternary "--user health " "" (eq .component "valkey") -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  {{- include "inferflux.metadata" (list .root .component) | nindent 2 }}
spec:
  replicas: {{ .replicas }}
  serviceName: {{ $name }}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{- include "inferflux.selector" (list .root .component) | nindent 6 }}
  template:
    metadata:
      {{- include "inferflux.podMetadata" (dict "root" .root "component" .component "of" .of "secrets" (printf "access-%s" .component)) | nindent 6 }}
    spec:
      {{- include "inferflux.pod" (dict "root" .root "component" .component "of" .of "graceS" 30) | nindent 6 }}
      containers:
        - name: {{ .component }}
          image: {{ .root.Values.valkey.image | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          workingDir: /data
          command:
            - sh
            - -ec
            - |
              given=/access/$POD_NAME.{{ $name }}.conf
              if [ -e server.conf ]; then
                grep -v '{{ .kept }}' "$given" > new.conf
                grep '{{ .kept }}' server.conf >> new.conf || true
                mv new.conf server.conf
              else
                cat "$given" > server.conf
              fi
              exec valkey-server server.conf {{ .options }}
          ports:
            - {name: {{ .component }}, containerPort: {{ .port }}}
          env:
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
          # -e: a server that answers with an error, as while it loads its data, is not ready.
          {{- $ask := printf "REDISCLI_AUTH=$(cat /access/health.password) valkey-cli -p %d%s %s" .port $tls $login }}
          startupProbe:
            exec: {command: [sh, -c, {{ printf "%s-e ping" $ask | quote }}]}
            periodSeconds: 2
            timeoutSeconds: 3
            failureThreshold: 600
          livenessProbe:
            exec: {command: [sh, -c, {{ printf "%sping" $ask | quote }}]}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            exec: {command: [sh, -c, {{ printf "%s-e ping" $ask | quote }}]}
            periodSeconds: 5
            timeoutSeconds: 3
            failureThreshold: 2
          resources: {{- toYaml .resources | nindent 12 }}
          {{- include "inferflux.containerSecurity" .root | nindent 10 }}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: access, mountPath: /access, readOnly: true}
            {{- include "inferflux.mounts" (dict "root" .root "of" .of) | nindent 12 }}
      volumes:
        - name: access
          secret: {secretName: {{ include "inferflux.name" (list .root (printf "access-%s" .component)) }}, defaultMode: 0440}
        {{- include "inferflux.tlsVolume" (list .root "valkey") | nindent 8 }}
  volumeClaimTemplates:
    {{- include "inferflux.claim" (dict "name" "data" "disk" .disk) | nindent 4 }}
{{- end }}

{{/* Names of the pods of servers that have to find each other before they are ready: (list $ component (dict NAME PORT)) */}}
{{- define "inferflux.peersService" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "inferflux.metadata" (list (first .) (index . 1)) | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "inferflux.selector" (list (first .) (index . 1)) | nindent 4 }}
  ports:
    {{- range $name, $port := last . }}
    - {name: {{ $name }}, port: {{ $port }}}
    {{- end }}
{{- end }}

{{/* Pods of components, as peers of a NetworkPolicy: (list $ component ...) */}}
{{- define "inferflux.peers" -}}
{{- $root := first . -}}
{{- range rest . }}
- podSelector:
    matchLabels: {{- include "inferflux.selector" (list $root .) | nindent 6 }}
{{- end }}
{{- end }}

{{/* A NetworkPolicy: (dict "root" $ "component" "nats" "ingress" (list RULE ...) "egress" (list RULE ...)
     "https" BOOL). A rule has peers: components, or `from` of the operator's; and ports. */}}
{{- define "inferflux.networkPolicy" -}}
{{- $root := .root -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "inferflux.metadata" (list .root .component) | nindent 2 }}
spec:
  podSelector:
    matchLabels: {{- include "inferflux.selector" (list .root .component) | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- range .ingress }}
    {{- if or .of .from .any }}
    - ports: {{- include "inferflux.policyPorts" .ports | nindent 8 }}
      {{- if not .any }}
      from:
        {{- include "inferflux.peers" (concat (list $root) (.of | default list)) | nindent 8 }}
        {{- with .from }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
    {{- end }}
    {{- end }}
    {{- with and (ne .component "nats") (ne .component "valkey") (ne .component "sentinel") $root.Values.networkPolicy.monitoring }}
    - ports: [{port: 9090}]
      from: {{- toYaml . | nindent 8 }}
    {{- end }}
  egress:
    - ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
    {{- range .egress }}
    - ports: {{- include "inferflux.policyPorts" .ports | nindent 8 }}
      to: {{- include "inferflux.peers" (concat (list $root) .of) | nindent 8 }}
    {{- end }}
    {{- if and .https $root.Values.networkPolicy.publicHttps }}
    - ports: [{port: 443}]
      to:
        - ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 100.64.0.0/10, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16]}
        - ipBlock: {cidr: "::/0", except: ["fc00::/7", "fe80::/10"]}
    {{- end }}
    {{- with .extra }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "inferflux.policyPorts" -}}
{{- range . }}
- port: {{ . }}
{{- end }}
{{- end }}

{{/* Where services call NATS and Valkey of this release, as YAML: (list $ usesNats) */}}
{{- define "inferflux.serverRules" -}}
{{- $values := (first .).Values -}}
{{- if and (last .) $values.nats.enabled }}
- {of: [nats], ports: [4222]}
{{- end }}
{{- if $values.valkey.enabled }}
- {of: [valkey], ports: [6379]}
{{- if gt (int $values.valkey.replicas) 1 }}
- {of: [sentinel], ports: [26379]}
{{- end }}
{{- end }}
{{- end }}
