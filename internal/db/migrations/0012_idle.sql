-- Sessions by the moment at which their idle clock runs out.
DROP INDEX sessions_idle;
CREATE INDEX sessions_idle ON sessions ((idle_since + close_after_idle_ms)) WHERE status = 'open' AND idle_since IS NOT NULL AND close_after_idle_ms IS NOT NULL;
-- What an Environment has on Workers.
CREATE INDEX computers_resident ON computers (environment_id) WHERE worker_id IS NOT NULL;
