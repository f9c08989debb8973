"""Child processes: started, bounded, spoken to, and ended with their parent."""
