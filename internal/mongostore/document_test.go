package mongostore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// collection is the database's own view of a store's collection.
func collection(t *testing.T, uri, database string) *mongo.Collection {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetTimeout(time.Minute))
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, client.Disconnect(context.WithoutCancel(t.Context()))) })
	return client.Database(database).Collection(mongostore.DefaultCollection)
}

// documentOf reads a job's document as it is stored.
func documentOf(t *testing.T, jobs *mongo.Collection, jobID string) bson.Raw {
	t.Helper()
	doc, err := jobs.FindOne(t.Context(), bson.D{{Key: "job_id", Value: jobID}}).Raw()
	if err != nil {
		t.Fatalf("the document of %q: %v", jobID, err)
	}
	return doc
}

func delivery(t *testing.T, in job.Input) job.Delivery {
	t.Helper()
	d, err := in.Delivery(job.MaxBodyBytes)
	if err != nil {
		t.Fatalf("delivery %.80q: %v", in.JobID, err)
	}
	return d
}

// recordOne records one delivery and wants it to be decided so.
func recordOne(t *testing.T, s job.Store, in job.Input, want job.Disposition, deliveries int64) job.Outcome {
	t.Helper()
	o := s.Record(t.Context(), []job.Delivery{delivery(t, in)})[0]
	if o.Err != nil {
		t.Fatalf("Record %.80q: %v", in.JobID, o.Err)
	}
	if o.Verdict.Disposition != want || o.Record.Deliveries != deliveries {
		t.Fatalf("Record %.80q: disposition %d, deliveries %d, want %d, %d", in.JobID, o.Verdict.Disposition, o.Record.Deliveries, want, deliveries)
	}
	return o
}

type payloadCase struct {
	Name    string   `json:"name"`
	Want    string   `json:"want"`
	Payload string   `json:"payload"`
	Base64  []byte   `json:"payload_base64"`
	Parts   [][2]any `json:"payload_parts"`
	JobID   string   `json:"request_job_id"`
}

func payloadCases(t *testing.T) []payloadCase {
	t.Helper()
	f, err := os.Open("../payload/testdata/payloads.jsonl")
	testenv.Must(t, err)
	defer f.Close()
	var cases []payloadCase
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var c payloadCase
		testenv.Must(t, json.Unmarshal(lines.Bytes(), &c))
		for _, part := range c.Parts {
			c.Payload += strings.Repeat(part[0].(string), int(part[1].(float64)))
		}
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil || len(cases) == 0 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	return cases
}

// TestPayloadCases records every case and looks at the stored document.
func TestPayloadCases(t *testing.T) {
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	s, jobs := open(t, mongostore.Options{URI: uri, Database: database}), collection(t, uri, database)
	for _, c := range payloadCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			in := job.Input{JobID: c.JobID, Body: job.Body{Kind: job.BodyText, Data: c.Payload}}
			field := "payload_text"
			if c.Want == "invalid" {
				in.Body = job.Body{Kind: job.BodyText, Data: string(c.Base64)}
				if _, err := in.Delivery(job.MaxBodyBytes); err == nil {
					t.Fatal("it is taken as text")
				}
				in.Body.Kind, field = job.BodyBytes, "payload_bytes"
			}
			jobID := recordOne(t, s, in, job.First, 1).Record.JobID

			doc := documentOf(t, jobs, jobID)
			stored, isText := doc.Lookup(field).StringValueOK()
			if in.Body.Kind == job.BodyBytes {
				_, b := doc.Lookup(field).Binary()
				stored = string(b)
			}
			if _, once := doc.Lookup("payload_form").Int32OK(); once == isText && field == "payload_text" || !once && stored != in.Body.Data {
				t.Errorf("%s is not the body: %.200q; stored once: %t", field, stored, once)
			}
			if r, err := s.Get(t.Context(), jobID, true); err != nil || r.Body != in.Body {
				t.Errorf("Get: %v, body %.200q", err, r.Body.Data)
			}
			embedded, there := doc.Lookup("payload").DocumentOK()
			switch {
			case there && (c.Want == "text_only" || c.Want == "invalid"):
				t.Errorf("a document is stored: %v", embedded)
			case !there && c.Want == "document":
				t.Error("no document is stored")
			case there:
				if diff := cmp.Diff(flatJSON(t, in.Body.Data, c.Want == "either"), flatBSON(t, embedded)); diff != "" {
					t.Errorf("the document is not the body (-body +document):\n%s", diff)
				}
			}
			// The body's fields never become the record's own.
			if n, _ := doc.Lookup("deliveries").AsInt64OK(); n != 1 {
				t.Errorf("deliveries: %v", doc.Lookup("deliveries"))
			}
			if at, ok := doc.Lookup("first_seen").DateTimeOK(); !ok || at == 0 {
				t.Errorf("first_seen: %v", doc.Lookup("first_seen"))
			}
			if len(doc.Lookup("work").Value) > 0 {
				t.Errorf("work: %v", doc.Lookup("work"))
			}
		})
	}
}

