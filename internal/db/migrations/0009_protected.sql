-- Protected Secrets: what stands for a value inside a Computer, and the authority whose certificates it trusts.

-- computer
-- What a protected binding's variable holds, for the life of the Computer; NULL for other bindings. It is no value.
ALTER TABLE computer_secrets ADD COLUMN placeholder TEXT;
-- The certificate authority of a Computer with protected bindings: made when a Worker first asks for it, for life. Its key is
-- sealed as values of Secrets are.
CREATE TABLE computer_authorities (
  computer_id TEXT PRIMARY KEY REFERENCES computers (id),
  certificate BYTEA NOT NULL,
  sealed_key BYTEA NOT NULL,
  created_at BIGINT NOT NULL
);
