package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

var update = flag.Bool("update", false, "write the golden files anew")

// remoteListener has its peers come from another machine.
type remoteListener struct{ net.Listener }

type remoteConn struct{ net.Conn }

func (l remoteListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return remoteConn{conn}, err
}

func (remoteConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

// identity is who calls, and how.
type identity struct {
	name   string
	tokens []string
	tls    *tls.Config // nil: plaintext
	jobID  string
}

// accessWorld has what the settings of the table share.
type accessWorld struct {
	t            *testing.T
	ca, clients  *testenv.CA
	issuer       *testenv.Issuer
	certificates *auth.Certificates
	tokens       map[string]string
	out          strings.Builder
}

// TestAccess tries every method of every service, as everybody that there may be, in every setting. The methods are read from
// the server, so that none is forgotten; what comes out stands in a file.
func TestAccess(t *testing.T) {
	w := &accessWorld{t: t, ca: testenv.NewCA(t, "servers"), clients: testenv.NewCA(t, "clients"), issuer: testenv.NewIssuer(t), tokens: make(map[string]string)}
	pair, dir := w.ca.Issue(), t.TempDir()
	var err error
	w.certificates, err = auth.LoadCertificates(auth.CertificateFiles{
		Cert: testenv.WriteFile(t, dir, "cert", pair.Cert), Key: testenv.WriteFile(t, dir, "key", pair.Key), ClientCA: testenv.WriteFile(t, dir, "ca", w.clients.PEM),
	}, testenv.Logger(t))
	testenv.Must(t, err)
	var entries strings.Builder
	for name, rest := range map[string]string{
		"record": "allow: [record]", "queued": "allow: [record: [queued]]", "work": "allow: [work]", "read": "allow: [read]",
		"read_bodies": "allow: [read_bodies]", "expect": "allow: [expect]", "metrics": "allow: [metrics]", "admin": "allow: [admin]",
		"everything": "allow: [record, work, admin, expect]", "shop": "allow: [record, work, read], job_id_prefix: 'shop:'",
		"shopadmin": "allow: [admin, expect], job_id_prefix: 'shop:'",
		"expired":   "allow: [record], expires: 2020-01-01",
	} {
		token, sum := auth.NewToken()
		w.tokens[name] = token
		fmt.Fprintf(&entries, "- {name: %s, token_sha256: %s, %s}\n", name, sum, rest)
	}
	w.tokens["unknown"], _ = auth.NewToken()
	callers := authority(t, auth.Config{}, entries.String())

	plain := func(name string, tokens ...string) identity { return identity{name: name, tokens: tokens} }
	secure := &tls.Config{RootCAs: w.ca.Pool()}
	over := func(config *tls.Config, name string, tokens ...string) identity {
		return identity{name: name, tokens: tokens, tls: config}
	}
	with := func(pair testenv.Pair) *tls.Config {
		cert := pair.TLS(t)
		// The client shows it whoever is asked for.
		return &tls.Config{RootCAs: w.ca.Pool(), GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }}
	}

	w.setting("plaintext, no callers", Config{}, plain("nobody"), plain("some token", w.tokens["record"]))

	ids := []identity{plain("nobody")}
	for _, name := range slices.Sorted(maps.Keys(w.tokens)) {
		ids = append(ids, plain("token: "+name, w.tokens[name]))
	}
	ids = append(ids, identity{name: "token: shop, its own job", tokens: []string{w.tokens["shop"]}, jobID: "shop:1"},
		identity{name: "token: shopadmin, its own job", tokens: []string{w.tokens["shopadmin"]}, jobID: "shop:1"},
		plain("two tokens", w.tokens["record"], w.tokens["work"]), plain("the same token twice", w.tokens["record"], w.tokens["record"]),
		plain("secret of a human", "hunter2"), plain("empty token", ""), plain("JWT without an issuer", w.issuer.Token("first", map[string]any{"sub": "x"})))
	w.setting("plaintext on loopback, tokens", Config{Callers: callers}, ids...)

	w.setting("TLS, tokens", Config{Callers: callers, Certificates: w.certificates}, plain("plaintext", w.tokens["everything"]), over(secure, "nobody"),
		over(secure, "token: everything", w.tokens["everything"]), over(secure, "token: unknown", w.tokens["unknown"]), over(&tls.Config{}, "client that does not know the CA"),
		over(with(w.clients.Issue("a")), "token and certificate", w.tokens["everything"]))

	w.setting("mutual TLS", Config{Certificates: w.certificates, Callers: authority(t, auth.Config{Certificates: true}, `
- {name: a, certificate: a.example.org, allow: [record, work, read_bodies]}
- {name: b, certificate: spiffe://example.org/b, allow: [read]}`)},
		over(secure, "no certificate"), over(with(w.clients.Issue("a.example.org")), "certificate: a"),
		over(with(w.clients.Issue("spiffe://example.org/b")), "certificate: b"), over(with(w.clients.Issue("c.example.org")), "certificate of no caller"),
		over(with(w.clients.Issue("a.example.org", "spiffe://example.org/b")), "certificate of two callers"),
		over(with(testenv.NewCA(t, "other").Issue("a.example.org")), "certificate of another CA"),
		over(with(w.clients.IssueUntil(time.Now().Add(-time.Minute), "a.example.org")), "expired certificate"))

	w.setting("OIDC", Config{Certificates: w.certificates, Callers: w.oidc()}, w.jwts(secure)...)

	const golden = "testdata/access.golden"
	if *update {
		testenv.Must(t, os.WriteFile(golden, []byte(w.out.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	testenv.Must(t, err)
	if diff := cmp.Diff(string(want), w.out.String()); diff != "" {
		t.Errorf("who may call what has changed (-want +got); if it is to be so, run the test with -update:\n%s", diff)
	}
}

// oidc believes the issuer, whose keys it has.
func (w *accessWorld) oidc() *auth.Authority {
	issuer, err := auth.NewIssuer(auth.IssuerConfig{URL: w.issuer.URL(), Audience: "jobonce", Logger: testenv.Logger(w.t)})
	testenv.Must(w.t, err)
	a := authority(w.t, auth.Config{Issuer: issuer}, "- {name: pod, oidc: {sub: 'system:serviceaccount:shop:frontend'}, allow: [record, read]}")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	w.t.Cleanup(func() { cancel(); <-done })
	good := w.issuer.Token("first", map[string]any{"sub": "system:serviceaccount:shop:frontend"})
	eventually(w.t, "the issuer's keys are not there", func() bool {
		_, err := a.Who(ctx, auth.Shown{Authorization: []string{"Bearer " + good}})
		return err == nil
	})
	return a
}

// jwts are tokens, good and bad in every way.
func (w *accessWorld) jwts(config *tls.Config) []identity {
	subject := map[string]any{"sub": "system:serviceaccount:shop:frontend"}
	changed := func(claim string, value any) string {
		claims := maps.Clone(subject)
		claims[claim] = value
		return w.issuer.Token("first", claims)
	}
	good, stranger := w.issuer.Token("first", subject), testenv.NewIssuer(w.t)
	parts := strings.Split(good, ".")
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	testenv.Must(w.t, err)
	public, err := x509.MarshalPKIXPublicKey(w.issuer.Key("first").Public().(*ecdsa.PublicKey))
	testenv.Must(w.t, err)
	secret := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	var ids []identity
	for _, jwt := range []struct{ name, token string }{
		{"good", good}, {"other audience", changed("aud", "other")}, {"other issuer", changed("iss", "https://example.org")},
		{"other subject", changed("sub", "somebody")}, {"expired", changed("exp", time.Now().Add(-time.Hour).Unix())}, {"without an end", changed("exp", nil)},
		{"algorithm none", part(`{"alg":"none"}`) + "." + parts[1] + "."},
		{"HS256 with the public key", testenv.Sign(w.t, jose.HS256, secret, "first", w.issuer.Claims(subject))},
		{"unknown key", testenv.Sign(w.t, jose.ES256, stranger.Key("first"), "unknown", w.issuer.Claims(subject))},
		{"key of another issuer", testenv.Sign(w.t, jose.ES256, stranger.Key("first"), "first", w.issuer.Claims(subject))},
		{"tampered", parts[0] + "." + part(string(bytes.Replace(payload, []byte("shop"), []byte("bank"), 1))) + "." + parts[2]},
		{"cut", good[:len(good)-10]},
	} {
		ids = append(ids, identity{name: "JWT: " + jwt.name, tokens: []string{jwt.token}, tls: config})
	}
	return append(ids, identity{name: "a token of ours", tokens: []string{w.tokens["everything"]}, tls: config}, identity{name: "two JWTs", tokens: []string{good, good}, tls: config})
}

// setting starts a server and writes what each identity gets from each method.
func (w *accessWorld) setting(name string, cfg Config, ids ...identity) {
	cfg.Logger = slog.New(slog.DiscardHandler)
	s, err := New(cfg, new(memoryJobs))
	testenv.Must(w.t, err)
	lis := listen(w.t)
	if cfg.Certificates != nil {
		lis = remoteListener{lis}
	}
	r := serve(w.t, s, lis)
	fmt.Fprintf(&w.out, "%s\n", name)
	methods, rules, web := methodsOf(w.t, s.grpc), httpRules(w.t), openHTTP(w.t, s)
	for _, id := range ids {
		transport := insecure.NewCredentials()
		if id.tls != nil {
			transport = credentials.NewTLS(id.tls)
		}
		conn, err := grpc.NewClient(r.conn.Target(), grpc.WithTransportCredentials(transport))
		testenv.Must(w.t, err)
		outcomes, overHTTP := make(map[string][]string), make(map[string][]string)
		for _, m := range methods {
			ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
			for _, token := range id.tokens {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
			}
			outcome := access(ctx, conn, m, id.jobID)
			cancel()
			outcomes[outcome] = append(outcomes[outcome], string(m.Name()))
			if rule, ok := rules[m.FullName()]; ok {
				if got := accessHTTP(w.t, web, id, m, rule); got != outcome {
					overHTTP[got] = append(overHTTP[got], string(m.Name()))
				}
			}
		}
		conn.Close()
		fmt.Fprintf(&w.out, "  %s\n", id.name)
		for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
			names := strings.Join(outcomes[outcome], " ")
			if len(outcomes[outcome]) == len(methods) {
				names = "all"
			}
			fmt.Fprintf(&w.out, "    %-18s %s\n", outcome, names)
		}
		if len(overHTTP) == 0 {
			fmt.Fprintf(&w.out, "    over HTTP: the same\n")
		}
		for _, outcome := range slices.Sorted(maps.Keys(overHTTP)) {
			fmt.Fprintf(&w.out, "    over HTTP: %s %s\n", outcome, strings.Join(overHTTP[outcome], " "))
		}
	}
}

// methodsOf are the methods of all services that the server has.
func methodsOf(t *testing.T, s *grpc.Server) []protoreflect.MethodDescriptor {
	var methods []protoreflect.MethodDescriptor
	for _, name := range slices.Sorted(maps.Keys(s.GetServiceInfo())) {
		if strings.HasSuffix(name, "v1alpha.ServerReflection") {
			continue // as v1
		}
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		testenv.Must(t, err)
		all := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range all.Len() {
			methods = append(methods, all.Get(i))
		}
	}
	return methods
}

// access is what became of a call: "in", or why it was refused.
func access(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, jobID string) string {
	input, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		return err.Error()
	}
	output, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		return err.Error()
	}
	req, resp := input.New(), output.New().Interface()
	fill(req, jobID)
	path := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: string(m.Name()), ClientStreams: true, ServerStreams: m.IsStreamingServer()}, path)
	if err == nil {
		// What goes wrong with sending, the answer says.
		if stream.SendMsg(req.Interface()) == nil && !m.IsStreamingClient() {
			_ = stream.CloseSend()
		}
		err = stream.RecvMsg(resp)
	}
	switch st := status.Convert(err); {
	case st.Code() == codes.Unavailable && len(st.Details()) == 0:
		return "no connection"
	case st.Code() == codes.Unauthenticated || st.Code() == codes.PermissionDenied:
		return map[codes.Code]string{codes.Unauthenticated: "UNAUTHENTICATED", codes.PermissionDenied: "PERMISSION_DENIED"}[st.Code()]
	case err == nil && refusesItem(resp):
		return "item refused"
	case st.Code() == codes.Unknown || st.Code() == codes.Unimplemented:
		return st.String()
	}
	return "in"
}

