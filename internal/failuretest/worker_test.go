package failuretest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

var (
	workerReady   = regexp.MustCompile(`^jobonce worker (?:forwards to|runs) (\S+), `)
	webhookReady  = regexp.MustCompile(`^jobonce webhook on (\S+), `)
	receiverReady = regexp.MustCompile(`^receiver on (\S+)$`)
)

// receiverMain is a receiver of `jobonce worker --forward` that keeps what it does in a file, under a fence. A part of the first
// attempts stalls, and writes late.
func receiverMain(args []string) int {
	db, err := openEffects(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stall, _ := time.ParseDuration(args[1])
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("receiver on", lis.Addr())
	_ = http.Serve(lis, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := url.PathUnescape(r.Header.Get("JobOnce-Job-Id"))
		generation, _ := strconv.ParseInt(r.Header.Get("JobOnce-Generation"), 10, 64)
		_, err := db.Exec("INSERT INTO arrivals (job_id, generation) VALUES (?, ?)", id, generation)
		if err == nil && r.Header.Get("JobOnce-Attempt") == "1" && rand.N(3) == 0 {
			time.Sleep(stall)
		}
		if err == nil {
			err = applyEffect(db, id, generation)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	return 1
}

func openEffects(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	_, err = db.Exec(`CREATE TABLE IF NOT EXISTS effects (job_id TEXT PRIMARY KEY, generation INTEGER NOT NULL);
		CREATE TABLE IF NOT EXISTS arrivals (job_id TEXT NOT NULL, generation INTEGER NOT NULL);
		CREATE TABLE IF NOT EXISTS applied (n INTEGER PRIMARY KEY, job_id TEXT NOT NULL, generation INTEGER NOT NULL);
		CREATE TABLE IF NOT EXISTS refused (job_id TEXT NOT NULL, generation INTEGER NOT NULL)`)
	return db, err
}

// applyEffect does the work of a job, unless a later holder has done it.
func applyEffect(db *sql.DB, id string, generation int64) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	result, err := tx.Exec(`INSERT INTO effects (job_id, generation) VALUES (?1, ?2)
		ON CONFLICT (job_id) DO UPDATE SET generation = excluded.generation WHERE effects.generation <= excluded.generation`, id, generation)
	if err != nil {
		return err
	}
	table, refusal := "applied", error(nil)
	if n, _ := result.RowsAffected(); n == 0 {
		table, refusal = "refused", errFenced
	}
	if _, err := tx.Exec("INSERT INTO "+table+" (job_id, generation) VALUES (?, ?)", id, generation); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return refusal
}

// chain is `webhook`, `serve`, several `worker --forward`, and a receiver, each in a process of its own.
type chain struct {
	t                        *testing.T
	serve, webhook, receiver *testenv.Service
	workers                  []*testenv.Service
	effects                  *sql.DB
	released                 map[string]bool // leases that workers have given back, by job and generation
	jobs                     []string
	kills                    map[string]int
}

const chainSecret = "a secret of the chain"

func startChain(t *testing.T) *chain {
	c := &chain{t: t, released: make(map[string]bool), kills: make(map[string]int)}
	dir := t.TempDir()
	config := filepath.Join(dir, "webhook.yaml")
	must(t, os.WriteFile(config, []byte(`webhook:
  listen: 127.0.0.1:0
  sources:
    - name: shop
      signature: {kind: hmac, header: X-Signature, template: "{body}", encoding: hex}
      secrets_env: [SHOP_SECRET]
      job_id: item.id
`), 0o600))
	effects := filepath.Join(dir, "effects.db")
	db, err := openEffects(effects)
	must(t, err)
	t.Cleanup(func() { testenv.OK(t, db.Close()) })
	c.effects = db
	c.serve = embeddedServe(t)
	c.webhook = testenv.StartService(t, testenv.Program{
		Role: "jobonce", Args: []string{"webhook", "--config", config, "--server", c.serve.Addr()}, Env: []string{"SHOP_SECRET=" + chainSecret},
	}, webhookReady)
	c.receiver = testenv.StartService(t, testenv.Program{Role: "receiver", Args: []string{effects, "4s"}}, receiverReady)
	for range 3 {
		c.workers = append(c.workers, testenv.StartService(t, testenv.Program{Role: "jobonce", Args: []string{
			"worker", "--forward", "http://" + c.receiver.Addr() + "/jobs", "--server", c.serve.Addr(), "--lease", "1s", "--concurrency", "8",
		}}, workerReady))
	}
	return c
}

// deliver delivers a webhook until it is taken, as a provider does.
func (c *chain) deliver(ctx context.Context, id string) {
	body := fmt.Appendf(nil, `{"id":%q,"event":"order.paid"}`, id)
	mac := hmac.New(sha256.New, []byte(chainSecret))
	mac.Write(body)
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.webhook.Addr()+"/shop", bytes.NewReader(body))
		must(c.t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

var releasedLine = regexp.MustCompile(`msg="(?:work failed|work given back[^"]*)" job_id=(\S+) generation=(\d+)`)

// noteReleased reads in a worker's log which leases it has given back.
func (c *chain) noteReleased(log string) {
	for line := range strings.Lines(log) {
		if m := releasedLine.FindStringSubmatch(line); m != nil && !strings.Contains(line, "the lease was lost") {
			c.released[m[1]+" "+m[2]] = true
		}
	}
}

// killOne kills one of the processes, and starts it again.
func (c *chain) killOne() {
	one, name := c.workers[rand.N(len(c.workers))], "worker"
	switch rand.N(8) {
	case 0:
		one, name = c.serve, "serve"
	case 1:
		one, name = c.webhook, "webhook"
	case 2:
		one, name = c.receiver, "receiver"
	}
	must(c.t, one.Kill())
	if name == "worker" {
		c.noteReleased(one.Log())
	}
	c.kills[name]++
	must(c.t, one.Start())
}

// lost counts the leases under which the receiver was asked, and that neither ended well nor were given back. refused counts the
// stale writes that it refused.
func (c *chain) counts() (lost, refused int) {
	must(c.t, c.effects.QueryRow("SELECT count(*) FROM refused").Scan(&refused))
	rows, err := c.effects.Query(`SELECT DISTINCT job_id, generation FROM arrivals a
		WHERE generation < (SELECT max(generation) FROM arrivals b WHERE b.job_id = a.job_id)`)
	must(c.t, err)
	defer rows.Close()
	for rows.Next() {
		var id, generation string
		must(c.t, rows.Scan(&id, &generation))
		if !c.released[id+" "+generation] {
			lost++
		}
	}
	must(c.t, rows.Err())
	return lost, refused
}

// TestChainKilled: webhooks are received, recorded, claimed, forwarded and worked on while everything is killed at random. Each
// job's effect is applied under its highest generation, and none is lost.
func TestChainKilled(t *testing.T) {
	minJobs, minLost, minRefused := 60, 8, 3
	if testenv.Long() {
		minJobs, minLost, minRefused = 500, 50, 20
	}
	c := startChain(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	deliver := make(chan string)
	var senders sync.WaitGroup
	for range 4 {
		senders.Go(func() {
			for id := range deliver {
				c.deliver(ctx, id)
			}
		})
	}
	for enough := false; !enough; {
		for range 10 {
			id := fmt.Sprint("order-", len(c.jobs))
			c.jobs = append(c.jobs, id)
			select {
			case deliver <- id:
			case <-ctx.Done():
				t.Fatal("the webhooks are not taken")
			}
		}
		c.killOne()
		time.Sleep(rand.N(500 * time.Millisecond))
		lost, refused := c.counts()
		enough = len(c.jobs) >= minJobs && lost >= minLost && refused >= minRefused
	}
	close(deliver)
	senders.Wait()
	jobs := newClient(t, c.serve.Addr())
	for _, id := range c.jobs {
		c.check(ctx, jobs, id)
	}
	lost, refused := c.counts()
	t.Logf("%d jobs; %v killed; %d leases lost, %d stale writes refused", len(c.jobs), c.kills, lost, refused)
}

// check waits until a job is done, and holds its effect to its generation.
func (c *chain) check(ctx context.Context, jobs *client.Client, id string) {
	c.t.Helper()
	var work *joboncev1.Work
	for {
		j, err := jobs.GetJob(ctx, "shop:"+id, joboncev1.JobView_JOB_VIEW_BASIC)
		must(c.t, err)
		if work = j.GetWork(); work.GetState() == joboncev1.WorkState_WORK_STATE_COMPLETED {
			break
		}
		if work.GetState() == joboncev1.WorkState_WORK_STATE_DEAD {
			c.t.Fatalf("%s is dead: %v", id, work)
		}
		time.Sleep(50 * time.Millisecond)
	}
	var applied int64
	err := c.effects.QueryRow("SELECT generation FROM effects WHERE job_id = ?", "shop:"+id).Scan(&applied)
	if err != nil || applied != work.GetGeneration() {
		c.t.Errorf("%s was done under %d, and its effect is that of %d, %v", id, work.GetGeneration(), applied, err)
	}
	var back int
	must(c.t, c.effects.QueryRow(`SELECT count(*) FROM applied a JOIN applied b ON a.job_id = b.job_id AND a.n < b.n
		WHERE a.generation > b.generation AND a.job_id = ?`, "shop:"+id).Scan(&back))
	if back > 0 {
		c.t.Errorf("%s: a stale write was let through", id)
	}
}

// TestPoison: a job that kills its worker every time is dead after its attempts, and says so. The others are done: it takes its
// time, so that they do not share its attempts.
func TestPoison(t *testing.T) {
	s := startServe(t, nil, "--data-dir", t.TempDir(), "--max-attempts", "3")
	c := newClient(t, s.Addr())
	for _, id := range []string{"poison", "good"} {
		_, err := c.RecordDelivery(t.Context(), &joboncev1.RecordDeliveryRequest{JobId: id, WorkMode: joboncev1.WorkMode_WORK_MODE_QUEUED})
		must(t, err)
	}
	stop := make(chan struct{})
	var supervisor sync.WaitGroup
	supervisor.Go(func() { // It starts the worker again, as systemd does.
		for {
			p, err := testenv.Program{Role: "jobonce", Args: []string{
				"worker", "--server", s.Addr(), "--lease", "1s", "--exec", "sh", "--", "-c", `[ "$JOB_ID" != poison ] || { sleep 0.3; kill -9 $PPID; }`,
			}}.Start()
			if err != nil {
				t.Error(err)
				return
			}
			ended := make(chan struct{})
			go func() {
				_ = p.Wait()
				close(ended)
			}()
			select {
			case <-ended:
			case <-stop:
				_ = p.Kill()
				<-ended
				return
			}
		}
	})
	defer supervisor.Wait()
	defer close(stop)
	for {
		w := stored(t, c, "poison").GetWork()
		if w.GetState() == joboncev1.WorkState_WORK_STATE_DEAD {
			if w.GetAttempts() != 3 || w.GetLastError() == "" {
				t.Errorf("it died of %q after %d attempts", w.GetLastError(), w.GetAttempts())
			}
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for stored(t, c, "good").GetWork().GetState() != joboncev1.WorkState_WORK_STATE_COMPLETED {
		time.Sleep(20 * time.Millisecond)
	}
	if log := s.Log(); !strings.Contains(log, "a job died") || !strings.Contains(log, "job_id=poison") {
		t.Errorf("the log does not say that it died:\n%s", log)
	}
}
