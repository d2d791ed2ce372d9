-- When a file left the archive, since its decisions were as old as the archive keeps them. Null: it is there.
ALTER TABLE audit_archives ADD COLUMN removed_at timestamptz;
