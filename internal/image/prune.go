package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Prune removes from a cache folder what building makes again by itself: finished archives, buildah's layers, and
// copies of images from registries. Images that somebody put into the store stay.
func Prune(ctx context.Context, cacheDir string) error {
	s, err := OpenStore(cacheDir)
	if err != nil {
		return err
	}
	all, err := s.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range all {
		if e.Origin == OriginRegistry {
			_, err := s.Remove(e.Ref)
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(filepath.Join(cacheDir, "archives")))
	dir := filepath.Join(cacheDir, "buildah")
	if exists(dir) {
		// buildah removes its own storage: there may be mounts in it.
		b, reason := findBuildah(ctx, cacheDir)
		if b == nil {
			return errors.Join(append(errs, fmt.Errorf("prune the layers of buildah: %s", reason))...)
		}
		if out, err := b.command(ctx, "rmi", "--all", "--force").CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("prune the layers of buildah: %s", why(out, err)))
		}
		checked, _ := filepath.Glob(filepath.Join(dir, "checked-*"))
		for _, f := range checked {
			errs = append(errs, ignoreMissing(os.Remove(f)))
		}
	}
	return errors.Join(errs...)
}
