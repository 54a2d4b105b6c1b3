package failuretest

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/testenv"
)

// fence is a database that keeps the highest generation of each job.
type fence struct {
	// write writes, and tells whether it was let through.
	write func(t *testing.T, jobID string, generation int64, state string) bool
	read  func(t *testing.T, jobID string) (state string)
}

// fences make the databases of docs/fencing.md, which do what is written there.
var fences = map[string]func(t *testing.T) fence{
	"PostgreSQL": postgresFence, "SQLite": sqliteFence, "MongoDB": mongoFence, "Redis": redisFence,
}

// fencingCode is the code of docs/fencing.md that begins with a comment which begins so.
func fencingCode(t *testing.T, language, begins string) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/fencing.md")
	testenv.Must(t, err)
	for _, block := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(doc), -1) {
		if first, _, _ := strings.Cut(block[1], "\n"); strings.HasPrefix(strings.TrimLeft(first, "-/ "), begins) {
			return block[1]
		}
	}
	t.Fatalf("docs/fencing.md has no code in %s that begins with %q", language, begins)
	return ""
}

// TestFences: a holder that stalls past its lease writes when the next one has done so, and is refused, by the code of
// docs/fencing.md.
func TestFences(t *testing.T) {
	for name, open := range fences {
		t.Run(name, func(t *testing.T) {
			f := open(t)
			onBothStores(t, func(t *testing.T, w *world) {
				c, id := w.client(), t.Name()+" it's"
				write := func(who string, generation int64, let bool) {
					t.Helper()
					if got := f.write(t, id, generation, who); got != let {
						t.Errorf("what %s writes is let through: %t, want %t", who, got, let)
					}
				}
				stalled := record(t, c, leased(completed(id))).GetLease().GetGeneration()
				write("the first holder", stalled, true)
				w.clock.Advance(lease)
				next := record(t, c, leased(completed(id))).GetLease().GetGeneration()
				write("the first holder, late", stalled, true) // Nobody has written since.
				write("the next holder", next, true)
				write("the next holder again", next, true)
				write("the first holder, too late", stalled, false)
				if state := f.read(t, id); state != "the next holder again" {
					t.Errorf("what stands is of %s", state)
				}
				w.clock.Advance(lease)
				last := record(t, c, leased(completed(id))).GetLease().GetGeneration()
				write("the last holder", last, true)
				write("the next holder, too late", next, false)
				if state := f.read(t, id); state != "the last holder" {
					t.Errorf("what stands is of %s", state)
				}
				// A job of which the first that writes is not the first holder.
				other := id + ", other"
				if !f.write(t, other, next, "next") || f.write(t, other, stalled, "stalled") {
					t.Error("the first write decides nothing")
				}
			})
		})
	}
}

func sqliteFence(t *testing.T) fence {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "shipments.db"))
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), fencingCode(t, "sql", "SQLite"))
	testenv.Must(t, err)
	write := fencingCode(t, "sql", "SQLite, 3.35")
	return fence{
		write: func(t *testing.T, jobID string, generation int64, state string) bool {
			var id string
			err := db.QueryRowContext(t.Context(), write, jobID, generation, state).Scan(&id)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				t.Fatal(err)
			}
			return err == nil
		},
		read: func(t *testing.T, jobID string) (state string) {
			testenv.Must(t, db.QueryRowContext(t.Context(), "SELECT state FROM shipments WHERE job_id = ?", jobID).Scan(&state))
			return state
		},
	}
}

// output runs a command and returns what it prints, without the last newline.
func output(t *testing.T, input, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s%s", name, err, out, stderr.String())
	}
	return strings.TrimSuffix(string(out), "\n")
}

// directoryFor makes a directory that a server can use which refuses to run as root, and the account that it is to run as; nil when
// we are not root.
func directoryFor(t *testing.T, accounts ...string) (dir string, as *syscall.Credential) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fence")
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, os.RemoveAll(dir)) })
	if os.Geteuid() != 0 {
		return dir, nil
	}
	for _, name := range accounts {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		testenv.Must(t, os.Chown(dir, uid, gid))
		return dir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	t.Fatalf("there is no account of %v", accounts)
	return "", nil
}

// background runs a server until the test ends, and returns when it answers.
func background(t *testing.T, cmd *exec.Cmd, end syscall.Signal, answers func() bool) {
	t.Helper()
	var log testenv.Tail
	cmd.Stdout, cmd.Stderr = &log, &log
	testenv.Must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(end)
		<-ended
	})
	for deadline := time.Now().Add(time.Minute); !answers(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer: %s", cmd.Path, &log)
		}
	}
}

