package failuretest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	announcers      = 20                                                  // connections
	announcedCalls  = 1000 / (memoryFactor * memoryFactor * memoryFactor) // at a time on each; the race detector is slow
	announcedBody   = 8 << 20
	announcedWindow = 64 << 10 // what may be sent before anybody receives it
)

// TestAnnouncedBodies has many peers open as many calls as they may, each with a message of 8 MiB: all send what they may at
// once, and of those that the service receives all but the last byte, which comes late. The service stays within its memory,
// and serves another caller all the time.
func TestAnnouncedBodies(t *testing.T) {
	length := 8 * time.Second
	if testenv.Long() {
		length = time.Minute
	}
	s := embeddedServe(t)
	idle := memory(t, s, "VmRSS")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var opened, received atomic.Int64
	var peers sync.WaitGroup
	for range announcers {
		a := newAnnouncer(t, s.Direct, &opened, &received)
		peers.Go(func() { a.run(ctx) })
	}
	patient := newClient(t, s.Direct)
	var served int
	var slowest time.Duration
	enough := func() bool { // The peers leave little of the processors.
		return served >= 3 && opened.Load() >= announcers*announcedCalls && received.Load() > 0
	}
	for began := time.Now(); time.Since(began) < length || !enough() && time.Since(began) < patience; {
		begin := time.Now()
		if _, err := patient.RecordDelivery(t.Context(), delivery(fmt.Sprint("patient-", served), "job.completed", "OK")); err != nil {
			t.Errorf("the other caller, after %d calls: %v", served, err)
			break
		}
		slowest = max(slowest, time.Since(begin))
		served++
	}
	cancel()
	peers.Wait()
	peak := memory(t, s, "VmHWM")
	t.Logf("%d calls of %d MiB, %d of them received; the other caller: %d calls, the slowest %v; memory %d MiB before, %d MiB at most",
		opened.Load(), announcedBody>>20, received.Load(), served, slowest.Round(time.Millisecond), idle>>20, peak>>20)
	if peak > stormRSS {
		t.Errorf("the service took %d MiB", peak>>20)
	}
	if served < 3 {
		t.Errorf("the other caller had %d calls answered", served)
	}
	if opened.Load() < announcers*announcedCalls || received.Load() == 0 {
		t.Error("the peers did not do what this is about")
	}
}

// announcer is a connection that does so.
type announcer struct {
	conn             net.Conn
	opened, received *atomic.Int64

	mu     sync.Mutex // guards what follows
	framer *http2.Framer
	enc    *hpack.Encoder
	block  bytes.Buffer
	next   uint32
}

// announcedMessage is a whole message, which a service that decodes it finds too large.
var announcedMessage = sync.OnceValue(func() []byte {
	m := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "announced")
	m = protowire.AppendString(protowire.AppendTag(m, 4, protowire.BytesType), string(bytes.Repeat([]byte("x"), announcedBody-100)))
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
})

func newAnnouncer(t *testing.T, addr string, opened, received *atomic.Int64) *announcer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	testenv.Must(t, err)
	a := &announcer{conn: conn, opened: opened, received: received, framer: http2.NewFramer(conn, conn), next: 1}
	a.enc = hpack.NewEncoder(&a.block)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	testenv.Must(t, a.framer.WriteSettings())
	return a
}

// run makes calls until ctx ends: a new one for each that is over.
func (a *announcer) run(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = a.conn.Close() })()
	first := make([]uint32, announcedCalls)
	for i := range first {
		first[i] = a.open()
	}
	for _, id := range first { // the headers first
		a.send(id, announcedMessage()[:announcedWindow])
	}
	for {
		f, err := a.framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				a.mu.Lock()
				_ = a.framer.WriteSettingsAck()
				a.mu.Unlock()
			}
		case *http2.WindowUpdateFrame:
			if f.StreamID != 0 && f.Increment > announcedBody/2 { // It is received.
				a.received.Add(1)
				message := announcedMessage()
				a.send(f.StreamID, message[announcedWindow:len(message)-1])
				time.AfterFunc(300*time.Millisecond, func() { a.send(f.StreamID, message[len(message)-1:]) })
			}
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				a.send(a.open(), announcedMessage()[:announcedWindow])
			}
		}
	}
}

// open begins a call.
func (a *announcer) open() uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opened.Add(1)
	a.block.Reset()
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", joboncev1.IdempotencyService_RecordDelivery_FullMethodName},
		{":authority", "test"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = a.enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	id := a.next
	a.next += 2
	_ = a.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: a.block.Bytes(), EndHeaders: true})
	return id
}

// send sends a part of a message. What a connection that was closed does not take is nobody's loss.
func (a *announcer) send(id uint32, part []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(part) > 0 {
		n := min(len(part), 16<<10)
		if a.framer.WriteData(id, false, part[:n]) != nil {
			return
		}
		part = part[n:]
	}
}
