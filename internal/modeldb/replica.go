package modeldb

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	codeWriteConflict          = 112
	codePrimarySteppedDown     = 189
	codeWriteConcernFailed     = 64
	codeShutdownInProgress     = 91
	codeMaxTimeExpired         = 50
	codeNotWritablePrimary     = 10107
	codeInterrupted            = 11601
	codeInterruptedStateChange = 11602
)

// retryable are the codes to which the server adds the label RetryableWriteError, without which the driver repeats nothing
// (src/mongo/base/error_codes.yml, the category RetriableError; specifications/retryable-writes.md has the same list).
var retryable = []int32{6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}

// label adds what the server says of errors after which a numbered write may be repeated.
func (x *execution) label(reply document) {
	if _, _, numbered := x.transactionOrNone(); !numbered {
		return
	}
	code, _ := reply.get("code").(int32)
	if concern, ok := reply.get("writeConcernError").(document); ok {
		code, _ = concern.get("code").(int32)
	}
	for i, e := range reply {
		if e.key == "errorLabels" && slices.Contains(retryable, code) {
			reply[i].value = array{"RetryableWriteError"}
		}
	}
}

func (x *execution) transactionOrNone() (string, int64, bool) {
	if x.command.get("txnNumber") == nil {
		return "", 0, false
	}
	return x.transaction()
}

// timed adds the times of the logical clock, and room for labels.
func (x *execution) timed(reply document) document {
	at := x.now()
	if x.view != nil {
		at = x.view.latest.at
	}
	if level, _ := x.concern(); level == "majority" { // as old as what was read
		at = x.committed().at
		if x.view != nil {
			at = x.view.committed.at
		}
	}
	return append(reply,
		element{"errorLabels", array{}},
		element{"operationTime", at},
		element{"$clusterTime", document{{"clusterTime", x.now()}, {"signature", unsigned}}})
}

// unsigned is the signature of a time on a server without authentication.
var unsigned = document{{"hash", binary{0, string(make([]byte, 20))}}, {"keyId", int64(0)}}

// acknowledge ends a write command as its write concern wants it.
func (x *execution) acknowledge(reply document) document {
	concern, _ := x.command.get("writeConcern").(document)
	majority := false
	switch w := concern.get("w").(type) {
	case string:
		if majority = w == "majority"; !majority {
			refuse("write concern %s", w)
		}
	case nil, int32, int64:
		if n, ok := integer(w); ok && n != 1 {
			refuse("write concern %d", n)
		}
	}
	reply = append(reply, element{"ok", 1.0})
	switch code := x.fault.Kind.concern(); {
	case x.fault.Kind == SteppedDown && x.fault.Item == 0:
		return failure(&writeError{code: codePrimarySteppedDown, message: "primary stepped down while waiting for replication"})
	case code != 0:
		return append(reply, element{"writeConcernError", document{{"code", code}, {"errmsg", "waiting for replication failed"}}})
	case x.view == nil && (majority || x.kind == Standalone):
		x.commit()
	}
	return reply
}

// concern is the command's read concern.
func (x *execution) concern() (level string, after bson.Timestamp) {
	concern, _ := x.command.get("readConcern").(document)
	for _, e := range concern {
		switch e.key {
		case "level":
			level = asText(e.value)
		case "afterClusterTime":
			if after, _ = e.value.(bson.Timestamp); x.call.follows {
				after = x.told[x.call.session]
			}
		default:
			refuse("read concern with %s", e.key)
		}
	}
	return level, after
}

// waitsInVain tells whether a deposed primary is asked for what it does not get, and so answers nothing until it learns that
// it is deposed.
func (x *execution) waitsInVain() bool {
	level, after := x.concern()
	if x.view == nil || level != "linearizable" && !after.After(x.view.readable(level).at) {
		return false
	}
	x.deposedNoMore()
	x.failed = failure(&writeError{code: codeInterruptedStateChange, message: "not primary any more"})
	return true
}

// read is what a reading command sees of its collection.
func (x *execution) read() []document {
	if x.waitsInVain() {
		return nil
	}
	level, after := x.concern()
	e := x.readable(level)
	if x.view == nil && after.After(e.at) {
		x.commit() // it waits for the others to catch up
		e = x.readable(level)
	}
	c := e.collections[x.ns()]
	if c == nil {
		return nil
	}
	if err := x.checkHint(c, x.command.get("hint")); err != nil {
		x.failed = failure(err)
		return nil
	}
	return slices.Clone(c.docs)
}

// readable is the entry that a read sees.
func (x *execution) readable(level string) entry {
	if x.view != nil {
		return x.view.readable(level)
	}
	switch level {
	case "", "local", "available":
		return x.log[len(x.log)-1]
	case "linearizable":
		if x.kind != ReplicaSet {
			refuse("read concern linearizable on a standalone server")
		}
		x.append(x.latest()) // a write of its own, that must reach most members
		x.commit()
	case "majority":
	default:
		refuse("read concern %s", level)
	}
	return x.committed()
}

// deposedNoMore: the client has learned who is primary.
func (x *execution) deposedNoMore() { x.behind = without(x.behind, x.call.Client) }
