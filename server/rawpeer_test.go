package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/jobonce/jobonce/internal/testenv"
)

// rawPeer is a peer that sends what it likes. One goroutine uses it; another one reads what the server sends.
type rawPeer struct {
	*http2.Framer
	conn  net.Conn
	next  uint32 // stream id
	block bytes.Buffer
	enc   *hpack.Encoder
	done  chan struct{}
	once  sync.Once

	mu     sync.Mutex
	events []event
	more   chan struct{} // has something when events may have
}

// event is what the server did to a stream, or to the connection: its end.
type event struct {
	stream  uint32
	status  codes.Code
	isEnd   bool // there is a status
	reset   http2.ErrCode
	isReset bool
	goAway  http2.ErrCode
	closed  bool
}

// dial connects to the server and says hello. The connection ends with the test at the latest.
func dial(t testing.TB, addr string) *rawPeer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	testenv.Must(t, err)
	p := &rawPeer{Framer: http2.NewFramer(conn, conn), conn: conn, next: 1, more: make(chan struct{}, 1), done: make(chan struct{})}
	p.enc = hpack.NewEncoder(&p.block)
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.SetMaxReadFrameSize(1 << 20)
	t.Cleanup(p.close)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	// Answers up to 64 KiB in all come without our doing.
	p.must(t, p.WriteSettings())
	p.must(t, p.WriteSettingsAck())
	go p.read()
	return p
}

func (p *rawPeer) close() {
	p.once.Do(func() {
		_ = p.conn.Close()
		<-p.done
		// The test still holds p, and is to see only the server's memory.
		p.Framer, p.enc, p.block = nil, nil, bytes.Buffer{}
	})
}

func (p *rawPeer) must(t testing.TB, err error) {
	t.Helper()
	testenv.Must(t, err)
}

// read reports what matters of what the server sends.
func (p *rawPeer) read() {
	defer close(p.done)
	report := func(e event) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.events = append(p.events, e)
		select {
		case p.more <- struct{}{}:
		default:
		}
	}
	for {
		f, err := p.ReadFrame()
		if err != nil {
			var stream http2.StreamError
			if errors.As(err, &stream) {
				continue
			}
			report(event{closed: true})
			return
		}
		e := event{stream: f.Header().StreamID}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				switch h.Name {
				case "grpc-status":
					n, err := strconv.Atoi(h.Value)
					e.status, e.isEnd = codes.Code(n), err == nil
				}
			}
			if !f.StreamEnded() {
				continue
			}
		case *http2.RSTStreamFrame:
			if f.ErrCode == http2.ErrCodeNo {
				continue // It follows an answer.
			}
			e.reset, e.isReset = f.ErrCode, true
		case *http2.GoAwayFrame:
			e.goAway = f.ErrCode
		default:
			continue
		}
		report(e)
	}
}

// headers opens a stream with a call's headers; extra is name, value, … and replaces the usual ones of the same name.
func (p *rawPeer) headers(t testing.TB, path string, end bool, extra ...string) uint32 {
	t.Helper()
	id, err := p.tryHeaders(path, end, extra...)
	p.must(t, err)
	return id
}

// tryHeaders fails when the server hangs up.
func (p *rawPeer) tryHeaders(path string, end bool, extra ...string) (uint32, error) {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "test"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}
	var more []hpack.HeaderField
next:
	for i := 0; i < len(extra); i += 2 {
		for j := range fields {
			if fields[j].Name == extra[i] {
				fields[j].Value = extra[i+1]
				continue next
			}
		}
		more = append(more, hpack.HeaderField{Name: extra[i], Value: extra[i+1]})
	}
	fields = append(fields, more...)
	p.block.Reset()
	for _, f := range fields {
		if err := p.enc.WriteField(f); err != nil {
			return 0, err
		}
	}
	id := p.next
	p.next += 2
	block := p.block.Bytes()
	first := block[:min(len(block), 16000)]
	block = block[len(first):]
	err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0})
	for err == nil && len(block) > 0 {
		part := block[:min(len(block), 16000)]
		block = block[len(part):]
		err = p.WriteContinuation(id, len(block) == 0, part)
	}
	return id, err
}

// call makes a call with a message as it is.
func (p *rawPeer) call(t testing.TB, path string, message []byte) uint32 {
	t.Helper()
	id := p.headers(t, path, false)
	p.send(t, id, true, append(prefix(0, len(message)), message...))
	return id
}

// send sends data in frames, without heed to the server's windows.
func (p *rawPeer) send(t testing.TB, id uint32, end bool, data []byte) {
	t.Helper()
	for first := true; first || len(data) > 0; first = false {
		part := data[:min(len(data), 16<<10)]
		data = data[len(part):]
		p.must(t, p.WriteData(id, end && len(data) == 0, part))
	}
}

// prefix is what goes before a message.
func prefix(flags byte, length int) []byte {
	return binary.BigEndian.AppendUint32([]byte{flags}, uint32(length))
}

// event waits for what the server does next.
func (p *rawPeer) event(t testing.TB) event {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		p.mu.Lock()
		if len(p.events) > 0 {
			e := p.events[0]
			p.events = p.events[1:]
			p.mu.Unlock()
			return e
		}
		p.mu.Unlock()
		select {
		case <-p.more:
		case <-timeout:
			t.Fatal("the server does nothing")
		}
	}
}

// nextStatus waits for the next stream's end, and wants it to have a status.
func (p *rawPeer) nextStatus(t testing.TB) codes.Code {
	t.Helper()
	e := p.event(t)
	if !e.isEnd {
		t.Fatalf("got %+v, want a status", e)
	}
	return e.status
}

// ended waits for the end of the connection, whoever brings it about.
func (p *rawPeer) ended(t testing.TB) {
	t.Helper()
	for !p.event(t).closed {
	}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	testenv.Must(t, err)
	return b
}

func collect() {
	runtime.GC()
	runtime.GC()
}
