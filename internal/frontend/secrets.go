package frontend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/jobonce/jobonce/internal/auth"
)

// maxSecret bounds a secret, in bytes.
const maxSecret = 16 << 10

// secrets are those of one source: from files, which are read again when they change, and from the environment.
type secrets struct {
	source string
	files  *auth.Files // nil when there are none
	fixed  []string    // from the environment
	now    atomic.Pointer[[]string]
}

// newSecrets reads the secrets of a source for the first time.
func newSecrets(s *Source) (*secrets, error) {
	out := &secrets{source: s.Name}
	var err error
	if out.fixed, err = fromEnvironment(s.SecretsEnv); err != nil {
		return nil, s.wrong("secrets_env", err)
	}
	var contents [][]byte
	if len(s.SecretsFiles) > 0 {
		if out.files, contents, err = auth.ReadFiles(s.SecretsFiles); err != nil {
			return nil, s.wrong("secrets_files", err)
		}
	}
	all, err := out.with(contents)
	if err != nil {
		return nil, s.wrong("secrets_files", err)
	}
	out.now.Store(&all)
	return out, nil
}

// with are the secrets, with those of the files' contents first.
func (s *secrets) with(contents [][]byte) (all []string, err error) {
	for i, c := range contents {
		switch c = bytes.TrimSpace(c); {
		case len(c) == 0:
			return nil, fmt.Errorf("file %d is empty", i+1)
		case len(c) > maxSecret:
			return nil, fmt.Errorf("file %d is over %d bytes", i+1, maxSecret)
		}
		all = append(all, string(c))
	}
	return append(all, s.fixed...), nil
}

func (s *secrets) get() []string { return *s.now.Load() }

// run takes the files again when they change, until ctx ends. What cannot be used leaves the old ones in force.
func (s *secrets) run(ctx context.Context, check func([]string) error, log *slog.Logger) {
	if s.files == nil {
		return
	}
	s.files.Run(ctx, func(contents [][]byte, err error) {
		all, parseErr := s.with(contents)
		if err = errors.Join(err, parseErr); err == nil {
			err = check(all)
		}
		if err != nil {
			log.Error("the secrets have changed and cannot be used; the old ones stay in force", "source", s.source, "error", err)
			return
		}
		s.now.Store(&all)
		log.Info("the secrets have changed and are in force", "source", s.source, "secrets", len(all))
	})
}

// verifyToken reads what a handshake has to bring along.
func (s *Source) verifyToken() (string, error) {
	switch {
	case s.VerifyTokenFile != "" && s.VerifyTokenEnv != "":
		return "", s.wrong("verify_token_file", errors.New("verify_token_env is there too; leave one out"))
	case s.VerifyTokenEnv != "":
		values, err := fromEnvironment([]string{s.VerifyTokenEnv})
		if err != nil {
			return "", s.wrong("verify_token_env", err)
		}
		return values[0], nil
	case s.VerifyTokenFile != "":
		_, contents, err := auth.ReadFiles([]string{s.VerifyTokenFile})
		if err == nil && len(bytes.TrimSpace(contents[0])) == 0 {
			err = errors.New("the file is empty")
		}
		if err != nil {
			return "", s.wrong("verify_token_file", err)
		}
		return string(bytes.TrimSpace(contents[0])), nil
	}
	return "", nil
}
