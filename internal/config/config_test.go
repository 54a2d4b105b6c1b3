package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/internal/testenv"
)

// command is a flag set as a command has it: some flags may stand in the file, others may not.
type command struct {
	flags, keys *pflag.FlagSet
	listen      string
	wait        time.Duration
	verbose     bool
	format      Choice
	jobID       string
	payload     string
	requestID   string
	events      []string
}

func newCommand() *command {
	c := &command{
		flags: pflag.NewFlagSet("test", pflag.ContinueOnError), keys: pflag.NewFlagSet("test", pflag.ContinueOnError),
		format: Choice{Value: "text", Words: []string{"text", "json"}},
	}
	c.keys.StringVar(&c.listen, "listen", "default", "")
	c.keys.DurationVar(&c.wait, "max-wait", time.Second, "")
	c.keys.BoolVar(&c.verbose, "verbose", false, "")
	c.keys.Var(&c.format, "format", "")
	c.flags.AddFlagSet(c.keys)
	c.flags.StringVar(&c.jobID, "job-id", "", "")
	c.flags.StringVar(&c.payload, "payload", "", "")
	c.flags.StringArrayVar(&c.events, "event", nil, "")
	c.flags.StringVar(&c.requestID, "request-id", "", "")
	MayBeEmpty(c.flags, "payload")
	CommandLineAlone(c.flags, "request-id")
	c.flags.String(FileFlag, "", "")
	c.flags.Bool("help", false, "")
	return c
}

func (c *command) apply(t *testing.T, args []string, env map[string]string, file string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "jobonce.yaml")
	testenv.Must(t, os.WriteFile(path, []byte(file), 0o600))
	testenv.Must(t, c.flags.Parse(append(args, "--config", path)))
	return path, c.applyEnv(env)
}

func (c *command) applyEnv(env map[string]string) error {
	return Apply(c.flags, c.keys, "serve", lookupIn(env))
}

func lookupIn(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}
}

func TestPrecedence(t *testing.T) {
	const file = "serve:\n  listen: file\n"
	env := map[string]string{"JOBONCE_LISTEN": "env"}
	for _, tc := range []struct {
		name, want, file string
		args             []string
		env              map[string]string
	}{
		{name: "default", want: "default"},
		{name: "file beats default", want: "file", file: file},
		{name: "environment beats file", want: "env", file: file, env: env},
		{name: "flag beats environment", want: "flag", file: file, env: env, args: []string{"--listen", "flag"}},
		{name: "flag equal to the default beats environment", want: "default", env: env, args: []string{"--listen", "default"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCommand()
			if _, err := c.apply(t, tc.args, tc.env, tc.file); err != nil {
				t.Fatal(err)
			}
			if c.listen != tc.want {
				t.Errorf("listen is %q, want %q", c.listen, tc.want)
			}
		})
	}
}

func TestOrigin(t *testing.T) {
	c := newCommand()
	env := map[string]string{"JOBONCE_MAX_WAIT": "2m"}
	path, err := c.apply(t, []string{"--job-id", "a"}, env, "serve: {listen: x, max-wait: 3m}\n")
	testenv.Must(t, err)
	for flag, want := range map[string]Origin{
		"job-id":   {FromCommandLine, "--job-id"},
		"max-wait": {FromEnvironment, "JOBONCE_MAX_WAIT"},
		"listen":   {FromFile, "serve.listen of " + path},
		"verbose":  {},
	} {
		if got := OriginOf(c.flags.Lookup(flag)); got != want {
			t.Errorf("%s: got %+v, want %+v", flag, got, want)
		}
	}
}

func TestVariableWithoutOurPrefix(t *testing.T) {
	for _, tc := range []struct {
		env        map[string]string
		want, from string
	}{
		{map[string]string{"MONGODB_URI": "a"}, "a", "MONGODB_URI"},
		{map[string]string{"MONGODB_URI": "a", "JOBONCE_MONGODB_URI": "b"}, "b", "JOBONCE_MONGODB_URI"},
		{map[string]string{"MONGODB_URI": "", "JOBONCE_MONGODB_URI": "b"}, "b", "JOBONCE_MONGODB_URI"},
	} {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		uri := flags.String("mongodb-uri", "", "")
		testenv.Must(t, Apply(flags, flags, "serve", lookupIn(tc.env)))
		if from := OriginOf(flags.Lookup("mongodb-uri")); *uri != tc.want || from != (Origin{FromEnvironment, tc.from}) {
			t.Errorf("%v: got %q from %+v", tc.env, *uri, from)
		}
	}
}

