package cli

import (
	"iter"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/server"
)

// serveFlagNames are the names of serve's flags.
func serveFlagNames() iter.Seq[string] {
	return func(yield func(string) bool) {
		more := true
		newServe().Flags().VisitAll(func(f *pflag.Flag) { more = more && yield(f.Name) })
	}
}

// TestFlagDefaults holds the flags to the defaults and limits of what they set.
func TestFlagDefaults(t *testing.T) {
	serve, record := newServe().Flags(), newRecord().Flags()
	for _, tc := range []struct {
		flags      *pflag.FlagSet
		name, want string
	}{
		{serve, "listen", "127.0.0.1:50051"},
		{serve, "data-dir", "./jobonce-data"},
		{serve, "mongodb-database", mongostore.Options{}.Database},
		{serve, "mongodb-collection", mongostore.DefaultCollection},
		{serve, "payload-document", strconv.FormatBool(!mongostore.Options{}.TextOnly)},
		{serve, "payload-once", strconv.FormatBool(!mongostore.Options{}.TextToo)},
		{serve, "allow-weak-write-concern", strconv.FormatBool(mongostore.Options{}.AllowWeakWriteConcern)},
		{serve, "max-attempts", strconv.Itoa(job.DefaultMaxAttempts)},
		{serve, "ops-listen", ""},
		{serve, "admin-listen", ""},
		{serve, "max-payload-bytes", strconv.Itoa(job.DefaultMaxBodyBytes)},
		{serve, "max-connections", strconv.Itoa(server.DefaultMaxConnections)},
		{serve, "max-connection-age", server.DefaultMaxConnectionAge.String()},
		{serve, "log-calls", strconv.FormatBool(server.Config{}.LogCalls)},
		{record, "server", serve.Lookup("listen").DefValue},
		{record, "timeout", client.DefaultTimeout.String()},
	} {
		if got := tc.flags.Lookup(tc.name).DefValue; got != tc.want {
			t.Errorf("--%s is %q by default, want %q", tc.name, got, tc.want)
		}
	}
	limit := serve.Lookup("max-payload-bytes").Value.(*config.IntRange)
	if limit.Max != job.MaxBodyBytes {
		t.Errorf("--max-payload-bytes goes up to %d, want %d", limit.Max, job.MaxBodyBytes)
	}
}

// TestChoicesAreTheEnums holds the words of a flag to the values of the enum that it sets.
func TestChoicesAreTheEnums(t *testing.T) {
	for _, tc := range []struct {
		flag   *pflag.Flag
		prefix string
		names  map[int32]string
	}{
		{newRecord().Flags().Lookup("work-mode"), "WORK_MODE_", joboncev1.WorkMode_name},
		{newGet().Flags().Lookup("view"), "JOB_VIEW_", joboncev1.JobView_name},
	} {
		var want []string
		for number := int32(1); number < int32(len(tc.names)); number++ {
			want = append(want, strings.ToLower(strings.TrimPrefix(tc.names[number], tc.prefix)))
		}
		if got := tc.flag.Value.(*config.Choice).Words; !reflect.DeepEqual(got, want) {
			t.Errorf("--%s takes %v, the enum has %v", tc.flag.Name, got, want)
		}
	}
}
