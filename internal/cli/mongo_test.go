package cli

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/jobonce/jobonce/internal/testenv"
)

// awayURI names a database that is not there, with a password.
const awayURI = "mongodb://user:swordfish@127.0.0.1:1/"

func TestServeWithoutItsDatabase(t *testing.T) {
	defer goleak.VerifyNone(t)
	cfg := testServeConfig(t)
	cfg.store.mongo, cfg.store.uri = true, awayURI
	h := serveHere(t, cfg)
	if got := h.health(); got != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health says %v", got)
	}
	code, stdout, stderr := run("record", "--server", h.addr, "--job-id", "j")
	if code != exitRetry || stdout != "" || !strings.HasPrefix(stderr, "UNAVAILABLE STORE_UNAVAILABLE: ") {
		t.Errorf("record: exit code %d, standard output %q, standard error %q", code, stdout, stderr)
	}
	if code, body := h.get("/livez"); code != 200 {
		t.Errorf("/livez: %d %s", code, body)
	}
	code, body := h.get("/readyz")
	if code != 503 || !strings.HasPrefix(body, "not ready: ") || strings.Contains(body, "swordfish") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if _, body := h.get("/metrics"); !strings.Contains(body, "\njobonce_store_ready 0\n") {
		t.Error("/metrics does not say that the store is away")
	}
	if printed := h.stop(); printed != "" {
		t.Errorf("printed %q, but it was never ready", printed)
	}
	if log := h.logged(); !strings.Contains(log, `"msg":"not serving: the store is not ready"`) || strings.Contains(log, "swordfish") {
		t.Errorf("logged\n%s", log)
	}
}

// TestServeStoppedBeforeItIsReady is about the exit code, so it takes a process.
func TestServeStoppedBeforeItIsReady(t *testing.T) {
	p, err := testenv.Program{Path: "jobonce", Env: []string{"MONGODB_URI=" + awayURI}, Args: []string{"serve", "--listen", "127.0.0.1:0"}}.Start()
	testenv.Must(t, err)
	// Signals are taken long before the first line of the log.
	for deadline := time.Now().Add(time.Minute); p.Log.String() == "" && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	testenv.OK(t, p.Stop())
}

// TestOps holds what the ops pages of either store show against what was done.
func TestOps(t *testing.T) {
	stores := map[string]func(*testing.T, *serveConfig){
		"embedded": func(*testing.T, *serveConfig) {},
		"MongoDB": func(t *testing.T, cfg *serveConfig) {
			cfg.store.mongo, cfg.store.uri, cfg.store.database = true, testenv.MongoURI(t), testenv.Database(t)
		},
	}
	for name, use := range stores {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			cfg := testServeConfig(t)
			use(t, cfg)
			h := serveHere(t, cfg)
			if line, err := h.stdout.ReadString('\n'); err != nil || !readyLine.MatchString(line) {
				t.Fatalf("got %q, %v; logged\n%s", line, err, h.logged())
			}
			if log := h.logged(); strings.Contains(log, `"level":"ERROR"`) {
				t.Errorf("a healthy start is told as an error:\n%s", log)
			}
			// What is ready says so at once.
			if got := h.health(); got != grpc_health_v1.HealthCheckResponse_SERVING {
				t.Errorf("health says %v", got)
			}
			if code, body := h.get("/readyz"); code != 200 {
				t.Errorf("/readyz: %d %s", code, body)
			}
			for _, want := range []struct{ event, word string }{{"a", "FIRST"}, {"b", "DUPLICATE"}, {"b", "DUPLICATE"}} {
				if _, stdout, stderr := run("record", "--server", h.addr, "--job-id", "j", "--event", want.event); !strings.HasPrefix(stdout, want.word) {
					t.Errorf("want %s: %s%s", want.word, stdout, stderr)
				}
			}
			if code, _, _ := run("record", "--server", h.addr); code != exitRefused {
				t.Error("a delivery without a job id was taken")
			}

			_, body := h.get("/metrics")
			lines := strings.Split(body, "\n")
			const call = `grpc_method="RecordDelivery",grpc_service="jobonce.v1.IdempotencyService",grpc_type="unary"} `
			for _, want := range []string{
				`jobonce_deliveries_total{disposition="FIRST"} 1`,
				`jobonce_deliveries_total{disposition="DUPLICATE"} 2`,
				`jobonce_conflicts_total{kind="EVENT"} 2`,
				`jobonce_delivery_failures_total{reason="INVALID_FIELD"} 1`,
				`jobonce_batch_size_count 3`,
				`jobonce_batch_size_sum 3`,
				`jobonce_batch_duration_seconds_count 3`,
				`jobonce_queue_deliveries 0`,
				`jobonce_store_ready 1`,
				`grpc_server_handled_total{grpc_code="OK",` + call + `3`,
				`grpc_server_handled_total{grpc_code="InvalidArgument",` + call + `1`,
				`grpc_server_handling_seconds_count{` + call + `4`,
			} {
				if !slices.Contains(lines, want) {
					t.Errorf("/metrics has no line %s", want)
				}
			}
			if has := strings.Contains(body, "\njobonce_store_clock_offset_seconds "); has != cfg.store.mongo {
				t.Errorf("the clock offset is shown: %t", has)
			}
			if printed := h.stop(); printed != "" {
				t.Errorf("printed %q after the first line", printed)
			}
		})
	}
}

// TestPayloadDocumentFlag looks at what the flags make of the stored document.
func TestPayloadDocumentFlag(t *testing.T) {
	uri := testenv.MongoURI(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db, err := mongo.Connect(options.Client().ApplyURI(uri))
	testenv.Must(t, err)
	defer func() { testenv.OK(t, db.Disconnect(ctx)) }()
	for _, c := range []struct{ document, once, text, form bool }{
		{document: true, once: true, form: true}, {document: true, text: true}, {once: true, text: true}, {text: true},
	} {
		cfg := testServeConfig(t)
		cfg.store.mongo, cfg.store.uri, cfg.store.database = true, uri, testenv.Database(t)
		cfg.store.payloadDocument, cfg.store.payloadOnce = c.document, c.once
		h := serveHere(t, cfg)
		if _, err := h.stdout.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if code, _, stderr := run("record", "--server", h.addr, "--job-id", "j", "--payload", `{"n":1}`); code != 0 {
			t.Error(stderr)
		}
		h.stop()
		stored, err := db.Database(cfg.store.database).Collection("sume_jobs").FindOne(ctx, bson.D{{Key: "job_id", Value: "j"}}).Raw()
		testenv.Must(t, err)
		for field, want := range map[string]bool{"payload": c.document, "payload_text": c.text, "payload_form": c.form} {
			if _, err := stored.LookupErr(field); (err == nil) != want {
				t.Errorf("with --payload-document=%t --payload-once=%t the document is %s", c.document, c.once, stored)
			}
		}
	}
}
