package deployment

import (
	"encoding/json"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// AgentDefinition is what one Deployment says of an Agent. Periods are milliseconds; nil means never (for
// MaxTurnDurationMs: unbounded).
type AgentDefinition struct {
	AgentID              string
	TemplateID           string
	MaxTurnDurationMs    *int64
	CloseAfterIdleMs     *int64
	HibernateAfterIdleMs *int64
}

// TemplateDefinition is what one Deployment says of a Template. ImageDigest names the object that holds the image as
// an OCI archive; ImageConfig is the image's run configuration ({"env", "workdir", "user"}). A nil DiskMiB means the
// platform's default disk; a nil DeleteAfterUnusedMs means never.
type TemplateDefinition struct {
	TemplateID          string
	MilliCPU            int64
	MemoryMiB           int64
	DiskMiB             *int64
	ImageDigest         string
	DeleteAfterUnusedMs *int64
	ImageConfig         json.RawMessage
	Network             json.RawMessage // the normalized network policy
	// Secrets are the bindings of its Computers, normalized.
	Secrets []api.SecretBinding
	// Prepare names its prepare callback by the first Template of the program that has the same one; "" without a callback.
	// PrepareNetwork and PrepareSecrets are of its phase.
	Prepare        string
	PrepareNetwork json.RawMessage
	PrepareSecrets []api.SecretBinding
	// RefreshEveryMs is how old a prepared image grows before it is renewed; nil for never.
	RefreshEveryMs *int64
}

// Prepared tells whether the disks of its Computers are prepared by a callback.
func (t *TemplateDefinition) Prepared() bool { return t.Prepare != "" }

// Current gives the current Deployment of an Environment. Without one it fails with no_current_deployment.
func Current(tx *db.Tx, environmentID string) (string, error) {
	deploymentID, err := currentOrNone(tx, environmentID)
	if err == nil && deploymentID == "" {
		return "", fault.New(fault.NoCurrentDeployment, "The Environment has no current Deployment; deploy or promote one first.")
	}
	return deploymentID, err
}

// RequireOf refuses a Deployment that is not of the Environment: deployment_not_found.
func RequireOf(tx *db.Tx, environmentID, deploymentID string) error {
	_, err := read(tx, environmentID, deploymentID)
	return err
}

// currentOrNone is Current with "" for none.
func currentOrNone(tx *db.Tx, environmentID string) (string, error) {
	var deploymentID string
	if _, err := tx.Get([]any{&deploymentID}, sqlCurrent, environmentID); err != nil {
		return "", fmt.Errorf("read current deployment: %w", err)
	}
	return deploymentID, nil
}

// FindAgent gives the definition of an Agent in a Deployment, nil if the Deployment does not declare it.
func FindAgent(tx *db.Tx, deploymentID, agentID string) (*AgentDefinition, error) {
	a := AgentDefinition{AgentID: agentID}
	found, err := tx.Get([]any{&a.TemplateID, &a.MaxTurnDurationMs, &a.CloseAfterIdleMs, &a.HibernateAfterIdleMs}, sqlFindAgent, deploymentID, agentID)
	if err != nil {
		return nil, fmt.Errorf("read agent definition: %w", err)
	}
	if !found {
		return nil, nil
	}
	return &a, nil
}

// FindTemplate gives the definition of a Template in a Deployment, nil if the Deployment does not declare it.
func FindTemplate(tx *db.Tx, deploymentID, templateID string) (*TemplateDefinition, error) {
	t := TemplateDefinition{TemplateID: templateID}
	var text string
	found, err := tx.Get([]any{&t.MilliCPU, &t.MemoryMiB, &t.DiskMiB, &t.ImageDigest, &t.DeleteAfterUnusedMs, &t.RefreshEveryMs, &text}, sqlFindTemplate, deploymentID, templateID)
	if err != nil {
		return nil, fmt.Errorf("read template definition: %w", err)
	}
	if !found {
		return nil, nil
	}
	var rest templateRest
	if err := json.Unmarshal([]byte(text), &rest); err != nil {
		return nil, fmt.Errorf("decode template definition: %w", err)
	}
	t.ImageConfig, t.Secrets, t.Network, t.Prepare, t.PrepareNetwork = rest.ImageConfig, rest.Secrets, rest.Network, rest.Prepare, rest.PrepareNetwork
	if len(rest.PrepareSecrets) > 0 {
		if err := json.Unmarshal(rest.PrepareSecrets, &t.PrepareSecrets); err != nil {
			return nil, fmt.Errorf("decode template definition: %w", err)
		}
	}
	return &t, nil
}

// Refreshed names a Template of a current Deployment whose prepared image is renewed.
type Refreshed struct {
	EnvironmentID, DeploymentID, TemplateID string
	EveryMs                                 int64
}

// Refreshing gives the Templates of all current Deployments whose prepared images are renewed.
func Refreshing(tx *db.Tx) ([]Refreshed, error) {
	var out []Refreshed
	err := tx.Query(func(scan func(...any) error) error {
		var r Refreshed
		err := scan(&r.EnvironmentID, &r.DeploymentID, &r.TemplateID, &r.EveryMs)
		out = append(out, r)
		return err
	}, sqlRefreshing)
	if err != nil {
		return nil, fmt.Errorf("read refreshing templates: %w", err)
	}
	return out, nil
}

// AgentDeleted tells whether an Agent identity of the Environment is marked deleted. An unknown Agent is not.
func AgentDeleted(tx *db.Tx, environmentID, agentID string) (bool, error) {
	var deletedAt *int64
	if _, err := tx.Get([]any{&deletedAt}, sqlAgentDeletedAt, environmentID, agentID); err != nil {
		return false, fmt.Errorf("read agent: %w", err)
	}
	return deletedAt != nil, nil
}

// Program gives the program of a Deployment: the digest of its object and the entry file inside it.
func Program(tx *db.Tx, deploymentID string) (digest, entry string, err error) {
	found, err := tx.Get([]any{&digest, &entry}, sqlProgram, deploymentID)
	if err != nil {
		return "", "", fmt.Errorf("read program: %w", err)
	}
	if !found {
		return "", "", fmt.Errorf("read program: deployment %s does not exist", deploymentID)
	}
	return digest, entry, nil
}

// agentRest and templateRest are the definition columns: what is shown or handed on, but never searched for.
type agentRest struct {
	Triggers json.RawMessage `json:"triggers"`
}

type templateRest struct {
	ImageConfig    json.RawMessage     `json:"image_config"`
	Network        json.RawMessage     `json:"network"`
	PrepareNetwork json.RawMessage     `json:"prepare_network"`
	PrepareSecrets json.RawMessage     `json:"prepare_secrets"`
	Secrets        []api.SecretBinding `json:"secrets,omitempty"`
	Prepare        string              `json:"prepare,omitempty"`
}

var emptyList = json.RawMessage(`[]`)

// writeDefinitions registers Agent identities and writes what a manifest defines.
func writeDefinitions(tx *db.Tx, environmentID, deploymentID string, now int64, m *bundle.Manifest) error {
	images := make(map[string]bundle.TemplateImage, len(m.TemplateImages))
	for _, image := range m.TemplateImages {
		images[image.Template] = image
	}
	for _, t := range m.Plan.Templates {
		image := images[t.ID]
		config, err := json.Marshal(image.Config)
		if err != nil {
			return fmt.Errorf("encode image config: %w", err)
		}
		network, err := json.Marshal(t.Network)
		if err != nil {
			return fmt.Errorf("encode network policy: %w", err)
		}
		rest := templateRest{ImageConfig: config, Network: network, PrepareSecrets: emptyList, Secrets: t.Secrets, Prepare: t.Prepare}
		if rest.PrepareNetwork, err = json.Marshal(t.PreparePolicy()); err != nil {
			return fmt.Errorf("encode network policy: %w", err)
		}
		if len(t.PrepareSecrets) > 0 {
			if rest.PrepareSecrets, err = json.Marshal(t.PrepareSecrets); err != nil {
				return fmt.Errorf("encode bindings: %w", err)
			}
		}
		text, err := json.Marshal(rest)
		if err != nil {
			return fmt.Errorf("encode template definition: %w", err)
		}
		var refresh *int64 // of a prepared image: without a callback there is none
		if t.Prepare != "" {
			refresh = t.RefreshEveryMs
		}
		_, err = tx.Exec(sqlTemplateInsert, deploymentID, t.ID, t.Resources.MilliCPU, t.Resources.MemoryMiB, t.Resources.DiskMiB,
			image.Digest, t.DeleteAfterUnusedMs, refresh, string(text))
		if err != nil {
			return fmt.Errorf("write template definition: %w", err)
		}
	}
	for _, a := range m.Plan.Agents {
		rest, err := json.Marshal(agentRest{Triggers: emptyList})
		if err != nil {
			return fmt.Errorf("encode agent definition: %w", err)
		}
		if _, err := tx.Exec(sqlAgentInsert, environmentID, a.ID, now); err != nil {
			return fmt.Errorf("register agent: %w", err)
		}
		_, err = tx.Exec(sqlAgentDefinitionInsert, deploymentID, a.ID, a.Template, a.MaxTurnDurationMs, a.CloseAfterIdleMs, a.HibernateAfterIdleMs, string(rest))
		if err != nil {
			return fmt.Errorf("write agent definition: %w", err)
		}
	}
	return nil
}
