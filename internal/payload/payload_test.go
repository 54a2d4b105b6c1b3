package payload

import (
	"strings"
	"testing"
)

func TestScan(t *testing.T) {
	present := func(value string) Field { return Field{Kind: String, Value: value, Present: true} }
	of := func(kind Kind) Field { return Field{Kind: kind} }
	repeated := func(f Field) Field { f.Repeated = true; return f }
	for _, c := range []struct {
		name string
		text string
		want Info
	}{
		{
			"all three", `{"job_id":"j1","event":"job.completed","status":"OK"}`,
			Info{JSON: true, Object: true, JobID: present("j1"), Event: present("job.completed"), Status: present("OK")},
		},
		{"none", `{"id":"j1"}`, Info{JSON: true, Object: true}},
		{"empty object", `{}`, Info{JSON: true, Object: true}},
		{"array", `[{"job_id":"j1"},"job_id"]`, Info{JSON: true}},
		{"string", `"job_id"`, Info{JSON: true}},
		{"form", `job_id=j1`, Info{}},
		{"empty", ``, Info{}},
		{"fields before a fault", `{"job_id":"j1","event":"e"} trailing`, Info{}},
		{"fields before an invalid byte", "{\"job_id\":\"j1\",\"x\":\"\xff\"}", Info{}},

		{"empty value", `{"job_id":""}`, Info{JSON: true, Object: true, JobID: present("")}},
		{"number", `{"job_id":42}`, Info{JSON: true, Object: true, JobID: of(Number)}},
		{"null", `{"event":null,"status":"OK"}`, Info{JSON: true, Object: true, Event: of(Null), Status: present("OK")}},
		{"bool, object, array", `{"job_id":true,"event":{"event":"e"},"status":["s"]}`,
			Info{JSON: true, Object: true, JobID: of(True), Event: of(EndObject), Status: of(EndArray)}},
		{"nested ones", `{"data":{"job_id":"inner"},"list":[{"event":"e"}],"job_id":"j1"}`, Info{JSON: true, Object: true, JobID: present("j1")}},
		{"value named like a key", `{"a":"job_id","b":"j1"}`, Info{JSON: true, Object: true}},
		{"after an object as value", `{"event":{"a":"b"},"x":"y"}`, Info{JSON: true, Object: true, Event: of(EndObject)}},

		{"escaped key", `{"\u006aob_id":"j1"}`, Info{JSON: true, Object: true, JobID: present("j1")}},
		{"key escaped whole", `{"\u006a\u006f\u0062\u005f\u0069\u0064":"j1"}`, Info{JSON: true, Object: true, JobID: present("j1")}},
		{"other case", `{"Job_ID":"j1","JOB_ID":"j2"}`, Info{JSON: true, Object: true}},
		{"key with more", `{"job_id\u0000":"j1","job_id ":"j2"}`, Info{JSON: true, Object: true}},
		{"escaped value", `{"job_id":"a\u0062\n"}`, Info{JSON: true, Object: true, JobID: present("ab\n")}},
		{"lone surrogate", `{"job_id":"\ud800","event":"e"}`, Info{JSON: true, Object: true, JobID: of(String), Event: present("e")}},

		{"twice", `{"job_id":"j1","job_id":"j2"}`, Info{JSON: true, Object: true, JobID: repeated(present("j2"))}},
		{"twice in two spellings", `{"job_id":"j1","\u006aob_id":"j1"}`, Info{JSON: true, Object: true, JobID: repeated(present("j1"))}},
		{"twice, last no string", `{"event":"e","event":1}`, Info{JSON: true, Object: true, Event: repeated(of(Number))}},
		{"twice, last null", `{"event":"e","event":null}`, Info{JSON: true, Object: true, Event: repeated(of(Null))}},
		{"twice, first no string", `{"event":{},"event":"e"}`, Info{JSON: true, Object: true, Event: repeated(present("e"))}},
		{"three times", `{"event":1,"event":2,"event":3}`, Info{JSON: true, Object: true, Event: repeated(of(Number))}},

		{"byte-order mark", "\ufeff" + `{"job_id":"j1"}`, Info{JSON: true, Object: true, BOM: true, JobID: present("j1")}},
		{"mark, then space", "\ufeff\n " + `{"event":"e"}`, Info{JSON: true, Object: true, BOM: true, Event: present("e")}},
		{"mark before no object", "\ufeff[]", Info{JSON: true, BOM: true}},
		{"mark before no JSON", "\ufeffjob_id=j1", Info{}},
		{"mark alone", "\ufeff", Info{}},
		{"mark cut off", "\xef\xbb" + `{"job_id":"j1"}`, Info{}},
		{"two marks", "\ufeff\ufeff" + `{"job_id":"j1"}`, Info{}},
		{"mark after space", " \ufeff" + `{"job_id":"j1"}`, Info{}},
		{"mark behind", `{"job_id":"j1"}` + "\ufeff", Info{}},
		{"mark as a key's own", "{\"\ufeffjob_id\":\"j1\"}", Info{JSON: true, Object: true}},
	} {
		if got := Scan(c.text, limits); got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
		if want := oracleInfo(t, c.text, limits); want != c.want {
			t.Errorf("%s: encoding/json says %+v", c.name, want)
		}
	}
}

