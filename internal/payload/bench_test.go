package payload

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
)

// webhookBody is what a provider sends: identifiers, times, addresses, some
// nesting, some numbers, some text with escapes and beyond ASCII, filled up
// with results to about the wanted size.
func webhookBody(size int) string {
	var b strings.Builder
	b.WriteString(`{"job_id":"job_01HZX3V9K2M4N6P8Q0R2S4T6V8","event":"job.completed","status":"OK",` +
		`"created_at":"2026-02-11T09:41:07.512Z","attempt":1,"livemode":true,"parent":null,` +
		`"account":{"id":"acct_1032D82eZvKYlo2C","name":"M\u00fcller & S\u00f6hne","city":"K\u00f6ln"},` +
		`"urls":{"self":"https:\/\/api.example.com\/v1\/jobs\/job_01HZX3V9K2M4N6P8Q0R2S4T6V8","log":"https:\/\/api.example.com\/log"},` +
		`"note":"first line\nsecond line, said \"done\"","tags":["video","eu-west-1","priority"],"results":[`)
	for i := 0; ; i++ {
		item := fmt.Sprintf(`{"index":%d,"name":"segment-%04d.mp4","bytes":%d,"seconds":%d.%03d5,"ratio":0.%05d1,"ok":true,`+
			`"sha256":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}`,
			i, i, 1048576+i*7919, 12+i, i%1000, 33333+i)
		if i > 0 {
			if b.Len()+len(item)+3 > size {
				break
			}
			b.WriteByte(',')
		}
		b.WriteString(item)
	}
	b.WriteString("]}")
	return b.String()
}

func benchmarkBodies(b *testing.B, run func(b *testing.B, body string)) {
	var indented strings.Builder
	enc := json.NewEncoder(&indented)
	enc.SetIndent("", "  ")
	if err := enc.Encode(json.RawMessage(webhookBody(12 << 10))); err != nil {
		b.Fatal(err)
	}
	for _, body := range []struct{ name, text string }{
		{"1KiB", webhookBody(1 << 10)},
		{"16KiB", webhookBody(16 << 10)},
		{"16KiB-indented", indented.String()},
		{"3MiB-nested", strings.Repeat("[", 3<<19) + strings.Repeat("]", 3<<19)},
		{"3MiB-keys", manyKeys(3 << 20)},
	} {
		b.Run(body.name, func(b *testing.B) {
			b.SetBytes(int64(len(body.text)))
			b.ReportAllocs()
			run(b, body.text)
			kib := float64(len(body.text)) / 1024
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/kib, "ns/KiB")
		})
	}
}

// manyKeys is one object with as many keys as fit the size.
func manyKeys(size int) string {
	var b strings.Builder
	b.WriteString(`{"job_id":"many"`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `,"%x":1`, i)
	}
	b.WriteByte('}')
	return b.String()
}

var limits = Limits{JobID: 255, Event: 128, Status: 64}

func BenchmarkScan(b *testing.B) {
	benchmarkBodies(b, func(b *testing.B, body string) {
		for b.Loop() {
			if !Scan(body, limits).JSON {
				b.Fatal("not JSON")
			}
		}
	})
}

// BenchmarkWalk writes BSON as the MongoDB store does, so that a sink's own
// work is in the figure.
func BenchmarkWalk(b *testing.B) {
	benchmarkBodies(b, func(b *testing.B, body string) {
		var sink bsonSink
		for b.Loop() {
			sink.reset()
			_, _ = Walk(body, "payload", 100, &sink)
		}
	})
}

// BenchmarkValid is the yardstick: what encoding/json takes to check a body.
func BenchmarkValid(b *testing.B) {
	benchmarkBodies(b, func(b *testing.B, body string) {
		text := []byte(body)
		for b.Loop() {
			_ = json.Valid(text)
		}
	})
}

func BenchmarkParseNumber(b *testing.B) {
	for _, raw := range []string{"1048576", "12.345", "1.7976931348623157e308", "0.30000000000000004"} {
		b.Run(raw, func(b *testing.B) {
			for b.Loop() {
				ParseNumber(raw)
			}
		})
	}
}

// bsonSink appends BSON elements to a buffer.
type bsonSink struct {
	out    []byte
	starts []int
}

func (s *bsonSink) reset() { s.out, s.starts = s.out[:0], s.starts[:0] }

func (s *bsonSink) element(kind byte, key string) {
	s.out = append(s.out, kind)
	s.out = append(s.out, key...)
	s.out = append(s.out, 0)
}

func (s *bsonSink) begin(kind byte, key string) {
	s.element(kind, key)
	s.starts = append(s.starts, len(s.out))
	s.out = append(s.out, 0, 0, 0, 0)
}

func (s *bsonSink) end() {
	last := len(s.starts) - 1
	start := s.starts[last]
	s.starts = s.starts[:last]
	s.out = append(s.out, 0)
	binary.LittleEndian.PutUint32(s.out[start:], uint32(len(s.out)-start))
}

func (s *bsonSink) BeginObject(key string) { s.begin(3, key) }
func (s *bsonSink) EndObject()             { s.end() }
func (s *bsonSink) BeginArray(key string)  { s.begin(4, key) }
func (s *bsonSink) EndArray()              { s.end() }
func (s *bsonSink) Null(key string)        { s.element(10, key) }

func (s *bsonSink) String(key, value string) {
	s.element(2, key)
	s.out = binary.LittleEndian.AppendUint32(s.out, uint32(len(value)+1))
	s.out = append(s.out, value...)
	s.out = append(s.out, 0)
}

func (s *bsonSink) Int64(key string, value int64) {
	s.element(18, key)
	s.out = binary.LittleEndian.AppendUint64(s.out, uint64(value))
}

func (s *bsonSink) Double(key string, value float64) {
	s.element(1, key)
	s.out = binary.LittleEndian.AppendUint64(s.out, math.Float64bits(value))
}

func (s *bsonSink) Bool(key string, value bool) {
	s.element(8, key)
	b := byte(0)
	if value {
		b = 1
	}
	s.out = append(s.out, b)
}

// BenchmarkOnce is what it costs to find that a document gives the text back,
// beyond the walk.
func BenchmarkOnce(b *testing.B) {
	benchmarkBodies(b, func(b *testing.B, body string) {
		var sink bsonSink
		form, err := Walk(body, "", 100, &sink)
		if err != nil {
			b.Skip(err)
		}
		doc, out := sink.out[2:], []byte(nil)
		b.ResetTimer()
		for b.Loop() {
			text, ok := Render(out, doc, form, false, len(body))
			if !ok || string(text) != body {
				b.Fatal("the text is kept")
			}
			out = text[:0]
		}
	})
}
