package modeldb_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestAgainstDatabase has the model and a real database do the same random commands, without faults, and compares what they answer
// and what they hold then: a mongod where there is one, else the test database. The commands are all that the store sends, with
// random values, types and neighbours. Each shape of them must have done something at least once, so that nothing that the store
// relies on is modelled by hope. Fields of a document may be in another order.
func TestAgainstDatabase(t *testing.T) {
	g := newComparison(t)
	statements := sentByStore(t)
	shapes := slices.Sorted(maps.Keys(statements))
	for _, s := range shapes {
		if statements[s][0].Key == "createIndexes" {
			g.compare(statements[s])
		}
	}
	idle := slices.DeleteFunc(slices.Clone(shapes), func(s string) bool { return strings.Contains(s, neverMatches) })
	rounds := 1
	if testenv.Long() {
		rounds = 20
	}
	for i := 0; i < rounds || len(idle) > 0 && i < rounds+200; i++ {
		g.rng.Shuffle(len(shapes), func(i, j int) { shapes[i], shapes[j] = shapes[j], shapes[i] })
		for _, s := range shapes {
			if i >= rounds && !slices.Contains(idle, s) && g.rng.IntN(8) > 0 {
				continue
			}
			others := g.rng.IntN(3)
			if i > 0 && slices.Contains(idle, s) {
				g.provide(statements[s])
				others = 0
			}
			if did := g.compare(g.filled(statements[s], statements, others)); did && others == 0 {
				idle = slices.DeleteFunc(idle, func(other string) bool { return other == s })
			}
		}
	}
	for _, s := range idle {
		t.Errorf("never did anything: %s", s)
	}
	t.Logf("%d shapes, %d commands", len(shapes), g.commands)
}

// neverMatches is in the shape of the update by which the store tries a hint: every document has an _id.
const neverMatches = "_id: {$exists: false}"

// ids are those of jobs and expectations, and the prefixes that are paused.
var ids = []string{"a:1", "a:2", "a:3", "b:1", "b:2", "b:3", "c", "d"}

// comparison is a model and a real database, which do the same.
type comparison struct {
	t     *testing.T
	rng   *rand.Rand
	db    *modeldb.Server
	sides [2]*mongo.Database // the model's first
	// documentDB is set where the database is that; known are then its differences.
	documentDB bool
	known      []difference
	// careless is set while a filter gets values that perhaps no document has.
	careless bool
	commands int
}

func newComparison(t *testing.T) *comparison {
	g := &comparison{t: t, rng: rand.New(rand.NewPCG(testenv.Seed(t), 0)), db: modeldb.New(modeldb.ReplicaSet)}
	name := testenv.Database(t)
	for i, opts := range []*options.ClientOptions{
		options.Client().ApplyURI(g.db.URI()).SetDialer(g.db.Dialer(0)), options.Client().ApplyURI(testenv.MongoURI(t)),
	} {
		client, err := mongo.Connect(opts)
		testenv.Must(t, err)
		t.Cleanup(func() { testenv.OK(t, client.Disconnect(context.WithoutCancel(t.Context()))) })
		g.sides[i] = client.Database(name)
	}
	var info struct{ FerretDB bson.Raw }
	testenv.Must(t, g.sides[1].RunCommand(t.Context(), bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info))
	if info.FerretDB != nil {
		g.documentDB, g.known = true, ofDocumentDB
	}
	t.Cleanup(func() {
		for _, what := range g.db.Strange() {
			t.Error(what)
		}
	})
	return g
}

// difference is one between the model and a database, in which MongoDB does what the model does.
type difference struct {
	reason string
	is     func(command bson.D, model, database string) bool
}

// ofDocumentDB are the differences of the test database.
var ofDocumentDB = []difference{
	{"$count gives a document with 0 where there is nothing to count; MongoDB gives none (manual: $count)", func(_ bson.D, model, database string) bool {
		return model == "[]" && database == "[{n: int32(0)}]"
	}},
}

