package frontend_test

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client/webhook"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestSourcesRefused: what is wrong with a source is said at the start, with its place in the file and its key.
func TestSourcesRefused(t *testing.T) {
	empty := file(t, "empty", "\n")
	two := func(a, b string) string {
		return "- {name: " + a + ", signature: {kind: token, header: X-Token}, secrets_env: [SHOP_SECRET], job_id: item.id}\n" +
			"- {name: " + b + ", signature: {kind: token, header: X-Token}, secrets_env: [SHOP_SECRET], job_id: item.id}\n"
	}
	for text, says := range map[string]string{
		"[]":                      "FILE:1: webhook.sources must be a list",
		"name: shop":              "FILE:1: webhook.sources must be a list",
		"- shop":                  "FILE:1: source 1 must be a mapping",
		"- provider: stripe":      `FILE:1: source "": name: is required`,
		"- {name: shop, naem: x}": "FILE:1: source 1 has an unknown key naem",
		"- {name: shop, name: x}": "FILE:1: name stands twice",
		"- {name: shop, path: }":  "FILE:1: path of source 1 is empty",
		"- {name: shop, path: hooks, provider: stripe, secrets_env: [SHOP_SECRET]}": `source "shop": path: "hooks": want a path`,
		"- {name: shop, path: '/a?b', provider: stripe}":                            `source "shop": path: "/a?b": want a path`,
		"- {name: shop, tolerance: soon}":                                           "FILE:1: tolerance of source 1",
		"- {name: shop, secrets_env: {a: b}}":                                       "FILE:1: secrets_env of source 1: cannot unmarshal",
		"- {name: shop, provider: stripe, secrets_env: [NOT_SET_AT_ALL]}":           `source "shop": secrets_env: NOT_SET_AT_ALL is not set, or empty`,
		"- {name: shop, provider: stripe, secrets_files: [/nowhere]}":               `source "shop": secrets_files: open /nowhere`,
		"- {name: shop, provider: stripe, secrets_files: [" + empty + "]}":          `source "shop": secrets_files: file 1 is empty`,
		"- {name: shop, provider: stripe}":                                          "secrets: are required",
		"- {name: shop, provider: strype, secrets_env: [SHOP_SECRET]}":              `provider "strype": there is no such preset`,
		"- {name: Shop, provider: stripe, secrets_env: [SHOP_SECRET]}":              `name "Shop": want`,
		two("shop", "shop"):                                `source "shop": name: the source at FILE:1 has it too`,
		two("shop, path: /a", "other, path: /a"):           `source "other": path: /a is that of source "shop" too`,
		two("shop", "other, id_prefix: 'shop:'"):           `source "other": id_prefix: "shop:" is that of source "shop" too`,
		two("shop", "other, id_prefix: 'shop:x:'"):         `begin alike`,
		two("shop, id_prefix: ''", "other, id_prefix: ''"): `id_prefix: "" is that of source "shop" too`,
		shop("job_id: item.id\nwork_mode: leased"):         `source "shop": work_mode: leased is for programs`,
		shop("job_id: item.id\nwork_mode: untracked"):      `source "shop": work_mode: say record_only: true`,
		shop("job_id: item.id\nwork_mode: often"):          `source "shop": work_mode: "often" is none`,
		shop(""):                                    "id: is required",
		shop("job_id: item."):                       `source "shop": job_id: ERROR`,
		shop("job_id: itm.id"):                      `source "shop": job_id: ERROR`,
		shop("job_id: 'true'"):                      `source "shop": job_id: gives bool, and must give a string`,
		shop("job_id: item.id\nwhen: item.ok"):      "",
		shop("job_id: item.id\nwhen: '\"x\"'"):      `source "shop": when: gives string, and must give true or false`,
		shop("job_id: item.id\nitems: '\"x\"'"):     `source "shop": items: gives string, and must give a list`,
		shop("job_id: header.id\nitems: body"):      `source "shop": job_id: reads nothing of item`,
		shop("job_id: body.id\nitems: body.events"): `source "shop": job_id: reads nothing of item`,
		"- {name: hub, provider: github, secrets_env: [SHOP_SECRET], items: body.commits}":      "id: is required with items",
		"- {name: grid, provider: sendgrid, secrets_env: [SHOP_SECRET], items: body.events}":    "is not in base64",
		shop("job_id: item.id\nanswer_status: 404"):                                             "success: 404",
		shop("job_id: item.id\nverify_token_env: NOT_SET_AT_ALL"):                               `verify_token_env: NOT_SET_AT_ALL is not set`,
		shop("job_id: item.id\nsignature: {kind: magic}"):                                       "signature stands twice",
		shop("job_id: item.id\nexamples: {}"):                                                   "examples of source 1 must be a list",
		shop("job_id: item.id\nexamples: [{body: '{}'}]"):                                       "expect of example 1 of source 1 must be",
		shop("job_id: item.id\nexamples: [{expect: recorded}]"):                                 "example 1 of source 1 needs either body or body_file",
		shop("job_id: item.id\nexamples: [{body: x, expect: [{}]}]"):                            "has no job_id",
		shop("job_id: item.id\nexamples: [{body: x, expect: often}]"):                           "expect of example 1 of source 1 must be",
		"- {name: shop, secrets_env: [SHOP_SECRET], job_id: item.id, signature: {kind: magic}}": `signature: kind: "magic" is none of`,
		"- {name: shop, secrets_env: [SHOP_SECRET], job_id: item.id, signature: {kin: hmac}}":   "the signature of source 1 has an unknown key kin",
	} {
		_, err := open(t, &jobs{}, text)
		if says == "" {
			testenv.OK(t, err)
			continue
		}
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "FILE:") {
			t.Errorf("%s\n%v, want FILE: and %q", text, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "secret\"") {
			t.Errorf("%v has a secret in it", err)
		}
	}
}

