package sqlitestore

import (
	"context"
	"html"
	"io"
	"net"
	"net/http"
	"regexp"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/ui"
	"github.com/jobonce/jobonce/server"
)

// pagesRead is how many pages of the file, of 4 KiB each, reads have looked at so far, in the cache or not. The store must have
// one connection for reads.
func pagesRead(t *testing.T, s *Store) (n int) {
	t.Helper()
	c, err := s.readerDB.Conn(t.Context())
	testenv.Must(t, err)
	defer c.Close()
	testenv.Must(t, c.Raw(func(conn any) error {
		for _, op := range []sqlite.DBStatusOp{sqlite.DBStatusCacheHit, sqlite.DBStatusCacheMiss} {
			found, _, err := conn.(sqlite.DBStatus).Status(op, false)
			if err != nil {
				return err
			}
			n += found
		}
		return nil
	}))
	return n
}

// TestViewsReadLittle: among 20,000 jobs, a million in a long run, each view of the operators' page, and the list behind it, looks
// at some pages of the file and no more.
func TestViewsReadLittle(t *testing.T) {
	jobs := 20_000
	if testenv.Long() {
		jobs = 1_000_000
	}
	s, err := Open(t.Context(), t.TempDir(), Options{Logger: testenv.Logger(t)})
	testenv.Must(t, err)
	fill(t, s, jobs, time.Now().Add(-time.Hour).UnixMilli())
	// A third of the webhooks are given up, a third overdue, and a third to come.
	_, err = s.writer.ExecContext(t.Context(), `INSERT INTO expectations (`+expectationColumns+`)
		WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 - 1)
		SELECT printf('soon:%08x', i * 2654435761 % 4294967296), 'https://example.com/', ?2, iif(i % 3 = 2, ?3, ?2), ?3, iif(i % 3, ?3, NULL), 0, NULL, 0,
			NULL, iif(i % 3, NULL, ?2) FROM n`, jobs/4, time.Now().UnixMilli(), time.Now().Add(time.Hour).UnixMilli())
	testenv.Must(t, err)
	s.readerDB.SetMaxOpenConns(1)
	const few, list, examining = 50, 500, 5 * job.DefaultPageSize * job.ExaminedPerJob
	ask := servePage(t, s)
	for view, most := range map[string]int{
		"/":     4 * list,
		"/jobs": list, "/jobs?show=queued": list, "/jobs?show=held": list, "/jobs?show=dead": list, "/jobs?show=conflict": list,
		"/jobs?show=completed": list, "/jobs?show=untracked": list, "/jobs?all=1": list,
		"/jobs?find=shop%3A": list, "/jobs?find=nobody%3A": few, "/jobs?find=shop%3A&show=untracked": examining,
		"/job?id=shop%3A00000000": few,
		"/expected":               list, "/expected?show=overdue": list, "/expected?show=given-up": list,
	} {
		for n := 0; n < 2 && view != ""; n++ { // and the page behind it
			before := pagesRead(t, s)
			next := ask(view)
			if read := pagesRead(t, s) - before; read > most || read == 0 {
				t.Errorf("%s read %d pages, want %d at most", view, read, most)
			} else {
				t.Logf("%s read %d pages", view, read)
			}
			view = next
		}
	}
	before := pagesRead(t, s)
	testenv.Must(t, s.readerDB.QueryRowContext(t.Context(), "SELECT count(*) FROM jobs WHERE status = ''").Scan(new(int)))
	if read := pagesRead(t, s) - before; read < 2*list {
		t.Errorf("reading all jobs took %d pages, so that the others say nothing", read)
	}
}

// servePage serves the store with its page, and closes it at the end. ask gets a view, and returns the address of the next page of
// its list, if there is one.
func servePage(t *testing.T, s *Store) (ask func(view string) (next string)) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	queue := batch.New(s, batch.Config{})
	srv, err := server.New(server.Config{Logger: testenv.Logger(t)}, queue)
	testenv.Must(t, err)
	page, err := ui.New(ui.Config{
		Connect:         func(ctx context.Context) (net.Conn, error) { return srv.Connect(ctx, server.Peer{Addr: "page"}) },
		ShutdownTimeout: server.DefaultShutdownTimeout, Logger: testenv.Logger(t),
	})
	testenv.Must(t, err)
	stopped := make(chan error, 2)
	var address string
	for _, run := range []func(context.Context, net.Listener) error{srv.Run, page.Run} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		testenv.Must(t, err)
		address = "http://" + lis.Addr().String()
		go func() { stopped <- run(ctx, lis) }()
	}
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		stop()
		testenv.OK(t, <-stopped)
		testenv.OK(t, <-stopped)
		testenv.OK(t, queue.Close())
	})
	link := regexp.MustCompile(`href="([^"]*)" rel="next"`)
	return func(view string) (next string) {
		resp, err := client.Get(address + view)
		testenv.Must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		testenv.Must(t, err)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s\n%s", view, resp.Status, text)
		}
		if found := link.FindSubmatch(text); found != nil {
			next = html.UnescapeString(string(found[1]))
		}
		return next
	}
}