// flatJSON lists a JSON text's keys, delimiters and values in their order, as the document must hold them. It reads with
// encoding/json, so that it shares nothing with what is tested. With exact, a double must be the number and not just the
// nearest one.
func flatJSON(t *testing.T, text string, exact bool) (flat []string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err == io.EOF {
			return flat
		}
		testenv.Must(t, err)
		number, ok := token.(json.Number)
		if !ok {
			flat = append(flat, fmt.Sprintf("%T %v", token, token))
			continue
		}
		n := number.String()
		if i, err := strconv.ParseInt(n, 10, 64); err == nil && n != "-0" {
			flat = append(flat, fmt.Sprintf("int64 %d", i))
			continue
		}
		f, err := strconv.ParseFloat(n, 64)
		if err != nil {
			t.Fatalf("%s does not fit a double", n)
		}
		is, _ := new(big.Rat).SetString(n)
		if exact && (is == nil || is.Cmp(new(big.Rat).SetFloat64(f)) != 0) {
			t.Errorf("%s is stored as the double %v", n, f)
		}
		flat = append(flat, fmt.Sprintf("double %x", math.Float64bits(f)))
	}
}

// flatBSON lists a document like flatJSON.
func flatBSON(t *testing.T, doc bson.Raw) []string {
	t.Helper()
	return appendFlat(t, nil, bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc})
}

func appendFlat(t *testing.T, flat []string, v bson.RawValue) []string {
	t.Helper()
	switch v.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		begin, end := json.Delim('{'), json.Delim('}')
		if v.Type == bson.TypeArray {
			begin, end = '[', ']'
		}
		elements, err := bson.Raw(v.Value).Elements()
		testenv.Must(t, err)
		flat = append(flat, fmt.Sprintf("%T %v", begin, begin))
		for i, e := range elements {
			if v.Type == bson.TypeEmbeddedDocument {
				flat = append(flat, "string "+e.Key())
			} else if e.Key() != strconv.Itoa(i) {
				t.Errorf("element %d of an array is called %q", i, e.Key())
			}
			flat = appendFlat(t, flat, e.Value())
		}
		return append(flat, fmt.Sprintf("%T %v", end, end))
	case bson.TypeString:
		return append(flat, "string "+v.StringValue())
	case bson.TypeInt64:
		return append(flat, fmt.Sprintf("int64 %d", v.Int64()))
	case bson.TypeDouble:
		return append(flat, fmt.Sprintf("double %x", math.Float64bits(v.Double())))
	case bson.TypeBoolean:
		return append(flat, fmt.Sprintf("bool %t", v.Boolean()))
	case bson.TypeNull:
		return append(flat, "<nil> <nil>")
	}
	t.Errorf("a value of the type %v", v.Type)
	return flat
}

func TestTextOnly(t *testing.T) {
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	s, jobs := open(t, mongostore.Options{URI: uri, Database: database, TextOnly: true}), collection(t, uri, database)
	recordOne(t, s, job.Input{Body: job.Body{Kind: job.BodyText, Data: `{"job_id":"a"}`}}, job.First, 1)
	doc := documentOf(t, jobs, "a")
	if text := doc.Lookup("payload_text").StringValue(); text != `{"job_id":"a"}` || len(doc.Lookup("payload").Value) > 0 {
		t.Errorf("stored: %v", doc)
	}
}

// TestRefusedDocument: a database that takes no key with a dollar gets the text alone, and the delivery counts.
func TestRefusedDocument(t *testing.T) {
	f := startFake(t, nil)
	f.answerWith("update", func(command bson.Raw) bson.D {
		insert := command.Lookup("updates", "0", "u", "$setOnInsert").Document()
		if len(insert.Lookup("payload").Value) > 0 {
			return bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: 0}, {Key: "nModified", Value: 0}, {Key: "writeErrors", Value: bson.A{
				bson.D{{Key: "index", Value: 0}, {Key: "code", Value: 52}, {Key: "errmsg", Value: "The dollar ($) prefixed field is not valid"}},
			}}}
		}
		return bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: 1}, {Key: "nModified", Value: 0}, {Key: "upserted", Value: bson.A{
			bson.D{{Key: "index", Value: 0}, {Key: "_id", Value: bson.NewObjectID()}},
		}}}
	})
	s := open(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true"})
	recordOne(t, s, job.Input{Body: job.Body{Kind: job.BodyText, Data: `{"job_id":"a","$set":1}`}}, job.First, 1)
	updates := f.commands("update")
	if len(updates) != 2 {
		t.Fatalf("%d updates were sent, want 2", len(updates))
	}
	if text := updates[1].Lookup("updates", "0", "u", "$setOnInsert", "payload_text").StringValue(); text != `{"job_id":"a","$set":1}` {
		t.Errorf("the text is %q", text)
	}
}
