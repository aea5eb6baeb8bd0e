package deployment

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// maxReason is the longest reason of a promotion in bytes.
const maxReason = 4096

// Service is the room's business actions. Ids that it is given are canonical UUIDs or declared ids, checked by the
// caller; an id of another Environment is answered like an unknown one.
type Service struct {
	db      *db.DB
	objects *blob.Store
	// Now is the clock; tests may replace it before the first call.
	Now func() time.Time
}

// NewService makes the room on a database and the store of bundle objects.
func NewService(d *db.DB, objects *blob.Store) *Service {
	return &Service{db: d, objects: objects, Now: time.Now}
}

// Promote makes a finalized Deployment the current one and restores deleted Agents that it declares, all in one
// transaction. Promoting the current Deployment changes nothing and answers its promotion.
func (s *Service) Promote(ctx context.Context, environmentID string, by api.Actor, deploymentID string, req api.PromoteRequest) (api.Promotion, error) {
	if len(req.Reason) > maxReason || !utf8.ValidString(req.Reason) || strings.ContainsRune(req.Reason, 0) {
		return api.Promotion{}, fault.New(fault.BadRequest, "reason must be at most %d bytes of UTF-8 without NUL", maxReason)
	}
	key := access.Request{
		EnvironmentID: environmentID, Caller: by.String(), Operation: "deployment.promote", Target: deploymentID, Key: req.IdempotencyKey,
		Body: map[string]any{"reason": req.Reason},
	}
	var out api.Promotion
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.Promotion{}
		return access.Idempotent(tx, key, &out, func() (err error) {
			out, err = s.promote(tx, environmentID, by, deploymentID, req.Reason)
			return err
		})
	})
	if err != nil {
		return api.Promotion{}, fmt.Errorf("promote: %w", err)
	}
	return out, nil
}

func (s *Service) promote(tx *db.Tx, environmentID string, by api.Actor, deploymentID, reason string) (api.Promotion, error) {
	if err := lockEnvironment(tx, environmentID); err != nil {
		return api.Promotion{}, err
	}
	d, err := read(tx, environmentID, deploymentID)
	if err != nil {
		return api.Promotion{}, err
	}
	if d.Current {
		return api.Promotion{DeploymentID: deploymentID, PromotedAt: *d.PromotedAt, RestoredAgents: []api.AgentRef{}}, nil
	}
	now := db.Millis(s.Now())
	former, err := currentOrNone(tx, environmentID)
	if err != nil {
		return api.Promotion{}, err
	}
	if former != "" {
		if err := addEvent(tx, former, "deployment.superseded", by, reason, now); err != nil {
			return api.Promotion{}, err
		}
	}
	if _, err := tx.Exec(sqlSetCurrent, environmentID, deploymentID); err != nil {
		return api.Promotion{}, fmt.Errorf("move current pointer: %w", err)
	}
	if _, err := tx.Exec(sqlPromotedAt, now, deploymentID); err != nil {
		return api.Promotion{}, fmt.Errorf("write promotion time: %w", err)
	}
	if err := addEvent(tx, deploymentID, "deployment.promoted", by, reason, now); err != nil {
		return api.Promotion{}, err
	}
	restored, err := restoreAgents(tx, environmentID, deploymentID)
	return api.Promotion{DeploymentID: deploymentID, PromotedAt: api.At(now), RestoredAgents: restored}, err
}

// restoreAgents takes the deletion mark off the Agents that a Deployment declares.
func restoreAgents(tx *db.Tx, environmentID, deploymentID string) ([]api.AgentRef, error) {
	restored := []api.AgentRef{}
	err := tx.Query(func(scan func(...any) error) error {
		var a api.AgentRef
		err := scan(&a.ID)
		restored = append(restored, a)
		return err
	}, sqlAgentsDeleted, deploymentID, environmentID)
	if err != nil {
		return nil, fmt.Errorf("find deleted agents: %w", err)
	}
	for _, a := range restored {
		if _, err := tx.Exec(sqlAgentRestore, environmentID, a.ID); err != nil {
			return nil, fmt.Errorf("restore agent: %w", err)
		}
	}
	return restored, nil
}

// addEvent appends to the events of a Deployment.
func addEvent(tx *db.Tx, deploymentID, kind string, by api.Actor, reason string, now int64) error {
	var why *string
	if reason != "" {
		why = &reason
	}
	if _, err := tx.Exec(sqlEventInsert, deploymentID, kind, by.Kind, by.ID, why, now, deploymentID); err != nil {
		return fmt.Errorf("write deployment event: %w", err)
	}
	return nil
}

