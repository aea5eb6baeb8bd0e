-- Template preparation: prepared images, the Computers that make them, and those that start from them.

-- deployment
-- How old a prepared image of the Template grows before it is renewed; NULL for never, or without a prepare callback.
ALTER TABLE template_definitions ADD COLUMN refresh_every_ms BIGINT;
CREATE INDEX template_definitions_refreshing ON template_definitions (deployment_id, template_id) WHERE refresh_every_ms IS NOT NULL;

-- computer
-- A Computer with the purpose preparation makes a prepared image; nobody but the platform sees it. first_disk says what the
-- disk starts with: the image, a prepared image that is not chosen yet (preparation_id is what it waits for), or the chosen
-- one, whose Save's manifest is first_manifest.
ALTER TABLE computers ADD COLUMN purpose TEXT NOT NULL DEFAULT 'use' CHECK (purpose IN ('use', 'preparation'));
ALTER TABLE computers ADD COLUMN first_disk TEXT NOT NULL DEFAULT 'image' CHECK (first_disk IN ('image', 'awaited', 'prepared'));
ALTER TABLE computers ADD COLUMN preparation_id TEXT;
ALTER TABLE computers ADD COLUMN first_manifest TEXT;

CREATE INDEX computers_preparation ON computers (preparation_id) WHERE preparation_id IS NOT NULL;

-- preparation
-- digest is the identity of what is prepared; subject is the identity without the generations of Secret values. computer_id
-- and command_id are those of the last attempt, of which attempts is the number. The manifest is removed when the image is of
-- no more use.
CREATE TABLE preparations (
  id TEXT PRIMARY KEY,
  environment_id TEXT NOT NULL REFERENCES environments (id),
  deployment_id TEXT NOT NULL REFERENCES deployments (id),
  template_id TEXT NOT NULL,
  digest TEXT NOT NULL,
  subject TEXT NOT NULL,
  reason TEXT NOT NULL CHECK (reason IN ('needed', 'refresh', 'rotation')),
  status TEXT NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed')),
  attempts BIGINT NOT NULL,
  losses BIGINT NOT NULL,
  computer_id TEXT REFERENCES computers (id),
  command_id TEXT REFERENCES commands (id),
  save_id TEXT REFERENCES saves (id),
  manifest_digest TEXT,
  error_message TEXT,
  deadline_at BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  started_at BIGINT,
  terminal_at BIGINT,
  CHECK ((terminal_at IS NOT NULL) = (status IN ('succeeded', 'failed'))),
  CHECK ((error_message IS NOT NULL) = (status = 'failed')),
  CHECK (manifest_digest IS NULL OR status = 'succeeded')
);
CREATE UNIQUE INDEX preparations_open ON preparations (environment_id, digest) WHERE status IN ('queued', 'running');
CREATE INDEX preparations_images ON preparations (environment_id, digest, terminal_at) WHERE manifest_digest IS NOT NULL;
CREATE INDEX preparations_subject ON preparations (environment_id, subject, id);
-- The Commands whose output, one after the other, is the log of a preparation.
CREATE TABLE preparation_attempts (
  preparation_id TEXT NOT NULL REFERENCES preparations (id),
  number BIGINT NOT NULL,
  command_id TEXT NOT NULL REFERENCES commands (id),
  PRIMARY KEY (preparation_id, number)
);