// fill makes a request of any kind one about the job.
func fill(m protoreflect.Message, jobID string) {
	if jobID == "" {
		jobID = "other:1"
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.Name() == "job_id":
			m.Set(f, protoreflect.ValueOfString(jobID))
		case f.Name() == "job_id_prefix":
			m.Set(f, protoreflect.ValueOfString(job.Group(jobID)+":"))
		case f.Name() == "lease_token" || f.Name() == "list_services":
			m.Set(f, protoreflect.ValueOfString("x"))
		case f.Name() == "lease_duration" && m.Descriptor().Name() != "RecordDeliveryRequest":
			m.Set(f, protoreflect.ValueOfMessage(durationpb.New(time.Minute).ProtoReflect()))
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message(), jobID)
		case f.Message() != nil && f.ContainingOneof() != nil && f.ContainingOneof().Fields().Get(0) == f:
			fill(m.Mutable(f).Message(), jobID)
		}
	}
}

// refusesItem tells whether an answer refuses an item of the request.
func refusesItem(resp proto.Message) bool {
	switch resp := resp.(type) {
	case *joboncev1.BatchRecordDeliveriesResponse:
		return resp.GetResults()[0].GetError().GetReason() == joboncev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED
	case *joboncev1.BatchChangeLeasesResponse:
		return resp.GetResults()[0].GetError().GetReason() == joboncev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED
	}
	return false
}
