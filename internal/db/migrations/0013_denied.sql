-- Addresses that no Computer may reach, because the installation itself is there.

-- computer
-- owner is a Worker's id, or 'servers' for what servers see of themselves, the database and the blob storage. An address is
-- denied for a while after it was last seen.
CREATE TABLE denied_addresses (
  owner TEXT NOT NULL,
  address TEXT NOT NULL,
  seen_at BIGINT NOT NULL,
  PRIMARY KEY (owner, address)
);
