package cli

import (
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestListenersProtection: beyond this machine the service is protected, or said not to be.
func TestListenersProtection(t *testing.T) {
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	none, both := securityConfig{}, securityConfig{cert: "c", key: "k", authFile: "a"}
	for _, tc := range []struct {
		name string
		addr net.Addr
		cfg  securityConfig
		want string // what the refusal names; empty: none
	}{
		{"loopback", tcp("127.0.0.1"), none, ""},
		{"IPv6 loopback", tcp("::1"), none, ""},
		{"socket", &net.UnixAddr{Name: "/s"}, none, ""},
		{"every interface", tcp("0.0.0.0"), none, "--tls-cert and --tls-key, and --auth-file"},
		{"every IPv6 interface", tcp("::"), none, "--tls-cert and --tls-key, and --auth-file"},
		{"an interface", tcp("192.0.2.1"), none, "--insecure"},
		{"TLS alone", tcp("0.0.0.0"), securityConfig{cert: "c", key: "k"}, "give --auth-file;"},
		{"callers alone", tcp("0.0.0.0"), securityConfig{authFile: "a"}, "give --tls-cert and --tls-key;"},
		{"both", tcp("0.0.0.0"), both, ""},
		{"insecure", tcp("0.0.0.0"), securityConfig{insecure: true}, ""},
	} {
		err := tc.cfg.checkListener("--http-listen", tc.addr, slog.New(slog.DiscardHandler))
		if tc.want == "" && err != nil || tc.want != "" && (exitCode(err) != exitUsage || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

// TestSecurityFlags: flags that protect nothing without others are refused.
func TestSecurityFlags(t *testing.T) {
	dir := t.TempDir()
	file := testenv.WriteFile(t, dir, "broken", []byte("callers: []\n...\n"))
	_, sum := auth.NewToken()
	good := testenv.WriteFile(t, dir, "good", []byte("callers: [{name: a, token_sha256: "+sum+", allow: [metrics]}]\n...\n"))
	for args, want := range map[string]string{
		"--tls-cert c": "--tls-cert and --tls-key go together", "--tls-key k": "--tls-cert and --tls-key go together",
		"--listen 127.0.0.1:0 --http-hosts a":                          "--http-hosts needs --http-listen",
		"--listen 127.0.0.1:0 --http-listen 0.0.0.0:0":                 "--http-listen [::]:",
		"--listen 127.0.0.1:0 --ui-listen 0.0.0.0:0":                   "--ui-listen [::]:",
		"--tls-client-ca c --auth-file a":                              "--tls-client-ca needs --tls-cert",
		"--tls-cert c --tls-key k --tls-client-ca c":                   "--tls-client-ca needs --auth-file",
		"--oidc-issuer https://i --auth-file a":                        "go together",
		"--oidc-audience x --auth-file a":                              "go together",
		"--oidc-issuer https://i --oidc-audience x":                    "--oidc-issuer needs --auth-file",
		"--oidc-ca-cert c":                                             "need --oidc-issuer",
		"--metrics-auth --ops-listen 127.0.0.1:0":                      "--metrics-auth needs --auth-file",
		"--listen 127.0.0.1:0 --metrics-auth --auth-file " + good:      "--metrics-auth needs --ops-listen",
		"--tls-cert missing --tls-key missing":                         "the flags are --tls-cert",
		"--auth-file missing":                                          "cannot read the auth file: open missing",
		"--auth-file " + file:                                          file + ": it has no callers",
		"--tls-min-version 1.1":                                        "must be one of 1.2, 1.3",
		"--listen-mode rw":                                             "--listen-mode rw is not an octal mode",
		"--listen 0.0.0.0:0":                                           "is reached from other machines",
		"--listen [::]:0":                                              "is reached from other machines",
		"--oidc-issuer http://i --oidc-audience x --auth-file " + file: "not an https:// URL",
	} {
		code, stdout, stderr := run(append([]string{"serve", "--data-dir", filepath.Join(dir, "data")}, strings.Fields(args)...)...)
		if code == 0 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("serve %s: exit code %d, %q, want %q", args, code, stderr, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		t.Error("a refused start has made a store")
	}
}

func TestTokenNew(t *testing.T) {
	dir := t.TempDir()
	code, entry, stderr := run("token", "new", "--name", "shop", "--allow", "record,read", "--job-id-prefix", "shop:", "--expires", "2030-06-30", "--rate", "2.5")
	_, token, ok := strings.Cut(strings.TrimSpace(stderr), "not shown again: ")
	if code != 0 || !ok || strings.Contains(entry, token) {
		t.Fatalf("exit code %d: %q, %q", code, entry, stderr)
	}
	path := testenv.WriteFile(t, dir, "auth.yaml", []byte("callers:\n"+entry+"...\n"))
	a, err := auth.Open(auth.Config{File: path})
	testenv.Must(t, err)
	c, err := a.Who(t.Context(), auth.Shown{Authorization: []string{"Bearer " + token}})
	if err != nil || c.Name != "shop" || c.Rights != auth.Record|auth.Read || c.Prefix != "shop:" || c.Expires.Year() != 2030 {
		t.Errorf("the entry lets in %+v, %v", c, err)
	}
	out := filepath.Join(dir, "token")
	if code, _, stderr := run("token", "new", "--name", "a", "--allow", "work", "--out", out); code != 0 || stderr != "" {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if info, err := os.Stat(out); err != nil || info.Mode() != 0o600 {
		t.Errorf("the token's file: %v, %v", info, err)
	}
	for args, want := range map[string]string{
		"--name a --allow work --out " + out: "file exists", "--name a": "allow is missing", "--allow work": "name must be",
		"--name a --allow write": `no right "write"`, "--name a --allow work --expires soon": "neither a day", "--name a --allow work --job-id-prefix a": "colon",
	} {
		if code, stdout, stderr := run(append([]string{"token", "new"}, strings.Fields(args)...)...); code == 0 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("token new %s: exit code %d, %q", args, code, stderr)
		}
	}
}

// protected is a service with TLS and callers, and what its clients need.
type protected struct {
	*here
	dir, token string
	// flags are those of a client that knows the authority.
	flags []string
}

func serveProtected(t *testing.T) *protected {
	t.Helper()
	dir, ca, clients := t.TempDir(), testenv.NewCA(t, "ca"), testenv.NewCA(t, "clients")
	pair, client := ca.Issue(), clients.Issue("reader.example.org")
	file := func(name string, content []byte) string { return testenv.WriteFile(t, dir, name, content) }
	token, entry, err := auth.NewEntry(auth.Entry{Name: "shop", Allow: []string{"record", "expect"}, JobIDPrefix: "shop:"})
	testenv.Must(t, err)
	cfg := testServeConfig(t)
	cfg.security.cert, cfg.security.key, cfg.security.clientCA = file("tls.crt", pair.Cert), file("tls.key", pair.Key), file("clients.crt", clients.PEM)
	cfg.security.authFile = file("auth.yaml", []byte("callers:\n"+entry+"- {name: reader, certificate: reader.example.org, allow: [read]}\n...\n"))
	p := &protected{serveHere(t, cfg), dir, token, []string{"--ca-cert", file("ca.crt", ca.PEM)}}
	file("token", []byte(token+"\n"))
	file("client.crt", client.Cert)
	file("client.key", client.Key)
	p.flags = append(p.flags, "--server", p.addr)
	return p
}

// TestProtectedService: the commands call a service with TLS and callers, by token and by certificate, and say what is missing.
func TestProtectedService(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	p := serveProtected(t)
	defer p.stop()
	in := func(name string) string { return filepath.Join(p.dir, name) }
	token := append([]string{"--token-file", in("token")}, p.flags...)
	certificate := append([]string{"--cert", in("client.crt"), "--key", in("client.key")}, p.flags...)
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"token", append([]string{"record", "--job-id", "shop:1"}, token...), 0, "FIRST"},
		{"certificate", append([]string{"get", "shop:1", "--view", "basic"}, certificate...), 0, "shop:1"},
		{"other prefix", append([]string{"record", "--job-id", "bank:1"}, token...), 1, "PERMISSION_DENIED"},
		{"expect", append([]string{"expect", "shop:late", "--status-url", "https://p.example/late?key=swordfish", "--overdue-after", "0s"}, token...), 0, "overdue from"},
		{"the query of a status URL", append([]string{"overdue", "-o", "json"}, certificate...), 0, `"statusUrl":"https://p.example/late"`},
		{"bodies", append([]string{"get", "shop:1"}, certificate...), 0, "payload: not shown: reader may not read bodies"},
		{"bodies for a script", append([]string{"get", "shop:1", "-o", "json"}, certificate...), 1, "--view basic"},
		{"bodies alone", append([]string{"get", "shop:1", "--payload-only"}, certificate...), 1, "reader may not read bodies"},
		{"bodies of all means", append([]string{"get", "shop:1", "--view", "full"}, certificate...), 1, "reader may not read bodies"},
		{"other right", append([]string{"get", "shop:1"}, token...), 1, "PERMISSION_DENIED: shop may not call this method: that needs the right read\n"},
		{"nobody", append([]string{"get", "shop:1"}, p.flags...), 1, "UNAUTHENTICATED"},
		{"two identities", append(append([]string{"get", "shop:1"}, token...), certificate...), 1, "two identities"},
		{"plaintext", []string{"get", "shop:1", "--server", p.addr}, 6, "add --tls"},
		{"the system's authorities", []string{"get", "shop:1", "--server", p.addr, "--tls"}, 6, "--ca-cert names the authorities to trust"},
	} {
		if code, stdout, stderr := run(tc.args...); code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
			t.Errorf("%s: exit code %d, %q %q; want %d, %q", tc.name, code, stdout, stderr, tc.code, tc.want)
		}
	}
	plain := serveHere(t, testServeConfig(t))
	defer plain.stop()
	if code, _, stderr := run("get", "j", "--server", plain.addr, "--tls"); code != 6 || !strings.Contains(stderr, "speaks no TLS") {
		t.Errorf("TLS to a service without: exit code %d, %q", code, stderr)
	}
}

// TestSecretsStayInside looks for every secret in all that the service and the commands say, whatever goes wrong.
func TestSecretsStayInside(t *testing.T) {
	p := serveProtected(t)
	in := func(name string) string { return filepath.Join(p.dir, name) }
	other, _ := auth.NewToken()
	wrong := testenv.WriteFile(t, p.dir, "wrong", []byte(other))
	broken := testenv.WriteFile(t, p.dir, "two lines", []byte(p.token+"\n"+p.token))
	var said strings.Builder
	for _, file := range []string{in("token"), wrong, broken, in("client.key")} {
		for _, args := range [][]string{{"record", "--job-id", "shop:1"}, {"record", "--job-id", "bank:1"}, {"get", "shop:1", "-o", "json"}} {
			for _, server := range [][]string{p.flags, {"--server", p.addr}, {"--server", "127.0.0.1:1"}} {
				_, stdout, stderr := run(append(append(args, "--token-file", file), server...)...)
				said.WriteString(stdout + stderr)
			}
		}
	}
	for _, command := range []string{"serve", "token new", "record"} {
		_, stdout, stderr := run(append(strings.Fields(command), "--help")...)
		said.WriteString(stdout + stderr)
	}
	for _, page := range []string{"/metrics", "/livez", "/readyz", "/debug/pprof/cmdline"} {
		_, body := p.get(page)
		said.WriteString(body)
	}
	serverKey, err := os.ReadFile(in("tls.key"))
	testenv.Must(t, err)
	said.WriteString(crash(t, p))
	for _, file := range []string{"auth.yaml", "tls.key"} { // The secrets in the wrong files.
		testenv.WriteFile(t, p.dir, file, []byte("callers:\n- {name: "+p.token+", token_sha256: "+p.token+"}\n...\n"))
		_, stdout, stderr := run("serve", "--data-dir", in("data"), "--auth-file", in("auth.yaml"), "--tls-cert", in("tls.crt"), "--tls-key", in("tls.key"))
		said.WriteString(stdout + stderr)
	}
	said.WriteString(p.stop())
	said.WriteString(p.logged())
	key, err := os.ReadFile(in("client.key"))
	testenv.Must(t, err)
	for _, secret := range []string{p.token, other, strings.Split(string(key), "\n")[1], strings.Split(string(serverKey), "\n")[1]} {
		if strings.Contains(said.String(), secret) {
			i := strings.Index(said.String(), secret)
			t.Errorf("a secret is told: …%s…", said.String()[max(0, i-100):i+10])
		}
	}
}

// crash ends another service of the same files, to which a call was made, as a fault of the program does, and returns what can
// be seen of it: in the list of processes, and what it says.
func crash(t *testing.T, p *protected) string {
	t.Helper()
	in := func(name string) string { return filepath.Join(p.dir, name) }
	process, err := startServe(p.dir, nil, "--listen", "127.0.0.1:0", "--data-dir", "other", "--auth-file", in("auth.yaml"),
		"--tls-cert", in("tls.crt"), "--tls-key", in("tls.key"), "--tls-client-ca", in("clients.crt"))
	testenv.Must(t, err)
	if code, _, stderr := run("record", "--job-id", "shop:1", "--token-file", in("token"), "--ca-cert", in("ca.crt"), "--server", process.addr); code != 0 {
		t.Errorf("record: exit code %d: %s", code, stderr)
	}
	listed, err := exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(process.Pid)).Output()
	testenv.OK(t, err)
	testenv.OK(t, process.Cmd.Process.Signal(syscall.SIGQUIT))
	if err := process.Wait(); err == nil || !strings.Contains(process.Log.String(), "goroutine ") {
		t.Errorf("it has not crashed: %v: %s", err, &process.Log)
	}
	return string(listed) + process.Log.String()
}
