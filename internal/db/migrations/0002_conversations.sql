-- Conversations: live Messages, Questions, admission limits of Environments, retention.

-- access
-- Records about a Session expire with its history: what was asked and answered is gone, that it was asked is known.
ALTER TABLE idempotency_records ADD COLUMN session_id TEXT;
ALTER TABLE idempotency_records ADD COLUMN expired_at BIGINT;
CREATE INDEX idempotency_records_session ON idempotency_records (session_id) WHERE session_id IS NOT NULL AND expired_at IS NULL;

-- computer
-- reserved_mib is at least the disk that the Environment's Computers reserve: it grows with each Computer and is counted
-- anew only when it would pass the limit.
CREATE TABLE environment_reservations (
  environment_id TEXT PRIMARY KEY REFERENCES environments (id),
  reserved_mib BIGINT NOT NULL
);

-- session
-- When what a released Session held was taken out of its history.
ALTER TABLE sessions ADD COLUMN payload_expired_at BIGINT;
CREATE INDEX sessions_expiring ON sessions ((released_at + history_retention_seconds * 1000)) WHERE payload_expired_at IS NULL AND history_retention_mode = 'duration';

-- turn
-- messages and questions count what the Turn was given and has asked: the number of the next one, and whether to look.
ALTER TABLE turns ADD COLUMN environment_id TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN messages BIGINT NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN questions BIGINT NOT NULL DEFAULT 0;
UPDATE turns SET environment_id = (SELECT s.environment_id FROM sessions s WHERE s.id = turns.session_id);
CREATE INDEX turns_outstanding ON turns (environment_id) WHERE status IN ('queued', 'running', 'finalizing');
-- Messages of a Turn are handled in the order of their numbers.
CREATE TABLE messages (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  turn_id TEXT NOT NULL REFERENCES turns (id),
  number BIGINT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('admitted', 'started', 'delivered', 'rejected')),
  delivery TEXT NOT NULL CHECK (delivery IN ('admitted', 'started', 'delivered', 'not_delivered', 'uncertain')),
  reason TEXT CHECK (reason IN ('message_rejected', 'callback_failed', 'turn_closed', 'process_lost')),
  data TEXT,
  created_at BIGINT NOT NULL,
  settled_at BIGINT,
  UNIQUE (turn_id, number),
  CHECK ((status = 'rejected') = (reason IS NOT NULL)),
  CHECK ((status IN ('delivered', 'rejected')) = (settled_at IS NOT NULL))
);
CREATE INDEX messages_unsettled ON messages (turn_id, number) WHERE status IN ('admitted', 'started');
CREATE INDEX messages_session ON messages (session_id);
-- The runtime chooses the id, so that it names a Question only within its Turn. digest is of the whole Question and
-- answer_digest of the answer: they tell a repetition from a conflict, also after the payloads have expired.
-- settled_by_process says that the process itself withdrew it and needs to hear no more.
CREATE TABLE questions (
  turn_id TEXT NOT NULL REFERENCES turns (id),
  id TEXT NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  number BIGINT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('pending', 'responded', 'cancelled')),
  digest TEXT NOT NULL,
  prompt TEXT,
  answer_control TEXT,
  answer TEXT,
  answer_digest TEXT,
  response_id TEXT,
  responder_kind TEXT CHECK (responder_kind IN ('user', 'api_key')),
  responder_id TEXT,
  settled_by_process INTEGER NOT NULL CHECK (settled_by_process IN (0, 1)),
  created_at BIGINT NOT NULL,
  responded_at BIGINT,
  cancelled_at BIGINT,
  payload_expired_at BIGINT,
  PRIMARY KEY (turn_id, id),
  UNIQUE (turn_id, number),
  CHECK ((status = 'responded') = (responded_at IS NOT NULL)),
  CHECK ((status = 'responded') = (response_id IS NOT NULL AND answer_digest IS NOT NULL AND responder_kind IS NOT NULL AND responder_id IS NOT NULL)),
  CHECK ((status = 'cancelled') = (cancelled_at IS NOT NULL))
);
CREATE INDEX questions_pending ON questions (turn_id, number) WHERE status = 'pending';
CREATE INDEX questions_session ON questions (session_id);
-- An operation of a living process that was refused: asked again, it is refused the same way.
CREATE TABLE refused_operations (
  session_id TEXT NOT NULL REFERENCES sessions (id),
  process_epoch BIGINT NOT NULL,
  operation BIGINT NOT NULL,
  code TEXT NOT NULL,
  message TEXT NOT NULL,
  PRIMARY KEY (session_id, process_epoch, operation)
);
-- free_at_us is when, in microseconds since 1970, the rate bucket of the Environment is full again. outstanding is at
-- least the number of its unfinished Turns: it grows with each admission and is counted anew only at the limit, so that
-- a Turn that ends need not touch this row.
CREATE TABLE environment_admissions (
  environment_id TEXT PRIMARY KEY REFERENCES environments (id),
  free_at_us BIGINT NOT NULL,
  outstanding BIGINT NOT NULL
);
