-- Commands: programs run on Computers from outside, and what they wrote.

-- command
-- request is what to run (JSON), kept until the Command is terminal. open says that the guest may hold something of it or
-- is still to be given it: only such Commands take part in the Exchanges of their Computer. reconciled says that no process
-- of it is left for certain. stdout_through and stderr_through are the last chunks stored of each stream, last_record the
-- last number given in command_logs.
CREATE TABLE commands (
  id TEXT PRIMARY KEY,
  environment_id TEXT NOT NULL REFERENCES environments (id),
  computer_id TEXT NOT NULL REFERENCES computers (id),
  status TEXT NOT NULL CHECK (status IN ('pending', 'starting', 'running', 'stopping', 'exited', 'failed', 'cancelled', 'timed_out', 'lost')),
  request TEXT,
  timeout_ms BIGINT NOT NULL,
  cause TEXT CHECK (cause IN ('cancelled', 'timed_out')),
  exit_code BIGINT,
  failure_reason TEXT CHECK (failure_reason IN ('placement_failed', 'guest_failure', 'scope_termination_failed')),
  failure_message TEXT,
  cancel_id TEXT,
  worker_id TEXT REFERENCES workers (id),
  open INTEGER NOT NULL CHECK (open IN (0, 1)),
  reconciled INTEGER NOT NULL CHECK (reconciled IN (0, 1)),
  output_state TEXT NOT NULL CHECK (output_state IN ('open', 'closed', 'unavailable')),
  stdout_through BIGINT NOT NULL,
  stderr_through BIGINT NOT NULL,
  last_record BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  deadline_at BIGINT,
  stopping_at BIGINT,
  terminal_at BIGINT,
  expired_at BIGINT,
  CHECK ((terminal_at IS NOT NULL) = (status IN ('exited', 'failed', 'cancelled', 'timed_out', 'lost'))),
  CHECK ((exit_code IS NOT NULL) = (status = 'exited')),
  CHECK ((failure_reason IS NOT NULL) = (status IN ('failed', 'lost'))),
  CHECK (open = 1 OR terminal_at IS NOT NULL),
  CHECK (open = 1 OR output_state <> 'open')
);
CREATE INDEX commands_open ON commands (computer_id, id) WHERE open = 1;
CREATE INDEX commands_computer ON commands (computer_id, terminal_at);
CREATE INDEX commands_deadline ON commands (deadline_at) WHERE status = 'running';
CREATE INDEX commands_unreconciled ON commands (computer_id, id) WHERE reconciled = 0 AND terminal_at IS NOT NULL;
CREATE INDEX commands_retained ON commands (created_at) WHERE expired_at IS NULL;
-- One record is some chunks of one stream that came together, or (content NULL) chunks that are lost. stream 1 is stdout,
-- 2 is stderr.
CREATE TABLE command_logs (
  command_id TEXT NOT NULL REFERENCES commands (id),
  number BIGINT NOT NULL,
  stream INTEGER NOT NULL CHECK (stream IN (1, 2)),
  first_chunk BIGINT NOT NULL,
  last_chunk BIGINT NOT NULL,
  content BYTEA,
  observed_at BIGINT NOT NULL,
  PRIMARY KEY (command_id, number)
);
