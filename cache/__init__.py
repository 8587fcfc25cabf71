"""What persists: keys, records, table identity, the shape store, the memo."""
