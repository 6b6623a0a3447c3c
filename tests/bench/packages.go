package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// packageEnv is the environment that a call asks for with a package.
	packageEnv = "python+psutil"
	// buildLimit bounds the wait for what Nix builds before anything is measured.
	buildLimit = 10 * time.Minute
)

// packages is the group that compares a call of an environment to which a call added a
// package with the same call of the environment itself, when both are built. It needs Nix.
func (b *bench) packages() group {
	config := filepath.Join(b.temp, "packages.toml")
	env := append([]string{"NIX_SANDBOX_CONFIG=" + config, "NIX_CONFIG=" + os.Getenv("NIX_CONFIG"), "XDG_CACHE_HOME=" + filepath.Join(b.temp, "cache")}, b.env...)
	built := sync.OnceValue(func() error {
		text := "[environments.python]\npreset = \"python\"\nprewarm = 1\npackages_on_demand = [\"psutil\"]\n"
		if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), buildLimit)
		defer cancel()
		s, _, err := launch{program: b.server, env: env}.start(ctx)
		if err != nil {
			return err
		}
		defer s.Close()
		return s.awaitBuilt(ctx, packageEnv)
	})
	g := group{
		name: "packages", title: "python: a call with a package that an earlier call added", base: "python, one sandbox waiting",
		rounds: 150, budget: 40 * time.Second,
	}
	for _, one := range []struct{ name, env, session string }{
		{g.base, "python", ""},
		{packageEnv + ", one sandbox waiting", packageEnv, ""},
		{"python, in a session", "python", "bench"},
		{packageEnv + ", in a session", packageEnv, "bench"},
	} {
		batch := 1
		if one.session != "" {
			batch = 10
		}
		g.list = append(g.list, entry{batch: batch, contender: &packageCall{built, &served{
			name: one.name, launch: launch{program: b.server, env: env},
			environment: one.env, session: one.session, code: small["python"].code, want: small["python"].want,
		}}})
	}
	return g
}

// packageCall is a call to a server that has its environments built when it starts.
type packageCall struct {
	built func() error
	*served
}

func (c *packageCall) Prepare(ctx context.Context) error {
	if err := c.built(); err != nil {
		return err
	}
	// The build may have taken longer than a preparation may.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	if err := c.served.Prepare(ctx); err != nil {
		return err
	}
	return c.server.awaitBuilt(ctx, c.environment)
}

// awaitBuilt calls an environment until it answers.
func (s *server) awaitBuilt(ctx context.Context, environment string) error {
	for {
		_, err := s.run(ctx, environment, "", small["python"].code, small["python"].want)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not built: %w", environment, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
