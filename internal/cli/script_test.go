package cli

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestMain makes the test binary the jobonce command when it is run under that name.
func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){
		"jobonce": func() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// tests are the package's tests; they end what testenv started for them.
type tests struct{ *testing.M }

func (t tests) Run() int { return testenv.Main(t.M) }

func TestScripts(t *testing.T) { runScripts(t, "testdata/script", nil) }

// TestMongoScripts gives each script the database's URI and the name of a new database of its own.
func TestMongoScripts(t *testing.T) {
	runScripts(t, "testdata/mongo", map[string]string{"URI": testenv.MongoURI(t), "DATABASE": testenv.Database(t)})
}

func runScripts(t *testing.T, dir string, variables map[string]string) {
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Values[serving{}] = new(*process)
			env.Setenv("GORACE", testenv.RaceOptions)
			for name, value := range variables {
				env.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"startserve": startServeCmd,
			"stopserve":  stopServeCmd,
			"killserve":  killServeCmd,
		},
	})
}

// serving is the key of a script's running service.
type serving struct{}

// startServeCmd runs "jobonce serve ARGS..." in the script's directory, on a port of the system's choice unless ARGS or
// the script's environment say otherwise, waits until it is ready, and sets $ADDR to its address, also as the one that
// the commands call, and $READY to the line it printed.
func startServeCmd(ts *testscript.TestScript, neg bool, args []string) {
	running := ts.Value(serving{}).(**process)
	if neg || *running != nil {
		ts.Fatalf("startserve cannot be negated, and one service runs at a time")
	}
	env := []string{config.EnvName("listen") + "=127.0.0.1:0"}
	for name := range serveFlagNames() {
		for _, variable := range config.EnvNames(name) {
			if value := ts.Getenv(variable); value != "" {
				env = append(env, variable+"="+value)
			}
		}
	}
	p, err := startServe(ts.MkAbs("."), env, args...)
	ts.Check(err)
	*running = p
	ts.Defer(func() {
		if *running == p {
			_ = p.Kill()
		}
	})
	ts.Setenv("ADDR", p.addr)
	ts.Setenv(config.EnvName("server"), p.addr)
	ts.Setenv("READY", p.ready)
}

// stopServeCmd ends the service with SIGTERM and fails unless its exit code is 0. It leaves its log in serve.log.
func stopServeCmd(ts *testscript.TestScript, neg bool, args []string) {
	running := ts.Value(serving{}).(**process)
	if neg || len(args) > 0 || *running == nil {
		ts.Fatalf("stopserve takes no arguments and needs a running service")
	}
	p := *running
	*running = nil
	ts.Check(p.stop())
	ts.Check(os.WriteFile(ts.MkAbs("serve.log"), []byte(p.Log.String()), 0o600))
}

// killServeCmd ends the service as a crash does.
func killServeCmd(ts *testscript.TestScript, neg bool, args []string) {
	running := ts.Value(serving{}).(**process)
	if neg || len(args) > 0 || *running == nil {
		ts.Fatalf("killserve takes no arguments and needs a running service")
	}
	ts.Check((*running).Kill())
	*running = nil
}
