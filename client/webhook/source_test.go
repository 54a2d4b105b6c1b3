package webhook_test

import (
	"strings"
	"testing"

	"github.com/jobonce/jobonce/client/webhook"
)

func TestSourceIsChecked(t *testing.T) {
	for name, test := range map[string]struct {
		source webhook.Source
		want   string
	}{
		"no name":              {webhook.Source{}, "name"},
		"a name with a colon":  {webhook.Source{Name: "a:b"}, "name"},
		"no such provider":     {webhook.Source{Name: "a", Provider: "nobody"}, "provider"},
		"no signature":         {webhook.Source{Name: "a"}, "signature"},
		"prefix with control":  {webhook.Source{Name: "a", IDPrefix: new("a\n")}, "id_prefix"},
		"one id for all items": {webhook.Source{Name: "a", Provider: "github", Secrets: webhook.Secrets("secret"), Items: webhook.Array("commits[]")}, "id"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := webhook.NewHandler(nil, test.source); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v and does not name %s", err, test.want)
			}
		})
	}
}
