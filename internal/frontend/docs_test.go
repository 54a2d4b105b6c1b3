package frontend_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/jobonce/jobonce/client/webhook"
	"github.com/jobonce/jobonce/internal/frontend"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestDocs: every configuration in docs/webhooks.md can be served, its examples come out as they say, and every key of a source
// and every reason is there.
func TestDocs(t *testing.T) {
	for _, name := range []string{"STRIPE_SECRET", "SHOP_SECRET", "GITHUB_SECRET", "SUME_SECRET"} {
		t.Setenv(name, "mysecret")
	}
	page, err := os.ReadFile("../../docs/webhooks.md")
	testenv.Must(t, err)
	var names []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		var file struct {
			Webhook struct {
				Listen  string
				Sources yaml.Node
			}
		}
		testenv.Must(t, yaml.Unmarshal([]byte(block[1]), &file))
		sources, err := frontend.Parse("FILE", &file.Webhook.Sources)
		if err != nil {
			t.Errorf("%s\n%v", block[1], err)
			continue
		}
		if _, err := frontend.New(&jobs{}, frontend.Config{Sources: sources, Logger: testenv.Logger(t)}); err != nil {
			t.Errorf("%s\n%v", block[1], err)
		}
		for _, s := range sources {
			names = append(names, s.Name)
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"github", "shop", "stripe", "stripe", "sume"}) {
		t.Errorf("the page has the sources %q", names)
	}
	source, err := os.ReadFile("config.go")
	testenv.Must(t, err)
	for _, key := range regexp.MustCompile(`"([a-z_]+)": +(?:&|func)`).FindAllStringSubmatch(string(source), -1) {
		if !strings.Contains(string(page), "`"+key[1]+"`") && key[1] != "work_mode" {
			t.Errorf("the page does not have the key %s", key[1])
		}
	}
	for _, reason := range webhook.Reasons() {
		if !strings.Contains(string(page), "`"+string(reason)+"`") {
			t.Errorf("the page does not have the reason %s", reason)
		}
	}
}
