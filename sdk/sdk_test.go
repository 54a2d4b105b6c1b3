// Package sdk_test holds the clients for Node and Python to what their READMEs say: installed as packages, and against a real
// service. What they must do when things go wrong is in conformance.
package sdk_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/cli"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m, testenv.Roles{
		"jobonce": func(args []string) int { return cli.Main(args, os.Stdin, os.Stdout, os.Stderr) },
	}))
}

// serve runs "jobonce serve".
func serve(t *testing.T, args ...string) *testenv.Service {
	t.Helper()
	return testenv.StartService(t, testenv.Program{
		Role: "jobonce", Args: append([]string{"serve", "--listen", "127.0.0.1:0"}, args...),
	}, testenv.Serving)
}

func embedded(t *testing.T) *testenv.Service { return serve(t, "--data-dir", t.TempDir()) }

// run runs a command to its end and returns what it printed.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// project is a copy of the project in which the Node client is installed, for files beside it.
func project(t *testing.T) string {
	dir := t.TempDir()
	testenv.Must(t, os.Symlink(filepath.Join(testenv.NodeSDK(t), "project", "node_modules"), filepath.Join(dir, "node_modules")))
	return dir
}

func nodeFile(t *testing.T, dir, name, code string, args ...string) *exec.Cmd {
	return exec.Command("node", append([]string{testenv.WriteFile(t, dir, name, []byte(code))}, args...)...)
}

func TestNode(t *testing.T) {
	dir := project(t)
	t.Run("tests", func(t *testing.T) {
		testenv.CopyFiles(t, dir, "node/test/client.test.mjs")
		run(t, exec.Command("node", "--test", filepath.Join(dir, "client.test.mjs")))
	})
	t.Run("types", func(t *testing.T) {
		const use = `import { Client, JobOnceError, Worker, type Reason } from 'jobonce'
import { answerTo } from 'jobonce/webhook'
const client: Client = new Client('127.0.0.1:1', { tls: false })
export async function f (signal: AbortSignal): Promise<number> {
  await new Worker(client, async ({ body, generation }) => body === undefined ? undefined : String(generation)).run(signal)
  const reason: Reason = 'LEASE_LOST'
  const { startWork, deliveries } = await client.record({ body: 'b', mode: 'queued' }, { signal })
  // @ts-expect-error: there is no such mode
  await client.record({ mode: 'some' })
  return startWork && deliveries > 1n && new JobOnceError('').is(reason) ? answerTo().status : 0
}
`
		for _, name := range []string{"use.mts", "use.cts"} {
			testenv.WriteFile(t, dir, name, []byte(use))
		}
		source := filepath.Join(testenv.NodeSDK(t), "source")
		types := filepath.Join(source, "node_modules", "@types")
		cmd := exec.Command(filepath.Join(source, "node_modules", ".bin", "tsc"), "--noEmit", "--strict", "--module", "node16",
			"--target", "es2022", "--typeRoots", types, "--types", "node", "use.mts", "use.cts")
		cmd.Dir = dir
		run(t, cmd)
	})
}

func TestPython(t *testing.T) {
	python, tools := testenv.PythonSDK(t)
	t.Run("tests", func(t *testing.T) {
		run(t, exec.Command(python, "-W", "error", "-m", "unittest", "discover", "python/tests"))
	})
	t.Run("types", func(t *testing.T) {
		cmd := exec.Command(tools, "-m", "mypy", "--cache-dir", t.TempDir(), "src/jobonce", "tests")
		cmd.Dir = "python"
		run(t, cmd)
		const use = `import jobonce
import jobonce.aio
from jobonce.webhook import answer_to


def work(work: jobonce.Work) -> str | None:
    return str(work.generation) if work.body else None


def record(client: jobonce.Client) -> int:
    worker: jobonce.Worker = jobonce.Worker(client, work, concurrency=2)
    worker.stop()
    answer = client.record(body=b"b", mode="queued", timeout=1.0)
    client.record(mode="some")  # type: ignore
    return answer_to()[0] if answer.start_work and answer.deliveries > 1 else 0


async def do(client: jobonce.aio.Client) -> bool:
    async def work(work: jobonce.aio.Work) -> None:
        pass

    return (await client.do(work, job_id="j")).settled
`
		file := testenv.WriteFile(t, t.TempDir(), "use.py", []byte(use))
		run(t, exec.Command(tools, "-m", "mypy", "--strict", "--cache-dir", t.TempDir(), "--python-executable", python, file))
	})
	t.Run("without the optional package", func(t *testing.T) {
		run(t, exec.Command(python, "-c", `import sys; sys.modules["standardwebhooks"] = None; import jobonce, jobonce.aio`))
	})
}

