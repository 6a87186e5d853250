{{- /*
Everything that the cluster itself is asked for, and nothing else: the tests put a file of theirs in place of this one.
Without a cluster (`helm template`, a dry run by the client) nothing is found, and the kinds are those of Kubernetes.
*/ -}}

{{- define "outrider.kubeVersion" -}}
{{- .Capabilities.KubeVersion.Version -}}
{{- end -}}

{{- /* "true": the cluster knows the kind. It takes `root` and `kind`, such as `example.org/v1/Kind`. */ -}}
{{- define "outrider.knowsKind" -}}
{{- .root.Capabilities.APIVersions.Has .kind -}}
{{- end -}}

{{- /* The object as JSON, `{}` if there is none. It takes `version`, `kind`, `namespace` and `name`. Helm fails where the
installer may not read the kind. So only objects of the release's namespace are asked for, and no classes. */ -}}
{{- define "outrider.found" -}}
{{- lookup .version .kind .namespace .name | toJson -}}
{{- end -}}
