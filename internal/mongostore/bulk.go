package mongostore

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// maxBulk bounds a bulk on the wire, in bytes: the driver splits one over 48 MB.
const maxBulk = 40_000_000

// bulk is what became of a bulk of writes.
type bulk struct {
	// whole is set when nothing is known of any item.
	whole *failure
	// failed are the errors of items, by their places.
	failed map[int]mongo.WriteError
	// repeated is set when the driver has sent it more than once. What failed in the last of its tries may land yet, from an earlier one.
	repeated bool
	// unsafe is set when what was applied may yet be rolled back.
	unsafe error
	// matched is how many documents the items without an error have matched; upserted has those that made one.
	matched  int
	upserted map[int64]any
}

// write sends writes, which together are below maxBulk, as one bulk.
func (s *Store) write(ctx context.Context, writes []mongo.WriteModel) bulk {
	tracked, sent := track(ctx)
	// Unordered, so that one bad item spoils no other. A lone one has no others, and an ordered bulk costs DocumentDB less.
	result, err := s.coll.BulkWrite(tracked, writes, options.BulkWrite().SetOrdered(len(writes) == 1))
	var e mongo.BulkWriteException
	if err != nil && !errors.As(err, &e) || sent.commands > 1 {
		f := &failure{fateUnknown, cmp.Or(err, errSplit)}
		if sent.commands <= 1 {
			f = commandFailed(err, sent)
		}
		return bulk{whole: f}
	}
	b := bulk{failed: failedItems(e), repeated: sent.sent > 1, matched: int(result.MatchedCount), upserted: result.UpsertedIDs}
	if e.WriteConcernError != nil {
		s.log.Warn("a write concern was not met", "store", s.String(), "code", e.WriteConcernError.Code, "error", e.WriteConcernError.Message)
		b.unsafe = err
	}
	return b
}

// failure is the worst that may be true of any item; nil when all went well.
func (b *bulk) failure() *failure {
	switch {
	case b.whole != nil:
		return b.whole
	case b.unsafe != nil:
		return &failure{fateUnknown, b.unsafe}
	case len(b.failed) == 0:
		return nil
	}
	items := slices.Collect(maps.Values(b.failed))
	f := worst(items, items[0])
	if b.repeated {
		f.fate = fateUnknown
	}
	return f
}

// confirm tells whether what was applied is to be read at a majority before it is answered: some mongos lose the write
// concern error of a bulk in which an item failed.
func (b *bulk) confirm(s *Store) bool {
	return b.unsafe != nil || len(b.failed) > 0 && s.deployment.Load().kind == sharded
}

// parts cuts what is to be written into parts that fit into a bulk.
func parts[M any](all []M, size func(M) int) iter.Seq[[]M] {
	return func(yield func([]M) bool) {
		for len(all) > 0 {
			n, bytes := 0, 0
			for ; n < len(all); n++ {
				if bytes += size(all[n]) + 256; n > 0 && bytes > maxBulk {
					break
				}
			}
			if !yield(all[:n]) {
				return
			}
			all = all[n:]
		}
	}
}
