-- How far ahead work_due was set, in milliseconds; NULL where schema 1 set it.
ALTER TABLE jobs ADD COLUMN work_granted INTEGER;
-- Leases in a row that ended without a word of their holder.
ALTER TABLE jobs ADD COLUMN work_lapses INTEGER NOT NULL DEFAULT 0;

-- Work that can be claimed, now or later, by when it is due. States that only a newer version knows are not in it.
DROP INDEX jobs_due;
CREATE INDEX jobs_due ON jobs (work_due, work_granted) WHERE work_state IN ('queued', 'leased');
-- Those that are due are counted. There are none but after going back to an older version.
CREATE INDEX jobs_unclaimable ON jobs (work_due) WHERE work_due IS NOT NULL AND work_state NOT IN ('queued', 'leased');

-- Whoever deletes a job deletes its body, with any tool: the next job may get the same id.
CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs BEGIN
  DELETE FROM large_bodies WHERE id = OLD.id;
END;

-- Which write-ahead log goes on from this file: a log that lies beside another file, such as a restored backup, is recognised.
CREATE TABLE file (
  one    INTEGER PRIMARY KEY CHECK (one = 1),
  log    BLOB NOT NULL, -- random, anew for each log, each backup and each file
  before BLOB NOT NULL  -- what it was before this log began; zeros when there was none
) STRICT;
INSERT INTO file VALUES (1, randomblob(16), zeroblob(16));