// compare has both sides do a command, and tells whether it did something: found, changed or made.
func (g *comparison) compare(command bson.D) bool {
	g.t.Helper()
	g.commands++
	var answers, left [2]string
	for i, db := range g.sides {
		answers[i] = g.answer(db, command)
	}
	same := answers[0] == answers[1] || slices.ContainsFunc(g.known, func(d difference) bool { return d.is(command, answers[0], answers[1]) })
	if slices.Contains([]string{"update", "delete"}, command[0].Key) {
		for i, db := range g.sides {
			left[i] = g.answer(db, bson.D{{Key: "find", Value: command[0].Value}})
		}
	}
	if !same || left[0] != left[1] {
		g.t.Fatalf("%v:\n%s\n%s", command, apart(answers), apart(left))
	}
	return command[0].Key == "createIndexes" || !strings.HasPrefix(answers[0], "n 0") && !strings.HasPrefix(answers[0], "[]") && !strings.HasPrefix(answers[0], "error")
}

// apart are the lines of only one of two texts.
func apart(texts [2]string) string {
	model, database := strings.Split(texts[0], "\n"), strings.Split(texts[1], "\n")
	without := func(lines, others []string) []string {
		return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return slices.Contains(others, l) })
	}
	return fmt.Sprintf("\tthe model    %q\n\tthe database %q", without(model, database), without(database, model))
}

// answer is what a command answers, as far as it can be the same on two databases.
func (g *comparison) answer(db *mongo.Database, command bson.D) string {
	ordered := false
	var reply struct {
		N           int // and nModified, which the store does not look at
		Upserted    []struct{ Index int }
		WriteErrors []struct{ Index, Code int }
	}
	switch command[0].Key {
	case "update", "delete", "createIndexes":
		err := db.RunCommand(g.t.Context(), command).Decode(&reply)
		if wrote := (mongo.WriteException{}); errors.As(err, &wrote) {
			err = bson.Unmarshal(wrote.Raw, &reply)
		}
		if err != nil {
			return failed(err)
		}
		return fmt.Sprintf("n %d, made %v, errors %v", reply.N, reply.Upserted, reply.WriteErrors)
	}
	for _, e := range command {
		stages, _ := e.Value.(bson.A)
		last := bson.D{{}}
		if len(stages) > 0 {
			last, _ = stages[len(stages)-1].(bson.D)
		}
		ordered = ordered || e.Key == "sort" || last[0].Key == "$sort"
	}
	cursor, err := db.RunCommandCursor(g.t.Context(), command)
	if err != nil {
		return failed(err)
	}
	cursor.SetBatchSize(2)
	var docs []bson.D
	if err := cursor.All(g.t.Context(), &docs); err != nil {
		return failed(err)
	}
	texts := make([]string, len(docs))
	for i, d := range docs {
		switch command[0].Key { // databases say more of them
		case "listIndexes":
			d = slices.DeleteFunc(d, func(e bson.E) bool {
				return !slices.Contains([]string{"key", "name", "unique", "partialFilterExpression"}, e.Key)
			})
		case "listCollections":
			d = slices.DeleteFunc(d, func(e bson.E) bool { return e.Key != "name" && e.Key != "type" })
		}
		texts[i] = text(d)
	}
	if !ordered {
		slices.Sort(texts)
	}
	return "[" + strings.Join(texts, "\n") + "]"
}

func failed(err error) string {
	var command mongo.CommandError
	if errors.As(err, &command) {
		return fmt.Sprint("error ", command.Code)
	}
	return "error " + err.Error()
}

