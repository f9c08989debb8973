{{/* What containers are given of users and passwords. As `python -m inferflux.common.servers.access_files` makes it
     for other deployments: a Secret here is a folder there. */}}

{{/* Passwords by name, as YAML: those that the release has, and new ones. The same within one rendering. */}}
{{- define "inferflux.passwords" -}}
{{- if not (hasKey .Values "passwordsOfThisRendering") -}}
{{- $there := (lookup "v1" "Secret" .Release.Namespace (include "inferflux.name" (list . "passwords"))).data | default dict -}}
{{- $wanted := list "service-key" "admin-key" -}}
{{- if .Values.nats.enabled -}}
{{- $wanted = concat $wanted (list "nats-gateway" "nats-scheduler" "nats-operator" "nats-routes") -}}
{{- range concat (default (list "worker") (include "inferflux.workerIds" . | fromYamlArray)) (include "inferflux.readers" . | fromYamlArray) -}}
{{- $wanted = append $wanted (printf "nats-%s" .) -}}
{{- end -}}
{{- end -}}
{{- if .Values.valkey.enabled -}}
{{- range list "policy" "gateway" "scheduler" "worker" "health" "operator" "sentinels" -}}
{{- $wanted = append $wanted (printf "redis-%s" .) -}}
{{- end -}}
{{- end -}}
{{- $made := dict -}}
{{- range $wanted -}}
{{- $new := ternary (printf "ifx_%s" (randAlphaNum 43)) (randAlphaNum 32) (eq . "admin-key") -}}
{{- $_ := set $made . (get $there . | b64dec | default $new) -}}
{{- end -}}
{{- $_ := set .Values "passwordsOfThisRendering" $made -}}
{{- end -}}
{{- toYaml .Values.passwordsOfThisRendering -}}
{{- end }}

{{- define "inferflux.readers" -}}
{{- range .Values.nats.tokenTenants }}
- tokens-{{ . }}
{{- end }}
{{- end }}

