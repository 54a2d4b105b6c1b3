// Command jobonce runs the JobOnce service and talks to it.
package main

import (
	"os"

	"github.com/jobonce/jobonce/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
