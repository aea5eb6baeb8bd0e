package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// buildkit drives BuildKit through docker buildx or buildctl, which differ in their flags only.
type buildkit struct {
	// builderName is the buildx builder; "" means buildctl.
	builderName string
	// dockerContext is passed to every docker command.
	dockerContext string
	env           []string
}

func (b *buildkit) name() string {
	if b.builderName != "" {
		return "docker buildx"
	}
	return "buildctl"
}

// findBuildctl takes buildctl when its daemon answers.
func findBuildctl(ctx context.Context) (*buildkit, string) {
	out, err := exec.CommandContext(ctx, "buildctl", "debug", "workers").CombinedOutput()
	if err != nil {
		return nil, why(out, err)
	}
	return &buildkit{env: os.Environ()}, ""
}

// findBuildx takes docker buildx when its engine answers, with a builder of our own that is made at first use. The
// person's selected builder stays as it is.
func findBuildx(ctx context.Context) (*buildkit, string) {
	env, name, endpoint, reason := dockerTarget(ctx)
	if reason != "" {
		return nil, reason
	}
	b := &buildkit{builderName: builderName(name, endpoint), dockerContext: name, env: env}
	if out, err := b.docker(ctx, "buildx", "version").CombinedOutput(); err != nil {
		return nil, why(out, err)
	}
	if out, err := b.docker(ctx, "version", "--format", "{{.Server.Version}}").CombinedOutput(); err != nil {
		return nil, why(out, err)
	}
	return b, ""
}

// dockerTarget says which engine docker commands go to. DOCKER_CONTEXT beats DOCKER_HOST, which in docker's own
// reading is the other way round.
func dockerTarget(ctx context.Context) (env []string, name, endpoint, reason string) {
	env = os.Environ()
	name = os.Getenv("DOCKER_CONTEXT")
	host := os.Getenv("DOCKER_HOST")
	if name != "" {
		env = without(env, "DOCKER_HOST")
	} else if host != "" {
		return env, "default", host, ""
	}
	cmd := exec.CommandContext(ctx, "docker", "context", "inspect", "--format", "{{.Name}}\n{{.Endpoints.docker.Host}}")
	if name != "" {
		cmd.Args = append(cmd.Args, name)
	}
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, "", "", why(out, err)
	}
	name, endpoint, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	return env, name, endpoint, ""
}

// builderName is "helmr-" and the first 24 hex digits of SHA-256 over context name, newline, endpoint.
func builderName(contextName, endpoint string) string {
	sum := sha256.Sum256([]byte(contextName + "\n" + endpoint))
	return "helmr-" + hex.EncodeToString(sum[:])[:24]
}

func without(env []string, name string) []string {
	kept := make([]string, 0, len(env))
	for _, e := range env {
		if !strings.HasPrefix(e, name+"=") {
			kept = append(kept, e)
		}
	}
	return kept
}

func (b *buildkit) docker(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = b.env
	return cmd
}

// ensureBuilder creates the docker-container builder when it does not exist. It shares the host's network, as image
// builds do everywhere.
func (b *buildkit) ensureBuilder(ctx context.Context, j *job) error {
	if b.builderName == "" || b.docker(ctx, "buildx", "inspect", b.builderName).Run() == nil {
		return nil
	}
	j.say("creating the builder " + b.builderName)
	cmd := b.docker(ctx, "buildx", "create", "--name", b.builderName, "--driver", "docker-container", "--driver-opt", "network=host", b.dockerContext)
	if out, err := j.run(cmd); err != nil {
		// Two builds may have created it at once.
		if b.docker(ctx, "buildx", "inspect", b.builderName).Run() == nil {
			return nil
		}
		return j.buildError(ctx, b, out, err)
	}
	return nil
}

func (b *buildkit) build(ctx context.Context, j *job) (string, error) {
	if err := b.ensureBuilder(ctx, j); err != nil {
		return "", err
	}
	names := make([]string, len(j.bases))
	for i, base := range j.bases {
		names[i] = Scratch
		if base.Ref != "" {
			names[i] = fmt.Sprintf("base%d", i)
		}
	}
	file, err := j.writeContainerfile(names)
	if err != nil {
		return "", fmt.Errorf("write Containerfile: %w", err)
	}
	unlock, err := j.store.lock(lockShared)
	if err != nil {
		return "", err
	}
	defer unlock()
	archive := filepath.Join(j.work, "buildkit.tar")
	if out, err := j.run(b.command(ctx, j, file, names, j.plan.target(), "type=oci,dest="+archive+",compression=uncompressed,force-compression=true")); err != nil {
		return "", j.buildError(ctx, b, out, err)
	}
	if out, err := j.check(b.command(ctx, j, file, names, checkStage, "")); err != nil {
		return "", j.nodeError(ctx, b, out, err)
	}
	return "", nil
}

func (b *buildkit) command(ctx context.Context, j *job, file string, names []string, target, output string) *exec.Cmd {
	var args []string
	if b.builderName != "" {
		args = []string{
			"buildx", "build", "--builder", b.builderName, "--progress", "plain", "--platform", "linux/amd64", "--provenance=false",
			"--sbom=false", "--build-arg", "SOURCE_DATE_EPOCH=0", "--file", file, "--target", target,
		}
		for i, base := range j.bases {
			if base.Ref != "" {
				args = append(args, "--build-context", names[i]+"=oci-layout://"+j.store.dir+"@"+base.Digest)
			}
		}
		if output == "" {
			output = "type=cacheonly"
		}
		args = append(args, secretOptions(j.plan.trust)...)
		return b.docker(ctx, append(args, "--output", output, j.context)...)
	}
	args = []string{
		"build", "--progress", "plain", "--frontend", "dockerfile.v0", "--local", "context=" + j.context, "--local", "dockerfile=" + filepath.Dir(file),
		"--opt", "filename=" + filepath.Base(file), "--opt", "target=" + target, "--opt", "platform=linux/amd64",
		"--opt", "build-arg:SOURCE_DATE_EPOCH=0", "--oci-layout", "store=" + j.store.dir,
	}
	for i, base := range j.bases {
		if base.Ref != "" {
			args = append(args, "--opt", "context:"+names[i]+"=oci-layout://store@"+base.Digest)
		}
	}
	args = append(args, secretOptions(j.plan.trust)...)
	if output != "" {
		args = append(args, "--output", output)
	}
	cmd := exec.CommandContext(ctx, "buildctl", args...)
	cmd.Env = b.env
	return cmd
}

func (b *buildkit) export(ctx context.Context, j *job, _ string) error {
	archive := filepath.Join(j.work, "buildkit.tar")
	if err := extractLayout(ctx, archive, j.layout); err != nil {
		return fmt.Errorf("read what BuildKit made: %w", err)
	}
	if err := os.Remove(archive); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read what BuildKit made: %w", err)
	}
	return nil
}
