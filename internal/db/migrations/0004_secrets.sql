-- Secrets: sealed values, their placement on Computers, and where they went in readable form.

-- secret
-- A key with which this room encrypts, itself sealed under the root key named by root_id. Root keys are never stored.
CREATE TABLE encryption_keys (
  purpose TEXT PRIMARY KEY,
  root_id TEXT NOT NULL,
  sealed BYTEA NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);
-- version is the present one; revocation is final and leaves it.
CREATE TABLE secrets (
  environment_id TEXT NOT NULL REFERENCES environments (id),
  name TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('active', 'revoked')),
  version BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  rotated_at BIGINT,
  revoked_at BIGINT,
  PRIMARY KEY (environment_id, name),
  CHECK ((revoked_at IS NOT NULL) = (status = 'revoked'))
);
-- Each value that a Secret has had. Former ones stay for attribution and are never opened again.
CREATE TABLE secret_versions (
  environment_id TEXT NOT NULL,
  secret TEXT NOT NULL,
  version BIGINT NOT NULL,
  sealed BYTEA NOT NULL,
  size_bytes BIGINT NOT NULL,
  actor_kind TEXT NOT NULL,
  actor_id TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (environment_id, secret, version),
  FOREIGN KEY (environment_id, secret) REFERENCES secrets (environment_id, name)
);
-- A version was handed to a Computer in readable form: a process received it, or its disk was prepared with it.
CREATE TABLE secret_exposures (
  environment_id TEXT NOT NULL,
  secret TEXT NOT NULL,
  computer_id TEXT NOT NULL,
  version BIGINT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('received', 'image')),
  created_at BIGINT NOT NULL,
  PRIMARY KEY (environment_id, secret, computer_id, version, kind),
  FOREIGN KEY (environment_id, secret, version) REFERENCES secret_versions (environment_id, secret, version)
);

-- computer
-- How many Secrets are bound to the Computer: with none, nothing is looked up.
ALTER TABLE computers ADD COLUMN secrets BIGINT NOT NULL DEFAULT 0;
-- The bindings of a Computer, fixed for life. binding is its JSON as in requests.
CREATE TABLE computer_secrets (
  computer_id TEXT NOT NULL REFERENCES computers (id),
  position BIGINT NOT NULL,
  secret TEXT NOT NULL,
  binding TEXT NOT NULL,
  PRIMARY KEY (computer_id, position)
);
