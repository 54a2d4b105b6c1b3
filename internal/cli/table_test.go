package cli

import (
	"slices"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	var out strings.Builder
	rows := [][]string{{"JOB_ID", "STATE", "NOTE"}, {"grüße", "DEAD", ""}, {strings.Repeat("x", 20), "QUEUED", "why"}}
	if err := table(&out, rows); err != nil {
		t.Fatal(err)
	}
	want := "JOB_ID                STATE   NOTE\ngrüße                 DEAD\n" + strings.Repeat("x", 20) + "  QUEUED  why\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	for _, c := range []struct {
		widths  []int
		columns int
		want    []int
	}{
		{[]int{20, 6, 40}, 80, []int{20, 6, 40}},
		{[]int{20, 6, 40}, 50, []int{20, 6, 20}},
		{[]int{60, 6, 70}, 40, []int{15, 6, 15}},
		{[]int{60, 6, 70}, 10, []int{8, 6, 8}}, // narrower than is of use
	} {
		if fit(c.widths, c.columns); !slices.Equal(c.widths, c.want) {
			t.Errorf("in %d columns: %v, want %v", c.columns, c.widths, c.want)
		}
	}
	if got := cut("grüße", 4); got != "grü…" {
		t.Errorf("cut to %q", got)
	}
}