// forgotten are programs that do not close their client, and end all the same.
var forgotten = map[string]func(t *testing.T) *exec.Cmd{
	"node": func(t *testing.T) *exec.Cmd {
		return nodeFile(t, project(t), "forgotten.mjs", `
import { Client } from 'jobonce'
const { startWork } = await new Client(process.env.TARGET).record({ jobId: 'node' })
console.log(startWork)
`)
	},
	"python": func(t *testing.T) *exec.Cmd {
		python, _ := testenv.PythonSDK(t)
		return exec.Command(python, "-c", `
import os, jobonce
client = jobonce.Client(os.environ["TARGET"])
print(str(client.record(job_id="python").start_work).lower())
`)
	},
}

// TestForgottenClient: a connection that nobody uses keeps no process.
func TestForgottenClient(t *testing.T) {
	s := embedded(t)
	for name, command := range forgotten {
		t.Run(name, func(t *testing.T) {
			cmd := command(t)
			cmd.Env = append(os.Environ(), "TARGET="+s.Addr())
			out := make(chan string, 1)
			go func() { out <- run(t, cmd) }()
			select {
			case got := <-out:
				if got != "true\n" {
					t.Errorf("it prints %q", got)
				}
			case <-time.After(2 * time.Minute):
				testenv.OK(t, cmd.Process.Kill())
				<-out
				t.Error("it does not end")
			}
		})
	}
}

// TestPythonForked: a client is of no use to a process that was forked after it was made, and says so at once.
func TestPythonForked(t *testing.T) {
	python, _ := testenv.PythonSDK(t)
	s := embedded(t)
	cmd := exec.Command(python, "-c", `
import os, jobonce
client = jobonce.Client(os.environ["TARGET"])
client.record(job_id="before")
child = os.fork()
if child == 0:
    try:
        client.record(job_id="child", timeout=5.0)
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert client.record(job_id="parent").start_work
`)
	cmd.Env = append(os.Environ(), "TARGET="+s.Addr())
	run(t, cmd)
}

// readmes is how to run a piece of code of each README.
var readmes = map[string]struct {
	file, tag string
	command   func(t *testing.T, code string) *exec.Cmd
}{
	"node": {"node/README.md", "js", func(t *testing.T, code string) *exec.Cmd {
		return nodeFile(t, project(t), "readme.mjs", code)
	}},
	"python": {"python/README.md", "python", func(t *testing.T, code string) *exec.Cmd {
		python, _ := testenv.PythonSDK(t)
		return exec.Command(python, "-c", code)
	}},
}

// remark is what a README says that its code prints.
var remark = regexp.MustCompile(`(?m)(?:print|console\.log)\(.*\) *(?://|#) +(\S[^:\n]*)`)

// TestReadmes runs the code of the READMEs, in order, against one service. It prints what the remarks say.
func TestReadmes(t *testing.T) {
	testenv.NodeSDK(t)
	testenv.PythonSDK(t)
	for name, readme := range readmes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(readme.file)
			testenv.Must(t, err)
			blocks := regexp.MustCompile("(?ms)^```"+readme.tag+"\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
			if len(blocks) < 5 {
				t.Fatalf("%s has %d blocks of code", readme.file, len(blocks))
			}
			s := embedded(t)
			for i, block := range blocks {
				code := strings.ReplaceAll(block[1], "127.0.0.1:50051", s.Addr())
				if strings.Contains(code, "/run/secrets") {
					continue // There is no such file here.
				}
				var want strings.Builder
				for _, said := range remark.FindAllStringSubmatch(code, -1) {
					want.WriteString(strings.TrimSpace(said[1]) + "\n")
				}
				cmd := readme.command(t, code)
				if strings.Contains(code, "SIGTERM") {
					worksUntilStopped(t, cmd)
					continue
				}
				if out := run(t, cmd); out != want.String() {
					t.Errorf("block %d prints\n%s\nand says that it prints\n%s", i+1, out, &want)
				}
			}
		})
	}
}

// worksUntilStopped runs a worker until it has worked once, and asks it to stop.
func worksUntilStopped(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	testenv.Must(t, err)
	log := new(bytes.Buffer)
	cmd.Stderr = log
	testenv.Must(t, cmd.Start())
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "working on acme:1") {
		t.Errorf("the worker says %q: %v", line, err)
	}
	testenv.OK(t, cmd.Process.Signal(syscall.SIGTERM))
	_, _ = io.Copy(io.Discard, lines)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the worker does not stop in order: %v\n%s", err, log)
	}
}

// driver is a client that is told what to do, as conformance/README.md says.
type driver struct {
	t      *testing.T
	id     int
	target string
	stdin  io.WriteCloser
	stdout *json.Decoder
	stderr bytes.Buffer
}

// drivers start the client of each language.
var drivers = map[string]func(t *testing.T) *exec.Cmd{
	"node": func(t *testing.T) *exec.Cmd {
		code, err := os.ReadFile("node/test/conformance.mjs")
		testenv.Must(t, err)
		return nodeFile(t, project(t), "driver.mjs", string(code))
	},
	"python": func(t *testing.T) *exec.Cmd {
		python, _ := testenv.PythonSDK(t)
		return exec.Command(python, "python/tests/conformance.py", "sync")
	},
	"python-asyncio": func(t *testing.T) *exec.Cmd {
		python, _ := testenv.PythonSDK(t)
		return exec.Command(python, "python/tests/conformance.py", "aio")
	},
}

