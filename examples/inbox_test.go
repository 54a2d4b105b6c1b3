package examples_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const workerSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receivers are the commands of those in examples/inbox.
var receivers = map[string][]string{"node": {"node", "receiver.mjs"}, "python": {"python3", "receiver.py"}}

var receiverLine = regexp.MustCompile(`^receiver on (\S+)$`)

// receiver runs one of the receivers in dir, and returns its process and its address.
func receiver(t *testing.T, dir, language string) (*testenv.Process, string) {
	t.Helper()
	testenv.Must(t, os.WriteFile(filepath.Join(dir, "worker.secret"), []byte(workerSecret+"\n"), 0o600))
	command := receivers[language]
	testenv.Need(t, command[0])
	path, err := exec.LookPath(command[0])
	testenv.Must(t, err)
	script, err := filepath.Abs(filepath.Join("inbox", command[1]))
	testenv.Must(t, err)
	p, err := testenv.Program{Path: path, Args: []string{script, "worker.secret", "0"}, Dir: dir, Env: []string{"HOME=" + os.Getenv("HOME")}}.Start()
	testenv.Must(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	match, err := p.Ready(receiverLine)
	testenv.Must(t, err)
	return p, match[1]
}

// inbox is examples/inbox/inbox.yaml with ports of the system's choice, as a program that runs in dir.
func inbox(t *testing.T, dir, receiver string) testenv.Program {
	t.Helper()
	example, err := os.ReadFile("inbox/inbox.yaml")
	testenv.Must(t, err)
	config := strings.NewReplacer("127.0.0.1:8080", "127.0.0.1:0", "127.0.0.1:50051", "127.0.0.1:0", "127.0.0.1:3000", receiver).Replace(string(example))
	testenv.Must(t, os.WriteFile(filepath.Join(dir, "inbox.yaml"), []byte(config), 0o600))
	return testenv.Program{Role: "jobonce", Args: []string{"inbox", "--config", "inbox.yaml"}, Dir: dir, Env: []string{"SHOP_SECRET=demo"}}
}

// startInbox returns once all of it runs.
func startInbox(t *testing.T, program testenv.Program) (p *testenv.Process, service, webhook string) {
	t.Helper()
	p, err := program.Start()
	testenv.Must(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	var lines []string
	for _, want := range []string{`^jobonce serving on (\S+), `, `^jobonce worker forwards to (\S+), `, `^jobonce webhook on (\S+), `} {
		select {
		case line := <-p.Lines:
			match := regexp.MustCompile(want).FindStringSubmatch(line)
			if match == nil {
				t.Fatalf("printed %q: %s", line, &p.Log)
			}
			lines = append(lines, match[1])
		case <-time.After(time.Minute):
			t.Fatalf("not ready: %s", &p.Log)
		}
	}
	return p, lines[0], lines[2]
}

func send(t *testing.T, webhook, secret string) string {
	t.Helper()
	testenv.Need(t, "openssl", "curl")
	cmd := exec.Command("sh", "inbox/send.sh", "http://"+webhook+"/shop")
	cmd.Env = append(os.Environ(), "SHOP_SECRET="+secret)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestInbox: webhooks that come twice have their work done once, by either receiver, and those with a bad signature never.
func TestInbox(t *testing.T) {
	for language := range receivers {
		t.Run(language, func(t *testing.T) {
			dir := t.TempDir()
			shop, address := receiver(t, dir, language)
			p, service, webhook := startInbox(t, inbox(t, dir, address))
			if got := send(t, webhook, "wrong"); strings.Count(got, " time: 401\n") != 4 {
				t.Errorf("with a wrong secret:\n%s", got)
			}
			if got := send(t, webhook, "demo"); strings.Count(got, " time: 200\n") != 4 {
				t.Errorf("sent:\n%s", got)
			}
			shipped := []string{<-shop.Lines, <-shop.Lines}
			if strings.Join(shipped, ", ") != "shipped shop:order-1, shipped shop:order-2" && strings.Join(shipped, ", ") != "shipped shop:order-2, shipped shop:order-1" {
				t.Errorf("the receiver says %q", shipped)
			}
			c, err := client.New(service)
			testenv.Must(t, err)
			defer c.Close()
			for _, id := range []string{"shop:order-1", "shop:order-2"} {
				var j *joboncev1.Job
				for j.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_COMPLETED {
					j, err = c.GetJob(t.Context(), id, joboncev1.JobView_JOB_VIEW_BASIC)
					testenv.Must(t, err)
				}
				if j.GetDeliveries() != 2 || j.GetEvent() != "order.paid" || j.GetWork().GetAttempts() != 1 {
					t.Errorf("got %v", j)
				}
			}
			testenv.OK(t, p.Stop())
			testenv.OK(t, shop.Kill())
			if rest := shop.Rest(); rest != "" {
				t.Errorf("the receiver also says %q", rest)
			}
		})
	}
}

// TestReceiversRefuse: what is not signed, or signed for another time, is no work.
func TestReceiversRefuse(t *testing.T) {
	for language := range receivers {
		t.Run(language, func(t *testing.T) {
			testenv.Need(t, "curl")
			_, address := receiver(t, t.TempDir(), language)
			for _, headers := range [][]string{
				{},
				{"webhook-id: msg_1", "webhook-timestamp: 1700000000", "webhook-signature: v1,abc"},
				{"webhook-id: msg_1", "webhook-timestamp: soon", "webhook-signature: "},
			} {
				args := []string{"-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", "{}"}
				for _, h := range headers {
					args = append(args, "-H", h)
				}
				out, err := exec.Command("curl", append(args, "http://"+address+"/jobs")...).Output()
				if err != nil || string(out) != "401" {
					t.Errorf("%v: %s, %v", headers, out, err)
				}
			}
		})
	}
}

// TestSecondInbox: one on the same directory is refused, with the directory's name, and the first goes on.
func TestSecondInbox(t *testing.T) {
	dir := t.TempDir()
	program := inbox(t, dir, "127.0.0.1:1")
	testenv.Must(t, os.WriteFile(filepath.Join(dir, "worker.secret"), []byte(workerSecret), 0o600))
	first, _, webhook := startInbox(t, program)
	second, err := program.Start()
	testenv.Must(t, err)
	if err := second.Wait(); err == nil || !strings.Contains(second.Log.String(), "another process serves ./jobonce-data") {
		t.Errorf("%v: %s", err, &second.Log)
	}
	if got := send(t, webhook, "demo"); strings.Count(got, " time: 200\n") != 4 {
		t.Errorf("sent:\n%s", got)
	}
	testenv.OK(t, first.Stop())
}

// TestInboxStopsInOrder: when it is to end, no more webhooks are taken, the work under way is finished, and only then does the
// service end.
func TestInboxStopsInOrder(t *testing.T) {
	dir := t.TempDir()
	testenv.Must(t, os.WriteFile(filepath.Join(dir, "worker.secret"), []byte(workerSecret), 0o600))
	began, finish := make(chan struct{}, 2), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-finish
	}))
	defer slow.Close()
	program := inbox(t, dir, strings.TrimPrefix(slow.URL, "http://"))
	p, service, webhook := startInbox(t, program)
	send(t, webhook, "demo")
	<-began
	<-began
	testenv.Must(t, p.Cmd.Process.Signal(syscall.SIGTERM))
	for {
		conn, err := net.Dial("tcp", webhook)
		if err != nil {
			break
		}
		conn.Close()
		time.Sleep(time.Millisecond)
	}
	c, err := client.New(service)
	testenv.Must(t, err)
	defer c.Close()
	j, err := c.GetJob(t.Context(), "shop:order-1", joboncev1.JobView_JOB_VIEW_BASIC)
	if err != nil || j.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_LEASED {
		t.Errorf("while the work is under way: %v, %v", j, err)
	}
	close(finish)
	testenv.OK(t, p.Wait())
	out, err := exec.Command("sqlite3", filepath.Join(dir, "jobonce-data", "jobonce.db"), "SELECT count(*) FROM jobs WHERE work_state = 'completed'").Output()
	if err != nil || string(out) != "2\n" {
		t.Errorf("%s jobs are done, %v", out, err)
	}
}
