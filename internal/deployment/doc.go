// Package deployment is the room of bundles, Deployments, promotion, and the Agent and Template definitions that
// Deployments hold. It is not the builder (internal/build makes bundles) and it runs no project code.
//
// A Deployment is immutable. What changes is which one is current:
//
//	from       event                         to         effects
//	-          finalize complete             finalized  definitions stored, Agent identities registered
//	finalized  promote                       current    current pointer moves, deleted Agents it declares are restored
//	current    another Deployment promoted   finalized  event deployment.superseded
//
// An Agent is an identity in its Environment; Deployments only define it:
//
//	from        event                                          to
//	-           first Deployment declaring it is finalized     registered
//	registered  deletion applied                               deleted
//	deleted     promotion of a Deployment declaring it         registered
//
// Invariants:
//   - An Environment has no current Deployment or exactly one (current_deployments has one row per Environment).
//   - Versions of an Environment count 1, 2, 3 without gaps: finalize and promote take the Environment's row lock.
//   - Nothing is registered before every object of its bundle is in the object store with its digest and size proven.
//   - Definition rows are written once, with their Deployment, and never changed or removed.
//
// It owns the tables bundles, deployments, current_deployments, deployment_events, agents, agent_definitions and
// template_definitions. It reads environments (access) only to lock one row.
//
// Digests are 64 lower-case hex digits of a SHA-256, without a prefix.
package deployment
