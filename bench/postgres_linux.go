package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// jobsTable is what a user of PostgreSQL would keep jobs in.
const jobsTable = `CREATE TABLE jobs (
	job_id     text PRIMARY KEY,
	payload    jsonb NOT NULL,
	first_seen timestamptz NOT NULL DEFAULT now(),
	deliveries bigint NOT NULL DEFAULT 1
)`

// recordJob is one statement that inserts or counts, and tells which: a row that was just inserted has no xmax.
const recordJob = `INSERT INTO jobs (job_id, payload) VALUES ($1, $2)
ON CONFLICT (job_id) DO UPDATE SET deliveries = jobs.deliveries + 1
RETURNING xmax = 0`

// startPostgres starts a new PostgreSQL with its defaults (a commit waits for the disk), beside any that this machine runs already.
func startPostgres(ctx context.Context, dir string) (*process, string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return nil, "", absent("PostgreSQL is not installed; bench/setup installs it")
	}
	bin := filepath.Dir(found[len(found)-1])
	account, err := unprivileged()
	if err != nil {
		return nil, "", err
	}
	data := filepath.Join(dir, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, "", err
	}
	if account != nil {
		if err := os.Chown(data, int(account.Uid), int(account.Gid)); err != nil {
			return nil, "", err
		}
	}
	command := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, program), args...)
		cmd.Dir = data
		cmd.Env = environment()
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account, Setpgid: true}
		return cmd
	}
	out, err := command("initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--auth=trust").CombinedOutput()
	if err != nil {
		return nil, "", fmt.Errorf("initdb: %w\n%s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	cmd := command("postgres", "-D", data, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "port="+strconv.Itoa(port), "-c", "max_connections=300", "-c", "synchronous_commit=on")
	p, err := start(dir, "postgres", cmd)
	if err != nil {
		return nil, "", err
	}
	p.ask = func() { _ = cmd.Process.Signal(syscall.SIGINT) } // fast shutdown: sessions are ended and not waited for
	uri := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
	if err := answers(ctx, func(ctx context.Context) error { return makeTable(ctx, uri) }); err != nil {
		p.stop()
		return nil, "", p.failed(err)
	}
	return p, uri, nil
}

func makeTable(ctx context.Context, uri string) error {
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, jobsTable)
	return err
}

// unprivileged is whom PostgreSQL runs as, which refuses to be root's; nil when we are not root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

type postgresTarget struct{ pool *pgxpool.Pool }

func newPostgres(ctx context.Context, s spec) (runner, string, error) {
	cfg, err := pgxpool.ParseConfig(s.Address)
	if err != nil {
		return nil, "", err
	}
	cfg.MaxConns = int32(s.Callers)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, "", err
	}
	return target{Target: postgresTarget{pool}, reason: sqlState, end: pool.Close}, "", nil
}

func (p postgresTarget) Record(ctx context.Context, key, body string) (first bool, err error) {
	err = p.pool.QueryRow(ctx, recordJob, key, body).Scan(&first)
	return first, err
}

func sqlState(err error) string {
	if failed := (*pgconn.PgError)(nil); errors.As(err, &failed) {
		return failed.Code
	}
	return "error"
}
