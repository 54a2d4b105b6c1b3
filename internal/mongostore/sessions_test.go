package mongostore_test

import (
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

// TestSessionsGone: a delivery goes on alone after the database said that it has no sessions. It does not use its call's.
func TestSessionsGone(t *testing.T) {
	f, s := scripted(t, bson.D{{Key: "setName", Value: "rs0"}})
	var hellos, updates atomic.Int64
	said := make(chan struct{})
	f.answerWith("update", func(command bson.Raw) bson.D {
		if updates.Add(1) > 1 {
			return upserted(command, 0)
		}
		f.answerWith("hello", func(command bson.Raw) bson.D {
			if command.Lookup("lsid").Type == 0 { // the driver's own
				return bson.D{{Key: "setName", Value: "rs0"}, {Key: "logicalSessionTimeoutMinutes", Value: int64(30)}}
			}
			if hellos.Add(1) == 2 {
				close(said) // the first one's answer has been taken in
			}
			return bson.D{{Key: "setName", Value: "rs0"}}
		})
		s.ForgetClock()
		<-said
		return upserted(command, 112, "j")
	})
	firstOnce(t, s.Record(within(t), []job.Delivery{newDelivery(t, "j", "r", job.ModeUntracked)})[0])
}
