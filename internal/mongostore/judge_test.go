package mongostore

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/jobonce/jobonce/internal/testenv"
)

func raw(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(d)
	testenv.Must(t, err)
	return b
}

// wantSchemaError checks that an error is one for a person, and says the text.
func wantSchemaError(t *testing.T, err error, text string) {
	t.Helper()
	var schema *schemaError
	if !errors.As(err, &schema) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want a schema error that says %q", err, text)
	}
}

func TestJudgeIndexes(t *testing.T) {
	key := func(n any) bson.E { return bson.E{Key: "key", Value: bson.D{{Key: "job_id", Value: n}}} }
	name := bson.E{Key: "name", Value: "job_id_1"}
	unique := bson.E{Key: "unique", Value: true}
	id := bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "name", Value: "_id_"}}
	good := bson.D{key(int32(1)), name, unique}
	for label, c := range map[string]struct {
		indexes []bson.D
		found   bool
		fault   string
	}{
		"none":             {nil, false, ""},
		"of _id alone":     {[]bson.D{id}, false, ""},
		"ours":             {[]bson.D{id, good}, true, ""},
		"int64":            {[]bson.D{{key(int64(1)), name, unique}}, true, ""},
		"double":           {[]bson.D{{key(1.0), name, unique}}, true, ""},
		"other name":       {[]bson.D{{key(1), {Key: "name", Value: "jobs"}, unique}}, true, ""},
		"simple collation": {[]bson.D{{key(1), name, unique, {Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}}, true, ""},
		"descending":       {[]bson.D{{key(-1), name, unique}}, false, ""},
		"hashed":           {[]bson.D{{key("hashed"), name}}, false, ""},
		"compound": {[]bson.D{{{Key: "key", Value: bson.D{{Key: "job_id", Value: 1}, {Key: "event", Value: 1}}}, name, unique}},
			false, ""},
		"without a key": {[]bson.D{{name, unique}}, false, ""},
		"not unique":    {[]bson.D{{key(1), name}}, false, "not unique"},
		"unique: false": {[]bson.D{{key(1), name, {Key: "unique", Value: false}}}, false, "not unique"},
		"sparse":        {[]bson.D{{key(1), name, unique, {Key: "sparse", Value: true}}}, false, "sparse"},
		"partial":       {[]bson.D{{key(1), name, unique, {Key: "partialFilterExpression", Value: bson.D{}}}}, false, "partial"},
		"TTL":           {[]bson.D{{key(1), name, unique, {Key: "expireAfterSeconds", Value: 3600}}}, false, "expires"},
		"TTL of 0":      {[]bson.D{{key(1), name, unique, {Key: "expireAfterSeconds", Value: 0.0}}}, false, "expires"},
		"collation": {[]bson.D{{key(1), name, unique, {Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}}}}},
			false, "collation en"},
		"two faults": {[]bson.D{{key(1), name, {Key: "sparse", Value: true}}}, false, "not unique and it is sparse"},
		"one right and one wrong": {[]bson.D{good, {key(1.0), {Key: "name", Value: "other"}, unique, {Key: "sparse", Value: true}}},
			false, `"other"`},
	} {
		t.Run(label, func(t *testing.T) {
			var indexes []bson.Raw
			for _, d := range c.indexes {
				indexes = append(indexes, raw(t, d))
			}
			found, err := judgeIndexes(indexes)
			if (found != nil) != c.found {
				t.Errorf("found %v, want one: %t", found, c.found)
			}
			if c.fault != "" {
				wantSchemaError(t, err, c.fault)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestJudgeCollection(t *testing.T) {
	locale := func(l string) bson.D { return bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: l}}}} }
	for label, c := range map[string]struct {
		kind  string
		opts  bson.D
		fault string
	}{
		"plain":            {"collection", nil, ""},
		"without a type":   {"", bson.D{}, ""},
		"validator":        {"collection", bson.D{{Key: "validator", Value: bson.D{}}}, ""},
		"simple collation": {"collection", locale("simple"), ""},
		"collation":        {"collection", locale("de"), `collation "de"`},
		"capped":           {"collection", bson.D{{Key: "capped", Value: true}, {Key: "size", Value: 1000}}, "capped"},
		"view":             {"view", bson.D{{Key: "viewOn", Value: "x"}}, "is a view"},
		"time series":      {"timeseries", nil, "is a timeseries"},
	} {
		t.Run(label, func(t *testing.T) {
			var opts bson.Raw
			if c.opts != nil {
				opts = raw(t, c.opts)
			}
			err := judgeCollection("jobs", c.kind, opts)
			if c.fault != "" {
				wantSchemaError(t, err, c.fault)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestURIOptions holds what the URI says, and our defaults where it is silent.
func TestURIOptions(t *testing.T) {
	for query, c := range map[string]struct {
		selection time.Duration
		connect   time.Duration
		app       string
	}{
		"":                              {3 * time.Second, 5 * time.Second, "jobonce"},
		"serverSelectionTimeoutMS=7":    {7 * time.Millisecond, 5 * time.Second, "jobonce"},
		"connectTimeoutMS=8":            {3 * time.Second, 8 * time.Millisecond, "jobonce"},
		"appName=mine&retryWrites=true": {3 * time.Second, 5 * time.Second, "mine"},
	} {
		co, err := clientOptions(&Options{URI: "mongodb://host/?" + query, Logger: testenv.Logger(t)})
		testenv.Must(t, err)
		if *co.ServerSelectionTimeout != c.selection || *co.ConnectTimeout != c.connect || *co.AppName != c.app {
			t.Errorf("%s: selection %v, connect %v, app %s", query, *co.ServerSelectionTimeout, *co.ConnectTimeout, *co.AppName)
		}
	}
	co, err := clientOptions(&Options{URI: "mongodb://host/?maxPoolSize=7&minPoolSize=2&timeoutMS=900&maxIdleTimeMS=1000"})
	testenv.Must(t, err)
	if *co.MaxPoolSize != 7 || *co.MinPoolSize != 2 || *co.Timeout != 900*time.Millisecond || *co.MaxConnIdleTime != time.Second {
		t.Errorf("the URI's pool and timeouts are not kept: %+v", co)
	}
}

// TestConcerns: what is weaker than a journaled majority is refused, or accepted on request; what reads is always strong.
func TestConcerns(t *testing.T) {
	for query, c := range map[string]struct {
		w       any
		journal bool
		weak    string // what the error names; "never" when the flag does not help
		warning string
	}{
		"":                                  {"majority", true, "", ""},
		"journal=true":                      {"majority", true, "", ""},
		"w=majority&journal=true":           {"majority", true, "", ""},
		"journal=false":                     {"majority", false, "journal=false", ""},
		"w=majority&journal=false":          {"majority", false, "journal=false", ""},
		"w=1":                               {1, true, "w=1", ""},
		"w=2&journal=true":                  {2, true, "w=2", ""},
		"w=two-centres":                     {"two-centres", true, "w=two-centres", ""},
		"w=0":                               {nil, true, "never", ""},
		"w=0&journal=false":                 {nil, true, "never", ""},
		"readPreference=primary":            {"majority", true, "", ""},
		"readPreference=secondaryPreferred": {"majority", true, "", "readPreference=secondaryPreferred"},
		"readPreference=nearest&readPreferenceTags=a:b&maxStalenessSeconds=90": {"majority", true, "", "readPreference=nearest"},
		"readConcernLevel=local":        {"majority", true, "", "readConcernLevel=local"},
		"readConcernLevel=available":    {"majority", true, "", "readConcernLevel=available"},
		"readConcernLevel=majority":     {"majority", true, "", ""},
		"readConcernLevel=linearizable": {"majority", true, "", ""},
	} {
		for _, allowed := range []bool{false, true} {
			var log strings.Builder
			co, err := clientOptions(&Options{URI: "mongodb://host/?" + query, AllowWeakWriteConcern: allowed,
				Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if c.weak == "never" || c.weak != "" && !allowed {
				if err == nil {
					t.Errorf("%s is taken", query)
				} else if named := strings.Contains(err.Error(), "--allow-weak-write-concern"); named == (c.weak == "never") ||
					!strings.HasPrefix(err.Error(), "MongoDB URI: ") || c.weak != "never" && !strings.Contains(err.Error(), c.weak) {
					t.Errorf("%s: %v", query, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", query, err)
				continue
			}
			if wc := co.WriteConcern; wc.W != c.w || *wc.Journal != c.journal {
				t.Errorf("%s: write concern %+v, journal %v", query, wc, *wc.Journal)
			}
			if co.ReadPreference.Mode() != readpref.PrimaryMode || co.ReadConcern.Level != "majority" {
				t.Errorf("%s: reads at %v, %v", query, co.ReadPreference, co.ReadConcern)
			}
			if warned := strings.Contains(log.String(), "weakens the write concern"); warned != (c.weak != "") {
				t.Errorf("%s: warned: %t", query, warned)
			}
			if warned := strings.Contains(log.String(), "level=WARN"); warned != (c.weak != "" || c.warning != "") || !strings.Contains(log.String(), c.warning) {
				t.Errorf("%s: logged %s", query, &log)
			}
		}
	}
}
