// Package image turns an author's image definition into one OCI archive, and such an archive into the read-only root
// filesystem of a Computer. It keeps a local store of base images, writes the Containerfile for BuildKit or buildah,
// and unpacks hostile layers safely. It is no builder and no container engine: builders do the building, sandbox runs.
package image
