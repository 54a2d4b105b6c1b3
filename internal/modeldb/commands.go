package modeldb

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// execution is one command being executed.
type execution struct {
	*Server
	call    *Call
	command document
	fault   Fault
	// view is what a deposed primary has; nil when the primary answers.
	view *deposed
	// failed is the reply, when the execution ended early.
	failed document
}

// general are the fields that every command may have.
var general = []string{"$db", "$readPreference", "$clusterTime", "lsid", "maxTimeMS"}

// commandsOf are the commands that there are, with the fields that each may have. A field that is not modelled is refused.
var commandsOf map[string]struct {
	fields []string
	run    func(*execution) document
}

func init() { // they refer back to it
	type command = struct {
		fields []string
		run    func(*execution) document
	}
	done := func(*execution) document { return document{{"ok", 1.0}} }
	commandsOf = map[string]command{
		"hello":           {nil, (*execution).hello},
		"ping":            {nil, done},
		"endSessions":     {nil, done},
		"killCursors":     {[]string{"cursors"}, done},
		"listCollections": {[]string{"filter", "nameOnly", "cursor"}, (*execution).listCollections},
		"listIndexes":     {[]string{"cursor"}, (*execution).listIndexes},
		"createIndexes":   {[]string{"indexes", "commitQuorum", "writeConcern"}, (*execution).createIndexes},
		"find": {[]string{"filter", "projection", "sort", "limit", "batchSize", "singleBatch", "hint", "readConcern"},
			(*execution).find},
		"aggregate": {[]string{"pipeline", "cursor", "hint", "readConcern"}, (*execution).aggregate},
		"getMore":   {[]string{"collection", "batchSize"}, (*execution).getMore},
		"update":    {[]string{"updates", "ordered", "readConcern", "writeConcern", "txnNumber"}, (*execution).update},
		"delete":    {[]string{"deletes", "ordered", "readConcern", "writeConcern", "txnNumber"}, (*execution).delete},
	}
}

// execute runs a command and gives its reply.
func (x *execution) execute() (reply document) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *writeError: // of an expression in a read
			reply = failure(r)
		case unmodelled:
			x.strange = append(x.strange, x.call.Name+": "+r.Error())
			reply = failure(&writeError{code: codeNotImplemented, message: r.Error()})
		default:
			panic(r)
		}
	}()
	x.command = x.call.document()
	c, is := commandsOf[x.call.Name]
	if !is {
		refuse("command %s", x.call.Name)
	}
	for i, e := range x.command {
		if slices.ContainsFunc(x.command[:i], func(other element) bool { return other.key == e.key }) { // error 40413 of a mongod
			refuse("field %s twice", e.key)
		}
		if i > 0 && !slices.Contains(general, e.key) && !slices.Contains(c.fields, e.key) && x.call.Name != "hello" {
			refuse("field %s: %v", e.key, e.value)
		}
		switch d, _ := e.value.(document); {
		case e.key == "writeConcern" && len(d.without("w").without("j")) > 0: // nothing here crashes
			refuse("write concern %v", d)
		case e.key == "$readPreference" && d.get("mode") != "primary" && d.get("mode") != "primaryPreferred":
			refuse("read preference %v", d)
		}
	}
	if code := x.fault.Kind.refusal(); code != 0 {
		reply = failure(&writeError{code: code, message: "a fault of the test"})
	} else {
		reply = c.run(x)
	}
	if x.kind == ReplicaSet {
		reply = x.timed(reply)
		x.label(reply)
	}
	return reply
}

// failure is the reply to a command that failed.
func failure(err *writeError) document {
	d := document{{"ok", 0.0}, {"code", err.code}, {"codeName", "Error"}, {"errmsg", err.message}}
	if err.pattern != nil {
		d = append(d, element{"keyPattern", err.pattern})
	}
	return d
}

func asArray(v any) array {
	a, ok := v.(array)
	if !ok {
		refuse("%T where an array is to be", v)
	}
	return a
}

// ns is the namespace that the command is about.
func (x *execution) ns() string {
	name := x.command[0].value
	if x.call.Name == "getMore" {
		name = x.command.get("collection")
	}
	return asText(x.command.get("$db")) + "." + asText(name)
}

// collection is a copy of the command's collection, or a new one.
func (x *execution) collection() *collection {
	if c := x.latest().collections[x.ns()]; c != nil {
		return &collection{number: c.number, docs: c.docs, indexes: c.indexes}
	}
	x.made++
	return &collection{number: x.made}
}

