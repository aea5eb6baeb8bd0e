package image

import "context"

// FindBuilder names the program that Build would use on this machine; the error says what was tried.
func FindBuilder(ctx context.Context) (string, error) {
	dir, err := CacheDir()
	if err != nil {
		return "", err
	}
	b, err := findBuilder(ctx, dir)
	if err != nil {
		return "", err
	}
	return b.name(), nil
}
