-- The media type and the trace context of the event; NULL when they were not given.
ALTER TABLE jobs ADD COLUMN content_type TEXT;
ALTER TABLE jobs ADD COLUMN traceparent TEXT;
-- The size in bytes of a body that was too large to be kept; NULL when none was.
ALTER TABLE jobs ADD COLUMN payload_omitted INTEGER;
-- How often an operator has put the work back into the queue.
ALTER TABLE jobs ADD COLUMN work_requeues INTEGER NOT NULL DEFAULT 0;

-- Who made the call that request_id is of, and the one that holds the lease; NULL where no callers were configured.
ALTER TABLE jobs ADD COLUMN caller TEXT;
ALTER TABLE jobs ADD COLUMN work_caller TEXT;

-- Work that can be claimed, now or later, for claims with a prefix: by the id up to its first colon, empty without one.
CREATE INDEX jobs_due_under ON jobs (substr(job_id, 1, max(instr(job_id, ':') - 1, 0)), work_due)
  WHERE work_state IN ('queued', 'leased');

-- The lists of jobs, by when they were first seen: of each state, and of those in conflict. That of all jobs is made of those of
-- the states, so that recording a job costs one entry. The condition is always met; it keeps the index out of the plans of claims.
CREATE INDEX jobs_state ON jobs (work_state, first_seen, job_id) WHERE work_state <> '';
CREATE INDEX jobs_conflict ON jobs (first_seen, job_id) WHERE conflicts > 0;

-- Webhooks that are to come. Recording deliveries does not touch them.
CREATE TABLE expectations (
  job_id     TEXT    NOT NULL PRIMARY KEY,
  status_url TEXT    NOT NULL,
  created    INTEGER NOT NULL,
  overdue    INTEGER NOT NULL,
  give_up    INTEGER NOT NULL,
  due        INTEGER,                     -- when it is looked at next; NULL once it was given up
  leased     INTEGER NOT NULL,            -- 1 while a poller has it, until it is due
  token      TEXT,                        -- the latest poller's
  polls      INTEGER NOT NULL,
  error      TEXT,
  given_up   INTEGER,                     -- when it was given up
  -- The id up to its first colon, empty without one.
  job_group  TEXT GENERATED ALWAYS AS (substr(job_id, 1, max(instr(job_id, ':') - 1, 0))) VIRTUAL
) STRICT;
CREATE INDEX expectations_due ON expectations (due) WHERE due IS NOT NULL;
-- For pollers whose jobs have a prefix.
CREATE INDEX expectations_due_under ON expectations (job_group, due) WHERE due IS NOT NULL;
CREATE INDEX expectations_overdue ON expectations (overdue) WHERE given_up IS NULL;

-- Prefixes of ids of jobs whose work is not to be claimed.
CREATE TABLE claim_pauses (
  prefix TEXT    NOT NULL PRIMARY KEY,
  since  INTEGER NOT NULL,
  reason TEXT    NOT NULL
) STRICT;

-- The highest generation of a job that was deleted, with any tool: the next lease of its id is above it, whatever the clock says.
ALTER TABLE file ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0;
CREATE TRIGGER jobs_deleted_generation AFTER DELETE ON jobs WHEN OLD.work_generation > (SELECT deleted FROM file) BEGIN
  UPDATE file SET deleted = OLD.work_generation;
END;
