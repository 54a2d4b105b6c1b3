package explore_test

import (
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/modeldb"
)

// TestFound replays schedules by which the exploration found mistakes of the store that are mended since.
func TestFound(t *testing.T) {
	for name, c := range map[string]struct {
		scenario   string
		deployment modeldb.Deployment
		schedule   string
	}{
		"a renewal that was made is not called unwritten": {"lapse × renew, of the same claim", modeldb.Standalone, "A1 A2-stopped-1 leave-1"},
		"a claim takes over no lease that runs by the clock that grants": {"renew × claim, a clock set back", modeldb.ReplicaSet,
			"A1 A2 B1 B-clock-ahead B2 B-clock-back B3"},
		"two deliveries that mark one lease in turns are each told what they wrote": {"record again × record again, of a reclaimed lease",
			modeldb.Standalone, "A1 A2 A3 B1 B2 B3 A4 B4"},
		"several deletions that were made are not called unwritten": {"delete both × record", modeldb.ReplicaSet, "A1 A2 B1 B2 leave-1 A3-late"},
		"what the driver repeated may have been made, whatever the last try failed of": {"complete both × requeue by force", modeldb.ReplicaSet,
			"B1 B2-cut B3-item-0 B2-late A1 A2 A3 B4 B5"},
		"a delivery that the driver repeated is not called unwritten": {"record, the index lost", modeldb.ReplicaSet,
			"A1-stepped-down index-lost A2 A3 A4"},
		"an index that is lost twice makes no record unusable": {"record, the index lost", modeldb.Standalone, "index-building A1 A2 A3 index-lost A4"},
		"a pause that was made is not called unwritten":        {"pause, then claim", modeldb.Standalone, "A1 A2 A3 leave-1"},
		"a pause that was ended is not called unwritten":       {"resume, then claim", modeldb.Standalone, "A1 A2 A3 leave-1"},
		"a claim that granted a lease is not called unwritten": {"lapse × release", modeldb.Standalone, "A1 B1 B2 lapse B3 B4 B5-refused B6"},
	} {
		t.Run(name, func(t *testing.T) {
			s, ok := scenarioNamed(c.scenario)
			if !ok {
				t.Fatalf("no scenario %q", c.scenario)
			}
			outcome, err := replay(t, s, c.deployment, strings.Fields(c.schedule), t.Logf)
			t.Logf("in the end:\n%s", outcome)
			if err != nil {
				t.Error(err)
			}
		})
	}
}
