package server

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/jobonce/jobonce/internal/job"
)

// listLimits are the limits of the lists in requests, by the request's and the field's name.
var listLimits = map[protoreflect.FullName]struct {
	field protoreflect.Name
	limit int
}{
	"jobonce.v1.BatchRecordDeliveriesRequest": {"deliveries", maxBatchItems},
	"jobonce.v1.ClaimWorkRequest":             {"events", job.MaxClaimEvents},
}

// checkLists refuses a message with a list that is too long, before it is decoded: two bytes on the wire become an object
// of a hundred and more. What is wrong with the message otherwise is for the decoder to say.
func checkLists(b []byte, md protoreflect.MessageDescriptor) error {
	list, ok := listLimits[md.FullName()]
	if !ok {
		return nil
	}
	number, items := md.Fields().ByName(list.field).Number(), 0
	for len(b) > 0 {
		num, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return nil
		}
		if num == number {
			items++
		}
		b = b[n:]
	}
	return listTooLong(string(list.field), items, list.limit)
}

// listTooLong is nil when a list is not too long.
func listTooLong(field string, items, limit int) error {
	if items <= limit {
		return nil
	}
	return &job.InvalidError{Field: field, Problem: fmt.Sprintf("has %d items; the limit is %d", items, limit)}
}
