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

// secrets are what one source and its sender both know: from files, which are read again when they change, and from the environment.
type secrets struct {
	source, what string
	files        *auth.Files // nil when there are none
	fixed        []string    // from the environment
	now          atomic.Pointer[[]string]
}

// signing reads the secrets that its sender signs with.
func (s *Source) signing() (*secrets, error) {
	return newSecrets(s, "secrets", "secrets_files", s.SecretsFiles, "secrets_env", s.SecretsEnv)
}

// verifyToken reads what a handshake has to bring along. There may be none.
func (s *Source) verifyToken() (*secrets, error) {
	var files, env []string
	if s.VerifyTokenFile != "" {
		files = []string{s.VerifyTokenFile}
	}
	if s.VerifyTokenEnv != "" {
		env = []string{s.VerifyTokenEnv}
	}
	if len(files)+len(env) > 1 {
		return nil, s.wrong("verify_token_file", errors.New("verify_token_env is there too; leave one out"))
	}
	return newSecrets(s, "verify token", "verify_token_file", files, "verify_token_env", env)
}

// newSecrets reads secrets for the first time. The keys are those of the source that say where they are.
func newSecrets(s *Source, what, filesKey string, files []string, envKey string, env []string) (*secrets, error) {
	out := &secrets{source: s.Name, what: what}
	var err error
	if out.fixed, err = fromEnvironment(env); err != nil {
		return nil, s.wrong(envKey, err)
	}
	var contents [][]byte
	if len(files) > 0 {
		if out.files, contents, err = auth.ReadFiles(files); err != nil {
			return nil, s.wrong(filesKey, err)
		}
	}
	all, err := out.with(contents)
	if err != nil {
		return nil, s.wrong(filesKey, err)
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

// run reads the files again when they change, until ctx ends. Secrets that cannot be used leave the old ones in force.
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
			log.Error("the "+s.what+" changed and cannot be used: what was read before stays in force", "source", s.source, "error", err)
			return
		}
		s.now.Store(&all)
		log.Info("the "+s.what+" changed: what was read now is in force", "source", s.source, "count", len(all))
	})
}
