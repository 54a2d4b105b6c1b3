package mongostore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	// indexTimeout is longer than any index takes. Without a deadline the URI's timeoutMS would hold.
	indexTimeout = 24 * time.Hour

	codeInternalError         = 1
	codeIndexOptionsConflict  = 85
	codeIndexKeySpecsConflict = 86
)

// indexName is what createIndex({job_id: 1}) names it by itself.
const indexName = "job_id_1"

func uniqueIndex() bson.D {
	return bson.D{{Key: "key", Value: bson.D{{Key: fieldJobID, Value: 1}}}, {Key: "name", Value: indexName}, {Key: "unique", Value: true}}
}

// The names of the indexes that claims need, as createIndex gives them by itself.
const (
	dueIndexName   = fieldWork + "." + workDue + "_1"
	claimIndexName = fieldWork + "." + workClaimID + "_1"
	groupIndexName = fieldWork + "." + workGroup + "_1_" + dueIndexName
)

// workIndexes are what claims need. Each is partial, so that finished and untracked jobs, which lack the field, cost
// nothing. The last is for claims with a prefix.
func workIndexes() []bson.D {
	index := func(name, needs string, key ...string) bson.D {
		var fields bson.D
		for _, field := range key {
			fields = append(fields, bson.E{Key: field, Value: 1})
		}
		return bson.D{
			{Key: "key", Value: fields},
			{Key: "name", Value: name},
			{Key: "partialFilterExpression", Value: bson.D{{Key: needs, Value: bson.D{{Key: "$exists", Value: true}}}}},
		}
	}
	due, claimID := inWork(workDue), inWork(workClaimID)
	return []bson.D{index(dueIndexName, due, due), index(claimIndexName, claimID, claimID), index(groupIndexName, due, inWork(workGroup), due)}
}

// listIndexes are what lists of jobs need.
func listIndexes() []bson.D {
	index := func(name string, partial bson.D, key ...bson.E) bson.D {
		spec := bson.D{{Key: "key", Value: bson.D(key)}, {Key: "name", Value: name}}
		if partial != nil {
			spec = append(spec, bson.E{Key: "partialFilterExpression", Value: partial})
		}
		return spec
	}
	by := func(field string, direction int) bson.E { return bson.E{Key: field, Value: direction} }
	has := func(field string) bson.E {
		return bson.E{Key: field, Value: bson.D{{Key: "$exists", Value: true}}}
	}
	return []bson.D{
		index(indexSeen, nil, by(fieldFirstSeen, -1), by(fieldJobID, -1)),
		// That there is a time is always met. It keeps the index out of the plans of what changes work, which names the state too.
		index(indexState, bson.D{has(inWork(workState)), has(fieldFirstSeen)}, by(inWork(workState), 1), by(fieldFirstSeen, -1), by(fieldJobID, -1)),
		// The other way round, since a collection may have one index alone on a key.
		index(indexConflict, bson.D{has(fieldConflicts)}, by(fieldFirstSeen, 1), by(fieldJobID, 1)),
	}
}

// The names of the indexes that lists need.
const (
	indexSeen     = "jobs_seen"
	indexState    = "jobs_state"
	indexConflict = "jobs_conflict"
)

// expectationIndexes are what overdue jobs are found by. None has those that were given up, which stay until somebody removes them.
func expectationIndexes() []bson.D {
	return []bson.D{
		{
			{Key: "key", Value: bson.D{{Key: expectedDue, Value: 1}}}, {Key: "name", Value: expectedDueIndex},
			{Key: "partialFilterExpression", Value: bson.D{{Key: expectedDue, Value: bson.D{{Key: "$exists", Value: true}}}}},
		},
		{
			{Key: "key", Value: bson.D{{Key: expectedGroup, Value: 1}, {Key: expectedDue, Value: 1}}}, {Key: "name", Value: expectedGroupIndex},
			{Key: "partialFilterExpression", Value: bson.D{{Key: expectedDue, Value: bson.D{{Key: "$exists", Value: true}}}}},
		},
		{
			{Key: "key", Value: bson.D{{Key: expectedOverdue, Value: 1}}}, {Key: "name", Value: expectedOverdueIndex},
			{Key: "partialFilterExpression", Value: bson.D{{Key: expectedDue, Value: bson.D{{Key: "$exists", Value: true}}}}},
		},
	}
}

