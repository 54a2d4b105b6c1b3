package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestBadPeers has one case for each thing that a peer should not do. docs/failures.md has the bounds.
func TestBadPeers(t *testing.T) {
	for name, bad := range map[string]attack{
		"a length of 4 GiB": onOne(func(t *testing.T, p *rawPeer) {
			for range 500 {
				id := p.headers(t, recordPath, false)
				p.must(t, p.WriteData(id, false, prefix(0, 1<<32-1)))
				wantStatus(t, p, codes.ResourceExhausted)
			}
		}),
		"a length just over the limit": onOne(func(t *testing.T, p *rawPeer) {
			id := p.headers(t, recordPath, false)
			p.must(t, p.WriteData(id, false, prefix(0, maxReceiveBytes+1)))
			wantStatus(t, p, codes.ResourceExhausted)
		}),
		"more than its window": func(t *testing.T, s *running, addr string) func() {
			p := dial(t, addr)
			for range 32 {
				p.headers(t, recordPath, false)
			}
			eventually(t, "the line is empty", func() bool {
				l := s.server.door.line
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.waiting > 0
			})
			// Nobody receives what waits in line, and it goes on after it should have waited for a window.
			id := p.headers(t, recordPath, false)
			for range 40 {
				if p.WriteData(id, false, make([]byte, 16<<10)) != nil {
					break // The server has hung up.
				}
			}
			if e := p.event(t); e.reset != http2.ErrCodeFlowControl && !e.closed && e.goAway != http2.ErrCodeFlowControl {
				t.Errorf("got %+v", e)
			}
			return p.close
		},
		"half of each request": onOne(func(t *testing.T, p *rawPeer) {
			for range maxStreams {
				id := p.headers(t, recordPath, false)
				p.send(t, id, false, append(prefix(0, 1<<20), make([]byte, 1000)...))
			}
		}),
		"more streams than allowed": onOne(func(t *testing.T, p *rawPeer) {
			for range maxStreams + 100 {
				p.headers(t, recordPath, false)
			}
			for range 100 {
				wantReset(t, p, http2.ErrCodeRefusedStream)
			}
		}),
		"a request that ends early": onOne(func(t *testing.T, p *rawPeer) {
			for _, data := range [][]byte{nil, {0}, prefix(0, 10), append(prefix(0, 10), 1, 2, 3)} {
				id := p.headers(t, recordPath, false)
				p.must(t, p.WriteData(id, true, data))
				wantStatus(t, p, codes.Internal)
			}
			p.headers(t, recordPath, true)
			wantStatus(t, p, codes.Internal)
		}),
		"two requests in a call": onOne(func(t *testing.T, p *rawPeer) {
			one := append(prefix(0, 3), field(1, []byte("a"))...)
			id := p.headers(t, getPath, false)
			p.must(t, p.WriteData(id, true, append(one, one...)))
			wantStatus(t, p, codes.Internal)
		}),
		"bytes one by one": onOne(func(t *testing.T, p *rawPeer) {
			body := encode(t, text("slow", strings.Repeat("x", 5000)))
			id := p.headers(t, recordPath, false)
			for _, b := range append(prefix(0, len(body)), body...) {
				p.must(t, p.WriteData(id, false, []byte{b}))
			}
			p.must(t, p.WriteData(id, true, nil))
			wantStatus(t, p, codes.OK)
		}),
		"empty frames without end": onOne(func(t *testing.T, p *rawPeer) {
			id := p.headers(t, recordPath, false)
			for range 30_000 {
				p.must(t, p.WriteData(id, false, nil))
			}
			p.call(t, getPath, []byte{})
			wantStatus(t, p, codes.InvalidArgument)
		}),
		"answers never read": func(t *testing.T, s *running, addr string) func() {
			must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), text("large", strings.Repeat("x", 900<<10))))
			p := dial(t, addr)
			full := encode(t, &joboncev1.GetJobRequest{JobId: "large", View: joboncev1.JobView_JOB_VIEW_FULL})
			for range 300 {
				p.call(t, getPath, full)
			}
			wantStatus(t, p, codes.ResourceExhausted)
			return p.close
		},
		"reset as soon as asked": onOne(func(t *testing.T, p *rawPeer) { // "rapid reset"
			for range 10_000 {
				id := p.headers(t, getPath, false)
				p.must(t, p.WriteRSTStream(id, http2.ErrCodeCancel))
			}
			p.call(t, getPath, field(1, []byte("first")))
			wantStatus(t, p, codes.OK)
		}),
		"resets of whole calls": onOne(func(t *testing.T, p *rawPeer) {
			for i := range 5_000 {
				id := p.call(t, recordPath, encode(t, text(fmt.Sprintf("reset-%d", i), "{}")))
				p.must(t, p.WriteRSTStream(id, http2.ErrCodeCancel))
			}
			p.next += 2
			id := p.call(t, getPath, field(1, []byte("first")))
			for e := p.event(t); e.stream != id; e = p.event(t) {
			}
		}),
		"pings without end": onOne(func(t *testing.T, p *rawPeer) {
			for i := range 10_000 {
				if p.WritePing(false, [8]byte{byte(i)}) != nil {
					break
				}
			}
			wantGoAway(t, p, http2.ErrCodeEnhanceYourCalm)
		}),
		"settings without end": onOne(func(t *testing.T, p *rawPeer) {
			for i := range 5_000 {
				p.must(t, p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(65535 - i%2)}))
			}
			p.call(t, getPath, field(1, []byte("first")))
			wantStatus(t, p, codes.OK)
		}),
		"compressors that are not there": onOne(func(t *testing.T, p *rawPeer) {
			for _, name := range []string{"zstd", "snappy", "no-such"} {
				id := p.headers(t, recordPath, false, "grpc-encoding", name)
				p.must(t, p.WriteData(id, true, append(prefix(1, 3), 1, 2, 3)))
				wantStatus(t, p, codes.Unimplemented)
			}
			for _, flag := range []byte{1, 7} {
				id := p.headers(t, recordPath, false)
				p.must(t, p.WriteData(id, true, append(prefix(flag, 3), 1, 2, 3)))
				wantStatus(t, p, codes.Internal)
			}
			id := p.headers(t, recordPath, false, "grpc-encoding", "gzip")
			p.must(t, p.WriteData(id, true, append(prefix(1, 3), 1, 2, 3)))
			wantStatus(t, p, codes.Internal)
		}),
		"bombs": onOne(func(t *testing.T, p *rawPeer) {
			bomb := zipped(t, 16) // within a window
			for range 10 {
				p.send(t, p.headers(t, recordPath, false, "grpc-encoding", "gzip"), true, append(prefix(1, len(bomb)), bomb...))
				wantStatus(t, p, codes.ResourceExhausted)
			}
		}),
		"large messages for others": onOne(func(t *testing.T, p *rawPeer) {
			for _, path := range []string{grpc_health_v1.Health_Check_FullMethodName, grpc_health_v1.Health_Watch_FullMethodName,
				"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
				p.call(t, path, field(1, bytes.Repeat([]byte("x"), smallMessage)))
				wantStatus(t, p, codes.InvalidArgument)
				p.send(t, p.headers(t, path, false), false, prefix(0, maxReceiveBytes+1))
				wantStatus(t, p, codes.ResourceExhausted)
			}
		}),
		"watches without end": onOne(func(t *testing.T, p *rawPeer) {
			for range maxWatches {
				p.call(t, grpc_health_v1.Health_Watch_FullMethodName, nil)
			}
			for range 100 {
				p.call(t, grpc_health_v1.Health_Watch_FullMethodName, nil)
				wantStatus(t, p, codes.Unimplemented)
			}
		}),
		"no protocol buffers": onOne(func(t *testing.T, p *rawPeer) {
			for _, b := range [][]byte{
				bytes.Repeat([]byte{0xff}, 100),
				protowire.AppendTag(nil, 1, protowire.StartGroupType),
				protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.BytesType), 1<<62),
				bytes.Repeat(protowire.AppendTag(nil, 5, protowire.StartGroupType), 50_000),
			} {
				p.call(t, recordPath, b)
				wantStatus(t, p, codes.InvalidArgument)
			}
		}),
		"unknown fields": onOne(func(t *testing.T, p *rawPeer) {
			message := field(1, []byte("first"))
			for i := range 10_000 {
				message = protowire.AppendVarint(protowire.AppendTag(message, protowire.Number(1000+i), protowire.VarintType), 1)
			}
			for range 100 {
				p.call(t, getPath, message)
				wantStatus(t, p, codes.OK)
			}
		}),
		"large headers": onOne(func(t *testing.T, p *rawPeer) {
			for range 100 {
				p.headers(t, getPath, true, "bomb", strings.Repeat("x", maxMetadataBytes))
				wantStatus(t, p, codes.InvalidArgument)
			}
		}),
		"huge headers": refused("bomb", strings.Repeat("x", 1<<20)),
		"many headers": refused(manyHeaders(10_000)...),
		"headers that never end": onOne(func(t *testing.T, p *rawPeer) {
			p.must(t, p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}}))
			for range 100_000 {
				if p.WriteContinuation(1, false, bytes.Repeat([]byte{0x82}, 100)) != nil {
					break
				}
			}
			p.ended(t)
		}),
		"paths and types": onOne(func(t *testing.T, p *rawPeer) {
			for _, path := range []string{"/", "//", "no-slash", "/jobonce.v1.IdempotencyService", "/x/y", "/../..",
				"/jobonce.v1.IdempotencyService/" + strings.Repeat("a", 10_000)} {
				p.headers(t, path, true)
				wantStatus(t, p, codes.Unimplemented)
			}
			p.headers(t, getPath, true, "content-type", "text/html")
			wantStatus(t, p, codes.InvalidArgument)
			p.headers(t, getPath, true, ":method", "GET")
			wantStatus(t, p, codes.Internal)
			p.headers(t, getPath, true, "grpc-timeout", "soon")
			wantStatus(t, p, codes.Internal)
			p.headers(t, getPath, true, "x-bin", "***")
			wantStatus(t, p, codes.Internal)
			p.headers(t, getPath, true, "connection", "close")
			wantReset(t, p, http2.ErrCodeProtocol)
		}),
		"a stream of the past": onOne(func(t *testing.T, p *rawPeer) {
			p.next = 9
			p.headers(t, getPath, true)
			p.next = 3
			p.headers(t, getPath, true)
			wantGoAway(t, p, http2.ErrCodeProtocol)
		}),
		"HTTP/1":        bytesOnPort("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"TLS":           bytesOnPort("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("a", 200)),
		"noise":         bytesOnPort(strings.Repeat("\x00\xff", 100)),
		"a port scan":   bytesOnPort(""),
		"a wrong frame": bytesOnPort(http2.ClientPreface + "\xff\xff\xff\x00\x00\x00\x00\x00\x01" + strings.Repeat("a", 100)),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "answers never read" {
				withBadPeer(t, Config{MaxAnswerBytes: 16 << 20}, new(memoryJobs), bad)
				return
			}
			withBadPeer(t, Config{}, new(memoryJobs), bad)
		})
	}
}

