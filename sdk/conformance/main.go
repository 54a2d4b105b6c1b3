// Command conformance puts clients of JobOnce, in whatever language, through what a network and a service can do to them, and
// prints how they fared:
//
//	go run ./sdk/conformance node='node sdk/node/test/conformance.mjs'
//
// Each argument is a client's name and its command, which is run by the shell and speaks the protocol of README.md on its
// standard input and output. "go" and "naive" alone are the clients that are built in: the Go client, and one that makes the
// usual mistakes. The exit code is 1 when a client failed.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// patience is how long anything may take that is to come.
const patience = 20 * time.Second

// builtIn are the clients that need no command.
var builtIn = map[string]Client{"go": goClient, "naive": naiveClient}

func main() {
	failed, err := run(context.Background(), os.Stdout, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) (failed bool, err error) {
	if len(args) == 0 {
		args = []string{"go"}
	}
	scenarios, err := Scenarios()
	if err != nil {
		return false, err
	}
	var names []string
	fared := make(map[string][]Outcome)
	for _, arg := range args {
		name, command, ok := strings.Cut(arg, "=")
		client := builtIn[name]
		if ok {
			client = Process(exec.CommandContext(ctx, "sh", "-c", command))
		}
		if client == nil {
			return false, fmt.Errorf("%q is neither NAME=COMMAND nor a client that is built in", arg)
		}
		outcomes, err := Run(ctx, client, scenarios, patience)
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		names, fared[name] = append(names, name), outcomes
	}
	return Table(out, names, fared) > 0, nil
}

// Process is a client that is a program of its own. Its standard error is passed on, unless it is set.
func Process(cmd *exec.Cmd) Client {
	return func(_ context.Context, in io.Reader, out io.Writer) error {
		cmd.Stdout = out
		if cmd.Stderr == nil {
			cmd.Stderr = os.Stderr
		}
		// Not cmd.Stdin: Wait would wait for the end of in.
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(stdin, in)
			_ = stdin.Close()
		}()
		return cmd.Wait()
	}
}
