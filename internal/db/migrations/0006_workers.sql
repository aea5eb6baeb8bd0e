-- Workers: enrollment tokens, drains, and the Worker that a Computer was on.

-- computer
-- A token with which new Workers enroll. Only its hash is kept; prefix is what people recognise it by.
CREATE TABLE worker_tokens (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  prefix TEXT NOT NULL,
  token_hash TEXT NOT NULL UNIQUE,
  created_by TEXT,
  created_at BIGINT NOT NULL,
  last_used_at BIGINT,
  revoked_at BIGINT
);
-- shutdown_at is when a draining Worker's running work is stopped in order; NULL waits for it.
ALTER TABLE workers ADD COLUMN shutdown_at BIGINT;
-- discarded_at is when the machine of a lost Worker enrolled again: once it is active, nothing of before is left there.
ALTER TABLE workers ADD COLUMN discarded_at BIGINT;
-- The Worker of the last placement: it may still have what the Computer starts from.
ALTER TABLE computers ADD COLUMN last_worker_id TEXT;
