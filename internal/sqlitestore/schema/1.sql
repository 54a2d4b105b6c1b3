-- Times are milliseconds since 1970. A small body stands in the job's row; a large one apart, so that counting a delivery
-- does not rewrite it. The view bodies has both.
CREATE TABLE jobs (
  id              INTEGER PRIMARY KEY,
  job_id          TEXT    NOT NULL UNIQUE,
  event           TEXT    NOT NULL,
  status          TEXT    NOT NULL,
  fingerprint     BLOB    NOT NULL, -- SHA-256 of the body; empty when there is none
  request_id      TEXT    NOT NULL, -- the call that made the record
  source          TEXT    NOT NULL,
  first_seen      INTEGER NOT NULL,
  last_seen       INTEGER NOT NULL,
  deliveries      INTEGER NOT NULL,
  body_kind       INTEGER NOT NULL, -- 0 none, 1 text, 2 bytes
  payload_dropped INTEGER,          -- when retention dropped the body
  conflicts       INTEGER NOT NULL DEFAULT 0,
  conflict_kind   INTEGER,          -- the latest conflict: 1 event, 2 payload
  conflict_event  TEXT,
  conflict_status TEXT,
  conflict_time   INTEGER,
  work_state      TEXT    NOT NULL, -- untracked, queued, leased, completed, dead
  work_mode       TEXT    NOT NULL, -- untracked, leased, queued
  work_due        INTEGER,
  work_token      TEXT,
  work_generation INTEGER NOT NULL DEFAULT 0,
  work_attempts   INTEGER NOT NULL DEFAULT 0,
  work_request_id  TEXT,            -- the RecordDelivery call that holds the lease,
  work_fingerprint BLOB,            -- and its body's fingerprint
  work_claim_id    TEXT,            -- the ClaimWork call that holds the lease
  work_result      TEXT,
  work_error       TEXT,
  text             TEXT,            -- the body, if it is small
  bytes            BLOB
) STRICT;

-- Work that is waiting or under way, by when it is due. Finished jobs are in neither index.
CREATE INDEX jobs_due ON jobs (work_due) WHERE work_due IS NOT NULL;
CREATE INDEX jobs_claim ON jobs (work_claim_id) WHERE work_claim_id IS NOT NULL;

CREATE TABLE large_bodies (
  id    INTEGER PRIMARY KEY, -- jobs.id
  text  TEXT,
  bytes BLOB
) STRICT;

CREATE VIEW bodies (id, text, bytes) AS
  SELECT jobs.id, coalesce(jobs.text, large_bodies.text), coalesce(jobs.bytes, large_bodies.bytes)
  FROM jobs LEFT JOIN large_bodies USING (id);
