package failuretest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	stormBody = 1 << 20
	// stormOver is how many times the sustainable rate arrives.
	stormOver = 10
	// stormLeast is the least rate: more than there is room for has to come in a short storm, too.
	stormLeast = 300
	// stormCalls bounds the calls under way. What arrives beyond is not sent, and counted.
	stormCalls = 1000
	stormConns = 8
	// stormRSS is what the service may take at most: the bounds of docs/failures.md, each a few times over, since a
	// payload is decoded, converted and written. A service without bounds takes as much as there is.
	stormRSS = memoryFactor << 30
)

// TestOverload sends the service ten times as many deliveries of 1 MiB as it can write, at a steady rate, whatever it
// answers. Its memory stays bounded, what it does not take it refuses with OVERLOADED, patient callers get through, and
// afterwards it is as before. The long mode makes the storm longer, and has one over MongoDB.
func TestOverload(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { overload(t, embeddedServe(t)) })
	t.Run("mongodb", func(t *testing.T) {
		if !testenv.Long() {
			t.Skip("a part of the long mode: the test database takes a minute to write what is let in")
		}
		overload(t, mongodbServe(t))
	})
}

func overload(t *testing.T, s *testenv.Service) {
	length, warm := 2*time.Second, time.Second
	if testenv.Long() {
		length, warm = 30*time.Second, 5*time.Second
	}
	l := newStorm(t, s.Direct)
	before := l.sustained(t, warm)
	idle := memory(t, s, "VmRSS")

	patient := newClient(t, s.Direct)
	patientDone := make(chan error, 1)
	ctx, stopPatient := context.WithCancel(context.Background())
	var patientCalls atomic.Int64
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			_, err := patient.RecordDelivery(context.Background(), delivery(fmt.Sprint("patient-", i), "job.completed", "OK"))
			if err != nil {
				patientDone <- err
				return
			}
			patientCalls.Add(1)
		}
		patientDone <- nil
	}()
	rate := stormOver * before
	if !testenv.Long() {
		rate = max(rate, stormLeast)
	}
	l.run(length, rate)
	stormEnd := time.Now()
	stopPatient()
	if err := await(t, "the patient caller ends", patientDone); err != nil || patientCalls.Load() == 0 {
		t.Errorf("the patient caller: %d calls, then %v", patientCalls.Load(), err)
	}
	l.calls.Wait()
	if _, err := l.call(context.Background(), "recovered"); err != nil {
		t.Errorf("after the storm: %v", err)
	}
	recovered := time.Since(stormEnd)
	after := l.sustained(t, warm)
	peak := memory(t, s, "VmHWM")

	l.report(t)
	t.Logf("sustained %.0f/s before and %.0f/s after; all answered %v after the storm; patient caller: %d calls; "+
		"memory %d MiB before, %d MiB at most, %d MiB now",
		before, after, recovered.Round(time.Millisecond), patientCalls.Load(), idle>>20, peak>>20, memory(t, s, "VmRSS")>>20)
	if peak > stormRSS {
		t.Errorf("the service took %d MiB", peak>>20)
	}
	if l.refused.Load() == 0 {
		t.Error("nothing was refused: it was no storm")
	}
	for text, n := range l.otherwise {
		t.Errorf("%d calls got %s", n, text)
	}
}

// memory reads a size of the service's process, in bytes.
func memory(t *testing.T, s *testenv.Service, field string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Process.Pid))
	if err != nil {
		t.Skipf("NOT TESTED, because the memory of a process cannot be read here: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == field+":" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			testenv.Must(t, err)
			return kib << 10
		}
	}
	t.Fatalf("no %s in %s", field, text)
	return 0
}

// storm makes calls whose bodies take no memory here: all share one.
type storm struct {
	id     string
	conns  []*grpc.ClientConn
	body   []byte
	calls  sync.WaitGroup
	inside atomic.Int64

	answered, refused, unsent, late atomic.Int64

	mu        sync.Mutex
	refusals  []time.Duration
	otherwise map[string]int
}

// sharedCodec sends a message in two parts, of which the second is shared.
type sharedCodec struct{ encoding.CodecV2 }

