-- What a Computer tried on its network lately.

-- computer
-- attempts is a bounded list as JSON, as the Workers of the Computer reported it.
CREATE TABLE computer_network (
  computer_id TEXT PRIMARY KEY REFERENCES computers (id),
  attempts TEXT NOT NULL,
  updated_at BIGINT NOT NULL
);
