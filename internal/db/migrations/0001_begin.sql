-- Times are milliseconds since 1970 UTC. Flags are 0 or 1. JSON is kept as text.
-- Each table names the room that owns it: only that room writes it.

-- access
CREATE TABLE organizations (
  id TEXT PRIMARY KEY,
  slug TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE TABLE projects (
  id TEXT PRIMARY KEY,
  organization_id TEXT NOT NULL REFERENCES organizations (id),
  slug TEXT NOT NULL,
  name TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  UNIQUE (organization_id, slug)
);
CREATE TABLE environments (
  id TEXT PRIMARY KEY,
  project_id TEXT NOT NULL REFERENCES projects (id),
  slug TEXT NOT NULL,
  name TEXT NOT NULL,
  color_hex TEXT NOT NULL,
  is_default INTEGER NOT NULL CHECK (is_default IN (0, 1)),
  history_retention_mode TEXT NOT NULL CHECK (history_retention_mode IN ('keep', 'duration')),
  history_retention_seconds BIGINT,
  max_resident_computers BIGINT NOT NULL,
  max_cpu_millis BIGINT NOT NULL,
  max_memory_bytes BIGINT NOT NULL,
  max_reserved_storage_bytes BIGINT NOT NULL,
  max_outstanding_admissions BIGINT NOT NULL,
  max_causal_depth BIGINT NOT NULL,
  admission_rate_per_second BIGINT NOT NULL,
  admission_burst BIGINT NOT NULL,
  preparation_timeout_ms BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  UNIQUE (project_id, slug)
);
CREATE TABLE users (
  id TEXT PRIMARY KEY,
  email TEXT NOT NULL UNIQUE,
  display_name TEXT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE TABLE members (
  organization_id TEXT NOT NULL REFERENCES organizations (id),
  user_id TEXT NOT NULL REFERENCES users (id),
  owner INTEGER NOT NULL CHECK (owner IN (0, 1)),
  status TEXT NOT NULL CHECK (status IN ('active', 'disabled')),
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  PRIMARY KEY (organization_id, user_id)
);
-- key_hash is the SHA-256 of the whole key; the key itself is never stored.
CREATE TABLE api_keys (
  id TEXT PRIMARY KEY,
  environment_id TEXT NOT NULL REFERENCES environments (id),
  name TEXT NOT NULL,
  key_prefix TEXT NOT NULL,
  key_hash TEXT NOT NULL UNIQUE,
  scopes TEXT NOT NULL,
  created_by TEXT REFERENCES users (id),
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  revoked_at BIGINT
);
-- One row is one admitted request with an idempotency key: caller, operation and target scope the key.
CREATE TABLE idempotency_records (
  environment_id TEXT NOT NULL REFERENCES environments (id),
  caller TEXT NOT NULL,
  operation TEXT NOT NULL,
  target TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  receipt TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (environment_id, caller, operation, target, idempotency_key)
);

-- deployment
CREATE TABLE bundles (
  environment_id TEXT NOT NULL REFERENCES environments (id),
  digest TEXT NOT NULL,
  manifest TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (environment_id, digest)
);
-- What an uploaded object may be: announced by a bundle of the Environment, with this size.
CREATE TABLE bundle_objects (
  environment_id TEXT NOT NULL,
  digest TEXT NOT NULL,
  bundle_digest TEXT NOT NULL,
  size_bytes BIGINT NOT NULL,
  PRIMARY KEY (environment_id, digest, bundle_digest),
  FOREIGN KEY (environment_id, bundle_digest) REFERENCES bundles (environment_id, digest)
);
CREATE TABLE deployments (
  id TEXT PRIMARY KEY,
  environment_id TEXT NOT NULL REFERENCES environments (id),
  version BIGINT NOT NULL,
  bundle_digest TEXT NOT NULL,
  program_digest TEXT NOT NULL,
  program_entry TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  promoted_at BIGINT,
  UNIQUE (environment_id, version),
  FOREIGN KEY (environment_id, bundle_digest) REFERENCES bundles (environment_id, digest)
);
-- No row, or exactly one: which Deployment offers definitions for new work.
CREATE TABLE current_deployments (
  environment_id TEXT PRIMARY KEY REFERENCES environments (id),
  deployment_id TEXT NOT NULL REFERENCES deployments (id)
);
CREATE TABLE deployment_events (
  deployment_id TEXT NOT NULL REFERENCES deployments (id),
  sequence BIGINT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('deployment.finalized', 'deployment.promoted', 'deployment.superseded')),
  actor_kind TEXT NOT NULL,
  actor_id TEXT NOT NULL,
  reason TEXT,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (deployment_id, sequence)
);
CREATE TABLE agents (
  environment_id TEXT NOT NULL REFERENCES environments (id),
  id TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  deleted_at BIGINT,
  PRIMARY KEY (environment_id, id)
);
CREATE TABLE agent_definitions (
  deployment_id TEXT NOT NULL REFERENCES deployments (id),
  agent_id TEXT NOT NULL,
  template_id TEXT NOT NULL,
  max_turn_duration_ms BIGINT,
  close_after_idle_ms BIGINT,
  hibernate_after_idle_ms BIGINT,
  definition TEXT NOT NULL,
  PRIMARY KEY (deployment_id, agent_id)
);
CREATE TABLE template_definitions (
  deployment_id TEXT NOT NULL REFERENCES deployments (id),
  template_id TEXT NOT NULL,
  milli_cpu BIGINT NOT NULL,
  memory_mib BIGINT NOT NULL,
  disk_mib BIGINT,
  image_digest TEXT NOT NULL,
  delete_after_unused_ms BIGINT,
  definition TEXT NOT NULL,
  PRIMARY KEY (deployment_id, template_id)
);
CREATE INDEX template_definitions_deleting ON template_definitions (deployment_id, template_id) WHERE delete_after_unused_ms IS NOT NULL;

-- computer
CREATE TABLE workers (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('registering', 'active', 'draining', 'termination_ready', 'lost')),
  secret_hash TEXT NOT NULL,
  cpu_millis BIGINT NOT NULL,
  memory_mib BIGINT NOT NULL,
  disk_mib BIGINT NOT NULL,
  heartbeat_at BIGINT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX workers_name ON workers (name) WHERE status <> 'lost';
-- lease_epoch grows with every placement; a Worker may change a Computer only under the epoch it was given.
-- work_wanted says that runnable work exists; stopping says why a resident Computer is being emptied.
CREATE TABLE computers (
  id TEXT PRIMARY KEY,
  environment_id TEXT NOT NULL REFERENCES environments (id),
  key TEXT,
  template_id TEXT NOT NULL,
  deployment_id TEXT NOT NULL REFERENCES deployments (id),
  status TEXT NOT NULL CHECK (status IN ('available', 'deleting', 'deleted')),
  residency TEXT NOT NULL CHECK (residency IN ('cold', 'starting', 'running', 'hibernating', 'hibernated', 'resuming', 'unavailable')),
  execution_wait TEXT CHECK (execution_wait IN ('scheduling', 'environment_limit', 'saving')),
  error_code TEXT,
  error_message TEXT,
  milli_cpu BIGINT NOT NULL,
  memory_mib BIGINT NOT NULL,
  disk_mib BIGINT NOT NULL,
  image_digest TEXT NOT NULL,
  worker_id TEXT REFERENCES workers (id),
  lease_epoch BIGINT NOT NULL,
  work_wanted INTEGER NOT NULL CHECK (work_wanted IN (0, 1)),
  stopping TEXT CHECK (stopping IN ('unused', 'shutdown', 'drain')),
  stopping_save_id TEXT,
  start_failures BIGINT NOT NULL,
  retry_at BIGINT,
  last_save_number BIGINT NOT NULL,
  recovery_save_id TEXT,
  unused_since BIGINT,
  last_activity_at BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  CHECK ((worker_id IS NOT NULL) = (residency IN ('starting', 'running', 'hibernating', 'resuming'))),
  CHECK ((error_code IS NOT NULL) OR residency <> 'unavailable')
);
CREATE UNIQUE INDEX computers_key ON computers (environment_id, key) WHERE key IS NOT NULL AND status <> 'deleted';
CREATE INDEX computers_environment ON computers (environment_id, id);
CREATE INDEX computers_worker ON computers (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX computers_wanted ON computers (id) WHERE work_wanted = 1 AND residency IN ('cold', 'unavailable');
CREATE INDEX computers_template ON computers (deployment_id, template_id) WHERE status = 'available';
CREATE INDEX computers_unused ON computers (unused_since) WHERE residency = 'running' AND stopping IS NULL;
-- A Save without capture_began_at may still be shared by Turns that finalize now.
CREATE TABLE saves (
  id TEXT PRIMARY KEY,
  computer_id TEXT NOT NULL REFERENCES computers (id),
  number BIGINT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('requested', 'captured', 'published', 'failed')),
  capture_began_at BIGINT,
  manifest_digest TEXT,
  size_bytes BIGINT,
  stored_bytes BIGINT,
  created_at BIGINT NOT NULL,
  published_at BIGINT,
  UNIQUE (computer_id, number)
);
CREATE INDEX saves_unfinished ON saves (computer_id, number) WHERE status IN ('requested', 'captured');

-- session
CREATE TABLE sessions (
  id TEXT PRIMARY KEY,
  environment_id TEXT NOT NULL REFERENCES environments (id),
  agent_id TEXT NOT NULL,
  deployment_id TEXT NOT NULL REFERENCES deployments (id),
  computer_id TEXT NOT NULL REFERENCES computers (id),
  root_session_id TEXT NOT NULL,
  parent_session_id TEXT REFERENCES sessions (id),
  requester_session_id TEXT REFERENCES sessions (id),
  key TEXT,
  status TEXT NOT NULL CHECK (status IN ('open', 'closing', 'closed', 'cancelled')),
  max_turn_duration_ms BIGINT,
  close_after_idle_ms BIGINT,
  hibernate_after_idle_ms BIGINT,
  history_retention_mode TEXT NOT NULL,
  history_retention_seconds BIGINT,
  initial_turn_id TEXT,
  last_turn_sequence BIGINT NOT NULL,
  last_event_sequence BIGINT NOT NULL,
  retained_after BIGINT NOT NULL,
  process_epoch BIGINT NOT NULL,
  initialised INTEGER NOT NULL CHECK (initialised IN (0, 1)),
  recovery_reason TEXT,
  consecutive_failures BIGINT NOT NULL,
  idle_since BIGINT,
  released_at BIGINT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX sessions_key ON sessions (environment_id, agent_id, key) WHERE key IS NOT NULL AND status IN ('open', 'closing');
CREATE INDEX sessions_environment ON sessions (environment_id, id);
CREATE INDEX sessions_computer ON sessions (computer_id, id);
CREATE INDEX sessions_closing ON sessions (id) WHERE status = 'closing';
CREATE INDEX sessions_unreleased ON sessions (computer_id) WHERE released_at IS NULL;
CREATE INDEX sessions_parent ON sessions (parent_session_id) WHERE parent_session_id IS NOT NULL;
CREATE INDEX sessions_idle ON sessions (idle_since) WHERE status = 'open' AND idle_since IS NOT NULL AND close_after_idle_ms IS NOT NULL;
CREATE TABLE session_events (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  sequence BIGINT NOT NULL,
  turn_id TEXT,
  kind TEXT NOT NULL,
  data TEXT,
  process_epoch BIGINT,
  operation BIGINT,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (session_id, sequence)
);
CREATE TABLE holds (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  scope TEXT NOT NULL CHECK (scope IN ('local', 'subtree')),
  reason TEXT NOT NULL CHECK (reason IN ('interrupt', 'process_failures', 'cancellation_failed', 'computer_lost')),
  created_at BIGINT NOT NULL,
  released_at BIGINT
);
CREATE INDEX holds_active ON holds (session_id) WHERE released_at IS NULL;
-- A Session process: at most one that has not ended per Session. last_operation is the highest operation applied.
CREATE TABLE session_processes (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  epoch BIGINT NOT NULL,
  computer_id TEXT NOT NULL REFERENCES computers (id),
  status TEXT NOT NULL CHECK (status IN ('starting', 'ready', 'serving', 'stopping', 'ended')),
  recovery TEXT NOT NULL,
  stop_reason TEXT,
  failure_reason TEXT,
  stopping_at BIGINT,
  last_operation BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  ended_at BIGINT,
  PRIMARY KEY (session_id, epoch)
);
CREATE UNIQUE INDEX session_processes_live ON session_processes (session_id) WHERE status <> 'ended';
CREATE INDEX session_processes_computer ON session_processes (computer_id) WHERE status <> 'ended';
CREATE INDEX session_processes_stopping ON session_processes (stopping_at) WHERE status = 'stopping';

-- turn
CREATE TABLE turns (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  computer_id TEXT NOT NULL REFERENCES computers (id),
  sequence BIGINT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('queued', 'running', 'finalizing', 'completed', 'failed', 'interrupted', 'cancelled')),
  source TEXT NOT NULL,
  input TEXT,
  result TEXT,
  response TEXT,
  error_code TEXT,
  error_message TEXT,
  process_epoch BIGINT,
  processing_open INTEGER NOT NULL CHECK (processing_open IN (0, 1)),
  abort_reason TEXT CHECK (abort_reason IN ('interrupted', 'cancelled', 'deadline', 'shutdown')),
  abort_at BIGINT,
  output_bytes BIGINT NOT NULL,
  deadline_at BIGINT,
  save_id TEXT REFERENCES saves (id),
  completion_save_id TEXT REFERENCES saves (id),
  created_at BIGINT NOT NULL,
  started_at BIGINT,
  terminal_at BIGINT,
  payload_expired_at BIGINT,
  UNIQUE (session_id, sequence),
  CHECK ((terminal_at IS NOT NULL) = (status IN ('completed', 'failed', 'interrupted', 'cancelled'))),
  CHECK (status <> 'finalizing' OR save_id IS NOT NULL),
  CHECK (status NOT IN ('running', 'finalizing') OR process_epoch IS NOT NULL)
);
CREATE INDEX turns_unfinished ON turns (session_id, sequence) WHERE status IN ('queued', 'running', 'finalizing');
CREATE INDEX turns_computer ON turns (computer_id) WHERE status IN ('queued', 'running', 'finalizing');
CREATE INDEX turns_save ON turns (save_id) WHERE status = 'finalizing';
CREATE INDEX turns_deadline ON turns (deadline_at) WHERE status = 'running' AND deadline_at IS NOT NULL;
CREATE INDEX turns_aborting ON turns (abort_at) WHERE status = 'running' AND abort_at IS NOT NULL;