// text is a value with its types, the fields in the order of their names, and without ids that a database makes.
func text(v any) string {
	switch v := v.(type) {
	case bson.D:
		var fields []string
		for _, e := range v {
			if _, made := e.Value.(bson.ObjectID); !made {
				fields = append(fields, e.Key+": "+text(e.Value))
			}
		}
		slices.Sort(fields)
		return "{" + strings.Join(fields, ", ") + "}"
	case bson.A:
		var items []string
		for _, item := range v {
			items = append(items, text(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return fmt.Sprintf("%T(%v)", v, v)
}

// filled is a command with random values in the place of those that it was sent with, and with statements of others behind its own.
func (g *comparison) filled(command bson.D, all map[string]bson.D, others int) bson.D {
	docs := g.docs(command)
	out := g.matching(command, docs)
	list := listOf(command)
	if list < 0 {
		return out
	}
	alike := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(s string) bool { return all[s][0] != command[0] })
	for range others {
		other := g.matching(all[alike[g.rng.IntN(len(alike))]], docs)
		out[list].Value = slices.Concat(out[list].Value.(bson.A), other[listOf(other)].Value.(bson.A))
	}
	return append(out, bson.E{Key: "ordered", Value: g.rng.IntN(2) == 0})
}

// provide has both sides make a document anew, as a command's filter wants it.
func (g *comparison) provide(command bson.D) {
	if !slices.Contains([]string{"find", "aggregate", "update", "delete"}, command[0].Key) {
		return
	}
	key := "_id"
	if command[0].Value == mongostore.DefaultCollection {
		key = "job_id"
	}
	id := bson.D{{Key: key, Value: g.value(key, "")}}
	set := append(g.wanted(filterOf(command), key), bson.E{Key: "provided", Value: true})
	majority := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
	g.compare(bson.D{{Key: "delete", Value: command[0].Value}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: id}, {Key: "limit", Value: 1}}}}, majority})
	g.compare(bson.D{{Key: "update", Value: command[0].Value}, majority,
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: id}, {Key: "u", Value: bson.D{{Key: "$set", Value: set}}}, {Key: "upsert", Value: true}}}}})
}

// wanted are fields that a filter wants a document to have, but for its key.
func (g *comparison) wanted(filter bson.D, key string) (set bson.D) {
	for _, e := range filter {
		if list, is := e.Value.(bson.A); is && e.Key == "$or" {
			for _, wanted := range g.wanted(list[0].(bson.D), key) {
				set = with(set, wanted)
			}
		}
		conditions, is := e.Value.(bson.D)
		if !is {
			conditions = bson.D{{Key: "$eq", Value: e.Value}}
		}
		for _, c := range conditions {
			v := c.Value
			switch {
			case c.Key == "$in":
				v = v.(bson.A)[0]
			case c.Key == "$type" && v == "date":
				v = bson.DateTime(0)
			case !slices.Contains([]string{"$eq", "$lte", "$gte", "$gt", "$lt"}, c.Key):
				continue
			}
			if !strings.HasPrefix(e.Key, "$") && e.Key != key {
				set = with(set, bson.E{Key: e.Key, Value: g.value(e.Key, v)})
			}
		}
	}
	return set
}

// with is a document with a field.
func with(d bson.D, field bson.E) bson.D {
	return append(slices.DeleteFunc(d, func(e bson.E) bool { return e.Key == field.Key }), field)
}

// listOf is the place of a command's statements; -1 when it has none.
func listOf(command bson.D) int {
	return slices.IndexFunc(command, func(e bson.E) bool { return e.Key == "updates" || e.Key == "deletes" })
}

// docs are the documents of the command's collection, in a random order.
func (g *comparison) docs(command bson.D) (docs []bson.D) {
	name, _ := command[0].Value.(string)
	for _, raw := range g.db.Documents(g.sides[0].Name() + "." + name) {
		var d bson.D
		testenv.Must(g.t, bson.Unmarshal(raw, &d))
		docs = append(docs, d)
	}
	g.rng.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	return docs
}

// matching is a command with one statement, filled, mostly so that it finds something where it can.
func (g *comparison) matching(command bson.D, docs []bson.D) (out bson.D) {
	g.careless = g.rng.IntN(8) == 0
	for _, d := range append(docs, nil) {
		out, _ = g.fill("", command, d).(bson.D)
		if g.careless || g.finds(out) {
			break
		}
	}
	return out
}

