package mongostore_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
	"weak"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

// TestSettledBodiesGo: a delivery that takes longer keeps no other's body.
func TestSettledBodiesGo(t *testing.T) {
	f, s := scripted(t, bson.D{{Key: "setName", Value: "rs0"}})
	release := make(chan struct{})
	f.answerWith("update", func(command bson.Raw) bson.D {
		if len(items(command)) > 1 {
			return upserted(command, 133, "stuck")
		}
		<-release
		return upserted(command, 0)
	})
	var stuck, settled sync.WaitGroup
	stuck.Add(1)
	settled.Add(1)
	record := func() weak.Pointer[byte] {
		body := strings.Repeat(fmt.Sprint(time.Now().UnixNano()%10), 1<<20)
		w := weak.Make(unsafe.StringData(body))
		s.RecordEach(within(t), []job.Delivery{
			delivery(t, job.Input{JobID: "big", Body: job.Body{Kind: job.BodyText, Data: body}}),
			newDelivery(t, "stuck", "r", job.ModeUntracked),
		}, func(i int, _ job.Outcome) {
			if i == 0 {
				settled.Done()
			} else {
				stuck.Done()
			}
		})
		return w
	}
	w := record()
	settled.Wait()
	runtime.GC()
	runtime.GC()
	if w.Value() != nil {
		t.Error("the body of a delivery that has its outcome is still there")
	}
	close(release)
	stuck.Wait()
}
