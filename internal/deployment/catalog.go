package deployment

import (
	"context"
	"encoding/json"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// Agents lists Agents by id. Scope "current" (also "") gives those of the current Deployment, or of deploymentID if it
// is not empty; scope "all" gives every identity of the Environment, deleted ones included. Later pages stay on the
// Deployment of the first one.
func (s *Service) Agents(ctx context.Context, environmentID, scope, deploymentID, cursor string, limit int) (api.AgentPage, error) {
	limit, err := pageSize(limit)
	if err != nil {
		return api.AgentPage{}, err
	}
	switch {
	case scope != "" && scope != "current" && scope != "all":
		return api.AgentPage{}, fault.New(fault.BadRequest, `scope must be "current" or "all"`)
	case scope == "all" && deploymentID != "":
		return api.AgentPage{}, fault.New(fault.BadRequest, "deployment_id cannot be combined with scope=all")
	}
	list := "agents"
	if scope == "all" {
		list = "agents-all"
	}
	bound, after, err := decodeCursor(list, cursor)
	if err != nil {
		return api.AgentPage{}, err
	}
	page := api.AgentPage{Agents: []api.Agent{}}
	err = s.db.Read(ctx, func(tx *db.Tx) error {
		current, err := currentOrNone(tx, environmentID)
		if err != nil {
			return err
		}
		of := deploymentID
		if scope != "all" {
			if of, err = listDeployment(tx, environmentID, current, deploymentID, bound); err != nil || of == "" {
				return err
			}
		}
		page, err = agentPage(tx, environmentID, current, of, list, after, limit)
		return err
	})
	if err != nil {
		return api.AgentPage{}, fmt.Errorf("list agents: %w", err)
	}
	return page, nil
}

// listDeployment settles which Deployment a list is about: the one that its cursor is bound to, the asked one, or the
// current one ("" if there is none).
func listDeployment(tx *db.Tx, environmentID, current, asked, bound string) (string, error) {
	of := current
	switch {
	case bound != "" && asked != "" && bound != asked:
		return "", badCursor()
	case bound != "":
		of = bound
	case asked != "":
		of = asked
	}
	if of == "" || of == current {
		return of, nil
	}
	_, err := read(tx, environmentID, of)
	if bound != "" && fault.Is(err, fault.DeploymentNotFound) {
		return "", badCursor()
	}
	return of, err
}

// agentPage reads Agents of one Deployment, or all of the Environment if of is empty.
func agentPage(tx *db.Tx, environmentID, current, of, list, after string, limit int) (api.AgentPage, error) {
	query, args := sqlAgentsAll, []any{current, environmentID, after, limit + 1}
	if of != "" {
		query, args = sqlAgentsIn, []any{current, of, environmentID, after, limit + 1}
	}
	var all []api.Agent
	err := tx.Query(func(scan func(...any) error) error {
		a, err := scanAgent(scan)
		all = append(all, a)
		return err
	}, query, args...)
	if err != nil {
		return api.AgentPage{}, err
	}
	page := api.AgentPage{Agents: []api.Agent{}}
	items, more := cut(all, limit)
	page.Agents = append(page.Agents, items...)
	if more {
		page.NextCursor = encodeCursor(list, of, items[limit-1].ID)
	}
	return page, nil
}

func scanAgent(scan func(...any) error) (api.Agent, error) {
	var a api.Agent
	var createdAt int64
	var deletedAt *int64
	var current int
	err := scan(&a.ID, &createdAt, &deletedAt, &current)
	a.CreatedAt, a.DeletedAt, a.InCurrentDeployment = api.At(createdAt), api.AtOpt(deletedAt), current == 1
	return a, err
}

// Agent gives one Agent with its definition in deploymentID, or in the current Deployment if that is empty. The
// definition is nil when that Deployment lacks the Agent, or when none is current.
func (s *Service) Agent(ctx context.Context, environmentID, agentID, deploymentID string) (api.AgentDetail, error) {
	var a api.AgentDetail
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		current, err := currentOrNone(tx, environmentID)
		if err != nil {
			return err
		}
		found := false
		err = tx.Query(func(scan func(...any) error) error {
			found = true
			a.Agent, err = scanAgent(scan)
			return err
		}, sqlAgentGet, current, environmentID, agentID)
		if err != nil {
			return err
		}
		if !found {
			return fault.New(fault.NotFound, "The Agent does not exist in this Environment.")
		}
		of, err := listDeployment(tx, environmentID, current, deploymentID, "")
		if err != nil || of == "" {
			return err
		}
		a.Definition, err = agentDetail(tx, of, agentID)
		return err
	})
	if err != nil {
		return api.AgentDetail{}, fmt.Errorf("get agent: %w", err)
	}
	return a, nil
}

