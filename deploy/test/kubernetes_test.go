package deploy_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// manifests are what deploy/kubernetes makes.
type manifests struct {
	deployment appsv1.Deployment
	account    corev1.ServiceAccount
	service    corev1.Service
	budget     policyv1.PodDisruptionBudget
	scaler     autoscalingv2.HorizontalPodAutoscaler
	network    networkingv1.NetworkPolicy
}

// readManifests decodes every manifest into the type of its kind. A field that the type does not have, or has twice, is an error.
func readManifests(t *testing.T) *manifests {
	t.Helper()
	var kustomization struct {
		metav1.TypeMeta `json:",inline"`
		Labels          []any    `json:"labels"`
		Resources       []string `json:"resources"`
	}
	must(t, yaml.UnmarshalStrict([]byte(read(t, "kubernetes/kustomization.yaml")), &kustomization))
	m := new(manifests)
	kinds := map[string]any{
		"apps/v1 Deployment": &m.deployment, "v1 ServiceAccount": &m.account, "v1 Service": &m.service,
		"policy/v1 PodDisruptionBudget": &m.budget, "autoscaling/v2 HorizontalPodAutoscaler": &m.scaler,
		"networking.k8s.io/v1 NetworkPolicy": &m.network,
	}
	files, err := filepath.Glob("../kubernetes/*.yaml")
	must(t, err)
	for _, file := range files {
		name := filepath.Base(file)
		if name == "kustomization.yaml" {
			continue
		}
		if !slices.Contains(kustomization.Resources, name) {
			t.Errorf("kustomization.yaml leaves %s out", name)
		}
		content, err := os.ReadFile(file)
		must(t, err)
		for doc := range bytes.SplitSeq(content, []byte("\n---\n")) {
			var meta metav1.TypeMeta
			must(t, yaml.Unmarshal(doc, &meta))
			kind := meta.APIVersion + " " + meta.Kind
			into := kinds[kind]
			if into == nil {
				t.Fatalf("%s has a %s, or a second one", name, kind)
			}
			if err := yaml.UnmarshalStrict(doc, into); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			delete(kinds, kind)
		}
	}
	for kind := range kinds {
		t.Errorf("there is no %s", kind)
	}
	return m
}

// TestKubernetes: the manifests are what Kubernetes takes, they belong together, and the process has only what it needs.
func TestKubernetes(t *testing.T) {
	m := readManifests(t)
	pod := m.deployment.Spec.Template
	container := pod.Spec.Containers[0]
	ports := map[string]bool{}
	for _, p := range container.Ports {
		ports[p.Name] = true
	}
	for what, selector := range map[string]map[string]string{
		"the deployment": m.deployment.Spec.Selector.MatchLabels, "the service": m.service.Spec.Selector,
		"the budget": m.budget.Spec.Selector.MatchLabels, "the network policy": m.network.Spec.PodSelector.MatchLabels,
		"the spread": pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels,
	} {
		for k, v := range selector {
			if pod.Labels[k] != v || len(selector) != len(pod.Labels) {
				t.Errorf("%s selects %v, and the pods have %v", what, selector, pod.Labels)
			}
		}
	}
	if m.scaler.Spec.ScaleTargetRef.Name != m.deployment.Name || m.deployment.Spec.Replicas != nil || pod.Spec.ServiceAccountName != m.account.Name {
		t.Error("the autoscaler scales something else, the deployment has a number of replicas too, or the account is another")
	}
	if m.service.Spec.ClusterIP != corev1.ClusterIPNone || m.service.Spec.PublishNotReadyAddresses {
		t.Error("the service is not headless, or has the addresses of those that are not ready")
	}
	for _, p := range m.service.Spec.Ports {
		if !ports[p.TargetPort.StrVal] {
			t.Errorf("the service leads to the port %v, which the pod does not have", p.TargetPort)
		}
	}
	for _, rule := range m.network.Spec.Ingress {
		for _, p := range rule.Ports {
			if !ports[p.Port.StrVal] {
				t.Errorf("the network policy lets in to the port %v, which the pod does not have", p.Port)
			}
		}
	}
	for probe, path := range map[*corev1.Probe]string{container.LivenessProbe: "/livez", container.ReadinessProbe: "/readyz"} {
		if probe.HTTPGet.Path != path || probe.HTTPGet.Port.StrVal != "ops" {
			t.Errorf("a probe asks %+v, want %s of ops", probe.HTTPGet, path)
		}
	}
	if grace := *pod.Spec.TerminationGracePeriodSeconds; grace < container.Lifecycle.PreStop.Sleep.Seconds+15+5 {
		t.Errorf("%d s are too few to stop in", grace)
	}
	s := container.SecurityContext
	if !*pod.Spec.SecurityContext.RunAsNonRoot || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || fmt.Sprint(s.Capabilities.Drop) != "[ALL]" {
		t.Errorf("the process may do too much: %+v, %+v", pod.Spec.SecurityContext, s)
	}
	if im, _ := readImage(t); im.user != fmt.Sprintf("%d:%d", *pod.Spec.SecurityContext.RunAsUser, *pod.Spec.SecurityContext.RunAsGroup) {
		t.Errorf("the image runs as %s, the pod as %+v", im.user, pod.Spec.SecurityContext)
	}
}