// The names of the indexes of expectations, as createIndex gives them by itself. The second is for pollers whose jobs have a prefix.
const (
	expectedDueIndex     = expectedDue + "_1"
	expectedGroupIndex   = expectedGroup + "_1_" + expectedDueIndex
	expectedOverdueIndex = expectedOverdue + "_1"
)

// collection is what a look found.
type collection struct {
	// uuid is nil when there is no collection, or the database gives it none.
	uuid *bson.Binary
	// unique is the unique index on job_id, nil when there is none. It may be under construction: listIndexes does not say.
	unique bson.Raw
	// names are those of all indexes, but of those that have a name of ours and would leave documents out.
	names map[string]bool
}

// inspect looks at the collection and its indexes, and refuses those that the upsert cannot be trusted on. That they do not
// exist is fine.
func (s *Store) inspect(ctx context.Context) (collection, error) {
	c := collection{names: map[string]bool{}}
	specs, err := s.coll.Database().ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: s.coll.Name()}})
	if err != nil {
		return c, err
	}
	for _, spec := range specs {
		if spec.Name == s.coll.Name() {
			if err := judgeCollection(spec.Name, spec.Type, spec.Options); err != nil {
				return c, err
			}
			c.uuid = spec.UUID
		}
	}
	cursor, err := s.coll.Indexes().List(ctx)
	if err != nil {
		return c, err
	}
	var found []bson.Raw
	if err := cursor.All(ctx, &found); err != nil {
		return c, err
	}
	for _, index := range found {
		c.names[nameOf(index)] = servesAs(index, append(workIndexes(), listIndexes()...))
	}
	c.unique, err = judgeIndexes(found)
	return c, err
}

// servesAs tells whether an index holds in order what the one of ours holds that has its name, if there is one: reads that name it get
// what is in it, and nothing else.
func servesAs(index bson.Raw, ours []bson.D) bool {
	i := slices.IndexFunc(ours, func(spec bson.D) bool { return nameIn(spec) == nameOf(index) })
	if i < 0 {
		return true
	}
	spec, err := bson.Marshal(ours[i])
	if err != nil {
		return false
	}
	fields := func(of bson.Raw, name string) []bson.RawElement {
		d, _ := of.Lookup(name).DocumentOK()
		elements, _ := d.Elements()
		return elements
	}
	sameKey := slices.EqualFunc(fields(index, "key"), fields(spec, "key"), func(a, b bson.RawElement) bool {
		x, _ := a.Value().AsInt64OK() // of whatever type
		y, _ := b.Value().AsInt64OK()
		return a.Key() == b.Key() && x == y
	})
	conditions := fields(spec, "partialFilterExpression")
	return sameKey && !slices.ContainsFunc(fields(index, "partialFilterExpression"), func(theirs bson.RawElement) bool {
		return !slices.ContainsFunc(conditions, func(our bson.RawElement) bool { return bytes.Equal(our, theirs) })
	})
}

func nameOf(index bson.Raw) string {
	name, _ := index.Lookup("name").StringValueOK()
	return name
}

func judgeCollection(name, kind string, opts bson.Raw) error {
	if kind != "" && kind != "collection" {
		return &schemaError{problem: fmt.Sprintf("%s is a %s; name a plain collection with --mongodb-collection", name, kind)}
	}
	if capped, _ := opts.Lookup("capped").BooleanOK(); capped {
		return &schemaError{problem: name + " is a capped collection, which drops its oldest jobs; name a plain collection with --mongodb-collection"}
	}
	if c, ok := opts.Lookup("collation").DocumentOK(); ok {
		if locale, _ := c.Lookup("locale").StringValueOK(); locale != "" && locale != "simple" {
			return &schemaError{problem: fmt.Sprintf("%s has the default collation %q, under which different ids can be equal; "+
				"copy its documents into a collection without a collation and name that with --mongodb-collection", name, locale)}
		}
	}
	return nil
}

