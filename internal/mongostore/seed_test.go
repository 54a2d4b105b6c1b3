package mongostore_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// script is a running testdata/seed/seed.mjs.
type script struct {
	index string // the name that its createIndex gave

	mu      sync.Mutex
	stdin   io.WriteCloser
	n       int
	waiting map[int]chan answer
	broken  error
}

// answer is one line of the script.
type answer struct {
	N        int    `json:"n"`
	Index    string `json:"index"`
	First    bool   `json:"first"`
	Code     int    `json:"code"`
	Error    string `json:"error"`
	Document *struct {
		Event      string          `json:"event"`
		Status     string          `json:"status"`
		Payload    json.RawMessage `json:"payload"`
		FirstSeen  time.Time       `json:"first_seen"`
		Deliveries int64           `json:"deliveries"`
	} `json:"document"`
	Types struct {
		FirstSeen  string `json:"first_seen"`
		Deliveries string `json:"deliveries"`
	} `json:"types"`
}

// startScript starts the script and waits until it has made its index.
func startScript(t *testing.T, uri, database string) *script {
	t.Helper()
	cmd := exec.Command("node", filepath.Join(installScript(t), "seed.mjs"), uri, database, mongostore.DefaultCollection)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	testenv.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	testenv.Must(t, err)
	ready := make(chan answer, 1)
	s := &script{stdin: stdin, waiting: map[int]chan answer{0: ready}}
	testenv.Must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.readAnswers(stdout)
		if err := cmd.Wait(); err != nil {
			t.Errorf("seed.mjs: %v", err)
		}
	}()
	t.Cleanup(func() {
		_ = stdin.Close() // it ends with its input
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	first := s.await(t, ready)
	s.index = first.Index
	return s
}

func (s *script) readAnswers(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<24)
	err := errors.New("seed.mjs has ended")
	for lines.Scan() {
		var a answer
		if err = json.Unmarshal(lines.Bytes(), &a); err != nil {
			break
		}
		err = errors.New("seed.mjs has ended")
		s.mu.Lock()
		if c := s.waiting[a.N]; c != nil {
			c <- a
			delete(s.waiting, a.N)
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
	for _, c := range s.waiting {
		c <- answer{Error: err.Error()}
	}
}

func (s *script) await(t *testing.T, c <-chan answer) answer {
	t.Helper()
	select {
	case a := <-c:
		if a.Error != "" && a.Code == 0 {
			t.Fatalf("seed.mjs: %s", a.Error)
		}
		return a
	case <-time.After(time.Minute):
		t.Fatal("seed.mjs does not answer")
		return answer{}
	}
}

// send sends a command and returns where its answer comes.
func (s *script) send(t *testing.T, command map[string]any) <-chan answer {
	t.Helper()
	c := make(chan answer, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	command["n"] = s.n
	line, err := json.Marshal(command)
	if err == nil {
		err = s.broken
	}
	if err == nil {
		s.waiting[s.n] = c
		_, err = s.stdin.Write(append(line, '\n'))
	}
	if err != nil {
		t.Fatalf("seed.mjs: %v", err)
	}
	return c
}

// record lets the script record an event, given as JSON.
func (s *script) record(t *testing.T, event string) bool {
	t.Helper()
	a := s.await(t, s.send(t, map[string]any{"record": json.RawMessage(event)}))
	if a.Error != "" {
		t.Fatalf("seed.mjs: %s", a.Error)
	}
	return a.First
}

func (s *script) read(t *testing.T, jobID string) answer {
	t.Helper()
	a := s.await(t, s.send(t, map[string]any{"read": jobID}))
	if a.Document == nil {
		t.Fatalf("seed.mjs finds no job %s: %s", jobID, a.Error)
	}
	return a
}

// installScript puts the script and the packages it needs into the tests' cache, and returns the directory.
func installScript(t *testing.T) string {
	t.Helper()
	testenv.Need(t, "node", "npm")
	const source = "testdata/seed"
	var inputs []string
	for _, name := range []string{"package.json", "package-lock.json", "seed.mjs"} {
		inputs = append(inputs, filepath.Join(source, name))
	}
	return testenv.Cached(t, "seed", inputs, func(dir string) error {
		if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
			return err
		}
		return testenv.Run(t, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
}
