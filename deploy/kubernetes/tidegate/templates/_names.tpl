{{- define "tidegate.name" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidegate.labels" -}}
{{ include "tidegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tidegate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}{{ default (include "tidegate.name" .) .Values.serviceAccount.name }}
{{- else -}}{{ default "default" .Values.serviceAccount.name }}{{- end -}}
{{- end -}}

{{/* The most pods that there may be: each has a certificate of its own. */}}
{{- define "tidegate.podsMax" -}}
{{- if .Values.autoscaling.enabled -}}{{ .Values.autoscaling.maxReplicas }}{{- else -}}{{ .Values.replicas }}{{- end -}}
{{- end -}}

{{/* What cannot work together, said before anything is installed. */}}
{{- define "tidegate.check" -}}
{{- if and (eq .Values.store.backend "memory") (gt (int (include "tidegate.podsMax" .)) 1) -}}
{{- fail "store.backend is memory, so each daemon counts for itself: set replicas to 1, or store.backend to redis" -}}
{{- end -}}
{{- if and (eq .Values.store.backend "redis") (not .Values.store.redis.nodes) (not .Values.store.redis.existingSecret.name) -}}
{{- fail "store.backend is redis: name its servers in store.redis.nodes or store.redis.existingSecret" -}}
{{- end -}}
{{- if .Values.peers.enabled -}}
{{- if and (not .Values.peers.certificates.certManager.enabled) (not .Values.peers.certificates.existingSecret) -}}
{{- fail "peers.enabled: daemons need certificates, peers.certificates.certManager or peers.certificates.existingSecret" -}}
{{- end -}}
{{- if not (has .Values.region .Values.peers.regions) -}}
{{- fail (printf "peers.regions must list every region, this one (%s) included" .Values.region) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* tidegate.toml: what the values say, and `config` over it. */}}
{{- define "tidegate.config" -}}
{{- $name := include "tidegate.name" . -}}
{{- $config := dict
  "region" .Values.region
  "listen" (dict "http" "0.0.0.0:8080" "grpc" "0.0.0.0:8081" "peer" "0.0.0.0:7946" "drain" .Values.drain)
  "rules" (dict "saved" "/var/lib/tidegate/rules.saved.json")
  "store" (dict "backend" .Values.store.backend) -}}
{{- if eq .Values.store.backend "redis" -}}
{{- $redis := dict "topology" .Values.store.redis.topology -}}
{{- if .Values.store.redis.nodes -}}
{{- $nodes := list -}}
{{- range .Values.store.redis.nodes -}}{{- $nodes = append $nodes (ternary . (printf "redis://%s" .) (contains "://" .)) -}}{{- end -}}
{{- $_ := set $redis "nodes" $nodes -}}
{{- end -}}
{{- $_ := set $config.store "redis" $redis -}}
{{- end -}}
{{- if .Values.peers.enabled -}}
{{- $own := printf "%s-peers.%s.svc:7946" $name .Release.Namespace -}}
{{- $peers := dict
  "regions" .Values.peers.regions
  "join" (prepend .Values.peers.join $own)
  "shares" "/var/lib/tidegate/shares.json" -}}
{{- $_ := set $config "peers" $peers -}}
{{- end -}}
{{- if .Values.postgres.existingSecret.name -}}
{{- $_ := set $config "audit" (dict "spool" "/var/lib/tidegate/audit-spool") -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.config) | toToml -}}
{{- end -}}