// postgresFence runs a PostgreSQL of its own, of the packages that are installed.
func postgresFence(t *testing.T) fence {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		testenv.Need(t, "initdb") // which is not on the PATH either, as a rule
		path, err := exec.LookPath("initdb")
		testenv.Must(t, err)
		found = []string{path}
	}
	bin := filepath.Dir(found[len(found)-1])
	dir, account := directoryFor(t, "postgres", "nobody")
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: account}
		return cmd
	}
	data := filepath.Join(dir, "data")
	if out, err := command("initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--locale=C", "--auth=trust", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	psql := filepath.Join(bin, "psql")
	args := []string{"-h", dir, "-U", "postgres", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"}
	background(t, command("postgres", "-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+dir, "-c", "fsync=off"), syscall.SIGQUIT,
		func() bool { return exec.Command(psql, append(args, "-c", "SELECT 1")...).Run() == nil })
	output(t, fencingCode(t, "sql", "PostgreSQL"), psql, args...)
	write := "PREPARE save (text, bigint, text) AS " + fencingCode(t, "sql", "PostgreSQL: $1") + ";\n"
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	return fence{
		write: func(t *testing.T, jobID string, generation int64, state string) bool {
			got := output(t, fmt.Sprintf("%sEXECUTE save (%s, %d, %s);\n", write, quoted(jobID), generation, quoted(state)), psql, args...)
			return got == jobID
		},
		read: func(t *testing.T, jobID string) string {
			return output(t, "SELECT state FROM shipments WHERE job_id = "+quoted(jobID), psql, args...)
		},
	}
}

// redisFence runs a Redis of its own.
func redisFence(t *testing.T) fence {
	testenv.Need(t, "redis-server", "redis-cli")
	socket := filepath.Join(t.TempDir(), "redis.sock")
	cli := func(args ...string) []string { return append([]string{"-s", socket, "--raw"}, args...) }
	background(t, exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", t.TempDir()), syscall.SIGTERM,
		func() bool { return exec.Command("redis-cli", cli("PING")...).Run() == nil })
	script := fencingCode(t, "lua", "Redis")
	return fence{
		write: func(t *testing.T, jobID string, generation int64, state string) bool {
			switch got := output(t, "", "redis-cli", cli("EVAL", script, "1", jobID, strconv.FormatInt(generation, 10), state)...); got {
			case "1":
				return true
			case "0":
				return false
			default:
				t.Fatalf("the script says %q", got)
				return false
			}
		},
		read: func(t *testing.T, jobID string) string {
			return output(t, "", "redis-cli", cli("HGET", jobID, "state")...)
		},
	}
}

// mongoFence uses the test database, by the Node driver.
func mongoFence(t *testing.T) fence {
	testenv.Need(t, "node", "npm")
	uri := testenv.MongoURI(t)
	const seed = "../mongostore/testdata/seed"
	packages := testenv.Cached(t, "mongostore-seed", []string{seed + "/package.json", seed + "/package-lock.json"}, func(dir string) error {
		if err := os.CopyFS(dir, os.DirFS(seed)); err != nil {
			return err
		}
		return testenv.Run(t, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
	dir := t.TempDir()
	testenv.Must(t, os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(dir, "node_modules")))
	testenv.Must(t, os.WriteFile(filepath.Join(dir, "fence.mjs"), []byte(fencingCode(t, "js", "MongoDB")), 0o600))
	const main = `import { MongoClient } from 'mongodb'
import { saveShipment } from './fence.mjs'
const [uri, database, op, jobId, generation, state] = process.argv.slice(2)
const client = new MongoClient(uri)
const shipments = client.db(database).collection('shipments')
if (op === 'write') console.log(await saveShipment(shipments, jobId, Number(generation), state))
else console.log((await shipments.findOne({ _id: jobId })).state)
await client.close()
`
	testenv.Must(t, os.WriteFile(filepath.Join(dir, "main.mjs"), []byte(main), 0o600))
	run := func(t *testing.T, args ...string) string {
		t.Helper()
		return output(t, "", "node", append([]string{filepath.Join(dir, "main.mjs"), uri}, args...)...)
	}
	database := testenv.Database(t)
	return fence{
		write: func(t *testing.T, jobID string, generation int64, state string) bool {
			return run(t, database, "write", jobID, strconv.FormatInt(generation, 10), state) == "true"
		},
		read: func(t *testing.T, jobID string) string { return run(t, database, "read", jobID) },
	}
}