{{/* The files of each Secret by its name, as YAML. */}}
{{- define "inferflux.access" -}}
{{- $files := dict -}}
{{- if .Values.access.create -}}
{{- $passwords := include "inferflux.passwords" . | fromYaml -}}
{{- $key := get $passwords "service-key" -}}
{{- range $service := list "gateway" "policy" "scheduler" -}}
{{- $_ := set $files (printf "access-%s" $service) (include "inferflux.urls" (list $ $passwords $service) | fromYaml) -}}
{{- end -}}
{{- range list "gateway" "policy" -}}
{{- $_ := set (get $files (printf "access-%s" .)) "service.key" $key -}}
{{- end -}}
{{- $_ := set (get $files "access-policy") "admin.key" (get $passwords "admin-key") -}}
{{- range $pool, $_ := .Values.pools -}}
{{- $urls := include "inferflux.urls" (list $ $passwords "worker") | fromYaml -}}
{{- if and $.Values.nats.enabled $.Values.workers.ownUsers -}}
{{- range include "inferflux.poolIds" (list $ $pool) | fromYamlArray -}}
{{- $_ := set $urls (printf "%s.nats.url" .) (include "inferflux.natsUrl" (list $ $passwords .)) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $files (printf "access-worker-%s" $pool) $urls -}}
{{- end -}}
{{- if .Values.nats.enabled -}}
{{- $_ := set $files "access-nats" (dict "users.conf" (include "inferflux.natsUsers" (list $ $passwords)) "cluster.conf" (include "inferflux.natsCluster" (list $ $passwords))) -}}
{{- end -}}
{{- if .Values.valkey.enabled -}}
{{- $_ := set $files "access-valkey" (include "inferflux.valkeyFiles" (list $ $passwords) | fromYaml) -}}
{{- if gt (int .Values.valkey.replicas) 1 -}}
{{- $_ := set $files "access-sentinel" (include "inferflux.sentinelFiles" (list $ $passwords) | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $files -}}
{{- end }}

{{/* nats.url and redis.url of a service: (list $ passwords service) */}}
{{- define "inferflux.urls" -}}
{{- $root := first . -}}
{{- $passwords := index . 1 -}}
{{- $isOwn := and (eq (last .) "worker") $root.Values.workers.ownUsers -}}
{{- if and $root.Values.nats.enabled (ne (last .) "policy") (not $isOwn) }}
nats.url: {{ include "inferflux.natsUrl" . | quote }}
{{- end }}
{{- if $root.Values.valkey.enabled }}
redis.url: {{ include "inferflux.redisUrl" . | quote }}
{{- end }}
{{- end }}

{{/* (list $ passwords user) */}}
{{- define "inferflux.natsUrl" -}}
{{- $root := first . -}}
{{- $scheme := ternary "tls" "nats" $root.Values.tls.enabled -}}
{{- $urls := list -}}
{{- range include "inferflux.hosts" (list $root "nats" $root.Values.nats.replicas) | fromYamlArray -}}
{{- $urls = append $urls (printf "%s://%s:%s@%s:4222" $scheme (last $) (get (index $ 1) (printf "nats-%s" (last $))) .) -}}
{{- end -}}
{{- join "," $urls -}}
{{- end }}

{{/* (list $ passwords user) */}}
{{- define "inferflux.redisUrl" -}}
{{- $root := first . -}}
{{- $passwords := index . 1 -}}
{{- $scheme := ternary "rediss" "redis" $root.Values.tls.enabled -}}
{{- $login := printf "%s:%s" (last .) (get $passwords (printf "redis-%s" (last .))) -}}
{{- if gt (int $root.Values.valkey.replicas) 1 -}}
{{- $places := list -}}
{{- range include "inferflux.hosts" (list $root "sentinel" 3) | fromYamlArray -}}
{{- $places = append $places (printf "%s:26379" .) -}}
{{- end -}}
{{- printf "%s+sentinel://%s@%s/policy-store/0?sentinel_password=%s" $scheme $login (join "," $places) (get $passwords "redis-sentinels") -}}
{{- else -}}
{{- printf "%s://%s@%s:6379/0" $scheme $login (include "inferflux.hosts" (list $root "valkey" 1) | fromYamlArray | first) -}}
{{- end -}}
{{- end }}

{{/* Names of the pods of a StatefulSet, as YAML: (list $ component replicas) */}}
{{- define "inferflux.hosts" -}}
{{- $name := include "inferflux.name" (list (first .) (index . 1)) -}}
{{- range $i := until (int (last .)) }}
- {{ printf "%s-%d.%s" $name $i $name }}
{{- end }}
{{- end }}

{{/* Users of NATS, with what each may do from files/nats-users.yaml: (list $ passwords) */}}
{{- define "inferflux.natsUsers" -}}
{{- $root := first . -}}
{{- $passwords := last . -}}
{{- $blocks := $root.Files.Get "files/nats-users.yaml" | fromYaml -}}
authorization {
  users: [
{{- range list "gateway" "scheduler" "operator" }}
{{ get $blocks . | replace "@PASSWORD@" (get $passwords (printf "nats-%s" .)) | trimSuffix "\n" }}
{{- end }}
{{- range include "inferflux.workerIds" $root | fromYamlArray }}
{{ $blocks.worker | replace "@WORKER@" . | replace "@PASSWORD@" (get $passwords (printf "nats-%s" .)) | trimSuffix "\n" }}
{{- else }}
{{ $blocks.sharedWorker | replace "@PASSWORD@" (get $passwords "nats-worker") | trimSuffix "\n" }}
{{- end }}
{{- range $root.Values.nats.tokenTenants }}
{{ $blocks.tokens | replace "@TENANT@" . | replace "@PASSWORD@" (get $passwords (printf "nats-tokens-%s" .)) | trimSuffix "\n" }}
{{- end }}
  ]
}
{{ end }}

{{/* How servers of NATS call each other, and what Kubernetes has them do: (list $ passwords) */}}
{{- define "inferflux.natsCluster" -}}
{{- $root := first . -}}
{{- $password := get (last .) "nats-routes" -}}
{{- $tls := "tls {cert_file: \"/tls/tls.crt\", key_file: \"/tls/tls.key\", ca_file: \"/tls/ca.crt\", verify: true}" -}}
# A server that is to end has others lead, and clients connect to them, before it does.
lame_duck_duration: "30s"
lame_duck_grace_period: "5s"
{{- if $root.Values.tls.enabled }}
{{ $tls }}
{{- end }}
{{- if gt (int $root.Values.nats.replicas) 1 }}
cluster {
  name: inferflux
  listen: "0.0.0.0:6222"
  ping_interval: 2s
  # Addresses of pods are in no certificate and change; clients know the names.
  no_advertise: true
  authorization {user: inferflux, password: "{{ $password }}"}
  {{- $routes := list }}
  {{- range include "inferflux.hosts" (list $root "nats" $root.Values.nats.replicas) | fromYamlArray }}
  {{- $routes = append $routes (printf "\"nats://inferflux:%s@%s:6222\"" $password .) }}
  {{- end }}
  routes: [{{ join ", " $routes }}]
  {{- if $root.Values.tls.enabled }}
  {{ $tls }}
  {{- end }}
}
{{- end }}
{{ end }}

{{/* Where a server or sentinel of Valkey listens: (list $ port) */}}
{{- define "inferflux.valkeyPorts" -}}
{{- if (first .).Values.tls.enabled -}}
port 0
tls-port {{ last . }}
tls-cert-file /tls/tls.crt
tls-key-file /tls/tls.key
tls-ca-cert-file /tls/ca.crt
tls-replication yes
{{- else -}}
port {{ last . }}
{{- end -}}
{{- end }}

{{/* (list $ passwords) */}}
{{- define "inferflux.valkeyFiles" -}}
{{- $root := first . -}}
{{- $passwords := last . -}}
{{- $acl := $root.Files.Get "files/valkey-users.acl" -}}
{{- range list "policy" "gateway" "scheduler" "worker" "health" "operator" -}}
{{- $acl = replace (printf "@%s@" .) (get $passwords (printf "redis-%s" .) | sha256sum) $acl -}}
{{- end -}}
users.acl: {{ $acl | quote }}
health.password: {{ get $passwords "redis-health" }}
{{- $hosts := include "inferflux.hosts" (list $root "valkey" $root.Values.valkey.replicas) | fromYamlArray }}
{{- range $hosts }}
{{ . }}.conf: |
  {{- include "inferflux.valkeyPorts" (list $root 6379) | nindent 2 }}
  appendonly yes
  appendfsync everysec
  save ""
  replica-announce-ip {{ . }}
  replica-announce-port 6379
  masteruser operator
  masterauth "{{ get $passwords "redis-operator" }}"
  repl-diskless-sync-delay 0
  {{- if ne . (first $hosts) }}
  replicaof {{ first $hosts }} 6379
  {{- end }}
{{- end }}
{{- end }}

{{/* (list $ passwords) */}}
{{- define "inferflux.sentinelFiles" -}}
{{- $root := first . -}}
{{- $passwords := last . -}}
{{- $own := get $passwords "redis-sentinels" -}}
health.password: {{ $own }}
{{- range include "inferflux.hosts" (list $root "sentinel" 3) | fromYamlArray }}
{{ . }}.conf: |
  {{- include "inferflux.valkeyPorts" (list $root 26379) | nindent 2 }}
  sentinel resolve-hostnames yes
  sentinel announce-hostnames yes
  sentinel announce-ip {{ . }}
  sentinel announce-port 26379
  requirepass {{ $own }}
  sentinel sentinel-pass {{ $own }}
  sentinel monitor policy-store {{ include "inferflux.hosts" (list $root "valkey" 1) | fromYamlArray | first }} 6379 2
  sentinel auth-user policy-store operator
  sentinel auth-pass policy-store {{ get $passwords "redis-operator" }}
  sentinel down-after-milliseconds policy-store 2000
  sentinel failover-timeout policy-store 4000
{{- end }}
{{- end }}
