package server

import (
	"strings"
	"testing"
)

// BenchmarkRecord is a call through all of the server to a store in memory, over a connection of its own.
func BenchmarkRecord(b *testing.B) {
	for _, tc := range []struct {
		name string
		size int
	}{{"1KiB", 1 << 10}, {"16KiB", 16 << 10}, {"1MiB", 1 << 20}} {
		b.Run(tc.name, func(b *testing.B) {
			s := start(b, Config{}, new(memoryJobs))
			body := strings.Repeat("x", tc.size)
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := s.RecordDelivery(b.Context(), text("job", body)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
