package chaostest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// commander runs a command on the primary of a database. [mongo.Database] is one.
type commander interface {
	RunCommand(ctx context.Context, command any, opts ...options.Lister[options.RunCmdOptions]) *mongo.SingleResult
}

// replicaSet is what a database says of itself.
type replicaSet struct {
	SetName string   `bson:"setName"`
	Hosts   []string `bson:"hosts"`
	Primary string   `bson:"primary"`
}

func askReplicaSet(ctx context.Context, db commander) (s replicaSet, err error) {
	err = db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&s)
	return s, err
}

// members is how many can become primary; 0 for a database that is no replica set.
func (s replicaSet) members() int {
	if s.SetName == "" {
		return 0
	}
	return max(1, len(s.Hosts))
}

const (
	// stepDownSeconds is for how long a primary that stepped down does not become one again.
	stepDownSeconds = 5
	// electionPause is between two questions whether there is a primary again.
	electionPause = 100 * time.Millisecond
)

// command is the one that makes the primary step down. The only member of a set has nobody to hand over to.
func (s replicaSet) command() bson.D {
	if s.members() == 1 {
		return bson.D{{Key: "replSetStepDown", Value: 1}, {Key: "force", Value: true}}
	}
	return bson.D{{Key: "replSetStepDown", Value: stepDownSeconds}, {Key: "secondaryCatchUpPeriodSecs", Value: stepDownSeconds - 1}}
}

// stepDown makes the primary step down and returns when there is one again, until ctx ends.
func (s replicaSet) stepDown(ctx context.Context, db commander) error {
	err := db.RunCommand(ctx, s.command()).Err()
	// A primary may cut its connections as it steps down.
	if err != nil && !mongo.IsNetworkError(err) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("replSetStepDown: %w", err)
	}
	for {
		now, err := askReplicaSet(ctx, db)
		if err == nil && now.Primary != "" {
			return nil
		}
		timer := time.NewTimer(electionPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("there is no primary again: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// scripted is a database that gives one answer after the other.
type scripted struct {
	answers []any // documents, or errors
	asked   []string
}

func (s *scripted) RunCommand(_ context.Context, command any, _ ...options.Lister[options.RunCmdOptions]) *mongo.SingleResult {
	s.asked = append(s.asked, command.(bson.D)[0].Key)
	answer := s.answers[0]
	s.answers = s.answers[1:]
	if err, is := answer.(error); is {
		return mongo.NewSingleResultFromDocument(bson.D{}, err, nil)
	}
	return mongo.NewSingleResultFromDocument(answer, nil, nil)
}

func TestStepDown(t *testing.T) {
	cut := mongo.CommandError{Code: 6, Labels: []string{"NetworkError"}, Message: "connection cut"}
	ok := bson.D{{Key: "ok", Value: 1}}
	set := bson.D{{Key: "setName", Value: "rs0"}, {Key: "hosts", Value: bson.A{"a:1", "b:1", "c:1"}}}
	led := append(slices.Clone(set), bson.E{Key: "primary", Value: "b:1"})
	for name, c := range map[string]struct {
		answers []any
		want    []string
		failed  bool
	}{
		"answered":               {[]any{ok, led}, []string{"replSetStepDown", "hello"}, false},
		"cut":                    {[]any{cut, led}, []string{"replSetStepDown", "hello"}, false},
		"election takes a while": {[]any{ok, cut, set, led}, []string{"replSetStepDown", "hello", "hello", "hello"}, false},
		"refused":                {[]any{mongo.CommandError{Code: 13, Message: "not authorized"}}, []string{"replSetStepDown"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			db := &scripted{answers: append([]any{led}, c.answers...)}
			s, err := askReplicaSet(t.Context(), db)
			if err != nil || s.members() != 3 {
				t.Fatalf("%+v, %v", s, err)
			}
			if err := s.stepDown(t.Context(), db); (err != nil) != c.failed {
				t.Error(err)
			}
			if !slices.Equal(db.asked[1:], c.want) {
				t.Errorf("asked %v, want %v", db.asked[1:], c.want)
			}
		})
	}
	t.Run("no primary again", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := (replicaSet{SetName: "rs0"}).stepDown(ctx, &scripted{answers: []any{ok, set}}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	if n := (replicaSet{}).members(); n != 0 {
		t.Errorf("a database that is no replica set has %d members", n)
	}
	if c := (replicaSet{SetName: "rs0", Hosts: []string{"a:1"}}).command(); c[1].Key != "force" {
		t.Errorf("the only member is asked %v", c)
	}
}
