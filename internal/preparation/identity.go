package preparation

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/secret"
	"helmr.dev/helmr/internal/secret/binding"
)

// subject is everything that a preparation is made from but the values of Secrets. The callback is named by the first
// Template of the program that has it, so that Templates that share one share what it prepares.
type subject struct {
	Program     string              `json:"program"`
	Callback    string              `json:"callback"`
	Image       string              `json:"image"`
	ImageConfig json.RawMessage     `json:"image_config"`
	MilliCPU    int64               `json:"milli_cpu"`
	MemoryMiB   int64               `json:"memory_mib"`
	DiskMiB     int64               `json:"disk_mib"`
	Network     json.RawMessage     `json:"network"`
	Secrets     []api.SecretBinding `json:"secrets"`
}

// identity is what a preparation of a Template would be made from now.
type identity struct {
	template *deployment.TemplateDefinition
	// program and entry are those of the Deployment.
	program, entry string
	// subject and digest are SHA-256 in hex; digest has the generations of the Secret values in it.
	subject, digest string
	// revoked is the first bound Secret that is revoked, "" for none: with it nothing can be prepared, or started.
	revoked string
}

// identify gives the identity of the preparation of a Template now, nil if the Deployment does not prepare it.
func identify(tx *db.Tx, environmentID, deploymentID, templateID string) (*identity, error) {
	t, err := deployment.FindTemplate(tx, deploymentID, templateID)
	if err != nil || t == nil || !t.Prepared() {
		return nil, err
	}
	i := &identity{template: t}
	if i.program, i.entry, err = deployment.Program(tx, deploymentID); err != nil {
		return nil, err
	}
	disk := int64(computer.DefaultDiskMiB)
	if t.DiskMiB != nil {
		disk = *t.DiskMiB
	}
	i.subject, err = digest(subject{Program: i.program, Callback: t.Prepare, Image: t.ImageDigest, ImageConfig: t.ImageConfig, MilliCPU: t.MilliCPU,
		MemoryMiB: t.MemoryMiB, DiskMiB: disk, Network: t.PrepareNetwork, Secrets: t.PrepareSecrets})
	if err != nil {
		return nil, err
	}
	whole := struct {
		Subject     string           `json:"subject"`
		Generations map[string]int64 `json:"generations"`
	}{i.subject, map[string]int64{}}
	for _, name := range binding.Names(t.PrepareSecrets) {
		v, err := secret.Find(tx, environmentID, name)
		if err != nil {
			return nil, err
		}
		if v == nil {
			return nil, fmt.Errorf("secret %s, which Template %s binds, does not exist", name, templateID)
		}
		if v.Usable() != nil {
			i.revoked = cmp.Or(i.revoked, name)
		}
		whole.Generations[name] = v.Version
	}
	i.digest, err = digest(whole)
	return i, err
}

// digest hashes the JSON form of v, whose fields and keys have one order.
func digest(v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode identity: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
