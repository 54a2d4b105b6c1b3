-- How far ahead work_due was set, in milliseconds; NULL where schema 1 set it.
ALTER TABLE jobs ADD COLUMN work_granted INTEGER;
-- Leases in a row that ended without a word of their holder.
ALTER TABLE jobs ADD COLUMN work_lapses INTEGER NOT NULL DEFAULT 0;

-- Work that can be claimed, now or later, by when it is due. States that only a newer version knows are not in it.
DROP INDEX jobs_due;
CREATE INDEX jobs_due ON jobs (work_due, work_granted) WHERE work_state IN ('queued', 'leased');

-- Whoever deletes a job deletes its body, with any tool: the next job may get the same id.
CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs BEGIN
  DELETE FROM large_bodies WHERE id = OLD.id;
END;

-- Which file this is, and which of its write-ahead logs goes on from it: a log beside another file is recognised.
CREATE TABLE file (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  id  BLOB    NOT NULL, -- random; a backup has another one
  wal INTEGER NOT NULL  -- counts the write-ahead logs
) STRICT;
INSERT INTO file VALUES (1, randomblob(16), 0);
