package mongostore

import (
	"os"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestDocsAreComplete: docs/mongodb.md has every field, index and default in its tables.
func TestDocsAreComplete(t *testing.T) {
	page, err := os.ReadFile("../../docs/mongodb.md")
	testenv.Must(t, err)
	rows := []string{"| `" + indexName + "` |", "| 3000 |", "| 5000 |"}
	for _, index := range workIndexes() {
		rows = append(rows, "| `"+nameIn(index)+"` |")
	}
	for _, field := range []string{fieldJobID, fieldEvent, fieldStatus, fieldPayload, fieldFirstSeen, fieldDeliveries, fieldPayloadText, fieldPayloadForm,
		fieldPayloadBytes, fieldPayloadDropped, fieldFingerprint, fieldRequestID, fieldCaller, fieldSource, fieldContentType, fieldTraceparent, fieldPayloadOmitted, fieldLastSeen, fieldConflicts,
		fieldLastConflict, fieldWork, workState, workMode, workDue, workGroup, workToken, workGeneration, workAttempts, workRequeues, workClaimID, workLease, workResult, workError} {
		rows = append(rows, "| `"+field+"` |")
	}
	for _, row := range rows {
		if !strings.Contains(string(page), row) {
			t.Errorf("no row with %s", row)
		}
	}
}
