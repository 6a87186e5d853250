{{- /*
For the templates of other charts, which have this one as a dependency with `mode: sidecar`. Each takes this chart's own
scope: `include "outrider.sidecar" .Subcharts.outrider` (the dependency's alias, if it has one).
README.md shows a whole Job.
*/ -}}

{{- /* An entry of `initContainers`: a native sidecar. */ -}}
{{- define "outrider.sidecar" -}}
- name: outrider
  {{- include "outrider.image" . | nindent 2 }}
  # Native: it is up before the containers start, outlives them, and does not keep a Job from ending.
  restartPolicy: Always
  args: [serve, --config, /etc/outrider/settings/settings.toml]
  {{- with include "outrider.proxyEnvironment" . | trim }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  # By a command, since the kubelet cannot connect to a pod's loopback. The containers wait for it.
  startupProbe:
    exec:
      command: [outrider, doctor, --probe, "http://127.0.0.1:9481/readyz"]
    periodSeconds: 1
    timeoutSeconds: 10
    failureThreshold: 120
  # Rarely: each is a new Python.
  livenessProbe:
    exec:
      command: [outrider, doctor, --probe, "http://127.0.0.1:9481/healthz"]
    periodSeconds: 60
    timeoutSeconds: 10
    failureThreshold: 3
  securityContext:
    {{- include "outrider.podSecurity" . | nindent 4 }}
    {{- include "outrider.security" . | nindent 4 }}
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  volumeMounts:
    - name: outrider-settings
      mountPath: /etc/outrider/settings
      readOnly: true
    - name: outrider-cache
      mountPath: /var/cache/outrider
    {{- with include "outrider.identityMount" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- /* Entries of `volumes`. A cache on an ephemeral volume needs the pod's fsGroup too. */ -}}
{{- define "outrider.sidecarVolumes" -}}
- name: outrider-settings
  configMap:
    name: {{ include "outrider.fullname" . }}
- name: outrider-cache
  {{- include "outrider.cacheVolume" .Values.cache | nindent 2 }}
{{- include "outrider.identityVolume" . }}
{{- end -}}

{{- /* Entries of `env` of the containers that read through it. Keys that prove nothing: SDKs refuse to send what they
cannot sign, and no key of the bucket needs to be in those containers. */ -}}
{{- define "outrider.jobEnvironment" -}}
- name: AWS_ENDPOINT_URL
  value: http://127.0.0.1:9480
# s5cmd has a name of its own for it.
- name: S3_ENDPOINT_URL
  value: http://127.0.0.1:9480
- name: OUTRIDER_STATUS_URL
  value: http://127.0.0.1:9481
- name: AWS_ACCESS_KEY_ID
  value: outrider-accepts-any
- name: AWS_SECRET_ACCESS_KEY
  value: outrider-accepts-any
{{- end -}}
