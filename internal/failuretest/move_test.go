package failuretest

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestFromThePlainUpsert walks the guide of docs/webhooks.md: old frontends and a new one on one live collection.
func TestFromThePlainUpsert(t *testing.T) {
	uri := testenv.MongoURI(t)
	database := testenv.Database(t)
	db, err := mongo.Connect(options.Client().ApplyURI(uri))
	must(t, err)
	t.Cleanup(func() { _ = db.Disconnect(context.Background()) })
	collection := db.Database(database).Collection(mongostore.DefaultCollection)
	_, err = collection.Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys: bson.D{{Key: "job_id", Value: 1}}, Options: options.Index().SetUnique(true),
	})
	must(t, err)
	// old is an old frontend: it says whether it was first.
	old := func(jobID string) bool {
		t.Helper()
		r, err := collection.UpdateOne(t.Context(), bson.D{{Key: "job_id", Value: jobID}}, bson.D{
			{Key: "$setOnInsert", Value: bson.D{{Key: "event", Value: "job.completed"}, {Key: "status", Value: "OK"},
				{Key: "payload", Value: bson.D{{Key: "job_id", Value: jobID}, {Key: "event", Value: "job.completed"}, {Key: "status", Value: "OK"}}},
				{Key: "first_seen", Value: time.Now()}}},
			{Key: "$inc", Value: bson.D{{Key: "deliveries", Value: 1}}},
		}, options.UpdateOne().SetUpsert(true))
		must(t, err)
		return r.UpsertedCount == 1
	}
	if !old("job_crashed") || !old("job_old") {
		t.Fatal("the collection is not empty")
	}

	service := startServe(t, []string{"MONGODB_URI=" + uri}, "--mongodb-database", database)
	jobs := newClient(t, service.Addr())
	h, err := webhook.NewHandler(jobs, webhook.Source{Name: "sume", Provider: "sume", IDPrefix: new(""), Secrets: webhook.Secrets("secret")})
	must(t, err)
	// fresh has the new frontend receive a delivery.
	fresh := func(jobID string) {
		t.Helper()
		body := `{"job_id":"` + jobID + `","event":"job.completed","status":"OK"}`
		at := strconv.FormatInt(time.Now().Unix(), 10)
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write([]byte(at + "." + body))
		r := httptest.NewRequest(http.MethodPost, "/sume", strings.NewReader(body))
		r.Header.Set("X-Sume-Timestamp", at)
		r.Header.Set("X-Sume-Signature", "v1="+hex.EncodeToString(mac.Sum(nil)))
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Errorf("%s is answered %d: %s", jobID, w.Code, w.Body)
		}
	}
	fresh("job_old")
	fresh("job_new")
	if old("job_new") {
		t.Error("the old frontend is told to start what the new one recorded")
	}
	for id, want := range map[string]joboncev1.WorkState{
		"job_old": joboncev1.WorkState_WORK_STATE_UNTRACKED, "job_new": joboncev1.WorkState_WORK_STATE_QUEUED,
	} {
		wantState(t, stored(t, jobs, id), want, 2)
	}
	resp, err := jobs.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{MaxJobs: 10, LeaseDuration: leased(completed("")).LeaseDuration})
	must(t, err)
	if got := resp.GetJobs(); len(got) != 1 || got[0].GetJob().GetJobId() != "job_new" {
		t.Errorf("workers get %v", got)
	}
	// The guide's query for what an old frontend may have left undone.
	undone, err := collection.CountDocuments(t.Context(), bson.D{{Key: "work", Value: bson.D{{Key: "$exists", Value: false}}}})
	must(t, err)
	if undone != 2 {
		t.Errorf("the guide's query finds %d", undone)
	}
}