// Get gives a Deployment with its definitions, or fails with deployment_not_found.
func (s *Service) Get(ctx context.Context, environmentID, deploymentID string) (d api.Deployment, err error) {
	err = s.db.Read(ctx, func(tx *db.Tx) error {
		d, err = readDetail(tx, environmentID, deploymentID)
		return err
	})
	return d, err
}

// Current gives the current Deployment with its definitions, or fails with no_current_deployment.
func (s *Service) Current(ctx context.Context, environmentID string) (d api.Deployment, err error) {
	err = s.db.Read(ctx, func(tx *db.Tx) error {
		deploymentID, err := Current(tx, environmentID)
		if err != nil {
			return err
		}
		d, err = readDetail(tx, environmentID, deploymentID)
		return err
	})
	return d, err
}

// List gives Deployments without their definitions, latest first. A limit of 0 means the default.
func (s *Service) List(ctx context.Context, environmentID, cursor string, limit int) (api.DeploymentPage, error) {
	limit, err := pageSize(limit)
	if err != nil {
		return api.DeploymentPage{}, err
	}
	before, err := numberCursor("deployments", "", cursor, 1<<62)
	if err != nil {
		return api.DeploymentPage{}, err
	}
	var all []api.Deployment
	err = s.db.Read(ctx, func(tx *db.Tx) error {
		return tx.Query(func(scan func(...any) error) error {
			d, err := scanDeployment(scan)
			all = append(all, d)
			return err
		}, sqlDeploymentList, environmentID, before, limit+1)
	})
	if err != nil {
		return api.DeploymentPage{}, fmt.Errorf("list deployments: %w", err)
	}
	page := api.DeploymentPage{Deployments: []api.Deployment{}}
	items, more := cut(all, limit)
	page.Deployments = append(page.Deployments, items...)
	if more {
		page.NextCursor = encodeCursor("deployments", "", strconv.FormatInt(items[limit-1].Version, 10))
	}
	return page, nil
}

// Events gives the events of a Deployment, oldest first.
func (s *Service) Events(ctx context.Context, environmentID, deploymentID, cursor string, limit int) (api.DeploymentEventPage, error) {
	limit, err := pageSize(limit)
	if err != nil {
		return api.DeploymentEventPage{}, err
	}
	after, err := numberCursor("deployment-events", deploymentID, cursor, 0)
	if err != nil {
		return api.DeploymentEventPage{}, err
	}
	var all []api.DeploymentEvent
	err = s.db.Read(ctx, func(tx *db.Tx) error {
		if _, err := read(tx, environmentID, deploymentID); err != nil {
			return err
		}
		return tx.Query(func(scan func(...any) error) error {
			var e api.DeploymentEvent
			var reason *string
			var at int64
			err := scan(&e.Sequence, &e.Kind, &e.Actor.Kind, &e.Actor.ID, &reason, &at)
			if reason != nil {
				e.Reason = *reason
			}
			e.CreatedAt = api.At(at)
			all = append(all, e)
			return err
		}, sqlEventList, deploymentID, after, limit+1)
	})
	if err != nil {
		return api.DeploymentEventPage{}, fmt.Errorf("list deployment events: %w", err)
	}
	page := api.DeploymentEventPage{Events: []api.DeploymentEvent{}}
	items, more := cut(all, limit)
	page.Events = append(page.Events, items...)
	if more {
		page.NextCursor = encodeCursor("deployment-events", deploymentID, strconv.FormatInt(items[limit-1].Sequence, 10))
	}
	return page, nil
}

// numberCursor gives the number in a cursor of a list that is bound to one thing, or start without a cursor.
func numberCursor(list, bound, cursor string, start int64) (int64, error) {
	have, last, err := decodeCursor(list, cursor)
	if err != nil || cursor == "" {
		return start, err
	}
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil || n < 1 || have != bound {
		return 0, badCursor()
	}
	return n, nil
}

// read gives a Deployment without its definitions.
func read(tx *db.Tx, environmentID, deploymentID string) (d api.Deployment, err error) {
	found := false
	err = tx.Query(func(scan func(...any) error) error {
		found = true
		d, err = scanDeployment(scan)
		return err
	}, sqlDeploymentGet, environmentID, deploymentID)
	if err != nil {
		return d, fmt.Errorf("read deployment: %w", err)
	}
	if !found {
		return d, fault.New(fault.DeploymentNotFound, "The Deployment does not exist in this Environment.")
	}
	return d, nil
}

func scanDeployment(scan func(...any) error) (api.Deployment, error) {
	var d api.Deployment
	var createdAt int64
	var promotedAt *int64
	var current int
	err := scan(&d.ID, &d.Version, &d.BundleDigest, &createdAt, &promotedAt, &current)
	d.CreatedAt, d.PromotedAt, d.Current = api.At(createdAt), api.AtOpt(promotedAt), current == 1
	return d, err
}