// judgeIndexes returns the unique index on job_id, whatever its name, if the collection has it. An index on exactly that
// key which does not hold for every document, or compares otherwise than byte for byte, is refused: the upsert would be
// let through where it must not be.
func judgeIndexes(indexes []bson.Raw) (found bson.Raw, err error) {
	for _, index := range indexes {
		if !keyIsJobID(index) {
			continue
		}
		var faults []string
		if unique, _ := index.Lookup("unique").BooleanOK(); !unique {
			faults = append(faults, "it is not unique")
		}
		if sparse, _ := index.Lookup("sparse").BooleanOK(); sparse {
			faults = append(faults, "it is sparse")
		}
		if _, ok := index.Lookup("partialFilterExpression").DocumentOK(); ok {
			faults = append(faults, "it is partial")
		}
		if index.Lookup("expireAfterSeconds").IsNumber() {
			faults = append(faults, "it expires documents")
		}
		if c, ok := index.Lookup("collation").DocumentOK(); ok {
			if locale, _ := c.Lookup("locale").StringValueOK(); locale != "simple" {
				faults = append(faults, "it has the collation "+locale)
			}
		}
		if len(faults) > 0 {
			name := nameOf(index)
			return nil, &schemaError{problem: fmt.Sprintf("the index %q on job_id must be unique and nothing else, but %s; drop it "+
				"(db.COLLECTION.dropIndex(%q)), and JobOnce makes the right one", name, strings.Join(faults, " and "), name)}
		}
		found = index
	}
	return found, nil
}

// keyIsJobID tells whether the index's key is {job_id: 1}. The number may be of any type.
func keyIsJobID(index bson.Raw) bool {
	key, ok := index.Lookup("key").DocumentOK()
	if !ok {
		return false
	}
	elements, err := key.Elements()
	if err != nil || len(elements) != 1 || elements[0].Key() != fieldJobID {
		return false
	}
	n, ok := elements[0].Value().AsInt64OK()
	return ok && n == 1
}

// ensureUnique returns nil once the unique index is there and finished, and notes what hint upserts are to send. fresh asks
// the database again whether it is finished. That is createIndexes' part: for an index that is there it does nothing, and
// for one that somebody is making it waits.
func (p *preparation) ensureUnique(ctx context.Context, found *collection, fresh bool) error {
	fresh = fresh || p.unique == nil || found.unique == nil
	if fresh && !p.unique.underWay() {
		var spec any = found.unique // as it is: anything else would be another index
		if found.unique == nil {
			spec = uniqueIndex()
			if p.said == "" {
				p.log.Info("making the unique index", "store", p.String(), "index", indexName)
			}
		}
		p.unique = p.begin(func(ctx context.Context) error { return p.explainDuplicates(ctx, p.createIndex(ctx, p.coll, spec)) })
	}
	if !p.unique.wait(uniqueWait) {
		return &schemaError{"the unique index on job_id is being made; over a large collection that takes a while", true}
	}
	finished := true
	switch err := p.unique.err; {
	case err == nil:
	case found.unique != nil && hasCode(err, codeIndexOptionsConflict, codeIndexKeySpecsConflict):
		// It differs from what was asked for in what does not matter, or the look would have refused it.
	case found.unique != nil && hasCode(err, codeUnauthorized):
		finished = false
		if !p.blind {
			p.blind = true
			p.log.Warn("the database user may not create indexes, so a build of the unique index that is under way may not be seen; "+
				"give the user the action createIndex, or see to it that the index is finished", "store", p.String())
		}
	case found.names[indexName] && hasCode(err, codeIndexKeySpecsConflict):
		p.unique = nil
		return &schemaError{problem: fmt.Sprintf("there is no unique index on job_id, and another index has its name, %q; drop that or "+
			"make a unique index on {job_id: 1} under another name", indexName)}
	default:
		p.unique = nil
		return err
	}
	if found.unique == nil {
		now, err := p.inspect(ctx)
		if err != nil {
			return err
		}
		if now.unique == nil {
			return errors.New("the unique index was made, and is gone again")
		}
		*found = now
	}
	return p.ensureHint(ctx, found, fresh, finished)
}

