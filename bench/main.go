// Command bench compares JobOnce with what its users would do otherwise: calling MongoDB themselves, or using PostgreSQL
// or Redis for it. It builds and starts all that it needs, on this machine, and ends it again:
//
//	go run -C bench . [-short]
//
// On standard output it prints one line for each figure, its name and its value, and at the end one for each figure that
// has an aim; a table for people goes to standard error. docs/performance.md says what is measured and how. It runs on
// Linux, since it reads /proc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

// config is what the flags set.
type config struct {
	short  bool
	run    *regexp.Regexp
	before string
	repeat int
	cell   time.Duration
	seed   int
	large  int
	dir    string
	plot   string
}

const defaultPlot = "../docs/performance.svg"

func main() {
	if len(os.Args) > 1 && os.Args[1] == childCommand {
		os.Exit(childMain(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(mainCode(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// mainCode returns the exit code: 0 fine, 1 failed, 2 wrong usage. Whatever it started has ended when it returns.
func mainCode(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	groups, figures := plan(cfg)
	if len(groups) == 0 {
		fmt.Fprintln(stderr, "bench: -run matches no figure")
		return 2
	}
	results, err := measure(ctx, cfg, groups, figures, stdout, stderr)
	results.table(stderr)
	err = errors.Join(err, printAims(stdout, results, figures))
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	if cfg.plot != "" {
		if err := drawPlot(results, cfg.plot); err != nil {
			fmt.Fprintln(stderr, "bench: plot:", err)
			return 1
		}
	}
	return 0
}

func parse(args []string, stderr io.Writer) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	run := flags.String("run", "", "measure only the figures whose name this `regexp` matches")
	flags.StringVar(&cfg.before, "before", "", "a `commit`, or a directory with its files: measure the figures that have an aim for that one too, in turn")
	flags.BoolVar(&cfg.short, "short", false, "leave the growth figures out and measure for a shorter time")
	flags.IntVar(&cfg.repeat, "repeat", 5, "how often each measurement is repeated")
	flags.DurationVar(&cfg.cell, "cell", 0, "how long one measurement takes (default 3s, with -short 800ms)")
	flags.IntVar(&cfg.seed, "seed", 10_000, "how many jobs a store holds before it is measured")
	flags.IntVar(&cfg.large, "large", 1_000_000, "how many jobs the large store of the growth figures holds")
	flags.StringVar(&cfg.dir, "dir", os.TempDir(), "`directory` for the data: its disk is measured too")
	flags.StringVar(&cfg.plot, "plot", defaultPlot, "`file` for the plot, .svg or .png; without this flag only a full run writes one")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(stderr)
			flags.Usage()
		}
		return cfg, err
	}
	if cfg.cell == 0 {
		cfg.cell = 3 * time.Second
		if cfg.short {
			cfg.cell = 800 * time.Millisecond
		}
	}
	plotAsked := false
	flags.Visit(func(f *flag.Flag) { plotAsked = plotAsked || f.Name == "plot" })
	if !plotAsked && (cfg.short || *run != "") {
		cfg.plot = ""
	}
	var err error
	switch {
	case flags.NArg() > 0:
		return cfg, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case cfg.repeat < 1:
		return cfg, errors.New("-repeat must be at least 1")
	case cfg.cell < 0:
		return cfg, errors.New("-cell must be above zero")
	case cfg.seed < 1 || cfg.large < cfg.seed:
		return cfg, errors.New("-seed must be at least 1, and -large at least -seed")
	}
	if cfg.run, err = regexp.Compile(*run); err != nil {
		return cfg, fmt.Errorf("-run: %w", err)
	}
	return cfg, nil
}
