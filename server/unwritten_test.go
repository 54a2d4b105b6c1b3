package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/testenv"
)

// stalled has a call send half of its message.
func stalled(t *testing.T, p *rawPeer, extra ...string) uint32 {
	id := p.headers(t, recordPath, false, extra...)
	p.send(t, id, false, append(prefix(0, 100), 1, 2, 3))
	return id
}

// TestEndsBeforeItsHandler ends calls in every way before their handler has run. Nothing is written then, and no error says
// that it may have been. The log has no ERROR about it.
func TestEndsBeforeItsHandler(t *testing.T) {
	var token, reader string
	slow := callersOf(t, &token, "- {name: a, token_sha256: SUM, allow: [record], rate: 0.001}")
	readers := callersOf(t, &reader, "- {name: a, token_sha256: SUM, allow: [read]}")
	call := func(t *testing.T, _ *running, p *rawPeer) { p.call(t, recordPath, field(1, []byte("j"))) }
	as := func(token *string) func(*testing.T, *running, *rawPeer) { // The body never comes.
		return func(t *testing.T, _ *running, p *rawPeer) {
			p.headers(t, recordPath, false, "authorization", "Bearer "+*token)
		}
	}
	stall := func(t *testing.T, _ *running, p *rawPeer) { stalled(t, p) }
	inLine := func(then func(t *testing.T, p *rawPeer, id uint32), extra ...string) func(*testing.T, *running, *rawPeer) {
		return func(t *testing.T, s *running, p *rawPeer) {
			id := stalled(t, p, extra...)
			eventually(t, "nobody waits", func() bool { return s.server.InLine() == 1 })
			then(t, p, id)
		}
	}
	nothing := func(*testing.T, *rawPeer, uint32) {}
	cancel := func(t *testing.T, p *rawPeer, id uint32) { p.must(t, p.WriteRSTStream(id, http2.ErrCodeCancel)) }
	for name, tc := range map[string]struct {
		cfg    Config
		door   func(d *door)
		do     func(t *testing.T, s *running, p *rawPeer)
		code   codes.Code
		reason string
	}{
		"metadata": {do: func(t *testing.T, _ *running, p *rawPeer) {
			p.headers(t, recordPath, false, "x", strings.Repeat("x", maxMetadataBytes))
		}, code: codes.InvalidArgument, reason: "INVALID_FIELD"},
		"who": {cfg: Config{Callers: callersOf(t, nil, "- {name: a, token_sha256: SUM, allow: [record]}")}, do: call,
			code: codes.Unauthenticated, reason: "UNAUTHENTICATED"},
		"may": {cfg: Config{Callers: readers}, do: as(&reader), code: codes.PermissionDenied, reason: "PERMISSION_DENIED"},
		"rate": {cfg: Config{Callers: slow}, door: func(*door) {
			c, err := slow.Who(t.Context(), auth.Shown{Authorization: []string{"Bearer " + token}})
			if err != nil || c.Wait(time.Now()) != 0 {
				t.Fatal("the first call is refused", err)
			}
		}, do: as(&token), code: codes.ResourceExhausted, reason: "RATE_LIMITED"},
		"no room for the call":  {door: func(d *door) { d.room.calls = d.room.maxCalls }, do: call, code: codes.ResourceExhausted, reason: "OVERLOADED"},
		"no room for its bytes": {cfg: Config{MaxCallBytes: reserved - 1}, do: call, code: codes.ResourceExhausted, reason: "OVERLOADED"},
		"full line":             {door: func(d *door) { d.line.slots, d.line.places = 0, 0 }, do: call, code: codes.ResourceExhausted, reason: "OVERLOADED"},
		"long line":             {door: func(d *door) { d.line.slots, d.line.wait = 0, time.Millisecond }, do: call, code: codes.ResourceExhausted, reason: "OVERLOADED"},
		"deadline in line":      {door: func(d *door) { d.line.slots = 0 }, do: inLine(nothing, "grpc-timeout", "300m"), code: codes.ResourceExhausted, reason: "OVERLOADED"},
		"cancelled in line":     {door: func(d *door) { d.line.slots = 0 }, do: inLine(cancel), code: codes.Canceled, reason: "OVERLOADED"},
		"connection lost in line": {door: func(d *door) { d.line.slots = 0 }, do: inLine(func(t *testing.T, p *rawPeer, _ uint32) { p.close() }),
			code: codes.Canceled, reason: "OVERLOADED"},
		"slow message": {cfg: Config{ReceiveTimeout: time.Millisecond}, do: stall, code: codes.DeadlineExceeded, reason: "OVERLOADED"},
		"slow message, others wait": {door: func(d *door) { d.line.slots, d.line.patience = 1, time.Millisecond }, do: func(t *testing.T, s *running, p *rawPeer) {
			stalled(t, p)
			other := dial(t, s.conn.Target())
			other.headers(t, grpc_health_v1.Health_Check_FullMethodName, false) // Health has a line of its own.
			stalled(t, other)
		}, code: codes.ResourceExhausted, reason: "OVERLOADED"},
		"cancelled in the message": {do: func(t *testing.T, s *running, p *rawPeer) {
			id := stalled(t, p)
			eventually(t, "it is not received", func() bool { calls, _ := s.server.door.room.held(); return calls == 1 })
			cancel(t, p, id)
		}, code: codes.Canceled, reason: grpcReason},
		"half a message": {do: func(t *testing.T, _ *running, p *rawPeer) {
			p.must(t, p.WriteData(p.headers(t, recordPath, false), true, prefix(0, 10)))
		}, code: codes.Internal, reason: grpcReason},
		"no such compression": {do: func(t *testing.T, _ *running, p *rawPeer) {
			p.must(t, p.WriteData(p.headers(t, recordPath, false), true, prefix(1, 0)))
		}, code: codes.Internal, reason: grpcReason},
		"long message": {do: func(t *testing.T, _ *running, p *rawPeer) {
			p.must(t, p.WriteData(p.headers(t, recordPath, false), false, prefix(0, maxReceiveBytes+1)))
		}, code: codes.ResourceExhausted, reason: "PAYLOAD_TOO_LARGE"},
		"no message of ours": {do: func(t *testing.T, _ *running, p *rawPeer) { p.call(t, recordPath, []byte{0xff, 0xff}) },
			code: codes.InvalidArgument, reason: "INVALID_FIELD"},
		"not UTF-8": {do: func(t *testing.T, _ *running, p *rawPeer) { p.call(t, recordPath, field(1, notText)) },
			code: codes.InvalidArgument, reason: "INVALID_FIELD"},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 10)
			var n notes
			tc.cfg.Observer = &n
			tc.cfg.UnaryInterceptors = []grpc.UnaryServerInterceptor{
				func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
					resp, err := handler(ctx, req)
					ended <- err
					return resp, err
				},
			}
			jobs := new(memoryJobs)
			s := start(t, tc.cfg, jobs)
			if tc.door != nil {
				tc.door(s.server.door)
			}
			tc.do(t, s, dial(t, s.conn.Target()))
			err := <-ended
			reason, p := grpcReason, (*problem)(nil)
			if errors.As(err, &p) {
				reason = reasonName(p.reason)
			}
			if status.Code(err) != tc.code || reason != tc.reason {
				t.Errorf("got %v %s: %v", status.Code(err), reason, err)
			}
			if p != nil && (p.requestID != "" || strings.Contains(p.text(), "may have been")) {
				t.Errorf("it says that something may have been written: %s", p.text())
			}
			if told := n.take(); !slices.Contains(told, "refused "+reason) {
				t.Errorf("the observer was told %q", told)
			}
			if records, writes := jobs.size(); records != 0 || writes != 0 {
				t.Errorf("%d records, %d writes", records, writes)
			}
			for _, line := range s.log.lines(t, "call failed") {
				if line["level"] == "ERROR" {
					t.Errorf("logged %v", line)
				}
			}
		})
	}
}

// TestHealthOfAnOverloadedServer: health is answered while no call is received any more.
func TestHealthOfAnOverloadedServer(t *testing.T) {
	s := start(t, Config{MaxCalls: 1}, new(memoryJobs))
	<-s.server.Ready()
	s.server.door.line.slots = 0
	stalled(t, dial(t, s.conn.Target()))
	eventually(t, "nobody waits", func() bool { return s.server.InLine() == 1 })
	health := grpc_health_v1.NewHealthClient(s.conn)
	ctx, cancel := context.WithTimeout(t.Context(), s.server.door.line.wait/2)
	defer cancel()
	if got, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil || got.GetStatus() != serving {
		t.Errorf("got %v, %v", got, err)
	}
	w, err := health.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	testenv.Must(t, err)
	expect(t, []watch{w}, serving)
	if s.server.InLine() != 1 {
		t.Error("the line has emptied meanwhile")
	}
}
