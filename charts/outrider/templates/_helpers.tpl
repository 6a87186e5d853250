{{- /* Only the release with the chart's own name is called by it alone. Names that merely contain it get it once more, so
that no two releases share a name. Helm limits a release's name to 53 characters. With the chart's name it fits into the
63 of a Service's name. */ -}}
{{- define "outrider.fullname" -}}
{{- if eq .Release.Name .Chart.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end -}}

{{- /* A `name` of at most `length` characters. A longer one ends with its hash, so that no two names become one. */ -}}
{{- define "outrider.shortened" -}}
{{- if le (len .name) .length -}}
{{- .name -}}
{{- else -}}
{{- printf "%s-%s" (.name | trunc (int (sub .length 9)) | trimSuffix "-") (.name | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- /* "true": the caches of the nodes are one. */ -}}
{{- define "outrider.hasPeers" -}}
{{- and (eq .Values.mode "daemonset") .Values.peers.enabled -}}
{{- end -}}

{{- /* Name of the headless Service, of the Role and of the Secret of the members. */ -}}
{{- define "outrider.peersName" -}}
{{- include "outrider.shortened" (dict "name" (include "outrider.fullname" .) "length" 57) }}-peers
{{- end -}}

{{- /* Name of the headless Service by which warm-ups find the caches that are no members of one. */ -}}
{{- define "outrider.nodesName" -}}
{{- include "outrider.shortened" (dict "name" (include "outrider.fullname" .) "length" 57) }}-nodes
{{- end -}}

{{- define "outrider.peerKeySecret" -}}
{{- .Values.peers.keySecret.name | default (include "outrider.peersName" .) -}}
{{- end -}}

{{- /* "true": while a node has no cache that is ready, that of another node answers its jobs. Without peers it would not
know of writes through the first one. */ -}}
{{- define "outrider.fallsBack" -}}
{{- $isNew := semverCompare ">=1.35.0-0" (include "outrider.kubeVersion" .) -}}
{{- and (eq (include "outrider.hasPeers" .) "true") .Values.service.fallback $isNew -}}
{{- end -}}

{{- /* Name of an object that has no namespace. No namespace and no Service has a dot in its name. */ -}}
{{- define "outrider.clusterName" -}}
{{ include "outrider.fullname" . }}.{{ .Release.Namespace | default "default" }}
{{- end -}}

{{- /* "true": the API server puts the address of the cache into pods that ask for it. */ -}}
{{- define "outrider.injectsEndpoint" -}}
{{- $isNew := semverCompare ">=1.36.0-0" (include "outrider.kubeVersion" .) -}}
{{- and (eq .Values.mode "daemonset") .Values.injectEndpoint.enabled $isNew -}}
{{- end -}}

{{- /* A selector of namespaces, given one that narrows it. Those of Kubernetes are never among them. */ -}}
{{- define "outrider.namespacesOfJobs" -}}
{{- $never := dict "key" "kubernetes.io/metadata.name" "operator" "NotIn"
  "values" (list "kube-system" "kube-public" "kube-node-lease") -}}
{{- merge (dict "matchExpressions" (concat (list $never) (.matchExpressions | default list))) . | toYaml -}}
{{- end -}}

{{- define "outrider.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- /* These labels select the proxies, and not the pods of warm-ups, which serve no requests. */ -}}
{{- define "outrider.proxyLabels" -}}
{{ include "outrider.selectorLabels" . }}
app.kubernetes.io/component: proxy
{{- end -}}

{{- define "outrider.warmLabels" -}}
{{ include "outrider.selectorLabels" . }}
app.kubernetes.io/component: warm
{{- end -}}

{{- define "outrider.testLabels" -}}
{{ include "outrider.selectorLabels" . }}
app.kubernetes.io/component: test
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

{{- /* Address of the cache for a job in this cluster. With hostPort it is the address of each node, in HOST_IP. */ -}}
{{- define "outrider.endpoint" -}}
{{- if .Values.service.enabled -}}
http://{{ include "outrider.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- else -}}
http://$(HOST_IP):{{ .Values.hostPort }}
{{- end -}}
{{- end -}}

{{- define "outrider.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- /* The security context of a pod. */ -}}
{{- define "outrider.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAsUser | int64 }}
runAsGroup: {{ .Values.runAsUser | int64 }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* The security context of a container. */ -}}
{{- define "outrider.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "outrider.grace" -}}
{{- /* 15 s more than the drain, for the snapshot of the index, and those of the preStop hook. */ -}}
{{- add 15 (ceil .Values.settings.drain_s) (ternary 5 0 (eq (include "outrider.fallsBack" .) "true")) -}}
{{- end -}}

{{- define "outrider.keysOf" -}}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $ | quote }}
      key: {{ . }}
{{- end }}
{{- end -}}

{{- /* Environment of the proxy: its credentials for the origin, and the collector of its traces. May be empty. */ -}}
{{- define "outrider.proxyEnvironment" -}}
{{- with .Values.credentialsSecret }}
{{- include "outrider.keysOf" . }}
{{- end }}
{{- with .Values.webIdentity.roleArn }}
- name: AWS_ROLE_ARN
  value: {{ . | quote }}
- name: AWS_WEB_IDENTITY_TOKEN_FILE
  value: /var/run/secrets/outrider/token
{{- with $.Values.settings.region }}
# STS has an endpoint in each region.
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.openTelemetry }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "outrider.identityMount" -}}
{{- if .Values.webIdentity.roleArn }}
- name: outrider-identity
  mountPath: /var/run/secrets/outrider
  readOnly: true
{{- end }}
{{- end -}}

{{- define "outrider.identityVolume" -}}
{{- with .Values.webIdentity }}
{{- if .roleArn }}
- name: outrider-identity
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken:
          audience: {{ .audience | quote }}
          expirationSeconds: 3600
          path: token
{{- end }}
{{- end }}
{{- end -}}

{{- /* The cache directories of the pod: on each of several disks, its path on the node below the usual one. */ -}}
{{- define "outrider.cacheDirs" -}}
{{- $dirs := list -}}
{{- range .Values.cache.hostPaths }}{{ $dirs = append $dirs (printf "/var/cache/outrider%s" .) }}{{ end -}}
{{- $dirs | default (list "/var/cache/outrider") | toJson -}}
{{- end -}}

{{- define "outrider.cacheMounts" -}}
{{- range $number, $dir := include "outrider.cacheDirs" . | fromJsonArray }}
- name: {{ ternary "cache" (printf "cache-%d" $number) (empty $.Values.cache.hostPaths) }}
  mountPath: {{ $dir | quote }}
{{- end }}
{{- end -}}

{{- define "outrider.cacheVolumes" -}}
{{- range $number, $path := .Values.cache.hostPaths }}
- name: cache-{{ $number }}
  {{- include "outrider.cacheVolume" (dict "hostPath" $path) | nindent 2 }}
{{- else }}
- name: cache
  {{- include "outrider.cacheVolume" .Values.cache | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "outrider.cacheVolume" -}}
{{- if .hostPath -}}
hostPath:
  path: {{ .hostPath | quote }}
  # Not DirectoryOrCreate: a directory that the kubelet makes belongs to root, and the proxy could not write to it.
  type: Directory
{{- else if .ephemeral.size -}}
ephemeral:
  volumeClaimTemplate:
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .ephemeral.storageClassName }}
      storageClassName: {{ . | quote }}
      {{- end }}
      resources:
        requests:
          storage: {{ .ephemeral.size | quote }}
{{- else -}}
emptyDir: {}
{{- end -}}
{{- end -}}

{{- /* The settings file: the user's settings, overridden by those that the manifests of this chart rely on. */ -}}
{{- define "outrider.settings" -}}
{{- $dirs := include "outrider.cacheDirs" . | fromJsonArray -}}
{{- $own := dict "cache_dir" (ternary (first $dirs) $dirs (eq (len $dirs) 1)) -}}
{{- if eq .Values.mode "sidecar" -}}
{{- $own = merge $own (dict "listen" "127.0.0.1:9480" "admin" "127.0.0.1:9481" "auth" "loopback") -}}
{{- else -}}
{{- /* The address of a pod is of IPv4 or of IPv6, as its cluster has them. `[::]` takes the connections of both. */ -}}
{{- $own = merge $own (dict
  "listen" "[::]:9480"
  "admin" "[::]:9481"
  "auth" "sigv4"
  "clients" (printf "/etc/outrider/clients/%s" .Values.clientsSecret.key)
) -}}
{{- end -}}
{{- if eq (include "outrider.hasPeers" .) "true" -}}
{{- $own = merge $own (dict
  "peers" (printf "kubernetes:%s/%s" .Release.Namespace (include "outrider.peersName" .))
  "peer_listen" "[::]:9482"
  "peer_key_file" (printf "/etc/outrider/peers/%s" .Values.peers.keySecret.key)
) -}}
{{- end -}}
{{- merge $own .Values.settings | toToml | trim -}}
{{- end -}}