// ensureHint tries the hint, which a server takes for an index that is finished. finished tells whether createIndexes has said
// so, fresh whether it has just now.
func (p *preparation) ensureHint(ctx context.Context, found *collection, fresh, finished bool) error {
	name := nameOf(found.unique)
	refusal, err := p.tryHint(ctx, name)
	hidden, _ := found.unique.Lookup("hidden").BooleanOK() // holds all the same, and cannot be hinted at
	switch {
	case err != nil:
		return err
	case refusal == 0:
		p.hintless = false
		p.hint.Store(&name)
		return nil
	case !fresh:
		return p.ensureUnique(ctx, found, true)
	case !finished && !hidden && aboutHint(refusal):
		return &schemaError{fmt.Sprintf("the unique index %q cannot be used; it seems that it is being made", name), true}
	case p.hint.Load() != nil && !hidden && aboutHint(refusal): // the server has taken it before
		return &schemaError{fmt.Sprintf("the unique index %q cannot be used any more; it seems that it was dropped", name), true}
	}
	p.hint.Store(nil)
	if !p.hintless {
		p.hintless = true
		p.log.Info("the database takes no hint at the unique index in an update, so the look at the indexes alone watches over it",
			"store", p.String(), "code", refusal)
	}
	return nil
}

// tryHint sends an update that matches nothing under the hint. It returns the code with which the server refuses it, 0 when
// it does not.
func (s *Store) tryHint(ctx context.Context, name string) (refusal int, err error) {
	nothing := bson.D{{Key: fieldJobID, Value: ""}, {Key: "_id", Value: bson.D{{Key: "$exists", Value: false}}}}
	_, err = s.coll.UpdateOne(ctx, nothing, bson.D{{Key: "$set", Value: bson.D{{Key: fieldDeliveries, Value: 1}}}}, options.UpdateOne().SetHint(name))
	var write mongo.WriteException
	var command mongo.CommandError
	switch {
	case errors.As(err, &write) && len(write.WriteErrors) > 0:
		refusal = write.WriteErrors[0].Code
	case errors.As(err, &write): // a write concern, which does not matter here
		return 0, nil
	case errors.As(err, &command):
		refusal = int(command.Code)
	}
	if refusal == 0 || refusal == codeUnauthorized || interruptedCodes[refusal] {
		return 0, err
	}
	return refusal, nil
}

// ensureWork makes the indexes that claims need, beside the looks, and learns which claims are paused. Nothing but claims waits
// for them.
func (p *preparation) ensureWork(found *collection) {
	p.ensure(&p.work, &p.workUnready, "the indexes for work", "work cannot be claimed", missing(found, workIndexes()), func(ctx context.Context) error {
		if err := p.makeIndexes(ctx, p.coll, workIndexes(), found.names); err != nil || p.pauses.Load() != nil {
			return err
		}
		_, f := p.loadPauses(ctx)
		return f.orNil()
	})
}

// ensureLists makes the indexes that lists need, and those of expectations, beside the looks.
func (p *preparation) ensureLists(found *collection) {
	p.ensure(&p.lists, &p.listsUnready, "the indexes for lists", "jobs cannot be listed, nor overdue ones claimed", missing(found, listIndexes()),
		func(ctx context.Context) error {
			if err := p.makeIndexes(ctx, p.coll, listIndexes(), found.names); err != nil {
				return err
			}
			return p.makeIndexes(ctx, p.expected, expectationIndexes(), nil)
		})
}

// missing tells whether any of the indexes is not there.
func missing(found *collection, specs []bson.D) bool {
	return slices.ContainsFunc(specs, func(spec bson.D) bool { return !found.names[nameIn(spec)] })
}

// ensure makes what is missing, and notes in unready why what needs it cannot be done.
func (p *preparation) ensure(b **build, unready *atomic.Pointer[error], what, without string, missing bool, making func(context.Context) error) {
	if *b == nil || missing && !(*b).underWay() {
		*b = p.begin(making)
	}
	var err error
	if !(*b).wait(workWait) {
		err = errors.New(what + " are being made; over a large collection that takes a while")
	} else if (*b).err != nil {
		err = p.explain((*b).err)
		*b = nil
	}
	before := unready.Load()
	if err == nil {
		unready.Store(nil)
	} else if unready.Store(&err); before == nil || (*before).Error() != err.Error() {
		p.log.Warn(without, "store", p.String(), "error", err)
	}
}

