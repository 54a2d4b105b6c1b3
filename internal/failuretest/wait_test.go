package failuretest

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestWaitAcrossInstances: a delivery waits at one instance for work that is completed at another, in front of one MongoDB.
func TestWaitAcrossInstances(t *testing.T) {
	env, database := []string{"MONGODB_URI=" + testenv.MongoURI(t)}, testenv.Database(t)
	here := newClient(t, startServe(t, env, "--mongodb-database", database).Addr())
	there := newClient(t, startServe(t, env, "--mongodb-database", database).Addr())
	lease := record(t, there, leased(completed("j"))).GetLease()
	got := make(chan *joboncev1.RecordDeliveryResponse, 1)
	go func() {
		req := completed("j")
		req.Wait = durationpb.New(time.Minute)
		resp, err := here.RecordDelivery(t.Context(), req)
		testenv.OK(t, err)
		got <- resp
	}()
	for stored(t, there, "j").GetDeliveries() < 2 { // until it is there, and waits
	}
	must(t, complete(t, there, "j", lease, "done elsewhere"))
	if resp := <-got; resp.GetDisposition() != joboncev1.Disposition_DISPOSITION_COMPLETED || resp.GetResult() != "done elsewhere" || resp.GetDeliveries() != 2 {
		t.Errorf("got %v", resp)
	}
}