// finds tells whether the model finds something by the command's filter.
func (g *comparison) finds(command bson.D) bool {
	filter := filterOf(command)
	return filter == nil || g.answer(g.sides[0], bson.D{{Key: "find", Value: command[0].Value}, {Key: "filter", Value: filter}}) != "[]"
}

// filterOf is the filter of a command, or of its first statement or stage; nil when it has none for documents.
func filterOf(command bson.D) (filter bson.D) {
	for _, e := range command {
		switch v := e.Value.(type) {
		case bson.D:
			if e.Key == "filter" && command[0].Key == "find" {
				filter = v
			}
		case bson.A:
			first, _ := v[0].(bson.D)
			for _, e := range first {
				if e.Key == "q" || e.Key == "$match" {
					filter, _ = e.Value.(bson.D)
				}
			}
		}
	}
	return filter
}

// fill gives a command's values anew. Filters get those of a document, where it has them, and mostly.
func (g *comparison) fill(key string, v any, from bson.D) any {
	if command, is := v.(bson.D); is && len(command) > 0 && command[0].Key == "listCollections" {
		return v
	}
	switch key {
	case "filter", "q", "$match":
		return g.filter("", v, from)
	case "$setOnInsert", "$set", "$max":
		return g.values("", v)
	case "$inc":
		return g.values(key, v)
	case "u":
		if stages, is := v.(bson.A); is {
			return g.times(stages)
		}
	}
	switch v := v.(type) {
	case bson.D:
		out := make(bson.D, len(v))
		for i, e := range v {
			out[i] = bson.E{Key: e.Key, Value: g.fill(e.Key, e.Value, from)}
			switch {
			case e.Key == "limit" && v[0].Key == "find": // without an order, databases choose
				out[i].Value = 100
				if slices.ContainsFunc(v, func(e bson.E) bool { return e.Key == "sort" }) {
					out[i].Value = 1 + g.rng.IntN(4)
				}
			case e.Key == "pipeline":
				g.limit(out[i].Value.(bson.A))
			case e.Key == "hint" && g.rng.IntN(20) == 0 && (v[0].Key != "q" || !g.documentDB): // which takes any in an update
				out[i].Value = "of no index"
			}
		}
		return out
	case bson.A:
		out := make(bson.A, len(v))
		for i, item := range v {
			out[i] = g.fill(key, item, from)
		}
		return out
	}
	return v
}

// limit gives the stages of an aggregation other limits, but for a last one, which limits what has no order.
func (g *comparison) limit(stages bson.A) {
	for i, s := range stages {
		if stage := s.(bson.D); stage[0].Key == "$limit" {
			stage[0].Value = 100
			if i < len(stages)-1 {
				stage[0].Value = 1 + g.rng.IntN(4)
			}
		}
	}
}

// filter is a filter, or the condition on the value at a path.
func (g *comparison) filter(path string, v any, from bson.D) any {
	switch v := v.(type) {
	case bson.D:
		out := make(bson.D, len(v))
		for i, e := range v {
			out[i] = e
			switch e.Key {
			case "$exists", "$type":
			case "$nor": // what is not as another document is
				out[i].Value = g.filter(path, e.Value, nil)
			case "$lt", "$gt":
				out[i].Value = g.beside(e.Key, at(from, path), g.value(path, e.Value))
			default:
				field := path
				if !strings.HasPrefix(e.Key, "$") {
					field = e.Key
				}
				out[i].Value = g.filter(field, e.Value, from)
			}
		}
		return out
	case bson.A:
		out := make(bson.A, len(v))
		for i, item := range v {
			out[i] = g.filter(path, item, from)
		}
		return out
	case nil:
		return v
	}
	if is := at(from, path); is != nil && (!g.careless || g.rng.IntN(4) > 0) {
		return is
	}
	return g.value(path, v)
}