func manyHeaders(n int) (headers []string) {
	for i := range n {
		headers = append(headers, "h"+strconv.Itoa(i), "v")
	}
	return headers
}

// refused is an attack with headers for which the server resets the call, or ends the connection.
func refused(headers ...string) attack {
	return func(t *testing.T, _ *running, addr string) func() {
		var peers []*rawPeer
		for range 20 {
			p := dial(t, addr)
			peers = append(peers, p)
			_, _ = p.tryHeaders(getPath, true, headers...) // It may hang up before it has read all.
			if e := p.event(t); e.reset != http2.ErrCodeFrameSize && !e.closed && e.goAway == 0 {
				t.Errorf("got %+v", e)
			}
		}
		return func() {
			for _, p := range peers {
				p.close()
			}
		}
	}
}

// zipped is what a mebibyte of zeros is when it is compressed, many times over.
func zipped(t *testing.T, mebibytes int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	zeros := make([]byte, 1<<20)
	for range mebibytes {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Must(t, w.Close())
	return b.Bytes()
}

// Idle connections, thousands of them.
func TestIdleConnections(t *testing.T) {
	var limit syscall.Rlimit
	testenv.Must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	// Each has two ends here.
	n := min(2000, (int(limit.Cur)-200)/2)
	if n < 2000 {
		t.Logf("%d connections only: the limit of open files is %d", n, limit.Cur)
	}
	withBadPeer(t, Config{}, new(memoryJobs), func(t *testing.T, _ *running, addr string) func() {
		peers := make([]*rawPeer, n)
		for i := range peers {
			peers[i] = dial(t, addr)
		}
		for _, p := range peers[:50] {
			p.call(t, getPath, field(1, []byte("first")))
			wantStatus(t, p, codes.OK)
		}
		return func() {
			for _, p := range peers {
				p.close()
			}
		}
	})
}

// Calls that wait for work end with their connection.
func TestLongPollsWithoutPeers(t *testing.T) {
	withBadPeer(t, Config{}, &idleJobs{memoryJobs: new(memoryJobs)}, onOne(func(t *testing.T, p *rawPeer) {
		for range 500 {
			p.call(t, joboncev1.WorkService_ClaimWork_FullMethodName,
				encode(t, &joboncev1.ClaimWorkRequest{WorkerId: "w", LeaseDuration: minute(), Wait: durationpb.New(time.Minute)}))
		}
	}))
}

// idleJobs never have work.
type idleJobs struct{ *memoryJobs }

func (idleJobs) Claim(context.Context, job.ClaimRequest) ([]job.Claimed, error) { return nil, nil }
