-- Hibernation.

-- computer
-- A capture is the memory of a hibernated Computer; its disk is the Save published with it. A row is there as long as the
-- memory may be restored. platform says what it can be restored with.
CREATE TABLE captures (
  id TEXT PRIMARY KEY,
  computer_id TEXT NOT NULL UNIQUE REFERENCES computers (id),
  save_id TEXT NOT NULL REFERENCES saves (id),
  memory_manifest TEXT NOT NULL,
  platform TEXT NOT NULL,
  size_bytes BIGINT NOT NULL,
  stored_bytes BIGINT NOT NULL,
  created_at BIGINT NOT NULL
);
-- The capture that is under way while hibernating, and then the one that the Computer is hibernated in.
ALTER TABLE computers ADD COLUMN capture_id TEXT;
DROP INDEX computers_wanted;
CREATE INDEX computers_wanted ON computers (id) WHERE work_wanted = 1 AND residency IN ('cold', 'unavailable', 'hibernated');

-- session
CREATE INDEX sessions_hibernating ON sessions ((idle_since + hibernate_after_idle_ms))
  WHERE status IN ('open', 'closing') AND idle_since IS NOT NULL AND hibernate_after_idle_ms IS NOT NULL;