func (x *execution) find() document {
	docs := x.seen()
	docs = slices.DeleteFunc(docs, func(d document) bool { return !matches(d, asDocument(cmpOr(x.command.get("filter"), document{}))) })
	order, _ := x.command.get("sort").(document)
	docs = sorted(docs, order)
	if n, _ := integer(x.command.get("limit")); n > 0 {
		docs = docs[:min(int(n), len(docs))]
	}
	projection, _ := x.command.get("projection").(document)
	return x.cursor(each(docs, func(d document) document { return project(d, projection) }))
}

func (x *execution) aggregate() document {
	return x.cursor(runPipeline(x.seen(), asArray(x.command.get("pipeline"))))
}

// firstBatch is how many documents a first answer has when nothing else is asked for.
const firstBatch = 101

// cursor is the reply that has the documents, or the first of them.
func (x *execution) cursor(docs []document) document {
	if x.failed != nil {
		return x.failed
	}
	batch := firstBatch
	size := x.command.get("batchSize")
	if c, ok := x.command.get("cursor").(document); ok {
		size = c.get("batchSize")
	}
	if n, ok := integer(size); ok {
		batch = int(n)
	}
	return x.batch("firstBatch", docs, batch)
}

func (x *execution) batch(name string, docs []document, size int) document {
	size = min(size, len(docs))
	first := make(array, size)
	for i, d := range docs[:size] {
		first[i] = d
	}
	id := int64(0)
	if rest := docs[size:]; len(rest) > 0 && !truthy(x.command.get("singleBatch")) {
		x.lastCursor++
		id = x.lastCursor
		x.cursors = with(x.cursors, id, rest)
	}
	ns := asText(x.command.get("$db")) + ".$cmd"
	if _, is := x.command[0].value.(string); is || name == "nextBatch" {
		ns = x.ns()
	}
	return document{{"cursor", document{{name, first}, {"id", id}, {"ns", ns}}}, {"ok", 1.0}}
}

func (x *execution) getMore() document {
	id, _ := integer(x.command[0].value)
	docs, ok := x.cursors[id]
	if !ok {
		return failure(&writeError{code: 43, message: "cursor not found"})
	}
	x.cursors = without(x.cursors, id)
	size := len(docs)
	if n, ok := integer(x.command.get("batchSize")); ok {
		size = int(n)
	}
	return x.batch("nextBatch", docs, size)
}

// statementFields are what a statement of an update command may have.
var statementFields = []string{"q", "u", "upsert", "multi", "hint"}

func (x *execution) update() document {
	statements := asArray(x.command.get("updates"))
	ordered := truthy(cmpOr(x.command.get("ordered"), true))
	n, modified := 0, 0
	var upserted, errors array
	for i, s := range statements {
		if stopped := x.stopped(i); stopped != nil {
			return stopped
		}
		statement := asDocument(s)
		for _, e := range statement {
			if !slices.Contains(statementFields, e.key) || e.key == "multi" && truthy(e.value) {
				refuse("%s in an update", e.key)
			}
		}
		r, err := x.write(int32(i), write{filter: statement.get("q"), update: statement.get("u"),
			upsert: truthy(statement.get("upsert")), blind: x.fault.Kind == Blind}, statement.get("hint"))
		if x.failed != nil {
			return x.failed
		}
		if err != nil {
			e := document{{"index", int32(i)}, {"code", err.code}, {"errmsg", err.message}}
			if err.pattern != nil {
				e = append(e, element{"keyPattern", err.pattern})
			}
			if errors = append(errors, e); ordered {
				break
			}
			continue
		}
		n, modified = n+r.matched, modified+r.modified
		if r.upserted != nil {
			upserted = append(upserted, document{{"index", int32(i)}, {"_id", r.upserted}})
		}
	}
	if stopped := x.stopped(len(statements)); stopped != nil {
		return stopped
	}
	reply := document{{"n", int32(n)}, {"nModified", int32(modified)}}
	if len(upserted) > 0 {
		reply = append(reply, element{"upserted", upserted})
	}
	if len(errors) > 0 {
		reply = append(reply, element{"writeErrors", errors})
	}
	return x.acknowledge(reply)
}

// stopped is the reply to a command that is stopped after so many of its items; nil when it is not. Once an ordered one has failed, it
// is stopped at its end.
func (x *execution) stopped(items int) document {
	switch {
	case x.fault.Item != items:
	case x.fault.Kind == Stopped:
		return failure(&writeError{code: codeInterrupted, message: "operation was interrupted"})
	case x.fault.Kind == SteppedDown && items > 0:
		return failure(&writeError{code: codePrimarySteppedDown, message: "primary stepped down while it wrote"})
	}
	return nil
}

