{{/* Also the name of Services, which must not contain dots. */}}
{{- define "namesrv.fullname" -}}
{{- if contains "namesrv" .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-namesrv" (.Release.Name | replace "." "-" | trunc 32 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "namesrv.selector" -}}
app.kubernetes.io/name: namesrv
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: node
{{- end -}}

{{- define "namesrv.labels" -}}
{{ include "namesrv.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "namesrv.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Domain of the pods' DNS names, which stay. */}}
{{- define "namesrv.domain" -}}
{{ include "namesrv.fullname" . }}-peers.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* (list . PORT): the addresses of all pods, separated by semicolons. */}}
{{- define "namesrv.addresses" -}}
{{- $root := index . 0 -}}
{{- $port := index . 1 -}}
{{- $found := list -}}
{{- range $number := until (int $root.Values.replicas) -}}
{{- $found = append $found (printf "%s-%d.%s:%d" (include "namesrv.fullname" $root) $number (include "namesrv.domain" $root) $port) -}}
{{- end -}}
{{- join ";" $found -}}
{{- end -}}

{{- define "namesrv.peers" -}}
{{- $found := list -}}
{{- range $number := until (int .Values.replicas) -}}
{{- $name := printf "%s-%d" (include "namesrv.fullname" $) $number -}}
{{- $found = append $found (printf "%s=%s.%s:9896" $name $name (include "namesrv.domain" $)) -}}
{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{/* Variables with which commands in a container reach all nodes. */}}
{{- define "namesrv.operatorsEnv" -}}
- {name: NAMESRV_ADDR, value: {{ include "namesrv.addresses" (list . 9876) | quote }}}
- {name: NAMESRV_ADMIN, value: {{ include "namesrv.addresses" (list . 9886) | quote }}}
{{- if .Values.adminTokenSecret }}
- {name: NAMESRV_ADMIN_TOKEN_FILE, value: /etc/namesrv/admin/token}
{{- end }}
{{- if .Values.tls.admin.secret }}
- {name: NAMESRV_ADMIN_CA, value: /etc/namesrv/tls-admin/ca.crt}
{{- end }}
{{- end -}}

{{- define "namesrv.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "namesrv.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Values that contradict each other. */}}
{{- define "namesrv.check" -}}
{{- range $name := list "mode" "nodeId" "clusterId" "peers" "listen" "listenPort" "bindAddress" "adminListen" "healthListen" "peerListen" "dataDir" -}}
{{- if hasKey $.Values.settings $name -}}
{{- fail (printf "settings.%s: the chart sets it, and services and probes depend on it; remove it, and use the values mode, replicas and clusterId" $name) -}}
{{- end -}}
{{- end -}}
{{- $values := dict "accessPolicy" "access.policy" "accessFile" "access.secret" "adminTokenFile" "adminTokenSecret" "peerSecretFile" "peerSecret" "peerTlsKeyPath" "tls.peers.secret" "peerTlsCertPath" "tls.peers.secret" "peerTlsTrustCertPath" "tls.peers.secret" "adminTlsKeyPath" "tls.admin.secret" "adminTlsCertPath" "tls.admin.secret" "tls.server.keyPath" "tls.remoting.secret" "tls.server.certPath" "tls.remoting.secret" -}}
{{- range $name, $value := $values -}}
{{- if hasKey $.Values.settings $name -}}
{{- fail (printf "settings.%s: the chart sets it with a value of its own; remove it, and use %s" $name $value) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.tls.remoting.mode "enforcing") (not .Values.tls.remoting.secret) -}}
{{- fail "tls.remoting.secret: tls.remoting.mode=enforcing needs a Secret of type kubernetes.io/tls" -}}
{{- end -}}
{{- if and (eq .Values.mode "cp") (not .Values.peerSecret) (not .Values.tls.peers.secret) -}}
{{- fail "peerSecret: with mode=cp the nodes have to authenticate each other; give the name of a Secret with the key peer-secret, or set tls.peers.secret" -}}
{{- end -}}
{{- if and (ne .Values.access.policy "open") (not .Values.access.secret) -}}
{{- fail (printf "access.secret: access.policy=%s needs a Secret with the key access.toml" .Values.access.policy) -}}
{{- end -}}
{{- if and (eq .Values.access.policy "enforce") (not .Values.adminTokenSecret) -}}
{{- fail "adminTokenSecret: with access.policy=enforce a pod needs the role admin to drain itself before it stops; give the name of a Secret with the key token" -}}
{{- end -}}
{{- if and .Values.tls.admin.secret (not .Values.adminTokenSecret) -}}
{{- fail "adminTokenSecret: with tls.admin.secret the pods drain themselves over HTTPS by their DNS name, which needs a Secret with the key token" -}}
{{- end -}}
{{- if lt (int .Values.terminationGracePeriodSeconds) (add .Values.drainSeconds 30 | int) -}}
{{- fail (printf "terminationGracePeriodSeconds=%v: give at least drainSeconds + 30" .Values.terminationGracePeriodSeconds) -}}
{{- end -}}
{{- if and .Values.backup.enabled (not .Values.adminTokenSecret) -}}
{{- fail "adminTokenSecret: backup.enabled=true needs a Secret with the key token, because nodes give a backup to another pod only with a token" -}}
{{- end -}}
{{- end -}}
