{{- define "outrider.hasOperator" -}}
{{- and (eq .Values.mode "daemonset") .Values.operator.enabled -}}
{{- end -}}

{{- /* Name of the Deployment, and of everything that the operator owns: its Lease, its configuration of webhooks, its
Service, and its Secret, which ends with `-ca`. The configuration belongs to the whole cluster. Two operators would
change the same pods: Helm refuses a second one of that name. */ -}}
{{- define "outrider.operatorName" -}}
{{- include "outrider.shortened" (dict "name" (include "outrider.fullname" .) "length" 50) }}-operator
{{- end -}}

{{- define "outrider.operatorLabels" -}}
{{ include "outrider.selectorLabels" . }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "outrider.operatorArgs" -}}
- operator
- --name={{ include "outrider.operatorName" . }}
- --namespace={{ .Release.Namespace }}
- --listen=:9484
- --webhook-listen=:9443
- --cache={{ .Release.Namespace }}/{{ include "outrider.peersName" . }}
- --admin-port=9481
{{- /* As in its webhook: pods of other namespaces are another operator's. */}}
- {{ include "outrider.namespacesOfJobs" .Values.operator.namespaceSelector | fromYaml | toJson | printf "--namespace-selector=%s" | quote }}
- --peer-domain={{ .Values.settings.peer_domain | default "zone" }}
- --endpoint={{ include "outrider.endpoint" . }}
- --sidecar-file=/etc/outrider/sidecar/sidecar.json
{{- end -}}

{{- /* The native sidecar that the operator puts into pods of other namespaces. It takes its settings from variables,
since no ConfigMap of this release is there. */ -}}
{{- define "outrider.injectedSidecar" -}}
container:
  name: outrider
  {{- include "outrider.image" . | nindent 2 }}
  restartPolicy: Always
  args: [serve]
  env:
    {{- range $name, $value := merge (dict
      "listen" "127.0.0.1:9480" "admin" "127.0.0.1:9481" "auth" "loopback" "cache_dir" "/var/cache/outrider"
    ) .Values.operator.sidecar.settings }}
    - name: OUTRIDER_{{ upper $name }}
      value: {{ $value | quote }}
    {{- end }}
    {{- with .Values.operator.sidecar.credentialsSecret }}
    {{- include "outrider.keysOf" . | trim | nindent 4 }}
    {{- end }}
  {{- include "outrider.sidecarProbes" . | nindent 2 }}
  securityContext:
    {{- include "outrider.podSecurity" . | nindent 4 }}
    {{- include "outrider.security" . | nindent 4 }}
  resources:
    {{- toYaml .Values.operator.sidecar.resources | nindent 4 }}
  volumeMounts:
    - name: outrider-cache
      mountPath: /var/cache/outrider
volumes:
  - name: outrider-cache
    emptyDir: {}
endpoint: http://127.0.0.1:9480
{{- end -}}