// What a member says and Value does not hold must show: it may be another event.
func TestFieldUnread(t *testing.T) {
	for value, want := range map[string]bool{
		`"e"`: false, `""`: false, `null`: false, `1,"event":"e"`: false,
		`1`: true, `true`: true, `false`: true, `{}`: true, `{"event":"e"}`: true, `[]`: true, `["e"]`: true, `"\ud800"`: true,
		`"` + strings.Repeat("x", 9) + `"`: true, `"e","event":1`: true, `null,"event":{}`: true,
		`"ok","event":null`: true, // Some parsers, encoding/json among them, keep the one before.
	} {
		if got := Scan(`{"event":`+value+`,"x":"y"}`, Limits{Event: 8}).Event; got.Unread() != want {
			t.Errorf("%s: unread %t, %+v", value, got.Unread(), got)
		}
	}
	if (Field{}).Unread() {
		t.Error("a member that is not there is unread")
	}
}

func TestScanLimits(t *testing.T) {
	for _, c := range []struct {
		name  string
		value string // between quotes
		want  bool
	}{
		{"at the limit", "12345678", true},
		{"above", "123456789", false},
		{"escaped, at the limit", strings.Repeat(`\u0041`, 8), true},
		{"escaped, above", strings.Repeat(`\u0041`, 9), false},
		{"escaped, far above", strings.Repeat(`\u0041`, 100), false},
		{"two bytes each, at the limit", "ääää", true},
		{"two bytes each, above", "äääää", false},
		{"two bytes each, escaped", `\u00e4\u00e4\u00e4\u00e4`, true},
		{"two bytes each, escaped, above", `\u00e4\u00e4\u00e4\u00e4\u00e4`, false},
		{"a pair each", `\ud83d\ude00\ud83d\ude00`, true},
		{"a pair each, above", `\ud83d\ude00\ud83d\ude00!`, false},
	} {
		got := Scan(`{"job_id":"`+c.value+`"}`, Limits{JobID: 8}).JobID
		if got.Present != c.want || got.Repeated || (got.Value == "") == c.want {
			t.Errorf("%s: got %+v", c.name, got)
		}
	}

	if got := Scan(`{"job_id":"","event":"x"}`, Limits{}); !got.JobID.Present || got.Event.Present {
		t.Errorf("limit zero: got %+v", got)
	}
}

// Neither a long value nor a long key is copied, escaped or not.
func TestScanCopiesNothingLong(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, text := range map[string]string{
		"plain value":   `{"job_id":"` + long + `"}`,
		"escaped value": `{"job_id":"\n` + long + `"}`,
		"escaped key":   `{"\u006aob_id` + long + `":"j1"}`,
		"other fields":  `{"job_id":"j1","event":"e","status":"s","x":"\n","y":[1,2.5,true,null,{}]}`,
	} {
		if n := testing.AllocsPerRun(5, func() { Scan(text, limits) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