// TestKubernetesArguments: the flags are the program's, and the files that they name are mounted.
func TestKubernetesArguments(t *testing.T) {
	container := readManifests(t).deployment.Spec.Template.Spec.Containers[0]
	help := run(t, nil, binary(t), container.Args[0], "--help")
	for _, arg := range container.Args[1:] {
		flag, value, _ := strings.Cut(arg, "=")
		if !strings.Contains(help, flag+" ") {
			t.Errorf("there is no %s", flag)
		}
		mounted := slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(value, m.MountPath+"/") })
		if strings.HasPrefix(value, "/") && !mounted {
			t.Errorf("%s is not mounted", arg)
		}
		if host, port, err := net.SplitHostPort(value); err == nil {
			// The page is for those who may reach into the pod.
			open := slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return fmt.Sprint(p.ContainerPort) == port })
			if open != (host == "0.0.0.0") || open == (flag == "--ui-listen") || !open && host != "127.0.0.1" {
				t.Errorf("%s, and the pod's ports are %v", arg, container.Ports)
			}
		}
	}
}

// TestKubernetesProcess starts the process with the arguments of the pod, its files in another place. It is reached by TLS alone, over
// gRPC and over HTTP, and the page, too.
func TestKubernetesProcess(t *testing.T) {
	uri := os.Getenv("JOBONCE_TEST_MONGODB_URI")
	if uri == "" {
		skip(t, "there is no MongoDB: JOBONCE_TEST_MONGODB_URI is not set")
	}
	dir := t.TempDir()
	for _, name := range []string{"mongodb", "tls", "auth"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	must(t, os.WriteFile(filepath.Join(dir, "mongodb/uri"), []byte(uri+"\n"), 0o600))
	selfSigned(t, filepath.Join(dir, "tls/tls.crt"), filepath.Join(dir, "tls/tls.key"))
	entry := run(t, nil, binary(t), "token", "new", "--name", "shop", "--allow", "record")
	must(t, os.WriteFile(filepath.Join(dir, "auth/auth.yaml"), []byte("callers:\n"+entry[strings.Index(entry, "- name:"):]+"...\n"), 0o600))
	args := []string{binary(t)}
	for _, arg := range readManifests(t).deployment.Spec.Template.Spec.Containers[0].Args {
		arg = strings.ReplaceAll(arg, "=/run/jobonce/", "="+dir+"/")
		if flag, _, _ := strings.Cut(arg, "="); strings.HasSuffix(flag, "listen") {
			arg = flag + "=127.0.0.1:0" // The ports are the system's here.
		}
		args = append(args, arg)
	}
	p := start(t, nil, append(args, "--mongodb-database", fmt.Sprintf("deploy_%d", time.Now().UnixNano()))...)
	if !regexp.MustCompile(` and https://\S+, MongoDB `).MatchString(p.line) {
		t.Errorf("it says %q", p.line)
	}
}
