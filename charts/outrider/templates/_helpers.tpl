{{- /* Helm lets no release's name be longer than 53: with the chart's, it fits into the 63 of a Service's. */ -}}
{{- define "outrider.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end -}}

{{- define "outrider.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "outrider.labels" -}}
{{ include "outrider.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "outrider.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "outrider.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "outrider.endpoint" -}}
http://{{ include "outrider.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- end -}}

{{- /* The settings file: what the user may choose, then what the manifests of this chart rely on. */ -}}
{{- define "outrider.settings" -}}
{{- $own := dict
  "listen" "0.0.0.0:9480"
  "admin" "0.0.0.0:9481"
  "auth" "sigv4"
  "clients" (printf "/etc/outrider/clients/%s" .Values.clientsSecret.key)
  "cache_dir" "/var/cache/outrider"
-}}
{{- merge $own .Values.settings | toToml | trim -}}
{{- end -}}