// TestSignatureKeys: all of a signature can be said in the file.
func TestSignatureKeys(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[webhook.Signature]()) {
		key := strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(strings.Replace(field.Name, "ID", "Id", 1), "${1}_$2"))
		value := "x"
		if field.Type == reflect.TypeFor[time.Duration]() {
			value = "1s"
		}
		sources, err := parse(t, "- {name: shop, signature: {"+key+": "+value+"}}")
		if testenv.OK(t, err); err == nil && reflect.ValueOf(*sources[0].Signature).FieldByIndex(field.Index).IsZero() {
			t.Errorf("%s sets nothing", key)
		}
	}
}

// TestExamples: a source whose examples come out otherwise is not served.
func TestExamples(t *testing.T) {
	const source = "job_id: item.id\nevent: item.kind\nstatus: item.?state.orValue('')\nwhen: item.state != 'new'\nitems: body.events\nexamples:\n"
	paid := file(t, "paid.json", `{"events":[{"id":"1","kind":"order","state":"paid"}]}`)
	for example, says := range map[string]string{
		`- {body_file: ` + paid + `, expect: {job_id: "shop:1", event: order, status: paid}}`:                "",
		`- {body_file: ` + paid + `, expect: recorded}`:                                                      "",
		`- {body: '{"events":[{"state":"new"}]}', expect: filtered}`:                                         "",
		`- {body: '{"events":[{"state":"paid"}]}', expect: unreadable}`:                                      "",
		`- {body: '{', expect: unreadable}`:                                                                  "",
		`- {body: '{"events":[{"id":"1","state":"a"},{"state":"new"}]}', expect: [{job_id: "shop:1"}]}`:      "",
		`- {body_file: /nowhere, expect: recorded}`:                                                          "open /nowhere",
		`- {body_file: ` + paid + `, expect: filtered}`:                                                      `is recorded, as "shop:1"`,
		`- {body_file: ` + paid + `, expect: unreadable}`:                                                    "comes out readable",
		`- {name: paid, body_file: ` + paid + `, expect: {job_id: "shop:2"}}`:                                `example paid: job_id is "shop:1", and "shop:2" is expected`,
		`- {body_file: ` + paid + `, expect: {job_id: "shop:1", event: a, status: b}}`:                       `event is "order", and "a" is expected; status is "paid", and "b" is expected`,
		`- {body: '{"events":[{"id":"1","state":"a"},{"id":"2","state":"a"}]}', expect: {job_id: "shop:1"}}`: "2 jobs are recorded, and 1 are expected",
		`- {body: '{"events":[{"state":"paid"}]}', expect: recorded}`:                                        "comes out unreadable: id: there is no id",
		`- {body: '{"events":[{"state":"new"}]}', expect: recorded}`:                                         "of its events 0 are recorded and 1 filtered out",
	} {
		_, err := open(t, &jobs{}, shop(source+"  "+example))
		switch {
		case says == "":
			if err != nil {
				t.Errorf("%s: %v", example, err)
			}
		case err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), `FILE:`) || !strings.Contains(err.Error(), `source "shop": example`):
			t.Errorf("%s: %v, want %q", example, err, says)
		}
	}
}
