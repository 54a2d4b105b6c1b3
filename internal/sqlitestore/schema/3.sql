-- The media type and the trace context of the event; NULL when they were not given.
ALTER TABLE jobs ADD COLUMN content_type TEXT;
ALTER TABLE jobs ADD COLUMN traceparent TEXT;
-- The size in bytes of a body that was too large to be kept; NULL when none was.
ALTER TABLE jobs ADD COLUMN payload_omitted INTEGER;
-- How often an operator has put the work back into the queue.
ALTER TABLE jobs ADD COLUMN work_requeues INTEGER NOT NULL DEFAULT 0;