// makeIndexes makes those that are missing, and waits for those that are under construction. have are the names of what
// is there, nil where nobody looked. One with our name, or on our key, does.
func (s *Store) makeIndexes(ctx context.Context, coll *mongo.Collection, specs []bson.D, have map[string]bool) error {
	for _, spec := range specs {
		err := s.createIndex(ctx, coll, spec)
		there := have == nil || have[nameIn(spec)]
		if err == nil || hasCode(err, codeIndexOptionsConflict) || there && hasCode(err, codeIndexKeySpecsConflict) ||
			have[nameIn(spec)] && hasCode(err, codeUnauthorized) {
			continue
		}
		return fmt.Errorf("make the index %s: %w", nameIn(spec), err)
	}
	return nil
}

func nameIn(spec bson.D) string {
	for _, e := range spec {
		if name, ok := e.Value.(string); ok && e.Key == "name" {
			return name
		}
	}
	return ""
}

// createIndex returns once the index is there and finished, on most members of a replica set. The default would have it wait
// for all members, those that are down too.
func (s *Store) createIndex(ctx context.Context, coll *mongo.Collection, spec any) error {
	command := bson.D{
		{Key: "createIndexes", Value: coll.Name()}, {Key: "indexes", Value: bson.A{spec}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	}
	if s.deployment.Load().kind != standalone { // which refuses it
		command = append(command, bson.E{Key: "commitQuorum", Value: "majority"})
	}
	return s.coll.Database().RunCommand(ctx, command).Err()
}

// explainDuplicates says which documents keep the unique index from being made, if that is what the error says.
func (s *Store) explainDuplicates(ctx context.Context, err error) error {
	vague := hasCode(err, codeInternalError) // DocumentDB has no error of its own for duplicates
	if !vague && !mongo.IsDuplicateKeyError(err) {
		return err
	}
	which, ferr := s.findDuplicate(ctx)
	if vague && (ferr != nil || which == "") {
		return err
	}
	switch {
	case ferr != nil:
		which = "run the aggregation in docs/mongodb.md to find them"
	case which == "":
		which = "they seem to be gone by now"
	}
	return &schemaError{problem: fmt.Sprintf("the unique index on job_id cannot be made over duplicates: %s; keep one document "+
		"of each job and delete the others, then JobOnce goes on by itself", which)}
}

func hasCode(err error, codes ...int32) bool {
	var command mongo.CommandError
	return errors.As(err, &command) && slices.Contains(codes, command.Code)
}

// findDuplicate names one job_id that several documents have; empty when there is none.
func (s *Store) findDuplicate(ctx context.Context) (string, error) {
	cursor, err := s.coll.Aggregate(ctx, duplicatesPipeline())
	if err != nil {
		return "", err
	}
	var found []struct {
		ID any `bson:"_id"`
		N  int `bson:"n"`
	}
	if err := cursor.All(ctx, &found); err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", nil
	}
	if found[0].ID == nil {
		return fmt.Sprintf("%d documents have no job_id", found[0].N), nil
	}
	return fmt.Sprintf("%d documents have the job_id %q", found[0].N, fmt.Sprint(found[0].ID)), nil
}

// duplicatesPipeline finds one job_id that stands in several documents. docs/mongodb.md has it for people.
func duplicatesPipeline() mongo.Pipeline {
	return mongo.Pipeline{
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$" + fieldJobID}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}},
		{{Key: "$match", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 1}}}}}},
		{{Key: "$limit", Value: 1}},
	}
}

// build is an index that is being made, or was.
type build struct {
	done chan struct{}
	err  error // set before done is closed
}

// begin makes an index beside the looks.
func (p *preparation) begin(making func(context.Context) error) *build {
	b := &build{done: make(chan struct{})}
	p.builds.Go(func() {
		defer close(b.done)
		ctx, cancel := context.WithTimeout(p.life, indexTimeout)
		defer cancel()
		b.err = making(ctx)
	})
	return b
}

// wait tells whether it is done, after a while at most.
func (b *build) wait(while time.Duration) bool {
	select {
	case <-b.done:
		return true
	case <-time.After(while):
		return false
	}
}

// underWay tells whether it is neither nil nor done.
func (b *build) underWay() bool {
	if b == nil {
		return false
	}
	select {
	case <-b.done:
		return false
	default:
		return true
	}
}

// building is closed when the build ends that the latest look left under way; nil when it left none.
func (p *preparation) building() <-chan struct{} {
	for _, b := range []*build{p.unique, p.work, p.lists} {
		if b.underWay() {
			return b.done
		}
	}
	return nil
}
