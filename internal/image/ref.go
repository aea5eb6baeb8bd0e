package image

import (
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

const dockerHub = "docker.io"

// Normalize writes an image reference in full: "node:24" becomes "docker.io/library/node:24", a missing tag ":latest".
func Normalize(ref string) (string, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return "", fmt.Errorf("parse image reference %q: %w", ref, err)
	}
	registry := r.Context().RegistryStr()
	if registry == name.DefaultRegistry {
		registry = dockerHub
	}
	sep := ":"
	if _, ok := r.(name.Digest); ok {
		sep = "@"
	}
	return registry + "/" + r.Context().RepositoryStr() + sep + r.Identifier(), nil
}

// Familiar is the short form of a normalised reference, as people write it.
func Familiar(ref string) string {
	ref = strings.TrimPrefix(ref, dockerHub+"/")
	return strings.TrimPrefix(ref, "library/")
}