func (sharedCodec) Marshal(v any) (mem.BufferSlice, error) { return v.(mem.BufferSlice), nil }

func newStorm(t *testing.T, addr string) *storm {
	t.Helper()
	l := &storm{id: strconv.FormatUint(rand.Uint64(), 36), otherwise: make(map[string]int)}
	l.body = []byte(`{"event":"job.completed","status":"OK","text":"` + strings.Repeat("x", stormBody-50) + `"}`)
	for range stormConns {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		testenv.Must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		l.conns = append(l.conns, conn)
	}
	return l
}

// call records a job and says how long that took.
func (l *storm) call(ctx context.Context, id string) (time.Duration, error) {
	head := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), l.id+id)
	head = protowire.AppendVarint(protowire.AppendTag(head, 4, protowire.BytesType), uint64(len(l.body)))
	msg := mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(l.body)}
	begin := time.Now()
	conn := l.conns[rand.IntN(len(l.conns))]
	err := conn.Invoke(ctx, joboncev1.IdempotencyService_RecordDelivery_FullMethodName, msg, new(joboncev1.RecordDeliveryResponse),
		grpc.ForceCodecV2(sharedCodec{encoding.GetCodecV2(protocodec.Name)}))
	return time.Since(begin), err
}

// sustained is how many calls a second the service answers to a few callers, each of which waits for its answer.
func (l *storm) sustained(t *testing.T, length time.Duration) float64 {
	t.Helper()
	var wg sync.WaitGroup
	var n atomic.Int64
	begin := time.Now()
	for range 16 {
		wg.Go(func() {
			for time.Since(begin) < length {
				if _, err := l.call(context.Background(), fmt.Sprintf("s-%d", rand.Uint64())); err != nil {
					t.Errorf("without a storm: %v", err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(begin).Seconds()
}

// run starts calls at a rate. It does not wait for them.
func (l *storm) run(length time.Duration, rate float64) {
	begin := time.Now()
	for sent := 0; time.Since(begin) < length; {
		for due := int(time.Since(begin).Seconds() * rate); sent < due; sent++ {
			if l.inside.Add(1) > stormCalls {
				l.inside.Add(-1)
				l.unsent.Add(1)
				continue
			}
			id := fmt.Sprintf("o-%d", sent)
			l.calls.Go(func() {
				defer l.inside.Add(-1)
				l.one(id)
			})
		}
		time.Sleep(time.Millisecond) // The rate is what this is about.
	}
}

func (l *storm) one(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	took, err := l.call(ctx, id)
	switch {
	case err == nil:
		l.answered.Add(1)
	case overloaded(err):
		l.refused.Add(1)
		l.mu.Lock()
		l.refusals = append(l.refusals, took)
		l.mu.Unlock()
	case status.Code(err) == codes.DeadlineExceeded, status.Code(err) == codes.Unavailable && reasonOf(err) != "":
		// The store may take longer for what was let in than the service waits for it, and the service says so.
		l.late.Add(1)
	default:
		l.mu.Lock()
		l.otherwise[err.Error()]++
		l.mu.Unlock()
	}
}

// overloaded says whether a call was refused as it should be: with the reason, and the time to wait.
func overloaded(err error) bool {
	var retry bool
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(*errdetails.RetryInfo); ok {
			retry = d.GetRetryDelay().AsDuration() > 0
		}
	}
	return status.Code(err) == codes.ResourceExhausted && reasonOf(err) == "OVERLOADED" && retry
}

func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(*errdetails.ErrorInfo); ok {
			return d.GetReason()
		}
	}
	return ""
}

func (l *storm) report(t *testing.T) {
	t.Helper()
	slices.Sort(l.refusals)
	at := func(q float64) time.Duration {
		if len(l.refusals) == 0 {
			return 0
		}
		return l.refusals[int(q*float64(len(l.refusals)-1))].Round(100 * time.Microsecond)
	}
	t.Logf("the storm: %d answered, %d refused (p50 %v, p99 %v), %d too late, %d not sent because %d were under way",
		l.answered.Load(), l.refused.Load(), at(0.5), at(0.99), l.late.Load(), l.unsent.Load(), stormCalls)
}
