package client

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestPublishedPolicy: what docs/retry-policy.json tells clients in other languages is what this one does.
func TestPublishedPolicy(t *testing.T) {
	text, err := os.ReadFile("../docs/retry-policy.json")
	testenv.Must(t, err)
	var config struct {
		MethodConfig []struct {
			RetryPolicy struct {
				InitialBackoff, MaxBackoff string
				BackoffMultiplier          float64
			}
		}
	}
	testenv.Must(t, json.Unmarshal(text, &config))
	got := config.MethodConfig[0].RetryPolicy
	var ours RetryPolicy
	testenv.Must(t, ours.complete())
	first, err := time.ParseDuration(got.InitialBackoff)
	testenv.Must(t, err)
	longest, err := time.ParseDuration(got.MaxBackoff)
	testenv.Must(t, err)
	if first != ours.BaseDelay || longest != ours.MaxDelay || got.BackoffMultiplier != delayGrowth {
		t.Errorf("published %+v, done %+v, growing by %d", got, ours, delayGrowth)
	}
	// gRPC checks it.
	conn, err := grpc.NewClient("127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(string(text)))
	testenv.Must(t, err)
	testenv.OK(t, conn.Close())
}