func TestEveryKind(t *testing.T) {
	c := newCommand()
	env := map[string]string{"JOBONCE_MAX_WAIT": "2m", "JOBONCE_JOB_ID": "a", "JOBONCE_HELP": "nonsense", "JOBONCE_REQUEST_ID": "r"}
	if _, err := c.apply(t, nil, env, "serve: {verbose: true, format: JSON}\nclient: {anything: goes}\n"); err != nil {
		t.Fatal(err)
	}
	if c.wait != 2*time.Minute || c.jobID != "a" || !c.verbose || c.format.Value != "json" {
		t.Errorf("got %v, %q, %v, %q", c.wait, c.jobID, c.verbose, c.format.Value)
	}
	if c.requestID != "" || !IsCommandLineAlone(c.flags.Lookup("request-id")) || IsCommandLineAlone(c.flags.Lookup("job-id")) {
		t.Errorf("a flag that is for the command line alone is %q", c.requestID)
	}
	if !c.flags.Changed("max-wait") || !c.flags.Changed("verbose") {
		t.Error("a flag that the environment or the file sets must count as set")
	}
}

func TestFileNamedByEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	testenv.Must(t, os.WriteFile(path, []byte("serve: {listen: file}"), 0o600))
	c := newCommand()
	if err := c.applyEnv(map[string]string{"JOBONCE_CONFIG": path}); err != nil || c.listen != "file" {
		t.Errorf("got %q, %v", c.listen, err)
	}
}

