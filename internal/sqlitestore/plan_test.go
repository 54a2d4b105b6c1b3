package sqlitestore

import (
	"strings"
	"testing"
)

// TestClaimsUseTheDueIndex shows the query plans of claims: finished jobs are in neither index, so however many there are,
// they are not looked at.
func TestClaimsUseTheDueIndex(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for query, want := range map[string]string{
		dueQuery:         "SEARCH jobs USING INDEX jobs_due",
		dueTooFarQuery:   "SEARCH jobs USING INDEX jobs_due",
		unclaimableQuery: "CO-ROUTINE (subquery-1)\nSEARCH jobs USING INDEX jobs_unclaimable",
		ofClaimCallQuery: "SEARCH jobs USING INDEX jobs_claim",
		byIDQuery:        "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1",
	} {
		args := []any{1, 1, 1}[:map[string]int{dueQuery: 2, dueTooFarQuery: 3, unclaimableQuery: 2, ofClaimCallQuery: 2, byIDQuery: 1}[query]]
		rows, err := s.readerDB.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(plan, "\n")
		if !strings.HasPrefix(got, want) || strings.Contains(got, "SCAN jobs") || strings.Contains(got, "TEMP B-TREE FOR ORDER BY") && query != ofClaimCallQuery {
			t.Errorf("%s\nis planned as\n%s\nwant %s", query, got, want)
		}
	}
}
