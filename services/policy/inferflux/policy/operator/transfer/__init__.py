"""Everything that administrators have set as one document: exported, and imported again."""
