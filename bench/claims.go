package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// claims are the addresses where the instances of a service show their metrics.
type claims []string

// The metrics of the leases that claims were granted, and of those that they tried for.
const (
	metricWon   = "jobonce_claim_leases_won_total"
	metricTried = "jobonce_claim_leases_tried_total"
)

// claimed is what all instances together say; zeros when they say nothing.
type claimed struct{ won, tried float64 }

func (c claims) read(ctx context.Context) (claimed, error) {
	var sum claimed
	for _, address := range c {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
		if err != nil {
			return sum, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return sum, err
		}
		one, err := readClaimed(resp.Body)
		resp.Body.Close()
		if err != nil {
			return sum, fmt.Errorf("metrics of %s: %w", address, err)
		}
		sum.won, sum.tried = sum.won+one.won, sum.tried+one.tried
	}
	return sum, nil
}

// readClaimed reads Prometheus' text format.
func readClaimed(r io.Reader) (claimed, error) {
	var c claimed
	for lines := bufio.NewScanner(r); ; {
		if !lines.Scan() {
			return c, lines.Err()
		}
		name, value, _ := strings.Cut(lines.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		if name != metricWon && name != metricTried {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return c, err
		}
		if name == metricWon {
			c.won += v
		} else {
			c.tried += v
		}
	}
}

// freeAddress is one for a listener of a process that will not say which port it got.
func freeAddress() (string, error) {
	port, err := freePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}
