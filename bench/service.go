package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/load"
)

// newService is callers of JobOnce. Each call counts by itself, so the client does not retry.
func newService(s spec, batching bool) (runner, string, error) {
	opts, err := s.options()
	if err != nil {
		return nil, "", err
	}
	opts = append(opts, client.WithoutRetry())
	if !batching {
		opts = append(opts, client.WithoutBatching())
	}
	c, err := client.New(s.Address, opts...)
	if err != nil {
		return nil, "", err
	}
	service := load.Service{Client: c, Mode: joboncev1.WorkMode_WORK_MODE_UNTRACKED} // it promises what a plain upsert does
	return target{Target: service, reason: load.Reason, end: func() { _ = c.Close() }}, "", nil
}

// startServe starts the service on a port of the system's choice, and returns its address when it is ready.
func startServe(ctx context.Context, dir, binary string, env []string, args ...string) (*process, string, error) {
	cmd := exec.Command(binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--log-level", "warn"}, args...)...)
	cmd.Env = append(environment(), env...)
	p, err := start(dir, "serve", cmd)
	if err != nil {
		return nil, "", err
	}
	line, err := p.line(ctx, time.Minute)
	if err != nil {
		p.stop()
		return nil, "", err
	}
	address, _, ok := strings.Cut(strings.TrimPrefix(line, "jobonce serving on "), ", ")
	if !ok {
		p.stop()
		return nil, "", fmt.Errorf("serve said %q instead of its address", line)
	}
	return p, address, nil
}

// seedRun is the run whose keys stores are seeded with.
const seedRun = "seed"

// seedService records n jobs through the service, in batches.
func seedService(ctx context.Context, s spec, n, bodyBytes int) error {
	opts, err := s.options()
	if err != nil {
		return err
	}
	c, err := client.New(s.Address, opts...)
	if err != nil {
		return err
	}
	defer c.Close()
	const writers, size = 4, 256
	limit := (8 << 20) / (bodyBytes + 1024) // of bytes in a batch
	step := int64(min(size, max(1, limit)))
	body := load.NewBody(seedRun, bodyBytes)
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range writers {
		group.Go(func() error {
			for {
				from := next.Add(step) - step
				if from >= int64(n) {
					return nil
				}
				var batch []*joboncev1.RecordDeliveryRequest
				for i := from; i < min(from+step, int64(n)); i++ {
					batch = append(batch, &joboncev1.RecordDeliveryRequest{
						Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: body.Of(load.Key(seedRun, i))},
					})
				}
				results, err := c.BatchRecordDeliveries(ctx, batch)
				for _, r := range results {
					err = errors.Join(err, r.Err)
				}
				if err != nil {
					return fmt.Errorf("seed: %w", err)
				}
			}
		})
	}
	return group.Wait()
}