func TestFilesThatSayNothing(t *testing.T) {
	for _, file := range []string{"", "# nothing\n", "---\n", "serve:\n", "client:\n  server: x\n"} {
		c := newCommand()
		if _, err := c.apply(t, nil, nil, file); err != nil || c.listen != "default" {
			t.Errorf("%q: got %q, %v", file, c.listen, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name, file, want string
		env              map[string]string
	}{
		{name: "bad variable", env: map[string]string{"JOBONCE_MAX_WAIT": "soon"},
			want: `JOBONCE_MAX_WAIT: invalid value "soon": must be a duration like "30s" or "5m"`},
		{name: "bad bool in a variable", env: map[string]string{"JOBONCE_VERBOSE": "ja"},
			want: `JOBONCE_VERBOSE: invalid value "ja": must be true or false`},
		{name: "bad value", file: "serve:\n  listen: a\n  format: xml\n",
			want: `FILE:3: serve.format: invalid value "xml": must be one of text, json`},
		{name: "unknown key", file: "serve:\n  listen: a\n  lissten: b\n", want: `FILE:3: unknown key serve.lissten`},
		{name: "flag that is not for the file", file: "serve: {job-id: a}", want: `FILE:1: unknown key serve.job-id`},
		{name: "the file names a file", file: "serve: {config: a}", want: `FILE:1: unknown key serve.config`},
		{name: "unknown section", file: "\nserver: {listen: a}", want: `FILE:2: unknown section "server"; there are serve, webhook, worker, poll, client`},
		{name: "key twice", file: "serve:\n  listen: a\n  listen: b\n", want: `FILE:3: listen stands twice`},
		{name: "section twice", file: "serve: {}\nserve: {}\n", want: `FILE:2: serve stands twice`},
		{name: "list", file: "serve:\n  listen: [a, b]\n", want: `FILE:2: serve.listen must have one plain value`},
		{name: "no value", file: "serve:\n  listen:\n", want: `FILE:2: serve.listen must have one plain value`},
		{name: "section is no mapping", file: "serve: a", want: `FILE:1: serve must be a mapping of keys to values`},
		{name: "file is no mapping", file: "- a", want: `FILE:1: the file must be a mapping of keys to values`},
		{name: "two documents", file: "serve: {}\n---\nserve: {}\n", want: `FILE: holds more than one YAML document`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path, err := newCommand().apply(t, nil, tc.env, tc.file)
			if err == nil {
				t.Fatal("no error")
			}
			if got := strings.ReplaceAll(err.Error(), path, "FILE"); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestLists: a flag that may be given several times takes a list, which replaces what it has by default.
func TestLists(t *testing.T) {
	for _, tc := range []struct {
		name, file, want string
		args             []string
	}{
		{name: "none", want: "[a] [65]"},
		{name: "one value", file: "serve: {names: x, codes: 3}", want: "[x] [3]"},
		{name: "lists", file: "serve:\n  names: [x, 'y, z']\n  codes: [3, 4]\n", want: "[x y, z] [3 4]"},
		{name: "empty lists", file: "serve: {names: [], codes: []}", want: "[] []"},
		{name: "the command line beats it", file: "serve: {names: [x], codes: [3]}", args: []string{"--names", "c"}, want: "[c] [3]"},
		{name: "a list in a list", file: "serve: {names: [[x]]}", want: "FILE:1: serve.names must have one plain value, or a list of them"},
		{name: "an empty value in a list", file: "serve:\n  names:\n  - x\n  - ''\n", want: "FILE:4: serve.names is empty; give it a value, or leave it out"},
		{name: "a wrong value in a list", file: "serve:\n  codes:\n  - 3\n  - x\n", want: `FILE:4: serve.codes: invalid value "x"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
			names, codes := flags.StringArray("names", []string{"a"}, ""), flags.IntSlice("codes", []int{65}, "")
			keys := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			keys.AddFlagSet(flags)
			path := filepath.Join(t.TempDir(), "config.yaml")
			testenv.Must(t, os.WriteFile(path, []byte(tc.file), 0o600))
			flags.String(FileFlag, path, "")
			testenv.Must(t, flags.Parse(tc.args))
			got := ""
			if err := Apply(flags, keys, "serve", lookupIn(nil)); err != nil {
				got = strings.ReplaceAll(err.Error(), path, "FILE")
			} else {
				got = fmt.Sprint(*names, " ", *codes)
			}
			if !strings.HasPrefix(got, tc.want) {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestEmptyIsRefused: an empty value is a mistake in whatever layer it stands, whatever stands in a lower one.
func TestEmptyIsRefused(t *testing.T) {
	const file = "serve: {listen: file, max-wait: 1m}\n"
	for _, tc := range []struct {
		name, file, want string
		args             []string
		env              map[string]string
	}{
		{name: "flag", args: []string{"--listen="}, file: file, want: `--listen is empty; give it a value, or leave it out`},
		{name: "blank flag", args: []string{"--listen", " "}, want: `--listen is empty; give it a value, or leave it out`},
		{name: "flag that no other layer has", args: []string{"--job-id", ""}, want: `--job-id is empty; give it a value, or leave it out`},
		{name: "one of several", args: []string{"--event", "a", "--event", ""}, want: `--event is empty; give it a value, or leave it out`},
		{name: "variable", env: map[string]string{"JOBONCE_LISTEN": ""}, file: file, want: `JOBONCE_LISTEN is set, and empty; give it a value, or unset it`},
		{name: "variable of a duration", env: map[string]string{"JOBONCE_MAX_WAIT": ""}, want: `JOBONCE_MAX_WAIT is set, and empty; give it a value, or unset it`},
		{name: "file", file: "serve:\n  listen: ''\n", want: `FILE:2: serve.listen is empty; give it a value, or leave it out`},
		{name: "file, blank", file: "serve:\n  listen: ' '\n", want: `FILE:2: serve.listen is empty; give it a value, or leave it out`},
		{name: "beaten variable", args: []string{"--listen", "a"}, env: map[string]string{"JOBONCE_LISTEN": ""}},
		{name: "empty means something", args: []string{"--payload", ""}},
		{name: "empty means something in the environment too", env: map[string]string{"JOBONCE_PAYLOAD": ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path, err := newCommand().apply(t, tc.args, tc.env, tc.file)
			got := ""
			if err != nil {
				got = strings.ReplaceAll(err.Error(), path, "FILE")
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
	if err := newCommand().applyEnv(map[string]string{"JOBONCE_CONFIG": ""}); err == nil || !strings.HasPrefix(err.Error(), "JOBONCE_CONFIG is set, and empty") {
		t.Errorf("got %v", err)
	}
}

func TestBrokenYAMLNamesTheFileAndLine(t *testing.T) {
	path, err := newCommand().apply(t, nil, nil, "serve:\n  listen: 'a\n")
	if err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), "line ") {
		t.Errorf("got %v", err)
	}
}

func TestMissingFile(t *testing.T) {
	c := newCommand()
	err := c.applyEnv(map[string]string{"JOBONCE_CONFIG": "/nonexistent/f.yaml"})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/f.yaml") {
		t.Errorf("got %v", err)
	}
}

func TestIntRange(t *testing.T) {
	r := IntRange{Value: 5, Min: 1, Max: 10}
	for _, bad := range []string{"0", "11", "", "1.5", "ten", "99999999999999999999"} {
		if err := r.Set(bad); err == nil || err.Error() != "must be a whole number from 1 to 10" || r.Value != 5 {
			t.Errorf("%q: got %v, value %d", bad, err, r.Value)
		}
	}
	if err := r.Set("10"); err != nil || r.String() != "10" {
		t.Errorf("got %v, value %s", err, r.String())
	}
}

// FuzzFile gives [Apply] any file. It must not panic, and must name the file in its error.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{
		"", "serve:", "serve: {listen: x, max-wait: 3m}", "serve: {verbose: true, format: JSON}\nclient: {anything: goes}\n",
		"serve: [1]", "{}", "- a", "serve:\n  listen: 'a\n", "---\n---\n", "serve: &a {listen: *a}", "serve: {<<: {listen: x}}",
		"a: &a [x]\nb: &b [*a,*a]\nserve: *b", "serve: {listen: !!binary aGk=}", "\xff\xfe", "serve: {listen: a, listen: b}", "? [a]: b",
		"!!null serve: x", "serve: !!map x",
	} {
		f.Add(seed)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, file string) {
		path := filepath.Join(dir, "jobonce.yaml")
		testenv.Must(t, os.WriteFile(path, []byte(file), 0o600))
		c := newCommand()
		testenv.Must(t, c.flags.Parse([]string{"--config", path}))
		err := c.applyEnv(nil)
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("the error does not name the file: %v", err)
		}
		if err == nil && c.format.Value != "text" && c.format.Value != "json" {
			t.Errorf("the format is %q", c.format.Value)
		}
	})
}