func agentDetail(tx *db.Tx, deploymentID, agentID string) (*api.AgentDefinition, error) {
	d := api.AgentDefinition{DeploymentID: deploymentID}
	var text string
	found, err := tx.Get([]any{&d.Template, &d.MaxTurnDuration, &d.CloseAfterIdle, &d.HibernateAfterIdle, &text}, sqlAgentDetail, deploymentID, agentID)
	if err != nil || !found {
		return nil, err
	}
	var rest agentRest
	if err := json.Unmarshal([]byte(text), &rest); err != nil {
		return nil, fmt.Errorf("decode agent definition: %w", err)
	}
	d.Triggers = rest.Triggers
	return &d, nil
}

// Templates lists the Templates of deploymentID, or of the current Deployment if that is empty, by id. Later pages stay
// on the Deployment of the first one.
func (s *Service) Templates(ctx context.Context, environmentID, deploymentID, cursor string, limit int) (api.TemplatePage, error) {
	limit, err := pageSize(limit)
	if err != nil {
		return api.TemplatePage{}, err
	}
	bound, after, err := decodeCursor("templates", cursor)
	if err != nil {
		return api.TemplatePage{}, err
	}
	var of string
	var all []api.TemplateInfo
	err = s.db.Read(ctx, func(tx *db.Tx) error {
		if of, err = templateDeployment(tx, environmentID, deploymentID, bound); err != nil {
			return err
		}
		return tx.Query(func(scan func(...any) error) error {
			t, err := scanTemplate(scan)
			all = append(all, t)
			return err
		}, sqlTemplateList, of, after, limit+1)
	})
	if err != nil {
		return api.TemplatePage{}, fmt.Errorf("list templates: %w", err)
	}
	page := api.TemplatePage{DeploymentID: of, Templates: []api.TemplateInfo{}}
	items, more := cut(all, limit)
	page.Templates = append(page.Templates, items...)
	if more {
		page.NextCursor = encodeCursor("templates", of, items[limit-1].Template)
	}
	return page, nil
}

// templateDeployment is listDeployment for reads that need a Deployment.
func templateDeployment(tx *db.Tx, environmentID, asked, bound string) (string, error) {
	current, err := currentOrNone(tx, environmentID)
	if err != nil {
		return "", err
	}
	of, err := listDeployment(tx, environmentID, current, asked, bound)
	if err == nil && of == "" {
		_, err = Current(tx, environmentID)
	}
	return of, err
}

// Template gives one Template of deploymentID, or of the current Deployment if that is empty.
func (s *Service) Template(ctx context.Context, environmentID, templateID, deploymentID string) (api.TemplateInfo, error) {
	var t api.TemplateInfo
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		of, err := templateDeployment(tx, environmentID, deploymentID, "")
		if err != nil {
			return err
		}
		found := false
		err = tx.Query(func(scan func(...any) error) error {
			found = true
			t, err = scanTemplate(scan)
			return err
		}, sqlTemplateDetail, of, templateID)
		if err == nil && !found {
			return fault.New(fault.NotFound, "The Deployment has no such Template.")
		}
		t.DeploymentID = of
		return err
	})
	if err != nil {
		return api.TemplateInfo{}, fmt.Errorf("get template: %w", err)
	}
	return t, nil
}

func scanTemplate(scan func(...any) error) (api.TemplateInfo, error) {
	var t api.TemplateInfo
	var text string
	if err := scan(&t.Template, &t.Resources.MilliCPU, &t.Resources.MemoryMiB, &t.Resources.DiskMiB, &text); err != nil {
		return t, err
	}
	var rest templateRest
	if err := json.Unmarshal([]byte(text), &rest); err != nil {
		return t, fmt.Errorf("decode template definition: %w", err)
	}
	t.Network, t.PrepareNetwork, t.PrepareSecrets = rest.Network, rest.PrepareNetwork, rest.PrepareSecrets
	return t, nil
}

// readDetail gives a Deployment with its definitions.
func readDetail(tx *db.Tx, environmentID, deploymentID string) (api.Deployment, error) {
	d, err := read(tx, environmentID, deploymentID)
	if err != nil {
		return d, err
	}
	err = tx.Query(func(scan func(...any) error) error {
		var a api.DeploymentAgent
		var text string
		if err := scan(&a.ID, &a.Template, &a.MaxTurnDuration, &a.CloseAfterIdle, &a.HibernateAfterIdle, &text); err != nil {
			return err
		}
		var rest agentRest
		if err := json.Unmarshal([]byte(text), &rest); err != nil {
			return fmt.Errorf("decode agent definition: %w", err)
		}
		a.Triggers = rest.Triggers
		d.Agents = append(d.Agents, a)
		return nil
	}, sqlAgentsOf, deploymentID)
	if err != nil {
		return d, fmt.Errorf("read agents of deployment: %w", err)
	}
	err = tx.Query(func(scan func(...any) error) error {
		var t api.DeploymentTemplate
		err := scan(&t.ID, &t.Resources.MilliCPU, &t.Resources.MemoryMiB, &t.Resources.DiskMiB)
		d.Templates = append(d.Templates, t)
		return err
	}, sqlTemplatesOf, deploymentID)
	if err != nil {
		return d, fmt.Errorf("read templates of deployment: %w", err)
	}
	return d, nil
}
