package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/load"
)

// codeDeadlock is what DocumentDB answers to upserts that race on one key. MongoDB has no such code.
const codeDeadlock = 16908292

// maxTries is far more than an upsert that lost a race needs.
const maxTries = 20

// directTarget is what callers without JobOnce do: the plain upsert, with a decoder that an expert would write.
type directTarget struct {
	coll   *mongo.Collection
	decode decoder
	ours   bool // store what JobOnce stores, not what the plain upsert does
	text   bool // with ours: the body's text beside the document
}

// connectDirect connects with one connection for each caller, and chooses the faster of the decoders on this body.
func connectDirect(s spec) (t directTarget, note string, end func(), err error) {
	pool := uint64(s.Callers)
	c, err := mongo.Connect(options.Client().ApplyURI(s.Address).SetMaxPoolSize(pool).SetMinPoolSize(pool))
	if err != nil {
		return directTarget{}, "", nil, err
	}
	decode, note, err := fasterDecoder(load.NewBody("decoders", s.BodyBytes).Of(load.Key("decoders", 0)))
	if err != nil {
		return directTarget{}, "", nil, errors.Join(err, c.Disconnect(context.Background()))
	}
	end = func() { _ = c.Disconnect(context.Background()) }
	return directTarget{
		coll: c.Database(s.Database).Collection(s.Collection), decode: decode,
		ours: s.Kind == kindBulkOnce || s.Kind == kindBulkFull, text: s.Kind == kindBulkFull,
	}, note, end, nil
}

func newDirect(ctx context.Context, s spec) (runner, string, error) {
	t, note, end, err := connectDirect(s)
	if err != nil {
		return nil, "", err
	}
	if err := t.coll.Database().Client().Ping(ctx, nil); err != nil {
		end()
		return nil, "", err
	}
	return target{Target: t, reason: mongoCode, end: end}, note, nil
}

// update is that of the plain upsert; with ours set it makes the record that JobOnce makes.
func (t directTarget) update(body string) (jobID string, update bson.D, err error) {
	e, err := t.decode(body)
	if err != nil {
		return "", nil, err
	}
	insert := bson.D{
		{Key: "event", Value: e.event}, {Key: "status", Value: e.status}, {Key: "payload", Value: e.payload},
		{Key: "first_seen", Value: time.Now()},
	}
	update = bson.D{{Key: "$inc", Value: bson.D{{Key: "deliveries", Value: 1}}}}
	if t.ours {
		fingerprint := sha256.Sum256([]byte(body))
		insert = append(insert, bson.E{Key: "fingerprint", Value: fingerprint[:]}, bson.E{Key: "request_id", Value: uuid.NewString()})
		if t.text {
			insert = append(insert, bson.E{Key: "payload_text", Value: body})
		} else {
			insert = append(insert, bson.E{Key: "payload_form", Value: int32(1)}) // how the text is made from the document
		}
		update = append(update, bson.E{Key: "$max", Value: bson.D{{Key: "last_seen", Value: time.Now()}}})
	}
	return e.jobID, append(bson.D{{Key: "$setOnInsert", Value: insert}}, update...), nil
}

func (t directTarget) Record(ctx context.Context, _, body string) (bool, error) {
	jobID, update, err := t.update(body)
	if err != nil {
		return false, err
	}
	filter, upsert := bson.D{{Key: "job_id", Value: jobID}}, options.UpdateOne().SetUpsert(true)
	for try := 1; ; try++ {
		r, err := t.coll.UpdateOne(ctx, filter, update, upsert)
		if err == nil {
			return r.UpsertedCount == 1, nil
		}
		if try == maxTries || !lostRace(err) {
			return false, err
		}
	}
}

// lostRace tells whether the upsert was not applied because another one on the key was.
func lostRace(err error) bool {
	server := mongo.ServerError(nil)
	return mongo.IsDuplicateKeyError(err) || errors.As(err, &server) && server.HasErrorCode(codeDeadlock)
}

func mongoCode(err error) string {
	server := mongo.ServerError(nil)
	if errors.As(err, &server) {
		return fmt.Sprint(server.ErrorCodes())
	}
	return "error"
}
