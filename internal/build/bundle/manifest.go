package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/gowebpki/jcs"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/egress/policy"
)

// Names and media types of contract version 0.
const (
	Contract      = "helmr.deployment-bundle.v0"
	IndexContract = "helmr.definition-index.v1"

	// MediaType is the manifest's, ImageMediaType that of an OCI image layout in a tar, ProgramMediaType the program's.
	MediaType        = "application/vnd.helmr.deployment-bundle.v0+json"
	ImageMediaType   = "application/vnd.oci.image.layout.v1.tar"
	ProgramMediaType = "application/vnd.helmr.program.v0.tar+zstd"

	Arch = "x86_64"
	OS   = "linux"

	// ProtocolVersion numbers what the host program and the guest say to each other about this program.
	ProtocolVersion = 1
	// Entry is the program's first module; it exports `agents`.
	Entry = "index.mjs"
	// ManifestName and ObjectsDir are the two things in a bundle folder.
	ManifestName = "manifest.json"
	ObjectsDir   = "objects"
)

// Manifest describes one bundle. Its canonical JSON is what is hashed, sent and stored; Parse reads it.
type Manifest struct {
	Contract string   `json:"contract"`
	Platform Platform `json:"platform"`
	Plan     Plan     `json:"plan"`
	Runtime  Runtime  `json:"runtime"`
	Program  Program  `json:"program"`
	// TemplateImages has one item for each Template of the plan, sorted by its ID.
	TemplateImages []TemplateImage `json:"templateImages"`
	// Objects lists every object once, sorted by digest.
	Objects []Object `json:"objects"`
}

// Platform is what the program and the images are built for: x86_64 and linux.
type Platform struct {
	Arch string `json:"arch"`
	OS   string `json:"os"`
}

// Runtime says which helmr interfaces the program was built against.
type Runtime struct {
	Protocol int64 `json:"protocol"`
	// SDK is the version of @helmr/sdk inside the program.
	SDK string `json:"sdk"`
}

// Program names the program object and its first module.
type Program struct {
	Digest string `json:"digest"`
	Entry  string `json:"entry"`
}

// TemplateImage is the root filesystem of one Template. Equal images share one object.
type TemplateImage struct {
	Template string      `json:"template"`
	Digest   string      `json:"digest"`
	Config   ImageConfig `json:"config"`
}

// ImageConfig is the part of an image's configuration that a process in a Computer gets.
type ImageConfig struct {
	// Env holds NAME=VALUE strings, as in the image.
	Env []string `json:"env"`
	// Workdir is an absolute path.
	Workdir string `json:"workdir"`
	// User is a name or a number, optionally with ":group"; empty is root.
	User string `json:"user"`
}

// Object is one file of the bundle. Digest is the lower-case hex SHA-256 of its bytes.
type Object struct {
	Digest    string `json:"digest"`
	SizeBytes int64  `json:"sizeBytes"`
	MediaType string `json:"mediaType"`
}

// Plan is the definition index: what the program's modules export, sorted by ID within each kind.
type Plan struct {
	Contract  string     `json:"contract"`
	Agents    []Agent    `json:"agents"`
	Templates []Template `json:"templates"`
}

// Agent is one indexed Agent. Periods are milliseconds; null means never, an absent MaxTurnDurationMs no bound.
type Agent struct {
	ID string `json:"id"`
	// Module is the path of the exporting module under the project root, Export the name it exports.
	Module               string `json:"module"`
	Export               string `json:"export"`
	Template             string `json:"template"`
	HasInit              bool   `json:"has_init"`
	MaxTurnDurationMs    *int64 `json:"max_turn_duration_ms,omitempty"`
	CloseAfterIdleMs     *int64 `json:"close_after_idle_ms"`
	HibernateAfterIdleMs *int64 `json:"hibernate_after_idle_ms"`
}

// Template is one indexed Template. A Template that no module exports by itself has the Export of the Agent through
// which it is reached, followed by ".template".
type Template struct {
	ID                  string        `json:"id"`
	Module              string        `json:"module"`
	Export              string        `json:"export"`
	Resources           Resources     `json:"resources"`
	Network             policy.Policy `json:"network"`
	DeleteAfterUnusedMs *int64        `json:"delete_after_unused_ms"`
	// Secrets are the bindings of its Computers, normalized; absent when there are none.
	Secrets []api.SecretBinding `json:"secrets,omitempty"`
	// Prepare names its prepare callback by the first Template of the program that has the same one; absent without a
	// callback, and then the three below are absent too but for RefreshEveryMs.
	Prepare        string              `json:"prepare,omitempty"`
	PrepareNetwork *policy.Policy      `json:"prepare_network,omitempty"` // absent: Network
	PrepareSecrets []api.SecretBinding `json:"prepare_secrets,omitempty"`
	// RefreshEveryMs is how old a prepared image grows before it is renewed; absent for never.
	RefreshEveryMs *int64 `json:"refresh_every_ms,omitempty"`
}

// PreparePolicy gives the network policy of a preparation; it blocks everything without a callback.
func (t *Template) PreparePolicy() policy.Policy {
	switch {
	case t.Prepare == "":
		return policy.Policy{BlockAll: true}
	case t.PrepareNetwork != nil:
		return *t.PrepareNetwork
	}
	return t.Network
}

// Resources bound a Computer. An absent DiskMiB means the installation's default.
type Resources struct {
	MilliCPU  int64  `json:"milli_cpu"`
	MemoryMiB int64  `json:"memory_mib"`
	DiskMiB   *int64 `json:"disk_mib,omitempty"`
}

// Canonical gives the RFC 8785 form of a value that encodes as JSON.
func Canonical(value any) ([]byte, error) {
	var plain bytes.Buffer
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, fmt.Errorf("encode JSON: %w", err)
	}
	canonical, err := jcs.Transform(plain.Bytes())
	if err != nil {
		return nil, fmt.Errorf("canonicalize JSON: %w", err)
	}
	return canonical, nil
}

// Encode checks a manifest and gives its canonical bytes.
func (m *Manifest) Encode() ([]byte, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	data, err := Canonical(m)
	if err != nil {
		return nil, err
	}
	if len(data) > MaxManifestBytes {
		return nil, tooLarge("manifest", "%d bytes; at most %d are allowed", len(data), MaxManifestBytes)
	}
	return data, nil
}

// Digest is the identity of a bundle or an object: the lower-case hex SHA-256 of its bytes.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Object finds an object of the manifest by digest.
func (m *Manifest) Object(digest string) (Object, bool) {
	for _, o := range m.Objects {
		if o.Digest == digest {
			return o, true
		}
	}
	return Object{}, false
}
