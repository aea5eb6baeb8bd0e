-- What Workers keep in blob storage.

-- storage
-- Whoever makes an Environment rely on objects, or retires some, locks its row first. collected_at is when the last
-- collection of its garbage began.
CREATE TABLE storage (
  environment_id TEXT PRIMARY KEY REFERENCES environments (id),
  collected_at BIGINT NOT NULL
);
-- References of pieces and names of manifests that nothing may rely on any more: their objects are being removed, or were.
CREATE TABLE retired_objects (
  environment_id TEXT NOT NULL REFERENCES environments (id),
  name TEXT NOT NULL,
  retired_at BIGINT NOT NULL,
  PRIMARY KEY (environment_id, name)
);
CREATE INDEX retired_objects_age ON retired_objects (environment_id, retired_at);