// beside is mostly a value that another one is less or greater than, where that is a text or a time; otherwise any.
func (g *comparison) beside(operator string, is, anything any) any {
	if g.rng.IntN(4) == 0 {
		return anything
	}
	switch is := is.(type) {
	case string:
		if operator == "$lt" {
			return is + "a"
		}
		return ""
	case bson.DateTime:
		if operator == "$lt" {
			return is + 1
		}
		return is - 1
	}
	return anything
}

// at is the value at a path.
func at(d bson.D, path string) any {
	key, rest, nested := strings.Cut(path, ".")
	i := slices.IndexFunc(d, func(e bson.E) bool { return e.Key == key })
	if i < 0 || !nested {
		if i >= 0 {
			return d[i].Value
		}
		return nil
	}
	inner, _ := d[i].Value.(bson.D)
	return at(inner, rest)
}

// values are an update's values.
func (g *comparison) values(path string, v any) any {
	d, is := v.(bson.D)
	if !is {
		return g.odd(path, g.value(path, v))
	}
	out := bson.D{}
	for _, e := range d {
		if inside := slices.Contains([]string{"work", "last_conflict"}, path); !inside || g.rng.IntN(12) > 0 { // others may have left it out
			out = append(out, bson.E{Key: e.Key, Value: g.values(strings.TrimPrefix(path+"."+e.Key, "."), e.Value)})
		}
	}
	return out
}

// times are the stages of an update with other times in them.
func (g *comparison) times(v any) any {
	switch v := v.(type) {
	case bson.D:
		out := make(bson.D, len(v))
		for i, e := range v {
			out[i] = bson.E{Key: e.Key, Value: g.times(e.Value)}
		}
		return out
	case bson.A:
		out := make(bson.A, len(v))
		for i, item := range v {
			out[i] = g.times(item)
		}
		return out
	case bson.DateTime:
		return g.value("", v)
	}
	return v
}

// value is a random value of the same type, from few. Times are from many, so that an order by them is one.
func (g *comparison) value(path string, like any) any {
	switch like := like.(type) {
	case string:
		switch path {
		case "job_id", "_id":
			return ids[g.rng.IntN(len(ids))]
		case "work.state":
			return cmp.Or([]string{"queued", "leased", like}[g.rng.IntN(3)], like)
		}
		return []string{"a", "b", "é"}[g.rng.IntN(3)]
	case bson.DateTime:
		return bson.NewDateTimeFromTime(time.UnixMilli(1_700_000_000_000 + g.rng.Int64N(1_000_000_000)))
	case int32:
		return int32(g.rng.IntN(3))
	case int64:
		return g.rng.Int64N(3)
	case bool:
		return g.rng.IntN(2) == 0
	case bson.Binary:
		return bson.Binary{Subtype: like.Subtype, Data: []byte{byte(g.rng.IntN(2))}}
	}
	return like
}

// odd is the value, or now and then one of another type, as others may have written it.
func (g *comparison) odd(path string, v any) any {
	if g.rng.IntN(20) > 0 {
		return v
	}
	if _, is := v.(bson.DateTime); is { // there are orders by times: no two are to be equal
		n := g.rng.Int64N(1_000_000_000)
		return []any{n, float64(n) + 0.5, fmt.Sprint(n), bson.D{{Key: "x", Value: n}}}[g.rng.IntN(4)]
	}
	numbers := []any{int32(1), int64(1), 1.0, 1.5}
	if strings.HasPrefix(path, "$inc.") {
		return numbers[g.rng.IntN(len(numbers))]
	}
	if !isNumber(v) || !g.documentDB { // see isBool
		numbers = append(numbers, true)
	}
	others := append(numbers, nil, "a", bson.DateTime(1), bson.Binary{Data: []byte{1}}, bson.D{{Key: "x", Value: int32(1)}})
	return others[g.rng.IntN(len(others))]
}

func isNumber(v any) bool {
	switch v.(type) {
	case int32, int64, float64:
		return true
	}
	return false
}
