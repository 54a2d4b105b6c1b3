package client

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestPublishedPolicy: what docs/retry-policy.json tells clients in other languages is what this one does.
func TestPublishedPolicy(t *testing.T) {
	text, err := os.ReadFile("../docs/retry-policy.json")
	testenv.Must(t, err)
	var config struct {
		MethodConfig []struct {
			Name        []struct{ Service string }
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
	var services []string
	for _, name := range config.MethodConfig[0].Name {
		services = append(services, name.Service)
	}
	if want := []string{ // All but AdminService, whose calls have no request_id.
		joboncev1.IdempotencyService_ServiceDesc.ServiceName, joboncev1.WorkService_ServiceDesc.ServiceName,
		joboncev1.ExpectationService_ServiceDesc.ServiceName,
	}; !slices.Equal(services, want) {
		t.Errorf("published for %v, and not for %v", services, want)
	}
	// gRPC checks it.
	conn, err := grpc.NewClient("127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(string(text)))
	testenv.Must(t, err)
	testenv.OK(t, conn.Close())
}
