package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/image"
)

// buildImages builds the image of each Template, equal ones once, into the new folder out.
func buildImages(ctx context.Context, found index, source, out string, r reporter) ([]builtImage, error) {
	if err := os.Mkdir(out, 0o755); err != nil {
		return nil, fmt.Errorf("build images: %w", err)
	}
	done := map[string]builtImage{}
	images := make([]builtImage, 0, len(found.images))
	for i, raw := range found.images {
		template := found.plan.Templates[i]
		definition, err := image.Parse(raw)
		if err != nil {
			return nil, imageProblem(template, err)
		}
		steps, err := bundle.Canonical(definition)
		if err != nil {
			return nil, fmt.Errorf("build images: %w", err)
		}
		built, ok := done[string(steps)]
		if !ok {
			result, err := image.Build(ctx, image.Options{
				Definition: definition, SourceRoot: source, Out: filepath.Join(out, fmt.Sprintf("%d.tar", i)),
				Progress: func(line string) { r.log("%s: %s", definition.Key, line) },
			})
			if err != nil {
				return nil, imageProblem(template, err)
			}
			built = builtImage{archive: result.ArchivePath, config: bundle.ImageConfig(result.Config)}
			done[string(steps)] = built
		}
		images = append(images, built)
	}
	return images, nil
}

// imageProblem names the Template whose image could not be built. What is no mistake of the author stays as it is.
func imageProblem(template bundle.Template, err error) error {
	where := fmt.Sprintf("%s: template %q", template.Module, template.ID)
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Code == fault.Internal || errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%s: %w", where, err)
	}
	p := problem(where, "", "%s", f.Message)
	if f.Cause != nil && !strings.Contains(f.Message, f.Cause.Error()) {
		return p.with(f.Cause.Error())
	}
	return p
}
