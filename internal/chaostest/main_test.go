// Package chaostest runs the service in processes of its own, puts it and its clients under random faults, and checks what
// the clients were told against each other and against what is stored when all is quiet again. docs/reliability.md has
// what is injected and what is checked.
package chaostest

import (
	"os"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, testenv.Roles{roleService: serviceMain})) }
