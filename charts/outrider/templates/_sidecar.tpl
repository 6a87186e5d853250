{{- /*
These are for the templates of other charts, which have this one as a dependency with `mode: sidecar`. Each takes this
chart's own scope: `include "outrider.sidecar" .Subcharts.outrider` (with the alias of the dependency, if it has one).
README.md shows a whole Job.
*/ -}}

{{- /* An entry of `initContainers`: a native sidecar. */ -}}
{{- define "outrider.sidecar" -}}
- name: outrider
  {{- include "outrider.image" . | nindent 2 }}
  # A native sidecar is ready before the containers start, outlives them, and does not keep a Job from ending.
  restartPolicy: Always
  args: [serve, --config, /etc/outrider/settings/settings.toml]
  {{- with include "outrider.proxyEnvironment" . | trim }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  {{- include "outrider.sidecarProbes" . | nindent 2 }}
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

{{- define "outrider.sidecarProbes" -}}
# The probe is a command, since the kubelet cannot connect to a pod's loopback. The containers wait for it.
startupProbe:
  exec:
    command: [outrider, doctor, --probe, "http://127.0.0.1:9481/readyz"]
  periodSeconds: 1
  timeoutSeconds: 10
  failureThreshold: 120
# The period is long, since each probe starts a new Python process.
livenessProbe:
  exec:
    command: [outrider, doctor, --probe, "http://127.0.0.1:9481/healthz"]
  periodSeconds: 60
  timeoutSeconds: 10
  failureThreshold: 3
{{- end -}}

{{- /* Entries of `volumes`. A cache on an ephemeral volume also needs the pod's fsGroup. */ -}}
{{- define "outrider.sidecarVolumes" -}}
- name: outrider-settings
  configMap:
    name: {{ include "outrider.fullname" . }}
- name: outrider-cache
  {{- include "outrider.cacheVolume" .Values.cache | nindent 2 }}
{{- include "outrider.identityVolume" . }}
{{- end -}}

{{- /* Entries of `env` for the containers that read through the cache. The keys are placeholders: SDKs send no request
that they cannot sign, and loopback mode accepts any signature. No key of the bucket is in those containers. */ -}}
{{- define "outrider.jobEnvironment" -}}
- name: AWS_ENDPOINT_URL
  value: http://127.0.0.1:9480
# s5cmd reads this variable instead.
- name: S3_ENDPOINT_URL
  value: http://127.0.0.1:9480
- name: OUTRIDER_STATUS_URL
  value: http://127.0.0.1:9481
- name: AWS_ACCESS_KEY_ID
  value: outrider-accepts-any
- name: AWS_SECRET_ACCESS_KEY
  value: outrider-accepts-any
{{- end -}}
