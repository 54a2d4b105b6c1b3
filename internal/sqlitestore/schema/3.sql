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

-- The id up to its first colon, empty without one.
ALTER TABLE jobs ADD COLUMN work_group TEXT GENERATED ALWAYS AS (substr(job_id, 1, max(instr(job_id, ':') - 1, 0))) VIRTUAL;
-- Work that can be claimed, now or later, for claims with a prefix.
CREATE INDEX jobs_due_under ON jobs (work_group, work_due) WHERE work_state IN ('queued', 'leased');