func start(t *testing.T, cmd *exec.Cmd, target string, env ...string) *driver {
	t.Helper()
	d := &driver{t: t, target: target}
	cmd.Env = append(os.Environ(), env...)
	var err error
	d.stdin, err = cmd.StdinPipe()
	testenv.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	testenv.Must(t, err)
	d.stdout, cmd.Stderr = json.NewDecoder(stdout), &d.stderr
	testenv.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = d.stdin.Close() // It ends with its input.
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &d.stderr)
		}
	})
	return d
}

// does has the client do something, and returns the part of what came of it that want names.
func (d *driver) does(op string, args, want map[string]any) {
	d.t.Helper()
	d.id++
	line, err := json.Marshal(map[string]any{"id": d.id, "target": d.target, "op": op, "args": args})
	testenv.Must(d.t, err)
	if _, err := d.stdin.Write(append(line, '\n')); err != nil {
		d.t.Fatalf("%v\n%s", err, &d.stderr)
	}
	var report struct{ Result, Error map[string]any }
	if err := d.stdout.Decode(&report); err != nil {
		d.t.Fatalf("%v\n%s", err, &d.stderr)
	}
	all := report.Result
	if all == nil {
		all = report.Error
	}
	got := make(map[string]any)
	for key := range want {
		got[key] = all[key]
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		d.t.Errorf("%s %v: %+v, not %v", op, args, report, want)
	}
}

func eachLanguage(t *testing.T, test func(t *testing.T, command func(t *testing.T) *exec.Cmd)) {
	testenv.NodeSDK(t)
	testenv.PythonSDK(t) // Made before they are needed at the same time.
	for name, command := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, command)
		})
	}
}

// TestDeliveries records to either store, with requests as they are and compressed.
func TestDeliveries(t *testing.T) {
	for name, store := range testenv.StoreFlags {
		t.Run(name, func(t *testing.T) {
			s := serve(t, store(t)...)
			eachLanguage(t, func(t *testing.T, command func(t *testing.T) *exec.Cmd) {
				for _, compression := range []string{"", "gzip"} {
					recordsOnce(start(t, command(t), s.Addr(), "COMPRESSION="+compression), t.Name()+compression)
				}
			})
		})
	}
}

// recordsOnce has the client record jobs whose ids begin with prefix, each twice.
func recordsOnce(d *driver, prefix string) {
	d.t.Helper()
	text, bom := `{"job_id":"`+prefix+`text","event":"e"}`, "\xef\xbb\xbf{\"job_id\":\""+prefix+"bom\"}"
	for _, body := range []string{text, bom, "no text: \xff\x00"} {
		args := map[string]any{"body_base64": []byte(body)}
		if strings.HasPrefix(body, "no text") {
			args["job_id"] = prefix + "bytes"
		}
		d.does("record", args, map[string]any{"disposition": "FIRST", "start_work": true, "deliveries": 1})
		d.does("record", args, map[string]any{"disposition": "DUPLICATE", "start_work": false, "deliveries": 2})
	}
	d.does("get", map[string]any{"job_id": prefix + "text"}, map[string]any{"deliveries": 2, "body": text})
	d.does("record", map[string]any{"body": "{}"}, map[string]any{"code": "INVALID_ARGUMENT", "reason": "INVALID_FIELD", "field": "job_id"})
}

// TestStoreAway has the service say when to try again. The client stops after two attempts, not for lack of time: an attempt that is cut
// off by the deadline has an unknown outcome.
func TestStoreAway(t *testing.T) {
	eachLanguage(t, func(t *testing.T, command func(t *testing.T) *exec.Cmd) {
		p, err := testenv.Program{Role: "jobonce", Args: []string{"serve", "--listen", "127.0.0.1:0", "--mongodb-uri", "mongodb://127.0.0.1:1/"}}.Start()
		testenv.Must(t, err)
		t.Cleanup(func() { _ = p.Kill() })
		d := start(t, command(t), listens(t, p), "ATTEMPTS=2")
		d.does("record", map[string]any{"job_id": "j", "timeout_seconds": 60},
			map[string]any{"code": "UNAVAILABLE", "reason": "STORE_UNAVAILABLE", "retry_after_seconds": 0.5, "outcome_unknown": false})
	})
}

var listening = regexp.MustCompile(`msg=listening address=(\S+)`)

// listens waits until a service listens, ready or not, and returns its address.
func listens(t *testing.T, p *testenv.Process) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if match := listening.FindStringSubmatch(p.Log.String()); match != nil {
			return match[1]
		}
	}
	t.Fatalf("serve does not listen: %s", &p.Log)
	return ""
}