// deletionFields are what a statement of a delete command may have.
var deletionFields = []string{"q", "limit", "hint"}

func (x *execution) delete() document {
	statements := asArray(x.command.get("deletes"))
	ordered := truthy(cmpOr(x.command.get("ordered"), true))
	n := 0
	var errors array
	for i, s := range statements {
		if stopped := x.stopped(i); stopped != nil {
			return stopped
		}
		statement := asDocument(s)
		for _, e := range statement {
			if limit, _ := integer(e.value); !slices.Contains(deletionFields, e.key) || e.key == "limit" && limit != 1 {
				refuse("%s in a delete", e.key)
			}
		}
		r, err := x.write(int32(i), write{filter: statement.get("q"), delete: true}, statement.get("hint"))
		if x.failed != nil {
			return x.failed
		}
		if err != nil {
			if errors = append(errors, document{{"index", int32(i)}, {"code", err.code}, {"errmsg", err.message}}); ordered {
				break
			}
			continue
		}
		n += r.matched
	}
	if stopped := x.stopped(len(statements)); stopped != nil {
		return stopped
	}
	reply := document{{"n", int32(n)}}
	if len(errors) > 0 {
		reply = append(reply, element{"writeErrors", errors})
	}
	return x.acknowledge(reply)
}

// write executes one statement of a write command, unless the session has done so before.
func (x *execution) write(statement int32, w write, hint any) (result, *writeError) {
	if level, _ := x.concern(); level != "" {
		refuse("writes with the read concern %s", level)
	}
	if x.waitsInVain() {
		return result{}, nil
	}
	if x.view != nil && x.view.pending() {
		// Also what changes nothing, and what was done before, is acknowledged when most members have all there was before it.
		x.deposedNoMore()
		x.failed = failure(&writeError{code: codePrimarySteppedDown, message: "not primary any more"})
		return result{}, nil
	}
	w.ns, w.id = x.ns(), x.newID
	w.building = func(index string) bool { return x.building[w.ns+" "+index] }
	before := x.latest()
	if x.view != nil {
		before = x.view.latest.data
	}
	if err := x.checkHint(before.collections[w.ns], hint); err != nil {
		return result{}, err
	}
	name, _ := hint.(string)
	if i := before.collections[w.ns].index(name); i != nil && len(filterOf(i.spec)) > 0 {
		refuse("writes by a partial index")
	}
	session, txn, numbered := x.transaction()
	if numbered {
		was := before.retries[session]
		if was.txn > txn {
			x.failed = failure(&writeError{code: 225, message: "a later command of the session was begun"})
			return result{}, nil
		}
		if r, done := was.done[statement]; done && was.txn == txn {
			return r, nil
		}
	}
	if x.fault.Kind == ItemFailed && x.fault.Item == int(statement) { // what was done before does not get here
		return result{}, &writeError{code: codeWriteConflict, message: "write conflict"}
	}
	after, r, err := before.apply(w)
	switch {
	case x.view != nil && after != before:
		// It was written, and is rolled back once the member learns that it is no longer primary. That is the only answer.
		x.deposedNoMore()
		x.failed = failure(&writeError{code: codePrimarySteppedDown, message: "not primary any more"})
		return result{}, nil
	case x.view != nil:
	case after != before:
		if numbered {
			after = after.withResult(session, txn, statement, r)
		}
		x.append(after)
	case numbered:
		// What changed nothing is not in the log, but the number is used up.
		x.log = slices.Clone(x.log)
		x.log[len(x.log)-1].data = after.withSession(session, txn)
	}
	return r, err
}

// newID makes the _id of a document.
func (x *execution) newID() bson.ObjectID {
	x.lastID++
	return bson.ObjectID{0: 0x65, 8: byte(x.lastID >> 24), 9: byte(x.lastID >> 16), 10: byte(x.lastID >> 8), 11: byte(x.lastID)}
}

// transaction is the session and number by which a repeated command is recognised.
func (x *execution) transaction() (session string, txn int64, numbered bool) {
	txn, numbered = x.command.get("txnNumber").(int64)
	if !numbered {
		return "", 0, false
	}
	if x.kind != ReplicaSet {
		refuse("numbered commands on a standalone server")
	}
	return asDocument(x.command.get("lsid")).get("id").(binary).data, txn, true
}
